"""The verb `cel`, in this process and in one of its own."""

import subprocess
import sys
from typing import Final

import pytest

from tensorfusion_dra import cli
from tests.support import forks
from tests.support.waiting import PATIENCE_SECONDS

A100: Final = 'device.attributes["model"] == "A100"'
"""A selector in the user guide's CEL."""


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of the command."""
    code = cli.main(["cel", *arguments])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def squeezed(out: str) -> list[str]:
    """The lines that were printed, each without its columns' blanks."""
    return [" ".join(line.split()) for line in out.splitlines()]


def child(*arguments: str, stdin: str = "", without_cel: bool = False) -> tuple[int, str, str]:
    """The command in a process of its own, if wanted without the extra `cel`."""
    if not without_cel:
        forked = forks.run("cel", *arguments, stdin=stdin.encode())
        return forked.returncode, forked.stdout, forked.stderr
    hide = "sys.modules['cel_expr_python'] = None"
    code = f"import sys; {hide}; from tensorfusion_dra import cli; sys.exit(cli.main())"
    ended = subprocess.run(
        [sys.executable, "-c", code, "cel", *arguments],
        input=stdin.encode(),
        capture_output=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    return ended.returncode, ended.stdout.decode(), ended.stderr.decode()

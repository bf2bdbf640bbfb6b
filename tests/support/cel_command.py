"""The verb `cel`, run in this process or in a process of its own."""

from typing import Final

import pytest

from tensorfusion_dra import cli
from tests.support import forks

A100: Final = 'device.attributes["model"] == "A100"'
"""A selector in the form of CEL that the user guide shows."""


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Run the command; return its exit code, stdout and stderr."""
    code = cli.main(["cel", *arguments])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def squeezed(out: str) -> list[str]:
    """Return the printed lines, each with runs of blanks reduced to one."""
    return [" ".join(line.split()) for line in out.splitlines()]


def child(*arguments: str, stdin: str = "") -> tuple[int, str, str]:
    """Run the command in a process of its own; return its exit code, stdout and stderr."""
    forked = forks.run("cel", *arguments, stdin=stdin.encode())
    return forked.returncode, forked.stdout, forked.stderr

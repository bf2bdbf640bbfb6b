"""Modules that a process loads."""

import subprocess
import sys

from tests.support.waiting import PATIENCE_SECONDS


def loaded(statement: str, *candidates: str) -> list[str]:
    """Return which of these modules a new interpreter has loaded after an import statement."""
    code = f"import sys\n{statement}\nprint(*sorted({set(candidates)!r} & set(sys.modules)))"
    ended = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=True,
    )
    return ended.stdout.split()

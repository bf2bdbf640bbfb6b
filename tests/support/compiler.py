"""The C compiler that some tests need."""

import os
import shutil

import pytest


def compiler(what: str) -> str:
    """Return the compiler's path. Without a compiler the test is skipped, but on CI it fails.

    Args:
        what: What needs the compiler, for the message.
    """
    found = shutil.which("cc")
    if found is None and os.environ.get("CI"):
        pytest.fail(f"found no C compiler cc, expected one where CI is set: {what} need it")
    if found is None:
        pytest.skip(f"found no C compiler cc, expected one for {what}")
    return found

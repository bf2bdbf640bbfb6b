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
    if found is None:
        refuse = pytest.fail if os.environ.get("CI") else pytest.skip
        refuse(f"found no C compiler cc, expected one for {what}")
    return found

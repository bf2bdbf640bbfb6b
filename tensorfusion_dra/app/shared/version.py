"""Name and version of this package."""

from typing import Final

NAME: Final = "tensorfusion-dra"
"""Name of the distribution and of the command."""


def current() -> str:
    """Return the version of the code that runs; a test compares it with pyproject.toml."""
    return "0.1.0"

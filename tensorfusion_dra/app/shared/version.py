"""Version of this package, as set in pyproject.toml."""

from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Final

NAME: Final = "tensorfusion-dra"
"""Name of the distribution and of the command."""
_PYPROJECT: Final = Path(__file__).parents[3] / "pyproject.toml"


@cache
def current() -> str:
    """Return the version of the code that runs, or "unknown" for a bare copy of the package.

    In a checkout that is the version in pyproject.toml, even if another version is installed in
    the same environment. Everywhere else it is the version that the package was installed with.
    """
    if _PYPROJECT.exists():
        import tomllib  # noqa: PLC0415 - the image has no such file

        project = tomllib.loads(_PYPROJECT.read_text(encoding="utf-8")).get("project", {})
        # Beside an installed package the file may belong to another project.
        if project.get("name") == NAME:
            return str(project["version"])
    try:
        return metadata.version(NAME)
    except metadata.PackageNotFoundError:
        return "unknown"

"""Packages of other authors, installed into a folder as pip would leave them."""

from collections.abc import Mapping
from pathlib import Path


def install(
    folder: Path, name: str, groups: Mapping[str, Mapping[str, str]], code: str = ""
) -> None:
    """Install a package with one module into a folder that is on the path of modules.

    Args:
        folder: Added to sys.path by the caller.
        name: Of the distribution, version 1.0; its module has the same name with underscores.
        groups: Entry points by group and name, such as ``rack_attributes:rack``.
        code: Of the module.
    """
    module = name.replace("-", "_")
    (folder / f"{module}.py").write_text(code)
    described = folder / f"{module}-1.0.dist-info"
    described.mkdir()
    (described / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = [
        line
        for group, entries in groups.items()
        for line in (f"[{group}]", *(f"{key} = {value}" for key, value in entries.items()))
    ]
    (described / "entry_points.txt").write_text("\n".join(lines) + "\n")

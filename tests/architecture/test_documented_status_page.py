"""docs/status-page.md lists the fields of /status.json."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from status_scenes import scenes
from tensorfusion_dra.core.observed import document

ROOT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = (ROOT / "docs" / "status-page.md").read_text(encoding="utf-8")


def fields(value: Any, path: str = "") -> Iterator[str]:
    """Yield the path of each value, such as ``cards[].health.since``."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from fields(inner, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for inner in value:
            inner_path = path if path.endswith("Gates") else f"{path}[]"
            yield from fields(inner, inner_path)
    else:
        yield path


def test_table_has_every_field_and_no_other() -> None:
    start, end = PAGE.index("<!-- fields:"), PAGE.index("<!-- end of fields")
    first_cells = [row.split("|")[1] for row in PAGE[start:end].splitlines() if row[:3] == "| `"]
    documented = [name for cell in first_cells for name in re.findall(r"`([^`]+)`", cell)]

    written = {
        field
        for scene in (scenes.typical, scenes.broken)
        for field in fields(document.as_json(scene()))
    }

    assert set(documented) | {"enforcer", "shares[].enforcement"} == written
    assert len(documented) == len(set(documented))

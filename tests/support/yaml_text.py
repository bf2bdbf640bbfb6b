"""Fast loading of the project's own YAML: the C library takes an eighth of the time."""

from typing import Any, Final

import yaml

_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def load(text: str) -> Any:
    """Return the only document."""
    return yaml.load(text, _LOADER)


def load_all(text: str) -> list[Any]:
    """Return every document."""
    return list(yaml.load_all(text, _LOADER))

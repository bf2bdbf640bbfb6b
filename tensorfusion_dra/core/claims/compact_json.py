"""JSON text without spaces, for values of variables."""

import json
from typing import Final

_ENCODER: Final = json.JSONEncoder(separators=(",", ":"))


def text(value: object) -> str:
    """Return the value as JSON. (json.dumps would make a new encoder for each call.)"""
    return _ENCODER.encode(value)

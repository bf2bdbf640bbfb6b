"""Problems of a card that the NVIDIA driver does not report."""

import os
from collections.abc import Sequence
from pathlib import Path

from tensorfusion_dra.extend import Gpu, Problem

FOLDER = Path(os.environ.get("EXAMPLE_PROVIDER_FOLDER", "/run/example-provider"))


class Source:
    """Source of problems: a file with the card's UUID for a name says what is wrong with it."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self._folder = folder

    def __call__(self, gpu: Gpu) -> Sequence[Problem]:
        """Return what is wrong with the card now."""
        try:
            text = (self._folder / gpu.uuid).read_text(encoding="utf-8").strip()
        except FileNotFoundError:
            return []
        return [Problem(reason="example-provider", text=text)]

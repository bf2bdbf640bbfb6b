"""Figures of an earlier run, from the file into which `-o json` was written."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from benchmark.cells import Cell
from benchmark.target import TargetError


class Recorded:
    """The figures of one driver in an earlier run.

    Attributes:
        name: For tables: the name of the file.
        facts: The file, the conditions of that run, and the driver.
    """

    def __init__(self, file: Path) -> None:
        """Read the file.

        Raises:
            TargetError: It has no figures of exactly one driver.
        """
        try:
            found = json.loads(file.read_text(encoding="utf-8"))
            (self._driver,) = found["subjects"]
            self._rows: Sequence[Mapping[str, Any]] = found["rows"]
            conditions = found["conditions"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise TargetError(
                f"{file}: expected the JSON of a run with one driver: {error!r}"
            ) from error
        self.name = file.name
        self.facts: dict[str, Any] = {
            "file": str(file),
            "conditions": conditions,
            **found["subjects"][self._driver],
        }

    @property
    def cells(self) -> list[Cell]:
        """The combinations of settings that the run has figures of."""
        settings = [each.name for each in fields(Cell)]
        return [Cell(**{name: row[name] for name in settings}) for row in self._rows]

    def figures(self, cell: Cell) -> Mapping[str, Any]:
        """Return the figures of each call at these settings.

        Raises:
            TargetError: The run had other settings.
        """
        for row, known in zip(self._rows, self.cells, strict=True):
            if known == cell:
                found: Mapping[str, Any] = row["figures"][self._driver]
                return found
        raise TargetError(f"{self.name}: found no figures for {cell.as_json()}, expected some")

"""How amounts, names of devices and tables are shown to people."""

import re
from collections.abc import Iterable, Sequence
from typing import Final

from tensorfusion_dra.core.kubernetes.quantity import NANO, Quantity


def table(rows: Iterable[Sequence[object]], *, indent: str = "  ") -> list[str]:
    """Return the rows as lines in which every column is as wide as its widest cell."""
    texts = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    return [
        (indent + "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True))).rstrip()
        for row in texts
    ]


_MILLI: Final = re.compile(r"\b([0-9]+)m\b")


def shown(amount: Quantity) -> str:
    """Return a quantity with a decimal point instead of the suffix m: ``71.2`` for ``71200m``."""
    whole, rest = divmod(amount.nano, NANO)
    if not rest or amount.nano < 0:
        return str(amount)
    return f"{whole}.{rest:09}".rstrip("0")


def with_points(text: str) -> str:
    """Return a text in which each amount in thousandths has a decimal point instead."""
    return _MILLI.sub(lambda found: shown(Quantity.milli(int(found[1]))), text)


_LEAST_LENGTH: Final = len("gpu-") + 4


def short_names(devices: Iterable[str]) -> dict[str, str]:
    """Return each name cut to the fewest characters that are unique, such as ``gpu-363a``."""
    every = set(devices)
    for length in range(_LEAST_LENGTH, max(map(len, every), default=0)):
        if len({name[:length] for name in every}) == len(every):
            return {name: name[:length] for name in every}
    return {name: name for name in every}

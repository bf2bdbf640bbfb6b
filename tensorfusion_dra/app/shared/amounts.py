"""Amounts as people write them."""

import re
from typing import Final

from tensorfusion_dra.core.kubernetes.quantity import NANO, Quantity

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

"""The names of cards: how two of them are compared and what users call a card."""

import re
from itertools import zip_longest
from typing import Final

LAPTOP_SUFFIX: Final = " laptop gpu"
"""NVML's ending for the mobile card of a name, in lower case."""

MAX_MODEL_BYTES: Final = 64
"""The longest string attribute of a ResourceSlice (resource.k8s.io/v1)."""

_VENDOR_PREFIX: Final = re.compile(r"(?:nvidia\s+)?(?:tesla\s+)?", re.IGNORECASE)

# Words that do not tell one model from another: who makes it, how it is mounted and cooled, which
# memory it has. Memory and compute have capacities of their own to select by.
_DROPPED: Final = re.compile(
    r"nvidia|tesla|geforce|generation|edition|workstation|server|with|design|laptop|gpu"
    r"|sxm[0-9]*|pcie|nvl|ac|lc|hbm[0-9]\w*|[0-9]+gb?",
    re.IGNORECASE,
)
# `A100-SXM4-80GB` is an A100; `A100-40C` is a part of one, given by a hypervisor.
_CHIP_AND_BOARD: Final = re.compile(r"([A-Za-z]{1,3}[0-9]+[A-Za-z]{0,2})-.+")
_VGPU: Final = re.compile(r".+-[0-9]+[ABCQ](?:ME)?")
_AMPERE_WORKSTATION: Final = re.compile(r"A[0-9]{3,4}")


def key(name: str) -> str:
    """The form in which two names of one card are equal.

    Older drivers leave out ``NVIDIA``, other tools write ``NVIDIA Tesla``, and people mix cases.
    """
    words = " ".join(name.split())
    return words[_vendor_length(words) :].lower()


def is_laptop(name: str) -> bool:
    """Whether NVML's name is that of a mobile card."""
    return key(name).endswith(LAPTOP_SUFFIX)


def desktop_name(name: str) -> str:
    """A mobile card's name without its ending."""
    return " ".join(name.split())[: -len(LAPTOP_SUFFIX)]


def short_model(product_name: str) -> str:
    """What users select a card by: ``A100``, ``H100``, ``RTX4090``, ``RTX4070TiS``, ``A6000``.

    Never empty and at most 64 bytes. A mobile card ends in ``Laptop``, and one of lower power in
    ``MaxQ``, so that neither is taken for its desktop namesake.
    """
    words = [_ascii(word) for word in product_name.split()]
    kept = [_chip(word) for word in words if word and not _DROPPED.fullmatch(word)]
    # "RTX A6000" is known as A6000; every other RTX is not known without it.
    kept = [
        word
        for word, after in zip_longest(kept, kept[1:], fillvalue="")
        if not (word.upper() == "RTX" and _AMPERE_WORKSTATION.fullmatch(after))
    ]
    short = "".join("S" if word.upper() == "SUPER" else word for word in kept)
    short = short or "".join(words) or "unknown"
    ending = "Laptop" if is_laptop(product_name) else ""
    return short[: MAX_MODEL_BYTES - len(ending)] + ending


def _vendor_length(words: str) -> int:
    match = _VENDOR_PREFIX.match(words)
    return match.end() if match else 0


def _ascii(word: str) -> str:
    return re.sub(r"[^A-Za-z0-9.-]", "", word)


def _chip(word: str) -> str:
    if _VGPU.fullmatch(word):
        return word
    match = _CHIP_AND_BOARD.fullmatch(word)
    return match[1] if match else word.replace("-", "")

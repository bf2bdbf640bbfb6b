"""Names of cards: the form for comparisons, and the short name that users select by."""

import re
from itertools import zip_longest
from typing import Final

LAPTOP_SUFFIX: Final = " laptop gpu"
"""End of NVML's names of mobile cards, in lower case."""

MAX_MODEL_BYTES: Final = 64
"""Longest string attribute that a ResourceSlice allows (resource.k8s.io/v1)."""

_VENDOR_PREFIX: Final = re.compile(r"^(?:nvidia\s+)?(?:tesla\s+)?", re.IGNORECASE)

# Words that do not distinguish models: vendor, form factor, cooling, memory. To select by memory or
# compute, users name capacities.
_DROPPED: Final = re.compile(
    r"nvidia|tesla|geforce|generation|edition|workstation|server|with|design|laptop|gpu"
    r"|sxm[0-9]*|pcie|nvl|ac|lc|hbm[0-9]\w*|[0-9]+gb?",
    re.IGNORECASE,
)
# `A100-SXM4-80GB` is an A100; `A100-40C` is a vGPU, a part of an A100 from a hypervisor.
_CHIP_AND_BOARD: Final = re.compile(r"([A-Za-z]{1,3}[0-9]+[A-Za-z]{0,2})-.+")
_VGPU: Final = re.compile(r".+-[0-9]+[ABCQ](?:ME)?")
_AMPERE_WORKSTATION: Final = re.compile(r"A[0-9]{3,4}")


def key(name: str) -> str:
    """Return the form of a name in which all names of one card are equal.

    Older drivers omit ``NVIDIA``, other tools write ``NVIDIA Tesla``, and people mix cases.
    """
    words = " ".join(name.split())
    return _VENDOR_PREFIX.sub("", words).lower()


def is_laptop(name: str) -> bool:
    """Return True if NVML's name is that of a mobile card."""
    return key(name).endswith(LAPTOP_SUFFIX)


def desktop_name(name: str) -> str:
    """Return the name of a mobile card without its laptop suffix."""
    return " ".join(name.split())[: -len(LAPTOP_SUFFIX)]


def short_model(product_name: str) -> str:
    """Return the name that users select by: ``A100``, ``H100``, ``RTX4090``, ``RTX4070TiS``.

    It is never empty and has at most 64 bytes. A mobile card ends in ``Laptop`` and a low-power one
    in ``MaxQ``, so that selectors for the desktop card of this name match neither.
    """
    words = [re.sub(r"[^A-Za-z0-9.-]", "", word) for word in product_name.split()]
    kept = [_chip(word) for word in words if word and not _DROPPED.fullmatch(word)]
    # "RTX A6000" is commonly called A6000; all other RTX cards keep the word.
    kept = [
        word
        for word, after in zip_longest(kept, kept[1:], fillvalue="")
        if not (word.upper() == "RTX" and _AMPERE_WORKSTATION.fullmatch(after))
    ]
    short = "".join("S" if word.upper() == "SUPER" else word for word in kept)
    short = short or "".join(words) or "unknown"
    ending = "Laptop" if is_laptop(product_name) else ""
    return short[: MAX_MODEL_BYTES - len(ending)] + ending


def _chip(word: str) -> str:
    if _VGPU.fullmatch(word):
        return word
    match = _CHIP_AND_BOARD.fullmatch(word)
    return match[1] if match else word.replace("-", "")

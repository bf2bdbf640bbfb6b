"""Cards that can be simulated by name."""

import difflib
import re
from dataclasses import dataclass
from typing import Final

from tensorfusion_dra.core.kubernetes.quantity import MIB
from tensorfusion_dra.discovery import model_names


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """NVML's data of a card model.

    Attributes:
        product_name: NVML's name.
        vram_bytes: As NVML reports it, usually a little less than the size in the name.
        compute_capability: (0, 0) if it is not known.
    """

    product_name: str
    vram_bytes: int
    compute_capability: tuple[int, int] = (0, 0)


def _card(product_name: str, memory_mib: int, compute_capability: tuple[int, int]) -> Card:
    return Card(
        product_name=product_name,
        vram_bytes=memory_mib * MIB,
        compute_capability=compute_capability,
    )


CARDS: Final = (
    _card("Tesla P100-PCIE-16GB", 16384, (6, 0)),
    _card("Tesla P40", 24576, (6, 1)),
    _card("Tesla V100-SXM2-16GB", 16384, (7, 0)),
    _card("Tesla V100-SXM2-32GB", 32768, (7, 0)),
    _card("Tesla V100-PCIE-16GB", 16384, (7, 0)),
    _card("Tesla V100S-PCIE-32GB", 32768, (7, 0)),
    _card("Tesla T4", 15360, (7, 5)),
    _card("NVIDIA A100-SXM4-40GB", 40960, (8, 0)),
    _card("NVIDIA A100-SXM4-80GB", 81920, (8, 0)),
    _card("NVIDIA A100-PCIE-40GB", 40960, (8, 0)),
    _card("NVIDIA A100 80GB PCIe", 81920, (8, 0)),
    _card("NVIDIA A800-SXM4-80GB", 81920, (8, 0)),
    _card("NVIDIA A30", 24576, (8, 0)),
    _card("NVIDIA A10", 23028, (8, 6)),
    _card("NVIDIA A10G", 23028, (8, 6)),
    _card("NVIDIA A40", 46068, (8, 6)),
    _card("NVIDIA RTX A6000", 49140, (8, 6)),
    _card("NVIDIA GeForce RTX 3080", 10240, (8, 6)),
    _card("NVIDIA GeForce RTX 3090", 24576, (8, 6)),
    _card("NVIDIA L4", 23034, (8, 9)),
    _card("NVIDIA L40", 46068, (8, 9)),
    _card("NVIDIA L40S", 46068, (8, 9)),
    _card("NVIDIA RTX 6000 Ada Generation", 49140, (8, 9)),
    _card("NVIDIA GeForce RTX 4090", 24564, (8, 9)),
    _card("NVIDIA H100 80GB HBM3", 81559, (9, 0)),
    _card("NVIDIA H100 PCIe", 81559, (9, 0)),
    _card("NVIDIA H100 NVL", 95830, (9, 0)),
    _card("NVIDIA H20", 97871, (9, 0)),
    _card("NVIDIA H200", 143771, (9, 0)),
    _card("NVIDIA GH200 480GB", 97871, (9, 0)),
    _card("NVIDIA B200", 183359, (10, 0)),
    _card("NVIDIA GeForce RTX 5090", 32607, (12, 0)),
    _card("NVIDIA RTX PRO 6000 Blackwell Server Edition", 97887, (12, 0)),
)

# nvmlDeviceArchitecture_t by the major compute capability; (7, 5) and (8, 9) are exceptions.
_ARCHITECTURES: Final = {6: 4, 7: 5, 8: 7, 9: 9, 10: 10, 12: 10}


def named(name: str) -> Card | None:
    """Return the card of that name; None if there is none, or several with the same short name.

    The name is NVML's, with or without ``NVIDIA``, or the short one. Blanks, dashes and case do not
    matter, so that a shorthand may use ``H100-80GB-HBM3``.
    """
    wanted = _squeezed(name)
    exact = [card for card in CARDS if _squeezed(card.product_name) == wanted]
    short = [card for card in CARDS if model_names.short_model(card.product_name).lower() == wanted]
    found = exact or short
    return found[0] if len(found) == 1 else None


def similar_names(name: str) -> tuple[str, ...]:
    """Return a few similar names, in the form for a shorthand."""
    wanted = _squeezed(name)
    spellings = {_squeezed(card.product_name): card for card in CARDS}
    close = difflib.get_close_matches(wanted, spellings, n=4, cutoff=0.5)
    longer = [key for key in spellings if wanted and wanted in key]
    return tuple(_dashed(spellings[key]) for key in dict.fromkeys([*longer, *close]))[:6]


def brand(product_name: str) -> int:
    """Return the nvmlBrandType_t of a card with that name."""
    words = product_name.upper().split()
    if "GEFORCE" in words:
        return 5
    if "TESLA" in words:
        return 2
    return 13 if "RTX" in words else 14


def architecture(compute_capability: tuple[int, int]) -> int | None:
    """Return the nvmlDeviceArchitecture_t; None for an unknown capability."""
    if compute_capability == (7, 5):
        return 6
    if compute_capability == (8, 9):
        return 8
    return _ARCHITECTURES.get(compute_capability[0])


def _squeezed(name: str) -> str:
    return re.sub(r"[\s_-]", "", model_names.key(name.replace("-", " ").replace("_", " ")))


def _dashed(card: Card) -> str:
    return "-".join(card.product_name.removeprefix("NVIDIA ").split())

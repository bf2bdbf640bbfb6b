"""Models of cards: their names, and their compute by the tables or by an estimate."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from itertools import zip_longest
from pathlib import Path
from typing import Final

from tensorfusion_dra.core.devices.gpu import TflopsSource
from tensorfusion_dra.core.errors import InputError
from tensorfusion_dra.core.kubernetes import device_rules
from tensorfusion_dra.core.kubernetes.untyped_json import is_number
from tensorfusion_dra.discovery import gpu_models, yaml_file
from tensorfusion_dra.discovery.yaml_file import shown

MAX_TFLOPS: Final = 1_000_000
"""More than any card has; a larger figure is an error of units."""

LAPTOP_SUFFIX: Final = " laptop gpu"
"""End of NVML's names of mobile cards, in lower case."""

_VENDOR_PREFIX: Final = re.compile(r"^(?:nvidia\s+)?(?:tesla\s+)?", re.IGNORECASE)

# Words that do not distinguish models: vendor, form factor, cooling, memory. To select by memory or
# compute, users name capacities.
_DROPPED: Final = re.compile(
    r"nvidia|tesla|geforce|generation|edition|workstation|server|with|design|laptop|gpu"
    r"|sxm[0-9]*|pcie|nvl|ac|lc|hbm[0-9]\w*|[0-9]+gb?",
    re.IGNORECASE,
)
# `A100-SXM4-80GB` is an A100; `A100-40C` is a vGPU, a part of an A100 from a hypervisor.
_CHIP_AND_BOARD: Final = re.compile(r"^([A-Za-z]{1,3}[0-9]+[A-Za-z]{0,2})-.+$")
_VGPU: Final = re.compile(r".+-[0-9]+[ABCQ](?:ME)?")
_AMPERE_WORKSTATION: Final = re.compile(r"A[0-9]{3,4}")

# Dense FP16 operations per CUDA core and clock on the tensor cores, accumulating in FP32; a fused
# multiply-add (FMA) counts as two. Computed from NVIDIA's architecture whitepapers: FMAs per tensor
# core and clock, times tensor cores, divided by CUDA cores of one multiprocessor, times two.
_FLOPS_PER_CORE_CLOCK: Final = {
    (6, 0): 4,  # no tensor cores; packed FP16 at twice the rate of FP32
    (6, 1): 2,  # FP16 at 1/64 of FP32, so programs use FP32
    (7, 0): 16,  # 64 FMA x 8 / 64
    (7, 5): 16,  # 64 FMA x 8 / 64
    (8, 0): 32,  # 256 FMA x 4 / 64
    (8, 6): 8,  # 128 FMA x 4 / 128
    (8, 9): 8,  # 128 FMA x 4 / 128
    (9, 0): 32,  # 512 FMA x 4 / 128
    (10, 0): 64,  # 1024 FMA x 4 / 128
    (10, 3): 64,  # 1024 FMA x 4 / 128
    (12, 0): 8,  # 128 FMA x 4 / 128
}
# The minimum of any CUDA core: one FP32 multiply-add. This is correct for cards older than the
# table. For newer ones it is far too low, which an administrator notices and which is safe: no
# compute is allocated twice.
_ANY_CORE: Final = 2

# GeForce cards accumulate in FP32 at half the rate of the same chip in other products.
_HALVED_IN_GEFORCE: Final = frozenset({(7, 5), (8, 6), (8, 9), (12, 0)})
# GeForce GTX 16xx: the multiprocessor of (7, 5), with FP16 units instead of tensor cores.
_TURING_WITHOUT_TENSOR_CORES: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Rating:
    """A card's compute and where the figure comes from.

    Attributes:
        milli_tflops: Dense FP16, in thousandths of a TFLOPS; at least 1.
    """

    milli_tflops: int
    source: TflopsSource


@dataclass(frozen=True, slots=True)
class ModelTable:
    """Compute of cards, in thousandths of a TFLOPS of dense FP16, by name_key() of their names.

    Attributes:
        own: An administrator's rows, which take precedence.
    """

    packaged: Mapping[str, int]
    own: Mapping[str, int]

    def lookup(self, product_name: str) -> Rating | None:
        """Return the compute of the card with this NVML name; None if no row applies.

        An own row wins over a packaged one, and a row for the full name wins over one for the short
        name. A mobile card without a row has three quarters of the compute of the desktop card of
        the same name (Tensor Fusion's rule, cmd/nodediscovery).
        """
        tried = [(product_name, 4)]
        if name_key(product_name).endswith(LAPTOP_SUFFIX):
            tried.append((" ".join(product_name.split())[: -len(LAPTOP_SUFFIX)], 3))
        for name, quarters in tried:
            keys = (name_key(name), name_key(short_model(name)))
            for source, table in (
                (TflopsSource.FILE, self.own),
                (TflopsSource.TABLE, self.packaged),
            ):
                for key in keys:
                    if key in table:
                        return Rating(milli_tflops=table[key] * quarters // 4, source=source)
        return None


def load(own: Path | None = None) -> ModelTable:
    """Load the packaged table and the rows of an administrator's file.

    The file has the format of Tensor Fusion's gpu-info.yaml: a list of {model, fullModelName,
    vendor, fp16TFlops}. Rows of other vendors and additional fields are ignored.

    Raises:
        InputError: The file cannot be read or has another format; the text names the entry.
    """
    packaged = {
        name_key(name): _milli(tflops)
        for model, full_name, tflops in gpu_models.PACKAGED
        for name in (model, full_name)
    }
    return ModelTable(packaged=packaged, own={} if own is None else rows(own))


def rows(file: Path) -> dict[str, int]:
    """Return the compute of NVIDIA cards in a file, by name_key() of their names.

    Raises:
        InputError: The file cannot be read or has another format; the text names the entry.
    """
    entries = yaml_file.content(file)
    if not isinstance(entries, list):
        raise InputError(f"{file}: found {shown(entries)}, expected a list of models")
    found: dict[str, int] = {}
    for number, entry in enumerate(entries, start=1):
        where = f"{file}: entry {number}"
        if not isinstance(entry, dict):
            raise InputError(f"{where}: found {shown(entry)}, expected a model with its fields")
        names = {field: entry.get(field) for field in ("model", "fullModelName")}
        for field, name in names.items():
            if not isinstance(name, str) or not name_key(name):
                raise InputError(f"{where}: {field}: found {shown(name)}, expected a name")
        tflops = entry.get("fp16TFlops")
        # NaN fails the range check too, because every comparison with it is false.
        if not is_number(tflops) or not 0.001 <= tflops <= MAX_TFLOPS:
            raise InputError(
                f"{where} ({shown(names['model'])}): fp16TFlops: found {shown(tflops)}, "
                f"expected a number from 0.001 to {MAX_TFLOPS}"
            )
        if str(entry.get("vendor", "NVIDIA")).strip().upper() == "NVIDIA":
            found |= {name_key(str(name)): _milli(tflops) for name in names.values()}
    return found


def _milli(tflops: float) -> int:
    """Return thousandths of a TFLOPS."""
    # str() returns the digits as written; the binary fraction is not exact.
    return int(Decimal(str(tflops)) * 1000)


def estimated(
    product_name: str,
    *,
    cores: int | None,
    max_sm_clock_mhz: int | None,
    compute_capability: tuple[int, int] | None,
) -> Rating | None:
    """Return cores x clock x operations per core and clock; None without cores or clock.

    The result is above the datasheet for cards whose maximum clock is above the boost clock that
    datasheets use (by about a fifth for GeForce, by at most a tenth for data-centre cards).
    """
    if not cores or not max_sm_clock_mhz or cores < 0 or max_sm_clock_mhz < 0:
        return None
    words = product_name.upper().split()
    flops = _FLOPS_PER_CORE_CLOCK.get(compute_capability or (0, 0), _ANY_CORE)
    if compute_capability == (7, 5) and "GTX" in words:
        flops = _TURING_WITHOUT_TENSOR_CORES
    elif compute_capability in _HALVED_IN_GEFORCE and "GEFORCE" in words:
        flops //= 2
    # MHz x operations are 10**6 per second; a thousandth of a TFLOPS is 10**9 per second.
    milli_tflops = cores * max_sm_clock_mhz * flops // 1000
    if milli_tflops == 0:
        return None
    return Rating(milli_tflops=milli_tflops, source=TflopsSource.ESTIMATE)


def name_key(name: str) -> str:
    """Return the form of a name in which all names of one card are equal.

    Older drivers omit ``NVIDIA``, other tools write ``NVIDIA Tesla``, and people mix cases.
    """
    return _VENDOR_PREFIX.sub("", " ".join(name.split())).lower()


def short_model(product_name: str) -> str:
    """Return the name that users select by: ``A100``, ``H100``, ``RTX4090``, ``RTX4070TiS``.

    It is never empty and has at most 64 bytes. A mobile card ends in ``Laptop`` and a low-power one
    in ``MaxQ``, so that selectors for the desktop card of this name match neither.
    """
    words = [re.sub(r"[^A-Za-z0-9.-]", "", word) for word in product_name.split()]
    kept = [
        word if _VGPU.fullmatch(word) else _CHIP_AND_BOARD.sub(r"\1", word).replace("-", "")
        for word in words
        if word and not _DROPPED.fullmatch(word)
    ]
    # "RTX A6000" is commonly called A6000; all other RTX cards keep the word.
    kept = [
        word
        for word, after in zip_longest(kept, kept[1:], fillvalue="")
        if not (word.upper() == "RTX" and _AMPERE_WORKSTATION.fullmatch(after))
    ]
    short = "".join("S" if word.upper() == "SUPER" else word for word in kept)
    short = short or "".join(words) or "unknown"
    ending = "Laptop" if name_key(product_name).endswith(LAPTOP_SUFFIX) else ""
    return short[: device_rules.MAX_TEXT_BYTES - len(ending)] + ending

"""Estimate of the compute of a card that is in no model table, from what its driver reports."""

from typing import Final

from tensorfusion_dra.core.devices.gpu import TflopsSource
from tensorfusion_dra.discovery.models import Rating

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


def rating(
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
    flops = _flops_per_core_clock(product_name, compute_capability)
    # MHz x operations are 10**6 per second; a thousandth of a TFLOPS is 10**9 per second.
    milli_tflops = cores * max_sm_clock_mhz * flops // 1000
    if milli_tflops == 0:
        return None
    return Rating(milli_tflops=milli_tflops, source=TflopsSource.ESTIMATE)


def _flops_per_core_clock(product_name: str, capability: tuple[int, int] | None) -> int:
    if capability is None:
        return _ANY_CORE
    words = product_name.upper().split()
    if capability == (7, 5) and "GTX" in words:
        return _TURING_WITHOUT_TENSOR_CORES
    flops = _FLOPS_PER_CORE_CLOCK.get(capability, _ANY_CORE)
    return flops // 2 if "GEFORCE" in words and capability in _HALVED_IN_GEFORCE else flops

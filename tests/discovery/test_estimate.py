"""Estimated compute of cards that are in no table."""

import pytest

from tensorfusion_dra.core.devices.gpu import TflopsSource
from tensorfusion_dra.discovery import estimate, models


@pytest.mark.parametrize(
    ("product_name", "cores", "boost_clock_mhz", "compute_capability"),
    [
        ("Tesla P100-SXM2-16GB", 3584, 1480, (6, 0)),
        ("Tesla P40", 3840, 1531, (6, 1)),
        ("NVIDIA GeForce GTX 1080 Ti", 3584, 1582, (6, 1)),
        ("Tesla V100-SXM2-32GB", 5120, 1530, (7, 0)),
        ("Tesla T4", 2560, 1590, (7, 5)),
        ("NVIDIA TITAN RTX", 4608, 1770, (7, 5)),
        ("NVIDIA GeForce RTX 2080 Ti", 4352, 1545, (7, 5)),
        ("NVIDIA GeForce GTX 1660 Ti", 1536, 1770, (7, 5)),
        ("NVIDIA A100-SXM4-80GB", 6912, 1410, (8, 0)),
        ("NVIDIA A30", 3584, 1440, (8, 0)),
        ("NVIDIA A10", 9216, 1695, (8, 6)),
        ("NVIDIA RTX A6000", 10752, 1800, (8, 6)),
        ("NVIDIA GeForce RTX 3090", 10496, 1695, (8, 6)),
        ("NVIDIA GeForce RTX 3060 Ti", 4864, 1665, (8, 6)),
        ("NVIDIA RTX 6000 Ada Generation", 18176, 2505, (8, 9)),
        ("NVIDIA GeForce RTX 4090", 16384, 2520, (8, 9)),
        ("NVIDIA H100 80GB HBM3", 16896, 1830, (9, 0)),
        ("NVIDIA B200", 18944, 1850, (10, 0)),
        ("NVIDIA GeForce RTX 5090", 21760, 2407, (12, 0)),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 24064, 2617, (12, 0)),
    ],
)
def test_estimate_at_the_datasheet_clock_equals_the_datasheet_figure(
    product_name: str,
    cores: int,
    boost_clock_mhz: int,
    compute_capability: tuple[int, int],
) -> None:
    known = models.load().lookup(product_name)
    assert known is not None

    estimated = estimate.rating(
        product_name,
        cores=cores,
        max_sm_clock_mhz=boost_clock_mhz,
        compute_capability=compute_capability,
    )

    assert estimated is not None
    assert estimated.source is TflopsSource.ESTIMATE
    assert estimated.milli_tflops == pytest.approx(known.milli_tflops, rel=0.01)


@pytest.mark.parametrize("compute_capability", [None, (3, 7), (13, 0)])
def test_unknown_architecture_counts_one_fma_per_core_and_clock(
    compute_capability: tuple[int, int] | None,
) -> None:
    estimated = estimate.rating(
        "NVIDIA X1",
        cores=1000,
        max_sm_clock_mhz=1500,
        compute_capability=compute_capability,
    )

    assert estimated is not None
    assert estimated.milli_tflops == 3_000


@pytest.mark.parametrize(
    ("cores", "clock"), [(None, 1500), (1000, None), (0, 1500), (1000, 0), (-1, -1), (1, 1)]
)
def test_no_estimate_without_cores_or_clock(cores: int | None, clock: int | None) -> None:
    estimated = estimate.rating(
        "NVIDIA X1", cores=cores, max_sm_clock_mhz=clock, compute_capability=(8, 0)
    )

    assert estimated is None

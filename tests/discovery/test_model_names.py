"""Short names of cards, and their form for comparisons."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorfusion_dra.discovery import model_names


@pytest.mark.parametrize(
    ("product_name", "short"),
    [
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("NVIDIA A100 80GB PCIe", "A100"),
        ("NVIDIA A100-PCIE-40GB", "A100"),
        ("A100-SXM4-40GB", "A100"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H100 PCIe", "H100"),
        ("NVIDIA H100 NVL", "H100"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA H20-3e", "H20"),
        ("NVIDIA GH200 144G HBM3e", "GH200"),
        ("NVIDIA B200", "B200"),
        ("NVIDIA B300 SXM6 AC", "B300"),
        ("NVIDIA GB200", "GB200"),
        ("Tesla V100-SXM2-16GB", "V100"),
        ("Tesla V100-SXM3-32GB-H", "V100"),
        ("Tesla V100S-PCIE-32GB", "V100S"),
        ("Tesla T4", "T4"),
        ("NVIDIA Tesla P40", "P40"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA GeForce RTX 4090", "RTX4090"),
        ("GeForce GTX 1080 Ti", "GTX1080Ti"),
        ("NVIDIA GeForce RTX 4090 D", "RTX4090D"),
        ("NVIDIA GeForce RTX 2080 SUPER", "RTX2080S"),
        ("NVIDIA GeForce RTX 4070 Ti SUPER", "RTX4070TiS"),
        ("NVIDIA RTX A6000", "A6000"),
        ("NVIDIA RTX A2000 12GB", "A2000"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX6000Ada"),
        ("Quadro RTX 6000", "QuadroRTX6000"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTXPRO6000Blackwell"),
        ("NVIDIA TITAN RTX", "TITANRTX"),
        ("NVIDIA TITAN X (Pascal)", "TITANXPascal"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "RTX4090Laptop"),
        ("NVIDIA RTX A2000 8GB Laptop GPU", "A2000Laptop"),
        ("NVIDIA GeForce RTX 2070 with Max-Q Design", "RTX2070MaxQ"),
        ("NVIDIA A100-40C", "A100-40C"),
        ("NVIDIA A100-4-20C", "A100-4-20C"),
        ("NVIDIA RTX6000-Ada-48Q", "RTX6000-Ada-48Q"),
        ("GRID T4-16Q", "GRIDT4-16Q"),
        ("NVIDIA", "NVIDIA"),
        ("", "unknown"),
        ("日本語", "unknown"),
    ],
)
def test_short_name_of_known_products(product_name: str, short: str) -> None:
    assert model_names.short_model(product_name) == short


@given(st.text(max_size=200))
def test_every_short_name_has_1_to_64_ascii_bytes(product_name: str) -> None:
    short = model_names.short_model(product_name)

    assert 1 <= len(short.encode()) <= 64
    assert short.isascii()
    assert short.isprintable()


@given(st.text(max_size=100))
def test_mobile_card_never_has_the_short_name_of_the_desktop_card(product_name: str) -> None:
    mobile = model_names.short_model(f"{product_name} Laptop GPU")

    assert mobile != model_names.short_model(product_name)


@given(st.text(max_size=100))
def test_comparison_key_is_lower_case_and_ignores_the_vendor(name: str) -> None:
    key = model_names.key(name)

    assert key == key.lower()
    assert model_names.key("NVIDIA " + name.strip()) in (key, "nvidia", f"nvidia {key}")

"""Names of cards and their compute: from the packaged table, own files and estimates."""

import json
import re
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorfusion_dra.core.devices.gpu import TflopsSource
from tensorfusion_dra.core.errors import InputError
from tensorfusion_dra.discovery import gpu_models, models
from tensorfusion_dra.discovery.models import ModelTable, Rating

PACKAGED = models.load()


def milli(product_name: str, table: ModelTable = PACKAGED) -> int | None:
    rating = table.lookup(product_name)
    return None if rating is None else rating.milli_tflops


def load(folder: Path, text: str) -> ModelTable:
    file = folder / "models.yaml"
    file.write_text(text, encoding="utf-8")
    return models.load(file)


def own(folder: Path, tflops: str, **names: str) -> ModelTable:
    """Return a table with one row, whose TFLOPS are this YAML."""
    row = {"model": "X1", "fullModelName": "NVIDIA X1", "vendor": "NVIDIA", **names}
    return load(folder, f"[{json.dumps(row)[:-1]}, fp16TFlops: {tflops}}}]")


@pytest.mark.parametrize(
    "spelling",
    [
        str,
        str.upper,
        str.lower,
        lambda name: name.removeprefix("NVIDIA "),
        lambda name: "NVIDIA " + name.removeprefix("NVIDIA "),
        lambda name: "NVIDIA Tesla " + name.removeprefix("NVIDIA ").removeprefix("Tesla "),
        lambda name: f"  {name.replace(' ', '   ')}\t",
    ],
    ids=["as it is", "upper", "lower", "no NVIDIA", "NVIDIA", "NVIDIA Tesla", "blanks"],
)
def test_packaged_cards_are_found_in_every_spelling(spelling: Callable[[str], str]) -> None:
    for model, full_name, tflops in gpu_models.PACKAGED:
        assert milli(spelling(full_name)) == milli(spelling(model)) == Fraction(str(tflops)) * 1000


@pytest.mark.parametrize(
    ("product_name", "expected"),
    [
        ("Tesla V100-SXM2-16GB", 125_000),
        ("Tesla V100-PCIE-32GB", 112_000),
        ("Tesla V100S-PCIE-32GB", 130_000),
        ("Tesla P100-PCIE-16GB", 18_700),
        ("Tesla T4", 65_000),
        ("NVIDIA A30", 165_000),
        ("NVIDIA A40", 149_700),
        ("NVIDIA RTX A6000", 154_800),
        ("NVIDIA RTX A2000 12GB", 32_000),
        ("NVIDIA L40", 181_050),
        ("NVIDIA GeForce RTX 3080", 59_600),
        ("NVIDIA GeForce RTX 3090", 71_200),
        ("GeForce GTX 1080", 8_870),
        ("NVIDIA GeForce RTX 5090", 209_500),
        ("NVIDIA GeForce RTX 5090 D", 148_400),
        ("NVIDIA H100 PCIe", 756_000),
        ("NVIDIA H100 NVL", 835_000),
        ("NVIDIA H800 PCIe", 756_000),
        ("NVIDIA H20-3e", 148_000),
        ("NVIDIA GH200 120GB", 989_000),
        ("NVIDIA B200", 2_250_000),
        ("NVIDIA B300 SXM6 AC", 2_250_000),
        ("NVIDIA GB200", 2_500_000),
    ],
)
def test_names_as_nvml_reports_them_are_known(product_name: str, expected: int) -> None:
    assert PACKAGED.lookup(product_name) == Rating(milli_tflops=expected, source=TflopsSource.TABLE)


@pytest.mark.parametrize(
    "product_name",
    ["", "NVIDIA", "Tesla", "NVIDIA A999", "NVIDIA A100-40C", "NVIDIA A10-24Q", "RTX", "A100"],
)
def test_name_without_a_row_has_no_compute(product_name: str) -> None:
    assert PACKAGED.lookup(product_name) is None


def test_short_name_never_applies_to_cards_with_different_compute() -> None:
    shorts = {models.name_key(model): tflops for model, _, tflops in gpu_models.PACKAGED}
    for _, full_name, tflops in gpu_models.PACKAGED:
        named = shorts.get(models.name_key(models.short_model(full_name)))

        assert named in (None, tflops), full_name


LAPTOP = "NVIDIA GeForce RTX 4090 Laptop GPU"


@pytest.mark.parametrize(
    ("row", "product_name", "expected"),
    [
        # An own row wins over a packaged one, for its own name only.
        ({"fullModelName": "NVIDIA A100-SXM4-80GB"}, "NVIDIA A100-SXM4-80GB", 100_000),
        ({"fullModelName": "NVIDIA A100-SXM4-80GB"}, "NVIDIA A100-SXM4-40GB", 312_000),
        # A row for a short name applies to all cards of that name.
        ({"model": "A100"}, "NVIDIA A100-SXM4-80GB", 100_000),
        ({"model": "A100"}, "NVIDIA A100-SXM-64GB", 100_000),
        ({"model": "A100"}, "NVIDIA A100X", None),
        # A mobile card without a row has three quarters of the desktop card.
        ({}, LAPTOP, 165_160 * 3 // 4),
        ({}, LAPTOP.lower(), 165_160 * 3 // 4),
        ({}, "NVIDIA A999 Laptop GPU", None),
        ({"fullModelName": LAPTOP}, LAPTOP, 100_000),
        ({"model": "RTX4090"}, LAPTOP, 75_000),
    ],
)
def test_own_rows_come_first_and_mobile_cards_follow_the_desktop_card(
    tmp_path: Path, row: dict[str, str], product_name: str, expected: int | None
) -> None:
    rating = own(tmp_path, "100", **row).lookup(product_name)

    is_own = expected in {100_000, 75_000}
    source = TflopsSource.FILE if is_own else TflopsSource.TABLE
    assert rating == (expected and Rating(milli_tflops=expected, source=source))


@pytest.mark.parametrize(
    ("tflops", "expected"),
    [("71.2", 71_200), ("165.16", 165_160), ("0.101", 101), ("7", 7_000), ("0.0019", 1)],
)
def test_decimals_are_exact_down_to_a_thousandth(
    tmp_path: Path, tflops: str, expected: int
) -> None:
    assert milli("NVIDIA X1", own(tmp_path, tflops)) == expected


def test_other_vendors_and_additional_fields_are_ignored(tmp_path: Path) -> None:
    table = load(
        tmp_path,
        "- {model: M1, fullModelName: Apple M1, vendor: Apple, costPerHour: 0.1, fp16TFlops: 4}\n"
        "- {model: X1, fullModelName: NVIDIA X1, vendor: NVIDIA, costPerHour: 1, fp16TFlops: 5}\n",
    )

    assert [milli(name, table) for name in ("Apple M1", "NVIDIA X1")] == [None, 5_000]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "found None, expected a list of models"),
        ("{model: X1}", "found a dict of 1, expected a list of models"),
        ("- X1", "entry 1: found 'X1', expected a model with its fields"),
        ("- {model: 1}", "entry 1: model: found 1, expected a name"),
        ("- {model: ' '}", "entry 1: model: found ' ', expected a name"),
        ("- {model: X1}", "entry 1: fullModelName: found None, expected a name"),
        ("[", "line 1: "),
        ("- {a: 1}\n- b: [", "line 2: "),
        ("- !!int many", "expected YAML"),
        ("[" * 5000, "expected YAML"),
        ("!!python/object:os.system {}", "line 1: could not determine a constructor"),
        ("#" * (2**20 + 1), "found over 1048576 bytes"),
    ],
    ids=lambda text: ascii(text[:40]),
)
def test_file_of_another_format_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        load(tmp_path, text)

    text = f"{tmp_path}/models.yaml: .*{re.escape(message)}.*"
    assert re.fullmatch(text, str(caught.value))  # one line


@pytest.mark.parametrize(
    ("tflops", "found"),
    [
        ("-1", "-1"),
        ("0", "0"),
        ("0.0001", "0.0001"),
        (".nan", "nan"),
        (".inf", "inf"),
        ("-.inf", "-inf"),
        ("true", "True"),
        ("'71.2'", "'71.2'"),
        ("[1]", "a list of 1"),
        ("1000001", "1000001"),
        ("0x" + "f" * 90, "a number of over 64 bits"),
    ],
)
def test_invalid_tflops_are_refused(tmp_path: Path, tflops: str, found: str) -> None:
    with pytest.raises(InputError) as caught:
        own(tmp_path, tflops)

    assert str(caught.value) == (
        f"{tmp_path}/models.yaml: entry 1 ('X1'): fp16TFlops: found {found}, "
        f"expected a number from 0.001 to 1000000"
    )


def test_packaged_rows_agree_about_each_name() -> None:
    by_name: dict[str, float] = {}

    assert len({model for model, _, _ in gpu_models.PACKAGED}) == len(gpu_models.PACKAGED)
    for *names, tflops in gpu_models.PACKAGED:
        for name in names:
            assert by_name.setdefault(models.name_key(str(name)), tflops) == tflops, name


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
    assert models.short_model(product_name) == short


@given(st.text(max_size=200))
def test_every_short_name_has_1_to_64_ascii_bytes_and_mobile_cards_have_another(
    product_name: str,
) -> None:
    short = models.short_model(product_name)

    assert re.fullmatch(r"[ -~]{1,64}", short)
    assert models.short_model(f"{product_name} Laptop GPU") != short


@given(st.text(max_size=100))
def test_comparison_key_is_lower_case_and_ignores_the_vendor(name: str) -> None:
    key = models.name_key(name)

    assert key == key.lower()
    assert models.name_key("NVIDIA " + name.strip()) in (key, "nvidia", f"nvidia {key}")


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
    estimated = models.estimated(
        product_name,
        cores=cores,
        max_sm_clock_mhz=boost_clock_mhz,
        compute_capability=compute_capability,
    )

    assert estimated is not None
    assert estimated.source is TflopsSource.ESTIMATE
    assert estimated.milli_tflops == pytest.approx(milli(product_name), rel=0.01)


@pytest.mark.parametrize(
    ("cores", "clock", "compute_capability", "expected"),
    [
        # An unknown architecture counts one FMA per core and clock.
        (1000, 1500, None, 3_000),
        (1000, 1500, (3, 7), 3_000),
        (1000, 1500, (13, 0), 3_000),
        (None, 1500, (8, 0), None),
        (1000, None, (8, 0), None),
        (0, 1500, (8, 0), None),
        (1000, 0, (8, 0), None),
        (-1, -1, (8, 0), None),
        (1, 1, (8, 0), None),
    ],
)
def test_estimate_of_an_unknown_card_needs_cores_and_clock(
    cores: int | None,
    clock: int | None,
    compute_capability: tuple[int, int] | None,
    expected: int | None,
) -> None:
    estimated = models.estimated(
        "NVIDIA X1",
        cores=cores,
        max_sm_clock_mhz=clock,
        compute_capability=compute_capability,
    )

    assert (estimated and estimated.milli_tflops) == expected

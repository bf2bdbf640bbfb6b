"""Quantities are parsed and printed as in Kubernetes.

KUBERNETES_PRINTS is output of k8s.io/apimachinery/pkg/api/resource of 1.36.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorfusion_dra.core.kubernetes import quantity
from tensorfusion_dra.core.kubernetes.quantity import QuantityError

MOST = 2**63 - 1
BEYOND_63_BITS = ("9223372036854775808", "10E", "1e30", "8Ei", "9999999999999Ei")

KUBERNETES_PRINTS = {
    "0": "0",
    "-0": "0",
    "0Gi": "0",
    "0e3": "0",
    "+5": "5",
    "5.": "5",
    ".5": "500m",
    "0.5": "500m",
    "71.2": "71200m",
    "312": "312",
    "2000": "2k",
    "2k": "2k",
    "100000m": "100",
    "1n": "1n",
    "1.5u": "1500n",
    "123456789": "123456789",
    "1E": "1E",
    "1E3": "1e3",
    "12e2": "1200",
    "1e4": "10e3",
    "100e-3": "100e-3",
    "1024": "1024",
    "1024Mi": "1Gi",
    "1.5Gi": "1536Mi",
    "16Gi": "16Gi",
    "19074Mi": "19074Mi",
    "0.5Ki": "512",
    "0.1Ki": "102400m",
    "1.1Ki": "1126400m",
    "-1.1Ki": "-1126400m",
    "0.1Gi": "107374182400m",
    "0.0001Ki": "102400u",
    "-1.5Gi": "-1536Mi",
    "1023.9999999999": "1024",
    "0.0000000001": "1n",
    "-0.0000000001": "-1n",
    "8Ei": "9223372036854775807",
    "7Ei": "7Ei",
    "-16Ei": "-9223372036854775807",
}


@pytest.mark.parametrize(("text", "printed"), KUBERNETES_PRINTS.items())
def test_quantity_is_printed_as_by_kubernetes(text: str, printed: str) -> None:
    assert str(quantity.parse(text)) == printed


numbers = st.from_regex(r"[+-]?([0-9]{1,20}(\.[0-9]{0,12})?|\.[0-9]{1,12})", fullmatch=True)
suffixes = st.sampled_from(
    ["", *"numkMGTPE", *(f"{letter}i" for letter in "KMGTPE"), "e3", "e-7", "E+2", "e18", "e99"]
)


@given(numbers, suffixes)
def test_printed_quantity_parses_back_to_the_same_amount(number: str, suffix: str) -> None:
    amount = quantity.parse(number + suffix)

    again = quantity.parse(str(amount))

    assert (again, str(again)) == (amount, str(amount))


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        " 1",
        "1 ",
        "1\n",
        "1Gi\n",
        "1 Gi",
        "1_000",
        "1,000",
        "１２",  # noqa: RUF001 - full-width digits, which Python's int() would take
        "٣",
        "inf",
        "-inf",
        "Infinity",
        "NaN",
        "1K",
        "1ki",
        "1gi",
        "1KI",
        "1B",
        "1GB",
        "1GiB",
        "0x10",
        "--1",
        "+-1",
        "1.2.3",
        ".",
        "-",
        "e3",
        "1e",
        "1e3.5",
        "1e3Gi",
        "1e100",
        "1e999999999",
        "1e-999999999",
        "Gi",
        "9" * 65,
    ],
)
def test_malformed_quantity_is_refused_and_quoted_in_the_error(text: str) -> None:
    with pytest.raises(QuantityError, match=r"found .*, expected"):
        quantity.parse(text)


@pytest.mark.parametrize(
    ("text", "meant"),
    [("16GB", "16Gi"), ("16 GiB", "16Gi"), ("512mb", "512Mi"), ("1.5g", "1.5Gi"), ("16 TF", None)],
)
def test_memory_as_it_is_written_elsewhere_is_answered_with_the_quantity(
    text: str, meant: str | None
) -> None:
    expected = rf" \(did you mean {meant}\?\)$" if meant else r"16Gi$"

    with pytest.raises(QuantityError, match=expected):
        quantity.parse(text)


@pytest.mark.parametrize("value", [True, False, 1.5, float("nan"), None, [], {"value": "1"}, b"1"])
def test_only_strings_and_integers_are_quantities(value: object) -> None:
    with pytest.raises(QuantityError, match=f"found {type(value).__name__}, expected a quantity"):
        quantity.parse(value)


def test_equality_ignores_notation() -> None:
    assert quantity.parse("1Gi") == quantity.parse("1073741824") == quantity.parse("1073741824e0")
    assert quantity.parse(-1) == quantity.parse("-1")
    assert hash(quantity.parse("1Gi")) == hash(quantity.parse("1024Mi"))
    assert quantity.parse("999m") < quantity.parse("1") < quantity.parse("1001m")


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        *(("71.2", 72), ("-71.2", -71), ("1n", 1), ("0", 0), ("3", 3), ("0.1Ki", 103)),
        *((text, MOST) for text in BEYOND_63_BITS),
        *((f"-{text}", -MOST) for text in BEYOND_63_BITS),
    ],
)
def test_ceil_rounds_fractions_up_and_is_capped_at_63_bits(text: str, whole: int) -> None:
    assert quantity.parse(text).ceil() == whole

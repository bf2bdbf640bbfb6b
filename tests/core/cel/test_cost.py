"""The estimated cost of an expression equals the API server's estimate."""

import math

import pytest

from tensorfusion_dra.core.cel import cost
from tensorfusion_dra.core.cel.parser import parse
from tensorfusion_dra.core.cel.selector import SelectorTerms, selector

A = 'device.attributes["dra.example.com"]'
C = 'device.capacity["dra.example.com"]'
TEN = str(list(range(1, 11)))


def nested(depth: int, inner: str) -> str:
    return f"{TEN}.all(x{depth}, {nested(depth - 1, inner)})" if depth else inner


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # Expressions and costs of dynamic-resource-allocation/cel/compile_test.go, release 1.36.
        ("true", 0),
        (f'{A}.name.isGreaterThan(quantity("0"))', 6),
        (f'{A}["name"].isGreaterThan(quantity("0"))', 6),
        ('"dra.example.com" in device.attributes', 3),
        ('device.driver == ""', 2),
        ('device.driver == "dra.example.com"', 4),
        (f"{A}.name", 4),
        (f"cel.bind(dra, {A}, dra.name)", 15),
        (f"{A}.name > 0", 5),
        (f'{A}.name == "fish"', 5),
        (f"{A}.names.size() == 2", 6),
        (f"{A}.names.exists(x, x > 0)", 5 + 6 * 64),
        (f'{A}.names.all(x, x != "")', 5 + 4 * 64),
        (f'{A}.names.all(x, x.isGreaterThan(semver("0.0.1")))', 5 + 6 * 64),
        (f"1 in {A}.names", 4 + 64),
        (f'{A}.name.isGreaterThan(semver("v0.0.1", true)) && isSemver("v1.0.0", true)', 7),
        (f'"name" in {C} && {C}.name.isGreaterThan(quantity("1Ki"))', 10),
        (f'!("name" in {C}) || {C}.name.isGreaterThan(quantity("1Ki"))', 11),
        (f"{A}.a && {A}.b && {A}.c", 12),
        ('device.attributes.exists_one(x, x == "dra.example.com")', 164),
        (f'{A}.exists_one(x, x == "services")', 133),
        ('device.capacity.exists_one(x, x == "dra.example.com")', 164),
        (f'{A}.services.split("example").size() >= 2', 19),
        (f'{A}.services.matches("[^a]?sym")', 18),
        (nested(7, "int('1'.find('[0-9]*')) < 100"), 85_555_551),
        ("device.allowMultipleAllocations == true", 3),
    ],
)
def test_estimate_equals_that_of_kubernetes_own_tests(text: str, expected: int) -> None:
    assert cost.estimate(parse(text)) == expected


def test_generated_selector_costs_less_than_a_thousandth_of_the_limit() -> None:
    text = selector(SelectorTerms(model="A100", pool="production", qos="high"))

    assert cost.estimate(parse(text)) < cost.MAX_COST / 1000


@pytest.mark.parametrize(
    ("text", "more_than"),
    [
        (f"{A}.map(a, {A}[a] * 20).filter(e, e > 50).exists(e, e == 60)", 32 * 30),
        (f"{A}.all(a, {A}.all(b, {A}.all(c, {A}.all(d, a != b))))", cost.MAX_COST),
        ('{"a": 1}.transformMap(k, v, v + 1).size() == 1', 60),
        (f'[{A}.model, "x"].map(s, s.lowerAscii() + "y").exists(s, s.contains("z"))', 40),
        ("optional.of(1).optMap(x, x + 1).orValue(2) == 3", 10),
        (f'({A}.a ? "long text" : "") == {A}.b.replace("x", "yy")', 20),
        ("[M{a: 1}, M{b: 2}].size() == 2", 90),
    ],
)
def test_cost_grows_with_loops_and_strings(text: str, more_than: int) -> None:
    assert more_than < cost.estimate(parse(text)) < math.inf


def test_loop_over_a_value_of_unknown_size_costs_infinity() -> None:
    assert math.isinf(cost.estimate(parse("{}.unknown.all(x, x)")))

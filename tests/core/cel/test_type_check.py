"""Type errors in selectors are found without a CEL library, and nothing valid is refused."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorfusion_dra.core.cel import translate, type_check
from tensorfusion_dra.core.cel.errors import CelError
from tensorfusion_dra.scheduling import cel_evaluation
from tests.core.cel.dialect_terms import Term, expressions
from tests.support.tally import examples

D = '"tensor-fusion.ai.dra-driver"'
ATTRIBUTES = f"device.attributes[{D}]"
CAPACITY = f"device.capacity[{D}]"
OTHER = 'device.attributes["nic.example.com"]'


def refusal(expression: str) -> str | None:
    try:
        type_check.check(expression)
    except CelError as error:
        return str(error)
    return None


# Expressions that an API server refuses as well.
REFUSED = [
    ("device.nosuch == 'x'", "1:1: found device.nosuch, expected one of its fields: driver, attr"),
    ("true &&\n  device.foo", "2:3: found device.foo, expected one of its fields"),
    ("device.name == 'gpu-0'", "found device.name, expected one of its fields"),
    ("has(device.nosuch)", "found device.nosuch"),
    ("device['driver'] == 'x'", "found device[...], expected a field"),
    ("device.driver.name == 'x'", "found a string with .name, expected an object"),
    ("device.driver == 5", "found a string == an integer"),
    ("device.driver > 5", "found a string > an integer"),
    ("device.driver in [1, 2]", "found a string in a list, each item of which is an integer"),
    ("device.driver in 'abc'", "found a string after in, expected a list or an object"),
    ("device.driver", "found a string, expected true or false"),
    ("1 + 1", "found an integer, expected true or false"),
    ("device.driver && true", "found a string as operand of &&, expected a bool"),
    ("!device.driver", "found a string after !, expected a bool"),
    ("-device.driver == 'x'", "found a string after -, expected a number"),
    ("device.allowMultipleAllocations == 'true'", "found a bool == a string"),
    ("device.allowMultipleAllocations.size() > 1", "found a bool with .size()"),
    ("device.attributes[1].model == 'x'", "found an integer in [], expected a string"),
    ("device.attributes == 'x'", "found the attributes of all drivers == a string"),
    (f"{CAPACITY}.tflops >= 100", "found a Quantity >= an integer, expected compareTo()"),
    (f"{CAPACITY}.tflops == '100'", "found a Quantity == a string, expected compareTo()"),
    (f"{CAPACITY}.vram > quantity('16Gi')", "found a Quantity > a Quantity, expected compareTo()"),
    (f"{CAPACITY}.tflops.compareTo(100) >= 0", "found an integer in compareTo(), expected a Quan"),
    (f"{CAPACITY}.tflops.compareTo() >= 0", "found 0 arguments of compareTo(), expected 1"),
    (f"{CAPACITY}.tflops.isgreaterthan(quantity('1'))", "found a Quantity with .isgreaterthan()"),
    (f"{CAPACITY}.tflops.startsWith('1')", "found a Quantity with .startsWith(), expected one of"),
    (f"{CAPACITY}.tflops + quantity('1') == quantity('2')", "found a Quantity as operand of +"),
    (f"{CAPACITY}.tflops", "found a Quantity, expected true or false"),
    (f"{CAPACITY}.tflops.value > 5", "found a Quantity with .value, expected an object"),
    ("quantity(5).sign() == 1", "found an integer in quantity(), expected a string"),
    ("semver('1.0.0') < semver('2.0.0')", "found a version < a version, expected compareTo()"),
    ("semver('1.0.0').compareTo('2.0.0') < 0", "found a string in compareTo(), expected a vers"),
    (f"{ATTRIBUTES}.?model == 'A100'", "found an optional value == a string, expected orValue()"),
    ("nosuch == 1", "1:1: found nosuch, expected device"),
    ("nosuch(1) == 1", "found nosuch(), expected a function of Kubernetes' CEL"),
    ("1 == 1.5", "found an integer == a double"),
    ("'a' < 1", "found a string < an integer"),
    ("'a' + 1 == 'a1'", "found a string + an integer"),
    ("true ? 1 : 2", "found an integer, expected true or false"),
    ("1 ? true : false", "found an integer before ?, expected a bool"),
    ("[1, 2].exists(n, n)", "found an integer in exists(), expected a bool"),
    ("'abc'.exists(c, true)", "found a string with .exists, expected a list or an object"),
    ("cel.bind(c, device.capacity, c > 5)", "found a map > an integer"),
]

# Expressions that an API server accepts, because it does not know the types of attributes; they
# fail on every device.
REFUSED_BY_ATTRIBUTES = [
    (f"{ATTRIBUTES}.model == 5", "found a string == an integer"),
    (f"{ATTRIBUTES}.model > 5", "found a string > an integer"),
    (f"{ATTRIBUTES}['model'] in [1, 2]", "found a string in a list, each item of which is an int"),
    (f"{ATTRIBUTES}.node_total_gpus == '4'", "found an integer == a string"),
    (f"{ATTRIBUTES}.node_total_gpus.matches('4')", "found an integer with .matches()"),
    (f"{ATTRIBUTES}.driver_version >= '535'", "found a version >= a string, expected compareTo()"),
    (f"{ATTRIBUTES}.driver_version == '535.0.0'", "found a version == a string"),
    (f"{ATTRIBUTES}.model", "found a string, expected true or false"),
    (f"{ATTRIBUTES}.model.isGreaterThan(quantity('1'))", "found a string with .isGreaterThan()"),
    (f"{ATTRIBUTES}.model.string == 'A100'", "found a string with .string, expected an object"),
    (f"{ATTRIBUTES}.?model.orValue('') == 5", "found a string == an integer"),
    (f"cel.bind(a, {ATTRIBUTES}, a.qos == 3)", "found a string == an integer"),
]

TAKEN = [
    "true",
    "device.driver == 'x' && device.allowMultipleAllocations",
    f"{ATTRIBUTES}.model == 'A100'",
    f"{ATTRIBUTES}['model'] in ['A100', 'H100']",
    f"'model' in {ATTRIBUTES} && {ATTRIBUTES}.model.startsWith('A')",
    f"{ATTRIBUTES}.?model.orValue('') == 'A100'",
    f"{ATTRIBUTES}[?'model'].orValue('x') != ''",
    f"{ATTRIBUTES}.node_total_gpus >= 2 && {ATTRIBUTES}.node_total_gpus == 2",
    f"{ATTRIBUTES}.node_total_gpus == 2.0 || {ATTRIBUTES}.node_total_gpus > 1.5",
    f"quantity({ATTRIBUTES}.node_total_vram).isGreaterThan(quantity('1Gi'))",
    f"{ATTRIBUTES}.driver_version.compareTo(semver('535.0.0')) >= 0",
    f"{ATTRIBUTES}.driver_version.isGreaterThan(semver('535.0.0'))",
    f"{ATTRIBUTES}.mine > 5 && {ATTRIBUTES}.also_mine == 'x'",
    f"{OTHER}.speed > 5 && {OTHER}.name.startsWith('a') && {OTHER}.up",
    "device.attributes['tensor-fusion.ai.dra-driver'].exists(k, k == 'model')",
    f"{CAPACITY}.tflops.compareTo(quantity('100')) >= 0",
    f"{CAPACITY}.tflops.asApproximateFloat() >= 100",
    f"{CAPACITY}.tflops.asApproximateFloat() / 2.0 >= 50",
    f"{CAPACITY}.vram.asInteger() > 5 && {CAPACITY}.vram.isInteger() && {CAPACITY}.vram.sign() > 0",
    f"{CAPACITY}.vram.add(5).sub(quantity('1')) == quantity('5')",
    f"{CAPACITY}.?virtual_vram.orValue(quantity('0')).isGreaterThan(quantity('1Gi'))",
    f"device.capacity[?{D}].?tflops.hasValue()",
    f"cel.bind(c, {CAPACITY}, c.vram.isLessThan(quantity('1Gi')))",
    f"{ATTRIBUTES}.model == 'A' ? {CAPACITY}.tflops.sign() == 1 : false",
    "[1, 2].exists(n, n > 1) && [1, 2].map(n, n * 2).size() == 2",
    "['a'].all(n, n.size() == 1) && ['a', 'b'].filter(n, n != 'a') == ['b']",
    "isQuantity('1Gi') && isSemver('1.0.0') && size('abc') == 3",
    "optional.of('a').orValue('b') == 'a' && optional.none().hasValue() == false",
    "{'a': 1}['a'] == 1 && 'a' in {'a': 1}",
    "int('5') > 4 && string(5) == '5' && double(1) < 2 && 1 < 2.5",
    "type(1) == int && dyn(1) == dyn('a')",
    "'a,b'.split(',')[0].upperAscii() == 'A' && 'abc'.substring(1).contains('b')",
]


@pytest.mark.parametrize(("expression", "expected"), REFUSED)
def test_type_error_is_refused_with_its_position(expression: str, expected: str) -> None:
    found = refusal(expression)

    assert found is not None
    assert expected in found
    assert cel_evaluation.check_expression(expression) is not None


@pytest.mark.parametrize(("expression", "expected"), REFUSED_BY_ATTRIBUTES)
def test_wrong_type_of_a_driver_attribute_is_refused(expression: str, expected: str) -> None:
    found = refusal(expression)

    assert found is not None
    assert expected in found


@pytest.mark.parametrize("expression", TAKEN)
def test_valid_expression_is_accepted(expression: str) -> None:
    assert refusal(expression) is None
    assert cel_evaluation.check_expression(expression) is None


@settings(deadline=None)
@given(expressions)
def test_translated_dialect_is_accepted(term: Term) -> None:
    assert refusal(translate.translate(term[0])) is None


ATOMS = [
    *("true", "'a'", "['a']", "device.driver", "device.allowMultipleAllocations"),
    *("device.nosuch", "nosuch", f"{CAPACITY}.tflops", "quantity('1')", "semver('1.0.0')"),
    f"{OTHER}.speed",
]
# Only one numeric type in each expression: unlike the API server, the library refuses to compare
# two types, which would hide its verdict on the rest of the expression.
NUMBERS = [
    ["1", "[1]", "size('a')", f"{CAPACITY}.tflops.sign()"],
    ["2u", "uint(1)"],
    ["1.5", f"{CAPACITY}.tflops.asApproximateFloat()"],
]


def combined(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    operators = ["==", "!=", "<", ">=", "in", "&&", "||"]
    return st.one_of(
        st.tuples(inner, st.sampled_from(operators), inner).map(
            lambda parts: f"({parts[0]} {parts[1]} {parts[2]})"
        ),
        inner.map(lambda text: f"!({text})"),
        inner.map(lambda text: f"[{text}].exists(x, x == {text})"),
        st.tuples(inner, inner, inner).map(lambda p: f"({p[0]} ? {p[1]} : {p[2]})"),
    )


def random_expressions(numbers: list[str]) -> st.SearchStrategy[str]:
    return st.recursive(st.sampled_from([*ATOMS, *numbers]), combined, max_leaves=6)


@settings(max_examples=examples(600))
@given(st.one_of(*[random_expressions(numbers) for numbers in NUMBERS]))
def test_every_refused_expression_is_refused_by_the_api_server_too(expression: str) -> None:
    found = refusal(expression)

    if found is not None:
        assert cel_evaluation.check_expression(expression) is not None, found


def test_fields_of_the_device_may_be_optional_or_reached_through_a_binding() -> None:
    """The CEL library is not consulted: it does not support device as a value."""
    assert refusal("device.?driver.orValue('') == 'x' || has(device.driver)") is None
    assert refusal("cel.bind(d, device, d.driver == 'x')") is None
    assert "found device.nosuch" in str(refusal("cel.bind(d, device, d.nosuch == 'x')"))

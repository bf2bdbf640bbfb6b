"""CEL selectors, as the scheduler evaluates and the API server validates them."""

import pytest

from tensorfusion_dra.core.kubernetes import quantity
from tensorfusion_dra.scheduling import cel_evaluation
from tensorfusion_dra.scheduling.cel_evaluation import CelCompileError, CelRunError
from tensorfusion_dra.scheduling.devices import Attribute, Capacity, Device, DeviceId

DRIVER = "gpu.example.com"
GPU = Device(
    id=DeviceId(DRIVER, "node-a", "gpu-0"),
    attributes={
        "model": Attribute("string", "A100"),
        "node_total_gpus": Attribute("int", 8),
        "healthy": Attribute("bool", value=True),
        "cuda": Attribute("version", "12.4.0"),
        "resource.kubernetes.io/pciBusID": Attribute("string", "0000:3b:00.0"),
    },
    capacity={
        "tflops": Capacity(quantity.parse("71200m")),
        "vram": Capacity(quantity.parse("40Gi")),
    },
    is_shared=True,
)


def expanded(text: str) -> str:
    """Expand A to our attributes and C to our capacity in an expression."""
    text = text.replace("A.", f'device.attributes["{DRIVER}"].')
    return text.replace("C.", f'device.capacity["{DRIVER}"].')


@pytest.mark.parametrize(
    "text",
    [
        f'device.driver == "{DRIVER}"',
        "device.allowMultipleAllocations",
        'A.model == "A100"',
        'A.model in ["A100", "H100"]',
        'A.model.lowerAscii() == "a100"',
        'A.model.startsWith("A") && A.model.matches("^A[0-9]+$")',
        "A.node_total_gpus >= 8",
        "A.node_total_gpus > 7.5",
        "A.healthy",
        'A.cuda.isGreaterThan(semver("12.3.9"))',
        'A.cuda == semver("12.4.0+build")',
        "A.cuda.major() == 12 && A.cuda.minor() == 4 && A.cuda.patch() == 0",
        'A.cuda.compareTo(semver("12.4.0-rc.1")) == 1',
        'device.attributes["resource.kubernetes.io"].pciBusID == "0000:3b:00.0"',
        'C.tflops.compareTo(quantity("71.2")) == 0',
        'C.tflops == quantity("71200m")',
        'C.vram.isGreaterThan(quantity("39Gi")) && C.vram.isLessThan(quantity("41Gi"))',
        "C.vram.isInteger() && !C.tflops.isInteger()",
        "C.vram.asInteger() == 42949672960",
        "C.tflops.asApproximateFloat() >= 71.1",
        "C.tflops.asApproximateFloat() >= 71",
        'C.tflops.add(quantity("800m")) == quantity("72")',
        'C.tflops.sub(1).isLessThan(quantity("70.3"))',
        "C.tflops.sign() == 1",
        'isQuantity("16Gi") && !isQuantity("16 Gi")',
        'isSemver("1.2.3") && !isSemver("1.2") && isSemver("v1.2", true)',
        'semver("v01.2", true) == semver("1.2.0")',
        'semver("1.0.0-rc.2").isGreaterThan(semver("1.0.0-rc.1"))',
        'semver("1.0.0-2").isLessThan(semver("1.0.0-alpha"))',
        f'cel.bind(tf, device.attributes["{DRIVER}"], tf.model == "A100" && tf.healthy)',
        "has(A.model) && !has(A.nothing)",
        'A.?nothing.orValue("") == ""',
        f'"model" in device.attributes["{DRIVER}"]',
        '!has(device.attributes["other.example.com"].model)',
        'device.attributes["other.example.com"].?model.orValue("none") == "none"',
        'A.nothing == 1 || A.model == "A100"',
        '!(A.model == "H100")',
        "!(A.node_total_gpus > 8)",
        '!C.vram.isLessThan(quantity("1Ki"))',
    ],
)
def test_an_expression_matches(text: str) -> None:
    expression = expanded(text)

    assert cel_evaluation.check_expression(expression) is None
    assert cel_evaluation.selector(expression).matches(GPU)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("A.nothing == 1", "no such key: nothing"),
        ('device.attributes["other.example.com"].model == "A100"', "no such key: model"),
        ('C.tflops.compareTo(quantity("many")) == 0', "expected a quantity"),
        ("C.tflops.asInteger() == 71", "cannot convert value to integer"),
        ('A.cuda.isGreaterThan(quantity("1"))', "no such overload"),
        ('semver("1.2") == semver("1.2.0")', "expected a semantic version"),
        ("A.model", "expected bool"),
        ('A.node_total_gpus > "8"', "No matching overloads"),
    ],
)
def test_an_expression_fails_on_the_device(text: str, reason: str) -> None:
    selector = cel_evaluation.selector(expanded(text))

    with pytest.raises(CelRunError, match=reason):
        selector.matches(GPU)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        # The user guide's dialect, with the API server's error texts.
        (
            'device.attributes["model"] == "A100"',
            "found no matching overload for '_==_' applied to '(map(string, any), string)'",
        ),
        (
            'device.attributes["node_total_gpus"] >= 8',
            "found no matching overload for '_>=_' applied to '(map(string, any), int)'",
        ),
        (
            'device.capacity["tflops"].AsApproximateFloat64() >= 200',
            "undeclared reference to 'AsApproximateFloat64'",
        ),
        ('C.tflops == semver("1.0.0")', "'(kubernetes.Quantity, kubernetes.Semver)'"),
        ('"a" > 1 && 1.5 > 1', "found no matching overload for '_>_'"),
    ],
)
def test_the_api_server_refuses_an_expression(text: str, reason: str) -> None:
    expression = expanded(text)

    assert reason in (cel_evaluation.check_expression(expression) or "")
    with pytest.raises(CelCompileError):
        cel_evaluation.selector(expression)


def test_the_longest_expression_passes_and_one_byte_more_does_not() -> None:
    longest = "true" + " " * (10240 - 4)

    assert cel_evaluation.check_expression(longest) is None
    assert cel_evaluation.check_expression(longest + " ") == "may not be more than 10240 bytes"


@pytest.mark.parametrize(
    ("attribute", "reason"),
    [
        (Attribute("version", "12.4"), "attribute odd: parse semantic version"),
        (Attribute("unsupported", ""), "attribute odd: unsupported attribute value"),
    ],
)
def test_an_odd_attribute_fails_every_expression_on_its_device(
    attribute: Attribute, reason: str
) -> None:
    odd = Device(id=GPU.id, attributes={"odd": attribute})

    with pytest.raises(CelRunError, match=reason):
        cel_evaluation.selector("true").matches(odd)

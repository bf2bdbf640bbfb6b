"""Parsing of a pod's annotations into its request, with the errors of malformed ones."""

import pytest

from tensorfusion_dra.core.admission import pod_request
from tensorfusion_dra.core.admission.pod_request import PodRequest
from tensorfusion_dra.core.claims.share_policy import ShareParameters
from tensorfusion_dra.core.devices.gpu import Isolation, Qos
from tensorfusion_dra.core.kubernetes import quantity
from tensorfusion_dra.core.kubernetes.field_errors import FieldError
from tests.support.builders.pods import pod_annotations

AMOUNTS = {"tflops_request": "100", "vram_request": "16Gi"}


def parsed_request(**annotations: str) -> PodRequest:
    errors = list[FieldError]()
    found = pod_request.parse(pod_annotations(**annotations), errors)
    assert errors == []
    return found


def errors_of(**annotations: str) -> list[str]:
    errors = list[FieldError]()
    pod_request.parse(pod_annotations(**annotations), errors)
    return [str(error) for error in errors]


def test_quick_start_requests_a_part_of_one_gpu() -> None:
    found = parsed_request(**AMOUNTS, dra_enabled="true", gpu_count="1", gpupool="default")

    assert found.enabled is True
    assert found.amounts() == {"tflops": quantity.parse("100"), "vram": quantity.parse("16Gi")}
    assert (found.count, found.pool, found.model, found.expression) == (1, "default", "", "")


def test_every_annotation_is_read() -> None:
    found = parsed_request(
        dra_enabled="true",
        tflops_request="71200m",
        vram_request="16Gi",
        gpu_count="4",
        gpu_model="A100",
        gpupool="prod-pool",
        qos="high",
        isolation="hard",
        tflops_limit="200",
        vram_limit="32Gi",
        inject_container="main, side",
        dra_cel_expression='device.attributes["model"] == "H100"\n',
    )

    assert found == PodRequest(
        enabled=True,
        tflops=quantity.parse("71.2"),
        vram=quantity.parse("16Gi"),
        count=4,
        model="A100",
        pool="prod-pool",
        expression='device.attributes["model"] == "H100"\n',
        containers=("main", "side"),
        share=ShareParameters(
            tflops_limit=quantity.parse("200"),
            vram_limit=quantity.parse("32Gi"),
            isolation=Isolation.HARD,
            qos=Qos.HIGH,
        ),
    )


@pytest.mark.parametrize("amount", ["tflops_request", "vram_request"])
def test_one_amount_is_enough_and_the_other_stays_unset(amount: str) -> None:
    assert list(parsed_request(**{amount: "16Gi"}).amounts()) == [amount.removesuffix("_request")]


def test_amount_of_zero_is_unset() -> None:
    assert parsed_request(tflops_request="100", vram_request="0").vram is None


def test_dedicated_gpu_has_no_amounts() -> None:
    found = parsed_request(**AMOUNTS, dedicated_gpu="true")

    assert found.amounts() == {}
    assert parsed_request(dedicated_gpu="true").amounts() == {}


def test_shared_isolation_has_neither_amounts_nor_limits() -> None:
    for more in ({}, AMOUNTS, {"tflops_limit": "100", "vram_limit": "8Gi"}):
        found = parsed_request(**more, isolation="shared", gpu_count="2")

        assert (found.whole, found.amounts(), found.count) == (True, {}, 2)
        assert (found.share.tflops_limit, found.share.vram_limit) == (None, None)


def test_limit_without_a_request_is_the_request_as_well() -> None:
    found = parsed_request(
        dra_enabled="true", tflops_limit="100", vram_limit="8Gi", vram_request="4Gi"
    )

    assert {name: str(amount) for name, amount in found.amounts().items()} == {
        "tflops": "100",
        "vram": "4Gi",
    }


def test_blank_expression_is_unset() -> None:
    assert parsed_request(**AMOUNTS, dra_cel_expression=" \n").expression == ""


@pytest.mark.parametrize(
    ("annotation", "text", "error"),
    [
        ("dra_enabled", "yes", "found 'yes', expected true or false"),
        ("tflops_request", "100 TF", "found '100 TF', expected a quantity such as 100, 71200m"),
        ("tflops_request", "-1", "found -1, expected more than 0"),
        ("vram_request", "16GiB", "found '16GiB', expected a quantity"),
        ("gpu_count", "0", "found '0', expected 1 to 32"),
        ("gpu_count", "33", "found '33', expected 1 to 32"),
        ("gpu_count", "1.5", "found '1.5', expected 1 to 32"),
        ("gpu_count", "٤", "found '٤', expected 1 to 32"),
        ("gpu_model", " ", "found ' ', expected a model such as A100"),
        ("gpu_model", "\ud800", "found '\\ud800', expected text that UTF-8 can encode"),
        ("gpupool", "Prod_Pool", "found 'Prod_Pool', expected the name of a GPUPool"),
        ("qos", "best", "found 'best', expected one of low, medium, high, critical"),
        ("isolation", "none", "found 'none', expected one of soft, hard, shared"),
        ("tflops_limit", "x", "found 'x', expected a quantity"),
        ("compute_percent_request", "101", "found 101, expected more than 0 and at most 100"),
        ("compute_percent_request", "-1", "found -1, expected more than 0 and at most 100"),
        ("compute_percent_limit", "50%", "found '50%', expected a quantity"),
        ("vram_limit", "-1Gi", "found -1Gi, expected 0 or more"),
        ("inject_container", "main,,side", "found 'main,,side', expected names of containers"),
        ("dedicated_gpu", "1", "found '1', expected true or false"),
        ("dra_cel_expression", "device.attributes[", "1:"),
        ("dra_cel_expression", 'device.capacity["vram"] > 5', "1:"),
    ],
)
def test_malformed_annotation_is_reported_with_the_expected_value(
    annotation: str, text: str, error: str
) -> None:
    (found,) = errors_of(**{**AMOUNTS, annotation: text})

    name = annotation.replace("_", "-")
    assert found.startswith(f"metadata.annotations[tensor-fusion.ai/{name}]: {error}")


def test_all_errors_are_collected() -> None:
    found = errors_of(
        dra_enabled="on", gpu_count="many", qos="best", vram_limit="x", vram_request="?"
    )

    assert len(found) == 5


def test_pod_without_an_amount_is_refused() -> None:
    (found,) = errors_of(dra_enabled="true", gpu_model="A100")

    assert found == (
        "metadata.annotations[tensor-fusion.ai/tflops-request]: "
        "found no amount, expected tensor-fusion.ai/tflops-request, "
        "tensor-fusion.ai/vram-request or both"
    )


def test_malformed_dra_enabled_counts_as_true_so_that_its_error_is_reported() -> None:
    errors = list[FieldError]()

    assert pod_request.parse(pod_annotations(dra_enabled="True", **AMOUNTS), errors).enabled is True
    assert len(errors) == 1


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        ({}, False),
        ({"gpupool": "default"}, False),
        ({"qos": "high", "tflops_limit": "1"}, False),
        ({"tflops_request": "100"}, True),
        ({"dra_enabled": "true"}, True),
        ({"dra_enabled": "false", "tflops_request": "100"}, False),
    ],
)
def test_only_some_annotations_request_a_gpu(
    annotations: dict[str, str], *, expected: bool
) -> None:
    assert pod_request.requests_gpu(pod_annotations(**annotations)) is expected

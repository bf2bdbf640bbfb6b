"""Pods that are refused because of their labels, annotations or containers."""

from typing import Any

import pytest

from tensorfusion_dra.core import names
from tensorfusion_dra.core.admission import pod_admission, pod_request, pod_warnings
from tensorfusion_dra.core.admission.pod_request import PodRequest
from tests.core.admission.pod_cases import ASKED, admitted_pod, refused
from tests.support.builders.pods import container_document, pod_annotations, pod_document


def test_container_that_would_get_only_one_of_several_gpus_is_refused() -> None:
    claims = [{"name": "tensor-fusion-gpu-claim", "request": "gpu-request"}]
    found = pod_document(
        {**ASKED, **pod_annotations(gpu_count="4")},
        container_document(resources={"claims": claims}),
    )

    (error,) = refused(found)

    assert error.startswith("spec.containers[0].resources.claims[0].request: ")
    assert "found 'gpu-request', expected none: each of the 4 GPUs has its own request" in error


@pytest.mark.parametrize(
    ("annotation", "meant"),
    [
        ("tensor-fusion.ai/tflop-request", "tensor-fusion.ai/tflops-request"),
        ("tensor-fusion.ai/tfolps-request", "tensor-fusion.ai/tflops-request"),
        ("tensor-fusion.ai/vram-requests", "tensor-fusion.ai/vram-request"),
        ("tensor-fusion.ai/vram_request", "tensor-fusion.ai/vram-request"),
        ("tensorfusion.ai/vram-request", "tensor-fusion.ai/vram-request"),
        ("tensor-fusion.ai/vram-limits", "tensor-fusion.ai/vram-limit"),
        ("tensor-fusion.ai/gpu-cuont", "tensor-fusion.ai/gpu-count"),
        ("tensor-fusion.ai/compute-percents-limit", "tensor-fusion.ai/compute-percent-limit"),
        ("tensor-fusion.ai/memory-request", ""),
        ("tensor-fusion.ai/gpu-modle", ""),
        ("tensor-fusion.ai/vram", ""),
        ("example.com/vram-request", ""),
    ],
)
def test_amount_that_is_misspelled_by_two_letters_is_refused(annotation: str, meant: str) -> None:
    found = refused(pod_document({**ASKED, annotation: "1"}))

    text = f"found an unknown annotation; did you mean {meant}?"
    assert found == ([f"metadata.annotations[{annotation}]: {text}"] if meant else [])


def test_no_annotation_with_a_meaning_resembles_an_amount() -> None:
    others = {*names.SHARE_ANNOTATIONS, *pod_request.REQUESTING_ANNOTATIONS}
    others |= {
        f"{names.ANNOTATION_PREFIX}{name}"
        for name in (*pod_warnings.OTHERS, *pod_warnings.WITHOUT_EFFECT)
    }
    annotations = dict.fromkeys(others, "1")

    errors = pod_admission.errors(pod_document(annotations), PodRequest(), takes_hard=True)

    assert [str(error) for error in errors if "did you mean" in str(error)] == []


@pytest.mark.parametrize("switch", sorted(pod_admission.REFUSED_ENV))
def test_variable_that_bypasses_the_limiter_is_refused(switch: str) -> None:
    env = [{"name": "A", "value": "b"}, {"name": switch, "value": "1"}]

    (error,) = refused(
        pod_document(ASKED, container_document(), container_document("side", env=env))
    )

    assert error == (
        f"spec.containers[1].env[1].name: found {switch}, "
        "expected no switch that turns the limiter off"
    )


def test_test_mode_is_refused_even_if_empty_or_from_a_field() -> None:
    empty = {"name": "TF_SHM_FILE", "value": ""}
    elsewhere = {"name": "TF_SHM_FILE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}

    assert (
        len(
            refused(
                pod_document(
                    ASKED, container_document(env=[empty]), container_document("b", env=[elsewhere])
                )
            )
        )
        == 2
    )


def test_variables_of_containers_without_a_share_are_not_checked() -> None:
    env = [{"name": "TF_SHM_FILE", "value": "x"}]
    annotations = {**ASKED, **pod_annotations(inject_container="main")}

    assert (
        refused(
            pod_document(annotations, container_document(), container_document("side", env=env))
        )
        == []
    )


def test_every_named_container_must_exist() -> None:
    errors = refused(pod_document({**ASKED, **pod_annotations(inject_container="main,gone,lost")}))

    assert errors == [
        "metadata.annotations[tensor-fusion.ai/inject-container]: "
        f"found '{name}', expected one of main"
        for name in ("gone", "lost")
    ]


@pytest.mark.parametrize(
    "spec",
    [
        {"containers": None},
        {"containers": [None, 1, {"name": 3}], "initContainers": {}},
        {"containers": [{"name": "a", "resources": None, "env": [None, {}]}]},
        {"containers": [{"resources": {"limits": None, "claims": None}}], "resourceClaims": None},
    ],
)
def test_pod_that_the_api_server_will_refuse_raises_no_exception(spec: dict[str, Any]) -> None:
    found = {**pod_document(ASKED), "spec": spec}

    assert refused(found) == []
    assert admitted_pod(found)["spec"]["resourceClaims"]


def test_hard_isolation_is_refused_if_no_enforcer_brings_a_limiter_for_it() -> None:
    found = pod_document({**ASKED, **pod_annotations(isolation="hard")})

    (error,) = refused(found)

    where = "metadata.annotations[tensor-fusion.ai/isolation]"
    assert error.startswith(f"{where}: found hard, expected an enforcer that brings one")
    assert refused(found, takes_hard=True) == []


def test_pod_of_tensor_fusions_own_webhook_is_refused_with_a_remedy() -> None:
    found = pod_document(ASKED)
    found["metadata"]["labels"] = {"tensor-fusion.ai/enabled": "true"}

    (error,) = refused(found)

    assert error.startswith("metadata.labels[tensor-fusion.ai/enabled]: found true, so Tensor")
    assert error.endswith("remove the label, or set tensor-fusion.ai/dra-enabled to false")


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        (
            pod_annotations(tflops_limit="50"),
            "tflops-limit]: found 50, expected at least the request of 100",
        ),
        (
            pod_annotations(vram_limit="8Gi"),
            "vram-limit]: found 8Gi, expected at least the request of 16Gi",
        ),
        (
            pod_annotations(
                tflops_request="0", compute_percent_request="50", compute_percent_limit="25"
            ),
            "compute-percent-limit]: found 25, expected at least the request of 50",
        ),
    ],
)
def test_limit_below_its_request_is_refused(annotations: dict[str, str], expected: str) -> None:
    (error,) = refused(pod_document({**ASKED, **annotations}))

    assert error == f"metadata.annotations[tensor-fusion.ai/{expected}"

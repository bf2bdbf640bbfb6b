"""Warnings to the author of a pod."""

import pytest

from tensorfusion_dra.core.admission import pod_admission, pod_request
from tensorfusion_dra.core.admission.pod_admission import Placement
from tests.support.admission import Json
from tests.support.builders.pods import container_document, pod_annotations, pod_document

PLACE = Placement(
    pool="default", template="tensor-fusion-gpu-template", scheduler="default-scheduler"
)
ASKED = pod_annotations(
    dra_enabled="true", tflops_request="100", vram_request="16Gi", gpupool="default"
)


WHOLE: Json = {"resources": {"limits": {"nvidia.com/gpu": "1"}}}


def warnings(found: Json, placement: Placement = PLACE) -> list[str]:
    annotations = found["metadata"]["annotations"]
    return pod_admission.warnings(found, annotations, pod_request.parse(annotations, []), placement)


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        (
            pod_annotations(vram_request="16"),
            "tensor-fusion.ai/vram-request: 16 bytes; did you mean 16Gi?",
        ),
        (
            pod_annotations(vram_request="0"),
            "tensor-fusion.ai/vram-request: not set, so the pod takes all memory of its GPUs",
        ),
        (
            pod_annotations(tflops_request="0"),
            "tensor-fusion.ai/tflops-request: not set, so the pod takes all compute of its GPUs",
        ),
        (
            pod_annotations(dedicated_gpu="true"),
            "tensor-fusion.ai/dedicated-gpu: the pod gets whole GPUs; its amounts are ignored",
        ),
        (
            pod_annotations(isolation="shared"),
            "tensor-fusion.ai/isolation: the pod gets whole GPUs; its amounts are ignored",
        ),
        (
            pod_annotations(gpu_modle="A100"),
            "tensor-fusion.ai/gpu-modle: unknown annotation; "
            "did you mean tensor-fusion.ai/gpu-model?",
        ),
        (
            pod_annotations(something="1"),
            "tensor-fusion.ai/something: unknown annotation",
        ),
        (
            pod_annotations(workload_profile="large"),
            "tensor-fusion.ai/workload-profile: has no effect in DRA mode: "
            "its amounts are not read; set them as annotations",
        ),
        (pod_annotations(gpu_count="1"), None),
        # Of other components.
        (pod_annotations(is_local_gpu="true", gang_min="2"), None),
        ({"example.com/tflops-request": "1", "prometheus.io/scrape": "true"}, None),
    ],
)
def test_annotations_with_unexpected_effects_are_warned_about(
    annotations: dict[str, str], expected: str | None
) -> None:
    found = warnings(pod_document({**ASKED, **annotations}))

    assert found == ([expected] if expected else [])


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (
            {"schedulerName": "tensor-fusion-scheduler"},
            "spec.schedulerName: in DRA mode default-scheduler places the pod, "
            "not tensor-fusion-scheduler",
        ),
        (
            {"nodeName": "node-01"},
            "spec.nodeName: the pod bypasses the scheduler, so its claim is never allocated",
        ),
        (
            {"resourceClaims": [{"name": "tensor-fusion-gpu-claim", "resourceClaimName": "mine"}]},
            "spec.resourceClaims: tensor-fusion-gpu-claim keeps mine "
            "instead of tensor-fusion-gpu-template",
        ),
        (
            {"containers": [container_document(securityContext={"privileged": True})]},
            "container main: is privileged, so it sees every GPU of its node",
        ),
        (
            {"containers": [container_document(env=[{"name": "LD_PRELOAD", "value": "x"}])]},
            "container main: on nodes with the setting preload=env the limiter's LD_PRELOAD "
            "replaces its own",
        ),
        (
            {"initContainers": [container_document("init", securityContext={"privileged": True})]},
            None,
        ),
        (
            {"initContainers": [container_document("init", **WHOLE)]},
            "container init: nvidia.com/gpu was removed; it gets no share",
        ),
    ],
)
def test_pod_specs_with_unexpected_effects_are_warned_about(
    spec: Json, expected: str | None
) -> None:
    found = pod_document({**ASKED, **pod_annotations(inject_container="main")})
    found["spec"].update(spec)

    assert warnings(found) == ([expected] if expected else [])


def test_kept_scheduler_must_allocate_claims() -> None:
    kept = Placement(pool="default", template=PLACE.template, scheduler="")

    (warning,) = warnings(pod_document(ASKED, schedulerName="tensor-fusion-scheduler"), kept)

    assert "must be a scheduler that allocates claims" in warning


@pytest.mark.parametrize(
    ("is_one_of_several", "expected"),
    [(True, ["tensor-fusion.ai/gpupool: not set, so GPUs of every pool match"]), (False, [])],
)
def test_pod_without_a_pool_is_warned_where_it_has_a_choice(
    is_one_of_several: bool, expected: list[str]
) -> None:
    nowhere = Placement(
        pool="",
        template=PLACE.template,
        scheduler="default-scheduler",
        is_one_of_several=is_one_of_several,
    )
    annotations = pod_annotations(tflops_request="1", vram_request="1Gi")

    assert warnings(pod_document(annotations), nowhere) == expected


def test_every_warning_is_at_most_256_characters() -> None:
    long = {f"tensor-fusion.ai/{'x' * 63}": "1", f"tensor-fusion.ai/{'vram-request' * 5}": "1"}
    found = pod_document({**ASKED, **long}, schedulerName="tensor-fusion-scheduler", nodeName="n")

    assert len(warnings(found)) == 4
    assert all(len(text) <= 256 for text in warnings(found))

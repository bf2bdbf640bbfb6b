"""What whoever writes a pod is warned of."""

import pytest

from tensorfusion_dra.core.admission import pod_request, pod_warnings
from tensorfusion_dra.core.admission.pod_admission import Placement
from tests.support.admission import Json, container, pod, said

PLACE = Placement(
    pool="default", template="tensor-fusion-gpu-template", scheduler="default-scheduler"
)
ASKED = said(dra_enabled="true", tflops_request="100", vram_request="16Gi", gpupool="default")


def warnings(found: Json, placement: Placement = PLACE) -> list[str]:
    annotations = found["metadata"]["annotations"]
    return pod_warnings.warnings(found, annotations, pod_request.parse(annotations, []), placement)


def test_there_is_nothing_to_say_about_the_quick_start() -> None:
    assert warnings(pod({**ASKED, **said(gpu_count="1")})) == []


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        (
            said(vram_request="16"),
            "tensor-fusion.ai/vram-request: 16 bytes, is 16Gi meant?",
        ),
        (
            said(vram_request="0"),
            "tensor-fusion.ai/vram-request: not named, so the pod takes all memory of its GPUs",
        ),
        (
            said(tflops_request="0"),
            "tensor-fusion.ai/tflops-request: not named, so the pod takes all compute of its GPUs",
        ),
        (
            said(dedicated_gpu="true"),
            "tensor-fusion.ai/dedicated-gpu: the pod gets its GPUs alone, whatever it asks",
        ),
        (
            said(isolation="shared"),
            "tensor-fusion.ai/isolation: the pod gets its GPUs alone, whatever it asks",
        ),
        (
            said(vram_requests="16Gi"),
            "tensor-fusion.ai/vram-requests: no annotation of that name is known, "
            "is tensor-fusion.ai/vram-request meant?",
        ),
        (
            said(something="1"),
            "tensor-fusion.ai/something: no annotation of that name is known",
        ),
        (
            said(workload_profile="large"),
            "tensor-fusion.ai/workload-profile: has no effect in DRA mode: "
            "its amounts are not read; name them as annotations",
        ),
    ],
)
def test_annotations_that_surprise_are_pointed_out(
    annotations: dict[str, str], expected: str
) -> None:
    assert warnings(pod({**ASKED, **annotations})) == [expected]


def test_annotations_of_others_are_nobodys_business() -> None:
    others = {"example.com/tflops-request": "1", "prometheus.io/scrape": "true"}

    assert warnings(pod({**ASKED, **others, **said(is_local_gpu="true", gang_min="2")})) == []


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
            "spec.nodeName: the pod passes the scheduler by, and its claim is never allocated",
        ),
        (
            {"resourceClaims": [{"name": "tensor-fusion-gpu-claim", "resourceClaimName": "mine"}]},
            "spec.resourceClaims: tensor-fusion-gpu-claim stays mine, "
            "not tensor-fusion-gpu-template",
        ),
        (
            {"containers": [container(securityContext={"privileged": True})]},
            "container main: is privileged, so it sees every GPU of its node",
        ),
        (
            {"containers": [container(env=[{"name": "LD_PRELOAD", "value": "x"}])]},
            "container main: its LD_PRELOAD gives way to the limiter's",
        ),
        (
            {"initContainers": [container("init", securityContext={"privileged": True})]},
            None,
        ),
    ],
)
def test_pods_that_surprise_are_pointed_out(spec: Json, expected: str | None) -> None:
    found = pod(ASKED)
    found["spec"].update(spec)

    assert warnings(found) == ([expected] if expected else [])


def test_a_scheduler_that_is_kept_has_to_allocate_claims() -> None:
    kept = Placement(pool="default", template=PLACE.template, scheduler="")

    (warning,) = warnings(pod(ASKED, schedulerName="tensor-fusion-scheduler"), kept)

    assert "has to be one that allocates claims" in warning


def test_a_whole_gpu_that_is_taken_from_a_container_without_a_share_is_pointed_out() -> None:
    side = container("side", resources={"limits": {"nvidia.com/gpu": "1"}})

    (warning,) = warnings(pod({**ASKED, **said(inject_container="main")}, container(), side))

    assert warning == "container side: nvidia.com/gpu was removed, and it gets no share"


def test_without_a_pool_gpus_of_every_pool_fit() -> None:
    nowhere = Placement(pool="", template=PLACE.template, scheduler="default-scheduler")
    annotations = said(tflops_request="1", vram_request="1Gi")

    assert warnings(pod(annotations), nowhere) == [
        "tensor-fusion.ai/gpupool: not named, so GPUs of every pool fit"
    ]


def test_every_warning_fits_into_what_the_api_server_shows() -> None:
    long = {f"tensor-fusion.ai/{'x' * 63}": "1", f"tensor-fusion.ai/{'vram-request' * 5}": "1"}
    found = pod({**ASKED, **long}, schedulerName="tensor-fusion-scheduler", nodeName="n")

    assert len(warnings(found)) == 4
    assert all(len(text) <= 256 for text in warnings(found))

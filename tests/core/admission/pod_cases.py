"""Admission of pods that request a share, for tests."""

from tensorfusion_dra.core.admission import pod_admission, pod_request
from tensorfusion_dra.core.admission.pod_admission import Placement
from tensorfusion_dra.core.admission.pod_request import PodRequest
from tests.support.admission import Json
from tests.support.builders.pods import pod_annotations

PLACE = Placement(
    pool="default", template="tensor-fusion-gpu-template", scheduler="default-scheduler"
)
ASKED = pod_annotations(
    dra_enabled="true", tflops_request="100", vram_request="16Gi", gpupool="default"
)


def parsed_request(found: Json) -> PodRequest:
    return pod_request.parse(found["metadata"]["annotations"], [])


def admitted_pod(found: Json, placement: Placement = PLACE) -> Json:
    return pod_admission.admitted(found, parsed_request(found), placement)


def refused(found: Json, *, takes_hard: bool = False) -> list[str]:
    errors = pod_admission.errors(found, parsed_request(found), takes_hard=takes_hard)
    return [str(error) for error in errors]

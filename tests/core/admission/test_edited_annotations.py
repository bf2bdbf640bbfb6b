"""A claim and the annotations of its pod, which were edited after it was made."""

import pytest

from tensorfusion_dra.core.admission import claim_admission, pod_request
from tests.support.builders.pods import pod_annotations
from tests.support.builders.stored_claims import template_claim

ASKED = {
    "tflops_request": "100",
    "vram_request": "16Gi",
    "gpu_count": "2",
    "gpu_model": "A100",
    "gpupool": "prod",
}


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        ({}, []),
        ({"vram_request": "16384Mi"}, []),
        ({"vram_request": "8Gi"}, ["vram 16Gi"]),
        ({"tflops_request": "0", "compute_percent_request": "25"}, []),
        ({"gpu_count": "3"}, ["number of GPUs 2"]),
        ({"gpu_model": "H100"}, ["selector"]),
        ({"dra_cel_expression": "true"}, ["selector"]),
        ({"qos": "high"}, ["selector", "tensor-fusion.ai/qos unset"]),
        ({"vram_limit": "32Gi"}, ["tensor-fusion.ai/vram-limit unset"]),
        ({"dedicated_gpu": "true"}, ["amounts of a shared card"]),
        ({"gpupool": "test"}, ["selector"]),
    ],
)
@pytest.mark.parametrize("virtual", [False, True])
def test_claim_shows_which_annotations_were_edited_after_it_was_made(
    edit: dict[str, str], expected: list[str], *, virtual: bool
) -> None:
    before = pod_request.parse(pod_annotations(**ASKED), [])
    claim = claim_admission.filled(template_claim(), before, pool="prod", virtual=virtual)

    now = pod_request.parse(pod_annotations(**{**ASKED, **edit}), [])

    assert claim_admission.differing(claim, now) == expected

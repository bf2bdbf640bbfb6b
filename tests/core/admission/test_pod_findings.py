"""What is wrong with a pod, by its annotations and those of its workload."""

from typing import Any

import pytest

from tensorfusion_dra.core import names
from tensorfusion_dra.core.admission import findings
from tensorfusion_dra.core.admission.dialects import Dialect
from tests.support.builders.pods import pod_annotations, pod_document

Json = dict[str, Any]
ASKED = pod_annotations(vram_request="16Gi")
PLAIN: Json = {"metadata": {}}
ASKING: Json = {"metadata": {"annotations": pod_annotations(tflops_request="1")}}


@pytest.mark.parametrize("spec", [{}, {"schedulerName": names.TENSOR_FUSION_SCHEDULER}])
def test_pod_that_tensor_fusion_places_itself_has_its_gpu(spec: Json) -> None:
    found = [*findings.without_effect(pod_document(ASKED, **spec))]

    assert len(found) == (not spec)


@pytest.mark.parametrize(
    ("kind", "spec", "where"),
    [
        ("Deployment", {"template": PLAIN}, "spec.template.metadata.annotations"),
        (
            "CronJob",
            {"jobTemplate": {"spec": {"template": PLAIN}}},
            "spec.jobTemplate.spec.template.metadata.annotations",
        ),
        ("Deployment", {"template": ASKING}, ""),
        ("CronJob", {"jobTemplate": {"spec": {"template": ASKING}}}, ""),
        ("Pod", {"containers": []}, ""),
    ],
)
def test_annotations_of_a_workload_that_its_pods_do_not_get(
    kind: str, spec: Json, where: str
) -> None:
    metadata = {"name": "w", "namespace": "team-a", "annotations": ASKED}

    found = [*findings.misplaced({"kind": kind, "metadata": metadata, "spec": spec})]

    assert [each.expected for each in found] == ([where] if where else [])


@pytest.mark.parametrize(
    ("unknown", "dialect"),
    [
        (["nvidia.com/gpu", "nvidia.com/gpumem"], Dialect.HAMI),
        (["nvidia.com/vgpu-memory", "nvidia.com/vgpu-cores"], Dialect.VGPU_MANAGER),
        (["nvidia.com/gpu"], None),
        (["example.com/fpga"], None),
        ([], None),
    ],
)
def test_dialect_of_resources_that_nobody_offers(
    unknown: list[str], dialect: Dialect | None
) -> None:
    assert findings.dialect_of(unknown) is dialect

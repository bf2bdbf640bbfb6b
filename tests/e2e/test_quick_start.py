"""Pods with annotations, to which the webhook adds claims."""

from pathlib import Path

import pytest
import yaml

from tensorfusion_dra.app.doctor import objects
from tensorfusion_dra.core import names
from tensorfusion_dra.core.errors import StatusError
from tests.e2e.cluster import Cluster
from tests.e2e.tenants import Tenants

pytestmark = pytest.mark.webhook

ROOT = Path(__file__).parents[2]
TEMPLATE = ROOT / "daemonset" / "claim-template.yaml"
EXAMPLE = ROOT / "hack" / "examples" / "guide-quick-start.yaml"
DRA = {"tensor-fusion.ai/dra-enabled": "true"}


@pytest.fixture
def annotated(tenants: Tenants, cluster: Cluster) -> Tenants:
    """Namespace with the claim template, on a cluster with the webhook."""
    assert objects.webhooks(cluster.objects("MutatingWebhookConfiguration")), (
        "no webhook of this driver: apply daemonset/install/webhook.yaml, or deselect these tests "
        "with -m 'not webhook'"
    )
    template = yaml.safe_load(TEMPLATE.read_text(encoding="utf-8"))
    template["metadata"]["namespace"] = tenants.namespace
    cluster.create(template)
    return tenants


def test_quick_start_example_runs_with_its_share(annotated: Tenants) -> None:
    example = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))

    annotated.pod("quick", annotations=example["metadata"]["annotations"])
    annotated.wait_until_running("quick")

    (result,) = annotated.results("quick")
    assert result["consumedCapacity"] == {"tflops": "100", "vram": "16Gi"}
    assert annotated.env("quick")[names.ENV_MEMORY_LIMIT] == str(16 * 1024)


def test_invalid_annotations_are_all_reported_at_once(annotated: Tenants) -> None:
    annotations = {
        **DRA,
        "tensor-fusion.ai/tflops-request": "many",
        "tensor-fusion.ai/gpu-count": "0",
    }

    with pytest.raises(StatusError) as rejected:
        annotated.pod("wrong", annotations=annotations)

    for annotation in annotations.keys() - DRA.keys():
        assert annotation in str(rejected.value)


def test_pod_without_annotations_is_unchanged(annotated: Tenants) -> None:
    annotated.pod("plain")
    annotated.wait_until_running("plain")

    assert "resourceClaims" not in annotated.stored("plain")["spec"]
    assert names.ENV_MEMORY_LIMIT not in annotated.env("plain")

"""Pods that only carry annotations, as the webhook turns them into pods with claims."""

from pathlib import Path

import pytest
import yaml

from tensorfusion_dra.core import names
from tensorfusion_dra.core.diagnosis import webhook
from tests.e2e.cluster import Cluster
from tests.e2e.tenants import Tenants

pytestmark = pytest.mark.webhook

TEMPLATE = Path(__file__).parents[2] / "daemonset" / "claim-template.yaml"


@pytest.fixture
def annotated(tenants: Tenants, cluster: Cluster) -> Tenants:
    """A namespace with the claim template, on a cluster with the webhook."""
    assert webhook.ours(cluster.objects("MutatingWebhookConfiguration")), (
        "no webhook of this driver: install daemonset/overlays/webhook, or leave these tests out "
        "with -m 'not webhook'"
    )
    template = yaml.safe_load(TEMPLATE.read_text(encoding="utf-8"))
    template["metadata"]["namespace"] = tenants.namespace
    cluster.create(template)
    return tenants


def test_a_pod_with_annotations_gets_the_share_that_they_name(annotated: Tenants) -> None:
    asks = {
        "tensor-fusion.ai/tflops-request": "100",
        "tensor-fusion.ai/vram-request": "16Gi",
        "tensor-fusion.ai/vram-limit": "20Gi",
    }
    annotated.pod("quick", annotations=asks)
    annotated.runs("quick")

    env = annotated.env("quick")

    (result,) = annotated.results("quick")
    assert result["consumedCapacity"] == {"tflops": "100", "vram": "16Gi"}
    assert env[names.ENV_MEMORY_LIMIT] == str(20 * 1024)


def test_a_pod_that_asks_for_two_gpus_gets_two_cards(annotated: Tenants) -> None:
    asks = {
        "tensor-fusion.ai/tflops-request": "10",
        "tensor-fusion.ai/vram-request": "1Gi",
        "tensor-fusion.ai/gpu-count": "2",
    }
    annotated.pod("two", annotations=asks)
    annotated.runs("two")

    assert len({result["device"] for result in annotated.results("two")}) == 2


def test_a_pod_that_asks_for_nothing_is_left_alone(annotated: Tenants) -> None:
    annotated.pod("plain")
    annotated.runs("plain")

    assert "resourceClaims" not in annotated.stored("plain")["spec"]
    assert names.ENV_MEMORY_LIMIT not in annotated.env("plain")

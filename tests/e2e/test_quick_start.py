"""Pods that only carry annotations, as the webhook turns them into pods with claims."""

from pathlib import Path

import pytest
import yaml

from tensorfusion_dra.cluster.api import StatusError
from tensorfusion_dra.core import names
from tensorfusion_dra.core.doctor import webhook
from tests.e2e.cluster import Cluster
from tests.e2e.tenants import Tenants

pytestmark = pytest.mark.webhook

ROOT = Path(__file__).parents[2]
TEMPLATE = ROOT / "daemonset" / "claim-template.yaml"
EXAMPLE = ROOT / "hack" / "examples" / "guide-quick-start.yaml"
DRA = {"tensor-fusion.ai/dra-enabled": "true"}


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


def test_the_quick_start_of_the_guide_runs_with_its_share(annotated: Tenants) -> None:
    example = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))

    annotated.pod("quick", annotations=example["metadata"]["annotations"])
    annotated.runs("quick")

    (result,) = annotated.results("quick")
    assert result["consumedCapacity"] == {"tflops": "100", "vram": "16Gi"}
    assert annotated.env("quick")[names.ENV_MEMORY_LIMIT] == str(16 * 1024)


def test_a_memory_limit_may_be_more_than_the_request(annotated: Tenants) -> None:
    asks = {
        **DRA,
        "tensor-fusion.ai/tflops-request": "100",
        "tensor-fusion.ai/vram-request": "16Gi",
        "tensor-fusion.ai/vram-limit": "20Gi",
    }
    annotated.pod("more", annotations=asks)
    annotated.runs("more")

    env = annotated.env("more")

    (result,) = annotated.results("more")
    assert result["consumedCapacity"] == {"tflops": "100", "vram": "16Gi"}
    assert env[names.ENV_MEMORY_LIMIT] == str(20 * 1024)


def test_a_pod_that_asks_for_two_gpus_gets_two_cards(annotated: Tenants) -> None:
    asks = {
        **DRA,
        "tensor-fusion.ai/tflops-request": "10",
        "tensor-fusion.ai/vram-request": "1Gi",
        "tensor-fusion.ai/gpu-count": "2",
    }
    annotated.pod("two", annotations=asks)
    annotated.runs("two")

    assert len({result["device"] for result in annotated.results("two")}) == 2


def test_annotations_that_mean_nothing_are_refused_all_at_once(annotated: Tenants) -> None:
    asks = {**DRA, "tensor-fusion.ai/tflops-request": "many", "tensor-fusion.ai/gpu-count": "0"}

    with pytest.raises(StatusError) as refused:
        annotated.pod("wrong", annotations=asks)

    for annotation in asks.keys() - DRA.keys():
        assert annotation in str(refused.value)


def test_a_pod_that_asks_for_nothing_is_left_alone(annotated: Tenants) -> None:
    annotated.pod("plain")
    annotated.runs("plain")

    assert "resourceClaims" not in annotated.stored("plain")["spec"]
    assert names.ENV_MEMORY_LIMIT not in annotated.env("plain")

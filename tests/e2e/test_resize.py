"""Limits of running shares are changed by the verb and by hand, and never past a quota."""

import subprocess
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import yaml

from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims.device_status import CONDITION_CHANGED, condition
from tensorfusion_dra.core.errors import StatusError
from tensorfusion_dra.core.kubernetes.quantity import GIB
from tests.e2e.cluster import Cluster, Json
from tests.e2e.conftest import Typed
from tests.e2e.drivers import LABEL_NAME, Driver
from tests.e2e.tenants import Tenants, capacity_request
from tests.support.markdown import ROOT

SIXTEEN = capacity_request("gpu", {"tflops": "20", "vram": "16Gi"})


@pytest.fixture
def resize(typed: Typed, tenants: Tenants) -> Typed:
    return partial(typed, "resize", "--namespace", tenants.namespace)


def answer(cluster: Cluster, tenants: Tenants, pod: str, reason: str, text: str = "") -> Json:
    """Wait for an answer in the status of a pod's claim, and return the entry of its device."""

    def found() -> Json | None:
        (entry,) = ((tenants.claim(pod) or {}).get("status") or {}).get("devices") or [{}]
        shown = condition(entry, CONDITION_CHANGED)
        return entry if (shown.get("reason") == reason and text in shown["message"]) else None

    return cluster.until(f"the answer {reason} to {pod}", found, seconds=40)


def limit_of(entry: Json) -> int:
    return int(entry["data"]["limits"]["vramBytes"]) // GIB


def annotate(cluster: Cluster, tenants: Tenants, pod: str, **limits: str | None) -> None:
    """Change annotations of a pod's claim by hand, as kubectl annotate does."""
    claim = tenants.claim(pod)
    assert claim is not None
    keys = {"vram": names.ANNOTATION_VRAM_LIMIT, "tflops": names.ANNOTATION_TFLOPS_LIMIT}
    cluster.merge(
        "ResourceClaim",
        claim["metadata"]["name"],
        {"metadata": {"annotations": {keys[name]: text for name, text in limits.items()}}},
        namespace=tenants.namespace,
    )


@pytest.mark.usefixtures("idle_node")
def test_a_raise_is_granted_in_part_refused_and_survives_a_restart(
    tenants: Tenants, cluster: Cluster, driver: Driver, resize: Typed, slices: Any
) -> None:
    cards = sum(len(item["spec"]["devices"]) for item in slices())
    first = "tenant"
    tenants.template("share", SIXTEEN)
    tenants.run_all(first, template="share")

    code, said = resize(f"pod/{first}", "vram=60Gi", "tflops=100", "--wait")
    assert code == 0, said
    assert "Granted: GPU-" in said
    assert limit_of(answer(cluster, tenants, first, "Granted")) == 60
    assert "60Gi of memory" in tenants.event(first, names.EVENT_LIMIT_CHANGED)

    half = capacity_request("gpu", {"tflops": "20", "vram": "40Gi"})
    tenants.template("half", half)
    halves = [f"half-{number}" for number in range(cards)]
    tenants.run_all(*halves, template="half")
    assert limit_of(answer(cluster, tenants, first, "GrantedInPart", "60Gi of memory")) == 40
    driver.kill()
    assert limit_of(answer(cluster, tenants, first, "GrantedInPart", "60Gi of memory")) == 40
    assert resize(first, "vram=61Gi", "--wait")[0] == 1
    tenants.delete(*halves)
    assert limit_of(answer(cluster, tenants, first, "Granted")) == 61

    code, said = resize(first, "vram=1Gi", "--wait")
    assert code != 0, said
    assert "at least its request 16Gi" in said
    assert resize(first, "memory=1Gi")[0] == 2
    assert resize("nobody", "vram=20Gi")[0] == 2


@pytest.mark.webhook
@pytest.mark.usefixtures("idle_node")
def test_an_annotation_by_hand_gets_the_label_and_keeps_it(
    tenants: Tenants, cluster: Cluster
) -> None:
    tenants.template("share", SIXTEEN)
    tenants.run_all("a", template="share")

    annotate(cluster, tenants, "a", vram="30Gi")

    assert limit_of(answer(cluster, tenants, "a", "Granted", "30Gi")) == 30
    claim = tenants.claim("a")
    assert claim is not None
    label = claim["metadata"]["labels"][names.LABEL_NODE]
    forged = {"metadata": {"labels": {names.LABEL_NODE: "elsewhere"}}}
    name = claim["metadata"]["name"]
    stored = cluster.merge("ResourceClaim", name, forged, namespace=tenants.namespace)
    assert stored["metadata"]["labels"][names.LABEL_NODE] == label
    for malformed in ("much", "1Gi"):
        with pytest.raises(StatusError, match="vram"):
            annotate(cluster, tenants, "a", vram=malformed)
    annotate(cluster, tenants, "a", vram=None)
    assert limit_of(answer(cluster, tenants, "a", "Granted", "16Gi")) == 16


@pytest.fixture
def quota(cluster: Cluster, tenants: Tenants) -> Iterator[Json]:
    """A quota of 50Gi of limits in the namespace of the test."""
    crd = yaml.safe_load(
        (ROOT / "daemonset/chart/tensor-fusion-crds/gpuresourcequotas.yaml").read_text()
    )
    crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    if cluster.api.find(f"{crds}/{crd['metadata']['name']}") is None:
        cluster.post(crds, crd)
    path = f"/apis/tensor-fusion.ai/v1/namespaces/{tenants.namespace}/gpuresourcequotas"
    cluster.until("the quotas' kind", lambda: cluster.api.find(path) is not None, seconds=30)
    document = {
        "apiVersion": "tensor-fusion.ai/v1",
        "kind": "GPUResourceQuota",
        "metadata": {"name": "team", "namespace": tenants.namespace},
        "spec": {"total": {"limits": {"vram": "50Gi"}}},
    }
    yield cluster.post(path, document)
    cluster.api.call("DELETE", f"{path}/team")


@pytest.mark.webhook
@pytest.mark.usefixtures("idle_node", "quota")
def test_no_raise_passes_a_quota_nor_a_webhook_that_is_away(
    tenants: Tenants, cluster: Cluster, resize: Typed
) -> None:
    annotations = {names.ANNOTATION_VRAM_LIMIT: "16Gi"}
    for name in ("a", "b"):
        cluster.create(
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaim",
                "metadata": {
                    "name": name,
                    "namespace": tenants.namespace,
                    "annotations": annotations,
                },
                "spec": {"devices": {"requests": [SIXTEEN]}},
            }
        )
        tenants.pod(name, claim=name)
        tenants.wait_until_running(name)

    code, said = resize("a", "vram=40Gi", "--wait")
    assert code != 0
    assert "GPUResourceQuota team: limits.vram: found 40Gi, expected at most" in said
    assert resize("a", "vram=34Gi", "--wait")[0] == 0
    assert resize("b", "vram=17Gi", "--wait")[0] != 0

    deployments = "/apis/apps/v1/namespaces/tensorfusion-dra/deployments"
    (found,) = cluster.api.call("GET", deployments, query={"labelSelector": LABEL_NAME})["items"]
    scale = f"{deployments}/{found['metadata']['name']}/scale"

    def replicas(count: int) -> None:
        body = {"spec": {"replicas": count}}
        cluster.api.call("PATCH", scale, body=body, content_type="application/merge-patch+json")

    def ready() -> bool:
        status = cluster.api.call("GET", f"{deployments}/{found['metadata']['name']}")["status"]
        return bool(status.get("readyReplicas", 0))

    replicas(0)
    try:
        cluster.until("no webhook", lambda: not ready(), seconds=60)
        for text in ("20Gi", "40Gi"):
            code, said = resize("a", f"vram={text}")
            assert code != 0
            assert "failed calling webhook" in said
    finally:
        replicas(found["spec"]["replicas"])
        cluster.until("a webhook", ready, seconds=120)
    stored = cluster.find("ResourceClaim", "a", namespace=tenants.namespace)
    assert stored is not None
    assert stored["metadata"]["annotations"][names.ANNOTATION_VRAM_LIMIT] == "34Gi"
    (entry,) = stored["status"]["devices"]
    assert limit_of(entry) == 34
    cluster.until(
        "a raise after the webhook is back", lambda: resize("a", "vram=20Gi")[0] == 0, seconds=30
    )


@pytest.mark.webhook
def test_an_edit_of_a_running_pods_annotation_is_warned_of_and_changes_nothing(
    tenants: Tenants, cluster: Cluster, kubeconfig: str
) -> None:
    tenants.template("share", SIXTEEN)
    tenants.run_all("a", template="share")

    def edit() -> str:
        ended = subprocess.run(
            [
                *("kubectl", "--kubeconfig", kubeconfig, "--namespace", tenants.namespace),
                *("annotate", "--overwrite", "pod", "a", f"{names.ANNOTATION_VRAM_LIMIT}=30Gi"),
            ],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        return ended.stderr

    assert f"kubectl tensorfusion resize a -n {tenants.namespace}" in edit()
    claim = tenants.claim("a")
    assert claim is not None
    (entry,) = claim["status"]["devices"]
    assert limit_of(entry) == 16
    assert names.LABEL_NODE not in claim["metadata"].get("labels", {})

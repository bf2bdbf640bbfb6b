"""Classes of shares as the chart makes them, at an API server with the webhook and a scheduler."""

import base64
import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dra_simulator import match_conditions
from dra_simulator.apiserver import ApiServer
from dra_simulator.rest import (
    CLAIMS,
    CLASSES,
    MUTATING_WEBHOOKS,
    NAMESPACES,
    QUOTAS,
    TEMPLATES,
    VALIDATING_WEBHOOKS,
    ApiError,
)
from tensorfusion_dra.app.simulate.webhook import SimulatedWebhook
from tensorfusion_dra.core import names
from tensorfusion_dra.scheduling import cel_evaluation
from tests.support import helm, objects
from tests.support.builders.classes import share_class
from tests.support.builders.quotas import quota_document
from tests.support.gpu_cluster import Cluster
from tests.support.waiting import eventually

pytestmark = pytest.mark.process

Json = dict[str, Any]

QUARTER = {"requests": {"tflops": "25", "vram": "8Gi"}, "limits": {"tflops": "30"}}
VALUES = {
    "webhook": {"enabled": True, "classes": ["mine"]},
    "shareClasses": {"gpu-quarter": QUARTER, "fixed": {**QUARTER, "overridable": False}},
}
EXTENDED = "resource.kubernetes.io/extended-resource-claim"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with contextlib.ExitStack() as running:
        folder = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="tfw-")))
        server = running.enter_context(
            ApiServer(
                tensor_fusion=True,
                check_expression=cel_evaluation.check_expression,
                condition_holds=match_conditions.holds,
            )
        )
        found = Cluster(server, server.kubeconfig(folder / "kubeconfig"))
        found.client.create(CLASSES, share_class("mine", requests={"vram": "1Gi"}))
        found.client.create(NAMESPACES, {"metadata": {"name": "team-a"}})
        found.client.create(QUOTAS, quota_document(tflops="100", limits={"tflops": "120"}))
        rendered = helm.render(VALUES)
        for document in rendered:
            if document["kind"] == "DeviceClass":
                found.client.create(CLASSES, document)
        webhook = SimulatedWebhook(folder, found.kubeconfig)
        running.callback(webhook.process.stop)
        assert eventually(webhook.is_ready)
        bundle = base64.b64encode(webhook.ca_bundle.encode()).decode()
        for resource in (MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS):
            document = helm.one(rendered, resource.kind)
            for entry in document["webhooks"]:
                path = entry["clientConfig"]["service"]["path"]
                entry["clientConfig"] = {"url": f"{webhook.url}{path}", "caBundle": bundle}
            found.client.create(resource, document)
        yield found


def claim(name: str, device_class: str, *, namespace: str = "default", **exactly: Any) -> Json:
    found = objects.claim(objects.exactly(deviceClassName=device_class, **exactly), name=name)
    found["metadata"]["namespace"] = namespace
    return found


def amounts(found: Json) -> Json | None:
    """Return the amounts of a claim's only request."""
    (request,) = found["spec"]["devices"]["requests"]
    wanted: Json | None = request["exactly"].get("capacity", {}).get("requests")
    return wanted


@pytest.mark.parametrize(
    ("device_class", "expected"),
    [
        ("gpu-quarter", QUARTER["requests"]),
        ("mine", {"vram": "1Gi"}),
        (names.DEVICE_CLASS, None),
        ("nic.example.com", None),
    ],
)
def test_claim_names_a_class_and_gets_its_amounts(
    cluster: Cluster, device_class: str, expected: Json | None
) -> None:
    stored = cluster.client.create(CLAIMS, claim(f"of-{device_class}", device_class))

    assert amounts(stored) == expected


def test_claim_template_gets_the_amounts_also_when_it_is_applied_again(cluster: Cluster) -> None:
    spec = claim("any", "gpu-quarter")["spec"]
    asked = {"metadata": {"name": "share", "namespace": "default"}, "spec": {"spec": spec}}

    stored = cluster.client.create(TEMPLATES, asked)
    again = cluster.client.replace(TEMPLATES, {**stored, "spec": asked["spec"]})

    assert amounts(stored["spec"]) == amounts(again["spec"]) == QUARTER["requests"]


def test_claim_that_the_scheduler_made_is_unchanged(cluster: Cluster) -> None:
    made = claim("extended", "gpu-quarter")
    made["metadata"]["annotations"] = {EXTENDED: "true"}

    assert amounts(cluster.client.create(CLAIMS, made)) is None


def test_own_amounts_are_refused_where_the_class_says_so(cluster: Cluster) -> None:
    own = {"tflops": "26"}
    stored = cluster.client.create(CLAIMS, claim("own", "gpu-quarter", capacity=own))

    assert amounts(stored) == {"tflops": "26", "vram": "8Gi"}
    with pytest.raises(ApiError, match="found tflops: 26, expected 25: DeviceClass fixed"):
        cluster.client.create(CLAIMS, claim("own-fixed", "fixed", capacity=own))


def test_quota_counts_the_amounts_and_limits_of_the_class(cluster: Cluster) -> None:
    def refusal(name: str, count: int = 1) -> str:
        try:
            cluster.client.create(
                CLAIMS, claim(name, "gpu-quarter", namespace="team-a", count=count)
            )
        except ApiError as error:
            return error.message
        return ""

    # A claim of no pod is not told what others have.
    most = "expected at most what the namespace's other claims leave"
    assert f"requests.tflops: found 125, {most}" in refusal("five", 5)
    assert [refusal(name) for name in "abcd"] == [""] * 4
    assert f"requests.tflops: found 25, {most}" in refusal("e")
    assert f"limits.tflops: found 30, {most}" in refusal("e")

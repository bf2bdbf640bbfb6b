"""Pods of workloads that request GPUs in the resources of their containers: what each gets."""

from collections.abc import Sequence
from typing import Any

import pytest
import yaml

from tensorfusion_dra.core import names
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.core.kubernetes.review import PASSED, Decision
from tensorfusion_dra.webhook.admission import AdmissionRules
from tests.support.admission import ObjectsInMemory, PodsInMemory, SlicesInMemory, review_of
from tests.support.builders.classes import share_class
from tests.support.builders.pods import pod_annotations, pod_document
from tests.support.builders.quotas import quota_document
from tests.support.builders.slices import slice_of_models
from tests.support.builders.stored_claims import template_claim

Json = dict[str, Any]
A100, T4 = ("A100", "312"), ("T4", "65")
QUARTER = share_class("quarter", requests={"vram": "20Gi"}, overridable=False)


class Cluster:
    """The webhook's rules, in a cluster with some cards and quotas."""

    def __init__(self, *slices: Json, quotas: Sequence[Json] = ()) -> None:
        self.pods, self.classes = PodsInMemory(), ObjectsInMemory(QUARTER)
        self.rules = AdmissionRules(
            pools=ObjectsInMemory(),
            templates=ObjectsInMemory(),
            pods=self.pods,
            slices=SlicesInMemory(*slices),
            quotas=ObjectsInMemory(*quotas),
            classes=self.classes,
            scheduler="default-scheduler",
            virtual=False,
        )

    def admit(self, document: Json) -> Decision:
        return self.rules.pod(review_of(document))

    def claim_of(self, admitted: Decision) -> Decision:
        """Store an admitted pod; return the decision on the claim that is made for it."""
        self.pods.stored["uid-train"] = changed(admitted)
        return self.rules.claim(review_of(template_claim()))


def changed(decision: Decision) -> Json:
    assert decision.changed is not None
    return dict(decision.changed)


def requests_of(claim: Decision) -> list[Json]:
    found: list[Json] = changed(claim)["spec"]["devices"]["requests"]
    return found


CONTAINER = """
name: main
image: train
resources:
  requests: {cpu: "2"}
  limits: {tensor-fusion.ai/tflops: "78", tensor-fusion.ai/vram: 20Gi}
"""
MAIN: Json = yaml.safe_load(CONTAINER)
INIT: Json = {**MAIN, "name": "init"}
SIDECAR: Json = {**MAIN, "name": "sidecar", "restartPolicy": "Always"}
WORKER: Json = {**MAIN, "name": "worker"}
PLAIN: Json = {"name": "log", "image": "log"}
TWO_GPUS: Json = {
    **MAIN,
    "resources": {"limits": {**MAIN["resources"]["limits"], "tensor-fusion.ai/gpu": "2"}},
}
AMOUNTS = {"tflops": "78", "vram": "20Gi"}
MEMORY: Json = {**MAIN, "resources": {"limits": {"tensor-fusion.ai/vram": "20Gi"}}}


def workload(kind: str, *containers: Json, inits: tuple[Json, ...] = (), **spec: Any) -> Json:
    pods = {"containers": list(containers), **({"initContainers": list(inits)} if inits else {})}
    template = {"metadata": {"labels": {"app": "train"}}, "spec": pods}
    content = {**spec, "template": template}
    if kind == "CronJob":
        content = {"jobTemplate": {"spec": content}}
    return {"kind": kind, "metadata": {"name": "train"}, "spec": content}


def pod_of(found: Json) -> Json:
    """Return a pod as the controller of a workload creates it."""
    spec = found["spec"]["jobTemplate"]["spec"] if found["kind"] == "CronJob" else found["spec"]
    template = spec["template"]
    pod = pod_document({}, *template["spec"]["containers"])
    pod["spec"].update(template["spec"])
    del pod["metadata"]["annotations"]
    return {**pod, "metadata": {**pod["metadata"], **template["metadata"]}}


@pytest.mark.parametrize(
    ("found", "requests", "users"),
    [
        (workload("Job", MAIN, parallelism=4), ["gpu-request"], {"main": None}),
        (workload("CronJob", MAIN), ["gpu-request"], {"main": None}),
        # A HorizontalPodAutoscaler by cpu needs the cpu request, which stays.
        (workload("Deployment", MAIN, replicas=2), ["gpu-request"], {"main": None}),
        (workload("StatefulSet", MAIN, PLAIN), ["gpu-request"], {"main": None}),
        (workload("Job", TWO_GPUS), ["gpu-request", "gpu-request-2"], {"main": None}),
        (workload("Job", MAIN, WORKER), ["main", "worker"], {"main": "main", "worker": "worker"}),
        (workload("Job", MAIN, inits=(INIT,)), ["gpu-request"], {"init": None, "main": None}),
        (
            workload("Deployment", MAIN, inits=(SIDECAR,)),
            ["sidecar", "main"],
            {"sidecar": "sidecar", "main": "main"},
        ),
        (
            workload("Job", MAIN, WORKER, inits=(INIT,)),
            ["main", "worker"],
            {"init": "main", "main": "main", "worker": "worker"},
        ),
    ],
)
def test_each_pod_of_a_workload_gets_what_its_template_names(
    found: Json, requests: list[str], users: dict[str, str | None]
) -> None:
    cluster = Cluster()

    admitted = cluster.admit(pod_of(found))
    claim = cluster.claim_of(admitted)

    pod = changed(admitted)
    every = [*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]]
    uses = {
        each["name"]: each["resources"]["claims"][0].get("request")
        for each in every
        if "claims" in each.get("resources", {})
    }
    limits = [name for each in every for name in each.get("resources", {}).get("limits", {})]
    assert uses == users
    assert not limits
    assert [each["name"] for each in requests_of(claim)] == requests
    assert [each["exactly"]["capacity"]["requests"] for each in requests_of(claim)] == len(
        requests
    ) * [AMOUNTS]
    assert pod["spec"]["containers"][0]["resources"].get("requests", {}) in ({}, {"cpu": "2"})


@pytest.mark.parametrize(
    ("limits", "annotations"),
    [
        ({"tflops": "78", "vram": "20Gi"}, {"tflops_request": "78", "vram_request": "20Gi"}),
        ({"vram": "20Gi"}, {"vram_request": "20Gi"}),
        (
            {"compute-percent": "25", "vram-percent": "50", "gpu": "2"},
            {"compute_percent_request": "25", "vram_percent_request": "50", "gpu_count": "2"},
        ),
    ],
)
@pytest.mark.parametrize("beside", [{}, {"gpu_model": "A100", "vram_limit": "70Gi"}])
def test_resources_give_the_claim_that_annotations_give(
    limits: dict[str, str], annotations: dict[str, str], beside: dict[str, str]
) -> None:
    amounts = {f"tensor-fusion.ai/{name}": text for name, text in limits.items()}
    main = {"name": "main", "image": "train", "resources": {"limits": amounts}}
    cluster = Cluster(slice_of_models(A100))
    own = pod_annotations(dra_enabled="true", **annotations, **beside)

    by_resources = cluster.admit(pod_document(pod_annotations(**beside), main))
    by_annotations = cluster.admit(pod_document(own))

    # Resources name their container, annotations leave it to the webhook.
    warned = [text.replace("-request", "") for text in by_annotations.warnings]
    assert list(by_resources.warnings) == warned
    assert changed(by_resources)["metadata"] == changed(by_annotations)["metadata"]
    assert cluster.claim_of(by_resources) == cluster.claim_of(by_annotations)


def test_resources_need_no_pool_that_enables_dra_and_cannot_turn_it_off() -> None:
    turned_off = {**pod_of(workload("Job", MAIN))}
    turned_off["metadata"]["annotations"] = pod_annotations(dra_enabled="false")

    assert changed(Cluster().admit(pod_of(workload("Job", MAIN))))["spec"]["resourceClaims"]
    assert "found 'false' beside tensor-fusion.ai/tflops" in str(
        *Cluster().admit(turned_off).errors
    )


def test_an_admitted_pod_is_admitted_again_unchanged() -> None:
    first = changed(Cluster().admit(pod_of(workload("Job", MAIN, WORKER))))

    assert changed(Cluster().admit(first)) == first


def test_whole_cards_by_the_extended_resource_are_not_this_webhooks() -> None:
    whole = {**MAIN, "resources": {"limits": {names.RESOURCE_GPU: "1"}}}

    assert Cluster().admit(pod_of(workload("Job", whole))) == PASSED


ALL_LIMITS = "spec.containers[*].resources.limits"


@pytest.mark.parametrize(
    ("limits", "count", "expected"),
    [
        (
            {"compute-percent": "25"},
            1,
            f"{ALL_LIMITS}[tensor-fusion.ai/compute-percent]: found T4 of 65 TFLOPS, A100 of",
        ),
        (
            {"compute-percent": "25"},
            2,
            f"{ALL_LIMITS}[tensor-fusion.ai/compute-percent]: found T4 of 65 TFLOPS, A100 of",
        ),
        (
            {"vram": "0", "gpu": "2"},
            1,
            f"{ALL_LIMITS}[tensor-fusion.ai/tflops]: found no amount, expected "
            "tensor-fusion.ai/tflops, tensor-fusion.ai/vram or both",
        ),
        ({"vram": "1Gi"}, 33, "spec.containers: tensor-fusion.ai/vram: found amounts for cont"),
    ],
)
def test_refusal_names_the_resource_and_no_annotation_that_nobody_wrote(
    limits: dict[str, str], count: int, expected: str
) -> None:
    cluster = Cluster(slice_of_models(A100), slice_of_models(T4))
    resources = {"limits": {f"tensor-fusion.ai/{name}": text for name, text in limits.items()}}
    containers = [{**MAIN, "name": f"c{n}", "resources": resources} for n in range(count)]

    (error,) = cluster.admit(pod_of(workload("Job", *containers))).errors

    assert str(error).startswith(expected)
    assert "-request" not in str(error)


def test_refusal_names_an_annotation_that_is_there() -> None:
    follows = pod_annotations(compute_percent_request="memory")

    (error,) = Cluster().admit(pod_document(follows, MEMORY)).errors

    assert error.path == "metadata.annotations[tensor-fusion.ai/compute-percent-request]"


@pytest.mark.parametrize(
    ("annotations", "resources", "expected"),
    [
        # Words of other systems.
        (
            {"gpu-fraction": "0.5"},
            AMOUNTS,
            "metadata.annotations[gpu-fraction]: found a word of kai beside annotations or",
        ),
        # Whole cards by Kubernetes' extended resource, and a part by annotations.
        (
            pod_annotations(vram_request="1Gi", dra_enabled="true"),
            {"gpu": "2"},
            "spec.containers[0].resources.limits[tensor-fusion.ai/gpu]: found whole GPUs beside "
            "tensor-fusion.ai/vram-request, expected one of the two",
        ),
        (
            pod_annotations(dra_enabled="banana"),
            AMOUNTS,
            "metadata.annotations[tensor-fusion.ai/dra-enabled]: found 'banana', expected true",
        ),
    ],
)
def test_pod_that_says_two_things_is_refused(
    annotations: Json, resources: dict[str, str], expected: str
) -> None:
    limits = {f"tensor-fusion.ai/{name}": text for name, text in resources.items()}
    main = {**MAIN, "resources": {"limits": limits}}

    (error,) = Cluster().admit(pod_document(annotations, main)).errors

    assert str(error).startswith(expected)


def test_whole_cards_of_one_container_stay_beside_the_share_of_another() -> None:
    whole = {**WORKER, "resources": {"limits": {names.RESOURCE_GPU: "2"}}}
    asked = pod_annotations(vram_request="1Gi", dra_enabled="true", inject_container="main")

    for pod in (
        pod_document({}, MAIN, whole),
        pod_document(asked, PLAIN | {"name": "main"}, whole),
    ):
        _, second = changed(Cluster().admit(pod))["spec"]["containers"]
        assert second == whole


def test_quota_fills_in_what_resources_leave_open() -> None:
    single = {"defaultRequests": {"tflops": "10", "vram": "1Gi"}}
    cluster = Cluster(quotas=[quota_document(single=single)])

    claim = cluster.claim_of(cluster.admit(pod_of(workload("Job", MEMORY))))

    (request,) = requests_of(claim)
    assert request["exactly"]["capacity"]["requests"] == {"tflops": "10", "vram": "20Gi"}


def claim_template(**exactly: Any) -> Json:
    request = {"name": "gpu", "exactly": {"deviceClassName": "quarter", **exactly}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "share", "namespace": "team-a"},
        "spec": {"spec": {"devices": {"requests": [request]}}},
    }


def test_claim_template_is_filled_when_it_is_created_and_never_refused() -> None:
    cluster = Cluster()
    review = review_of(claim_template())

    found = changed(cluster.rules.template(review))
    refused = cluster.rules.template(
        review_of(claim_template(capacity={"requests": {"vram": "1Gi"}}))
    )
    cluster.classes.error = RetryableError("not listed yet")

    (request,) = found["spec"]["spec"]["devices"]["requests"]
    assert request["exactly"]["capacity"]["requests"] == {"vram": "20Gi"}
    assert found["metadata"]["annotations"] == {names.ANNOTATION_FILLED: "gpu:vram"}
    assert (refused.changed, list(refused.errors)) == (None, [])
    assert "expected 20Gi: DeviceClass quarter sets the amounts" in refused.warnings[0]
    assert cluster.rules.template(review) == PASSED
    assert Cluster().rules.template(review_of(found)) == PASSED


def test_claim_template_that_is_applied_again_keeps_its_amounts() -> None:
    cluster, plain = Cluster(), claim_template()
    plain["metadata"]["annotations"] = {"mine": "kept"}
    stored = changed(cluster.rules.template(review_of(plain)))
    again = {**plain, "metadata": stored["metadata"]}  # kubectl and Helm keep annotations

    found = cluster.rules.template(review_of(again, operation="UPDATE", old=stored))

    assert found.changed == stored
    assert stored["metadata"]["annotations"] == {
        names.ANNOTATION_FILLED: "gpu:vram",
        "mine": "kept",
    }
    before = review_of(plain, operation="UPDATE", old=plain)  # older than the class
    assert cluster.rules.template(before) == PASSED
    cluster.classes.listed = [share_class("quarter", requests={"vram": "10Gi"})]
    assert cluster.rules.template(review_of(again, operation="UPDATE", old=stored)) == PASSED

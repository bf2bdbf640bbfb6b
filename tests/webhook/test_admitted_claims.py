"""Admission of claims and their parameters, consistent with the pods that they are for."""

import pytest

from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.core.kubernetes.review import PASSED
from tests.support.admission import Json, review_of
from tests.support.builders.gpupools import gpupool_document
from tests.support.builders.pods import pod_annotations, pod_document
from tests.support.builders.slices import slice_of_models
from tests.support.builders.stored_claims import template_claim
from tests.webhook.admission_cluster import A100, AMOUNTS, T4, Cluster, errors, requests


@pytest.mark.parametrize("operation", ["UPDATE", "DELETE", "CONNECT"])
def test_only_new_pods_and_claims_are_mutated(operation: str) -> None:
    cluster = Cluster()
    cluster.pods.stored["uid-train"] = pod_document(pod_annotations(**AMOUNTS))
    document = pod_document(pod_annotations(dra_enabled="true", **AMOUNTS))

    assert cluster.admission.pod(review_of(document, operation=operation)) is PASSED
    assert cluster.admission.claim(review_of(template_claim(), operation=operation)) is PASSED


def test_claim_is_filled_with_its_pods_request() -> None:
    verdict = Cluster().claim(dra_enabled="true", gpupool="default", **AMOUNTS)

    assert requests(verdict) == {"tflops": "100", "vram": "16Gi"}


@pytest.mark.parametrize(
    ("pools", "virtual", "expected"),
    [
        ([], False, "vram"),
        ([], True, "virtual_vram"),
        ([gpupool_document("a")], True, "vram"),
        ([gpupool_document("a", capacityConfig={"oversubscription": {}})], False, "virtual_vram"),
    ],
)
def test_claim_requests_virtual_amounts_if_the_pool_divides_them(
    pools: list[Json], *, virtual: bool, expected: str
) -> None:
    verdict = Cluster(*pools, virtual=virtual).claim(gpupool="a", vram_request="16Gi")

    assert requests(verdict) == {expected: "16Gi"}


def test_claim_of_a_pod_without_annotations_is_unchanged() -> None:
    assert Cluster().claim() is PASSED


def test_claim_without_the_label_is_unchanged() -> None:
    document = template_claim()
    document["metadata"]["labels"] = {}

    assert Cluster().admission.claim(review_of(document)) is PASSED


def test_claim_of_a_missing_pod_is_refused() -> None:
    verdict = Cluster().admission.claim(review_of(template_claim()))

    assert errors(verdict) == [
        "metadata.ownerReferences: found no pod team-a/train of UID uid-train, "
        "expected the pod that the claim is for"
    ]


def test_claim_is_unavailable_until_its_pod_is_readable() -> None:
    cluster = Cluster()
    cluster.pods.error = RetryableError("pod team-a/train: no answer")

    assert cluster.admission.claim(review_of(template_claim())).code == 503


@pytest.mark.parametrize(
    ("pool", "annotations", "error"),
    [
        (gpupool_document("a"), {"vram_request": "x"}, "pod team-a/train: metadata.annotations["),
        (
            gpupool_document("a"),
            {"gpupool": "b", **AMOUNTS},
            "pod team-a/train: found 'b', expected",
        ),
        (
            gpupool_document("a", qosConfig={"defaultQoS": "best"}),
            {"gpupool": "a", **AMOUNTS},
            "pod team-a/train: GPUPool a: spec.qosConfig.defaultQoS",
        ),
    ],
)
def test_claim_that_cannot_be_filled_is_refused_with_the_reason(
    pool: Json, annotations: dict[str, str], error: str
) -> None:
    (found,) = errors(Cluster(pool).claim(**annotations))

    assert found.startswith(error)


def test_parameters_are_checked_on_create_and_on_change() -> None:
    opaque = {"driver": "tensor-fusion.ai.dra-driver", "parameters": {"kind": "GpuShare"}}
    document = template_claim()
    document["spec"]["devices"]["config"] = [{"opaque": opaque}]
    admission = Cluster().admission

    created = admission.parameters(review_of(document))
    changed = admission.parameters(review_of(document, operation="UPDATE", old=template_claim()))
    kept = admission.parameters(review_of(document, operation="UPDATE", old=document))

    assert len(created.errors) == len(changed.errors) == 1
    assert kept is PASSED


@pytest.mark.parametrize("enforces_hard", [False, True])
def test_hard_isolation_is_accepted_if_the_enforcer_has_a_limiter_for_it(
    *, enforces_hard: bool
) -> None:
    cluster = Cluster(enforces_hard=enforces_hard)
    parameters = {
        "apiVersion": "tensor-fusion.ai/v1alpha1",
        "kind": "GpuShare",
        "isolation": "hard",
    }
    config = [{"opaque": {"driver": "tensor-fusion.ai.dra-driver", "parameters": parameters}}]

    of_pod = cluster.pod(dra_enabled="true", isolation="hard", **AMOUNTS)
    of_claim = cluster.admission.parameters(review_of(template_claim(devices={"config": config})))

    assert [bool(verdict.errors) for verdict in (of_pod, of_claim)] == [not enforces_hard] * 2


@pytest.mark.parametrize("virtual", [False, True])
def test_compute_percent_becomes_tflops_of_the_pools_gpus(*, virtual: bool) -> None:
    cluster = Cluster(virtual=virtual)
    cluster.slices.slices = [slice_of_models(A100, pool="a"), slice_of_models(T4, pool="b")]
    percents = {"compute_percent_request": "25", "compute_percent_limit": "50"}

    of_pod = cluster.pod(dra_enabled="true", gpupool="a", vram_request="8Gi", **percents)
    of_claim = cluster.claim(dra_enabled="true", gpupool="a", vram_request="8Gi", **percents)

    assert of_pod.changed is not None
    annotations = of_pod.changed["metadata"]["annotations"]
    assert annotations["tensor-fusion.ai/tflops-request"] == "78"
    assert annotations["tensor-fusion.ai/tflops-limit"] == "156"
    prefix = "virtual_" if virtual else ""
    assert requests(of_claim) == {f"{prefix}tflops": "78", f"{prefix}vram": "8Gi"}


def test_claim_of_an_admitted_pod_needs_no_slices() -> None:
    cluster = Cluster()
    cluster.slices.slices = [slice_of_models(A100)]
    of_pod = cluster.pod(dra_enabled="true", gpupool="default", compute_percent_request="25")
    assert of_pod.changed is not None
    cluster.slices.slices = [slice_of_models(A100, T4)]

    again = cluster.admission.pod(review_of(dict(of_pod.changed)))
    cluster.pods.stored["uid-train"] = dict(of_pod.changed)
    of_claim = cluster.admission.claim(review_of(template_claim()))

    assert again.changed == of_pod.changed
    assert requests(of_claim) == {"tflops": "78"}
    assert cluster.slices.reads == 1


def test_slices_are_not_read_for_amounts_of_a_named_pool() -> None:
    cluster = Cluster()
    named = {"dra_enabled": "true", "gpupool": "default"}

    cluster.pod(**named, **AMOUNTS)
    cluster.pod(**named, compute_percent_request="25", tflops_request="100")
    cluster.claim(**named, **AMOUNTS)

    assert cluster.slices.reads == 0

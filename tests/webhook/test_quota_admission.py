"""Quotas of namespaces at the admission of claims."""

from dataclasses import replace
from typing import Any

import pytest

from tensorfusion_dra.core.errors import InputError, RetryableError
from tensorfusion_dra.core.kubernetes.review import PASSED, Verdict, unavailable
from tensorfusion_dra.webhook.admission import QuotaAdmission
from tests.support.admission import (
    ClaimsInMemory,
    Json,
    ObjectsInMemory,
    PodsInMemory,
    review_of,
)
from tests.support.builders.classes import share_class
from tests.support.builders.pods import pod_annotations
from tests.support.builders.quotas import quota_document
from tests.support.builders.stored_claims import template_claim


def claim(name: str, vram: str = "4Gi", **annotations: str) -> Json:
    document = template_claim()
    document["metadata"] |= {
        "name": name,
        "uid": f"uid-{name}",
        "annotations": pod_annotations(**annotations),
    }
    document["spec"]["devices"]["requests"][0]["exactly"]["capacity"] = {"requests": {"vram": vram}}
    return document


class Namespace:
    """The namespace team-a with a quota, as the webhook sees it."""

    def __init__(self, *quotas: Json, trusts_clients: bool = False) -> None:
        self.quotas = ObjectsInMemory(*(quotas or [quota_document(vram="10Gi")]))
        self.claims, self.pods, self.classes = ClaimsInMemory(), PodsInMemory(), ObjectsInMemory()
        (owner,) = template_claim()["metadata"]["ownerReferences"]
        self.pods.stored[owner["uid"]] = {"metadata": {"uid": owner["uid"]}}
        self.admission = QuotaAdmission(
            *(self.quotas, self.claims, self.pods, self.classes), trusts_clients=trusts_clients
        )

    def admit(self, document: Json, **changes: Any) -> Verdict:
        return self.admission.claim(review_of(document, **changes))

    def refusals(self, document: Json, **changes: Any) -> list[str]:
        return [str(error) for error in self.admit(document, **changes).errors]


def test_claims_that_are_not_stored_yet_count() -> None:
    namespace = Namespace()

    assert [namespace.refusals(claim(name)) for name in "abc"] == [
        [],
        [],
        [
            "spec.devices.requests: GPUResourceQuota gpus: requests.vram: found 4Gi, expected at "
            "most 2Gi: 8Gi of 10Gi are taken by a (4Gi), b (4Gi)"
        ],
    ]


def test_stored_claim_counts_once() -> None:
    namespace = Namespace()
    namespace.admit(claim("a"))
    namespace.claims.stored = [claim("a")]

    assert not namespace.refusals(claim("b"))
    assert namespace.refusals(claim("c"))


def test_claim_that_will_not_be_stored_does_not_count() -> None:
    namespace = Namespace(quota_document(vram="4Gi"))

    assert not namespace.admission.claim(replace(review_of(claim("dry-run")), dry_run=True)).errors
    assert namespace.refusals(claim("refused", "5Gi"))
    assert not namespace.refusals(claim("b"))


def test_every_quota_of_the_namespace_and_none_of_another_one_applies() -> None:
    foreign = quota_document(vram="0")
    foreign["metadata"]["namespace"] = "team-b"

    assert not Namespace(quota_document(vram="9Gi"), foreign).refusals(claim("a"))
    assert Namespace(quota_document(vram="9Gi"), quota_document(workers=0)).refusals(claim("a"))


def test_claims_are_read_only_if_a_quota_could_apply() -> None:
    namespace, other = Namespace(), claim("nic")
    namespace.claims.error = RetryableError("not to be read")
    other["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"] = "nic.example.com"

    assert namespace.admit(other) is PASSED
    assert namespace.admit(claim("a"), operation="DELETE") is PASSED
    namespace.quotas.error = InputError("no such resource")
    assert namespace.admit(claim("a")) is PASSED


def test_claim_that_is_annotated_later_does_not_count_twice() -> None:
    namespace = Namespace(quota_document(limits={"vram": "10Gi"}))
    old, new, larger = (claim("a", vram_limit=limit) for limit in ("4Gi", "10Gi", "11Gi"))
    namespace.admit(old)
    namespace.claims.stored = [old]

    assert not namespace.refusals(new, operation="UPDATE", old=old)
    (error,) = namespace.refusals(larger, operation="UPDATE", old=old)
    assert "limits.vram: found 11Gi, expected at most 10Gi" in error


@pytest.mark.parametrize("owners", [[], [{"apiVersion": "v1", "kind": "Pod", "uid": "of no pod"}]])
def test_review_that_a_stranger_can_post_is_forgotten_and_learns_of_no_claim(
    owners: list[Json],
) -> None:
    namespace, posted = Namespace(), claim("stranger", "10Gi")
    posted["metadata"]["ownerReferences"] = owners

    assert not namespace.refusals(posted)
    assert not namespace.refusals(claim("a"))
    assert namespace.refusals(posted) == [
        "spec.devices.requests: GPUResourceQuota gpus: requests.vram: found 10Gi, expected at most "
        "what the namespace's other claims leave"
    ]


def test_all_reviews_are_trusted_of_clients_with_a_certificate() -> None:
    namespace = Namespace(trusts_clients=True)
    namespace.pods.stored.clear()
    namespace.admit(claim("a"))

    (error,) = namespace.refusals(claim("b", "7Gi"))
    assert error.endswith("4Gi of 10Gi are taken by a (4Gi)")


@pytest.mark.parametrize("source", ["quotas", "claims", "pods"])
def test_claim_waits_for_what_cannot_be_read_at_present(source: str) -> None:
    namespace = Namespace()
    getattr(namespace, source).error = RetryableError("no answer")

    assert namespace.admit(claim("a")) == unavailable(RetryableError("no answer"))


def of_class(name: str, count: int = 1) -> Json:
    """A claim of the class `quarter`, as its webhook has filled it."""
    document = claim(name)
    document["spec"]["devices"]["requests"][0]["exactly"] |= {
        "deviceClassName": "quarter",
        "count": count,
        "capacity": {"requests": {"tflops": "25"}},
    }
    return document


def test_claims_of_a_class_count_with_its_amounts_and_limits() -> None:
    namespace = Namespace(quota_document(tflops="100", limits={"tflops": "120"}))
    quarter = share_class("quarter", requests={"tflops": "25"}, limits={"tflops": "30"})
    namespace.classes.listed = [quarter, share_class("broken", requests={"tflops": "none"})]

    (error, other) = namespace.refusals(of_class("five", 5))
    assert "requests.tflops: found 125, expected at most 100" in error
    assert "limits.tflops: found 150, expected at most 120" in other
    assert not any(namespace.refusals(of_class(name)) for name in "abcd")
    for stored in ([], [of_class(name) for name in "abcd"]):
        namespace.claims.stored = stored
        (error, other) = namespace.refusals(of_class("e"))
        assert "100 of 100 are taken by a (25), b (25), c (25), d (25)" in error
        assert "120 of 120 are taken by a (30)" in other
    namespace.classes.listed = []
    assert namespace.admit(of_class("of a class of somebody else")) is PASSED

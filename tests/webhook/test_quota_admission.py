"""Quotas of namespaces at the admission of claims."""

from dataclasses import replace
from typing import Any

import pytest

from tensorfusion_dra.core import names
from tensorfusion_dra.core.errors import InputError, RetryableError
from tensorfusion_dra.core.kubernetes.review import PASSED, Verdict
from tensorfusion_dra.webhook.admission import QuotaAdmission
from tests.support.admission import (
    ClaimsInMemory,
    Json,
    ObjectsInMemory,
    PodsInMemory,
    review_of,
)
from tests.support.builders.classes import share_class
from tests.support.builders.quotas import quota_document
from tests.support.builders.stored_claims import template_claim


def claim(name: str, vram: str = "4Gi") -> Json:
    document = template_claim()
    document["metadata"] |= {"name": name, "uid": f"uid-{name}"}
    document["spec"]["devices"]["requests"][0]["exactly"]["capacity"] = {"requests": {"vram": vram}}
    return document


class Namespace:
    """The namespace team-a with a quota, as the webhook sees it."""

    def __init__(self, *quotas: Json, trusts_clients: bool = False) -> None:
        self.quotas = ObjectsInMemory(*(quotas or [quota_document(vram="10Gi")]))
        self.claims = ClaimsInMemory()
        self.pods = PodsInMemory()
        (owner,) = template_claim()["metadata"]["ownerReferences"]
        self.pods.stored[owner["uid"]] = {"metadata": {"uid": owner["uid"]}}
        self.classes = ObjectsInMemory()
        self.admission = QuotaAdmission(
            *(self.quotas, self.claims, self.pods, self.classes), trusts_clients=trusts_clients
        )

    def admit(self, name: str, **changes: Any) -> Verdict:
        review = review_of(claim(name), **changes)
        return self.admission.claim(review)


def is_refused(verdict: Verdict) -> bool:
    return bool(verdict.errors)


def test_claims_that_are_not_stored_yet_count() -> None:
    namespace = Namespace()

    verdicts = [namespace.admit(name) for name in ("a", "b", "c")]

    assert [is_refused(verdict) for verdict in verdicts] == [False, False, True]
    (error,) = verdicts[2].errors
    assert str(error) == (
        "spec.devices.requests: GPUResourceQuota gpus: requests.vram: found 4Gi, expected at most "
        "2Gi: 8Gi of 10Gi are taken by a (4Gi), b (4Gi)"
    )


def test_stored_claim_counts_once() -> None:
    namespace = Namespace()
    namespace.admit("a")
    namespace.claims.stored = [claim("a")]

    assert not is_refused(namespace.admit("b"))
    assert is_refused(namespace.admit("c"))


@pytest.mark.parametrize("change", ["dry-run", "refused"])
def test_claim_that_will_not_be_stored_does_not_count(change: str) -> None:
    namespace = Namespace(quota_document(vram="4Gi"))
    if change == "dry-run":
        verdict = namespace.admission.claim(replace(review_of(claim("a")), dry_run=True))
    else:
        verdict = namespace.admission.claim(review_of(claim("a", "5Gi")))

    assert is_refused(verdict) is (change == "refused")
    assert not is_refused(namespace.admit("b"))


def test_every_quota_of_the_namespace_and_none_of_another_one_applies() -> None:
    foreign = quota_document(vram="0")
    foreign["metadata"]["namespace"] = "team-b"

    assert not is_refused(Namespace(quota_document(vram="9Gi"), foreign).admit("a"))
    assert is_refused(Namespace(quota_document(vram="9Gi"), quota_document(workers=0)).admit("a"))


def test_claims_are_read_only_if_a_quota_could_apply() -> None:
    namespace = Namespace()
    namespace.claims.error = RetryableError("not to be read")
    other = claim("nic")
    other["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"] = "nic.example.com"

    assert namespace.admission.claim(review_of(other)) is PASSED
    assert namespace.admit("a", operation="DELETE") is PASSED
    namespace.quotas.error = InputError("no such resource")
    assert namespace.admit("a") is PASSED


def test_claim_that_is_annotated_later_does_not_count_twice() -> None:
    namespace = Namespace(quota_document(limits={"vram": "10Gi"}))
    old, new, larger = (claim("a") for _ in range(3))
    limits = {"4Gi": old, "10Gi": new, "11Gi": larger}
    for limit, document in limits.items():
        document["metadata"]["annotations"] = {names.ANNOTATION_VRAM_LIMIT: limit}
    namespace.admission.claim(review_of(old))
    namespace.claims.stored = [old]

    def change(to: Json) -> Verdict:
        return namespace.admission.claim(review_of(to, operation="UPDATE", old=old))

    assert not is_refused(change(new))
    (error,) = change(larger).errors
    assert "limits.vram: found 11Gi, expected at most 10Gi" in str(error)


@pytest.mark.parametrize("owner", [None, "of no pod"])
def test_review_that_a_stranger_can_post_is_forgotten_and_learns_of_no_claim(
    owner: str | None,
) -> None:
    namespace = Namespace()
    posted = claim("stranger", "10Gi")
    posted["metadata"]["ownerReferences"][0]["uid"] = owner
    if owner is None:
        del posted["metadata"]["ownerReferences"]

    assert not is_refused(namespace.admission.claim(review_of(posted)))
    assert not is_refused(namespace.admit("a"))
    (error,) = namespace.admission.claim(review_of(posted)).errors
    assert error.text == (
        "GPUResourceQuota gpus: requests.vram: found 10Gi, expected at most what the namespace's "
        "other claims leave"
    )


def test_all_reviews_are_trusted_of_clients_with_a_certificate() -> None:
    namespace = Namespace(trusts_clients=True)
    namespace.pods.stored.clear()
    namespace.admit("a")

    (error,) = namespace.admission.claim(review_of(claim("b", "7Gi"))).errors
    assert error.text.endswith("4Gi of 10Gi are taken by a (4Gi)")


@pytest.mark.parametrize("source", ["quotas", "claims", "pods"])
def test_claim_waits_for_what_cannot_be_read_at_present(source: str) -> None:
    namespace = Namespace()
    getattr(namespace, source).error = RetryableError("no answer")

    verdict = namespace.admit("a")

    assert (verdict.code, [str(error) for error in verdict.errors]) == (503, ["no answer"])


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
    broken = share_class("broken", requests={"tflops": "none"})
    namespace.classes.listed = [quarter, broken]

    def admit(document: Json) -> Verdict:
        return namespace.admission.claim(review_of(document))

    (error, other) = admit(of_class("five", 5)).errors
    assert "requests.tflops: found 125, expected at most 100" in str(error)
    assert "limits.tflops: found 150, expected at most 120" in str(other)
    assert [is_refused(admit(of_class(name))) for name in "abcde"] == [False] * 4 + [True]
    namespace.claims.stored = [of_class(name) for name in "abcd"]
    (error, other) = admit(of_class("e")).errors
    assert "100 of 100 are taken by a (25), b (25), c (25), d (25)" in str(error)
    assert "120 of 120 are taken by a (30)" in str(other)
    namespace.classes.listed = []
    assert admit(of_class("of a class of somebody else")) is PASSED

"""Quotas of namespaces at the admission of claims: whatever comes at once, late or large."""

import random
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier, Semaphore
from typing import Any

import pytest

from dra_simulator import rest
from dra_simulator.api.faults import Refuse
from dra_simulator.apiserver import ApiServer
from dra_simulator.rest import Client
from tensorfusion_dra.cluster.api import Api
from tensorfusion_dra.cluster.objects import Quotas
from tensorfusion_dra.cluster.watch import QUOTAS, ObjectCache
from tensorfusion_dra.core import names
from tensorfusion_dra.core.errors import InputError, RetryableError, UnreadableError
from tensorfusion_dra.core.kubernetes.review import PASSED, Decision, unavailable
from tensorfusion_dra.webhook.quota_admission import QuotaAdmission
from tests.support.admission import (
    ClaimsInMemory,
    ObjectsInMemory,
    PodsInMemory,
    QuotasInMemory,
    review_of,
)
from tests.support.builders.classes import share_class
from tests.support.builders.pods import pod_annotations
from tests.support.builders.quotas import quota_document
from tests.support.builders.stored_claims import template_claim
from tests.support.threads import running
from tests.support.waiting import eventually

Json = dict[str, Any]


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
        self.quotas = QuotasInMemory(*(quotas or [quota_document(vram="10Gi")]))
        self.claims, self.pods, self.classes = ClaimsInMemory(), PodsInMemory(), ObjectsInMemory()
        (owner,) = template_claim()["metadata"]["ownerReferences"]
        self.pods.stored[owner["uid"]] = {"metadata": {"uid": owner["uid"]}}
        self.now = 1000.0
        self.admission = self.replica(trusts_clients=trusts_clients)

    def replica(self, *, trusts_clients: bool = False) -> QuotaAdmission:
        return QuotaAdmission(
            self.quotas,
            self.quotas,
            self.claims,
            self.pods,
            self.classes,
            trusts_clients=trusts_clients,
            clock=lambda: self.now,
            sleep=self.sleep,
        )

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def admit(self, document: Json, **changes: Any) -> Decision:
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


def test_quota_counts_from_its_creation_on_whatever_its_watch_is_answered(tmp_path: Path) -> None:
    with ApiServer(tensor_fusion=True) as server:
        absent = server.faults.add("list", "gpuresourcequotas", Refuse(404))
        busy = server.faults.add("watch", "gpuresourcequotas", Refuse(429, retry_after_seconds=60))
        watched = Counter[str]()
        quotas = ObjectCache(
            Api(server.kubeconfig(tmp_path / "kubeconfig")),
            QUOTAS,
            on_change=lambda: watched.update(["list"]),
        )
        namespace, client = Namespace(), Client(server.url)
        namespace.admission = QuotaAdmission(
            quotas,
            Quotas(Api(server.kubeconfig(tmp_path / "kubeconfig"))),
            namespace.claims,
            namespace.pods,
            namespace.classes,
            trusts_clients=False,
        )
        with running(quotas.run, stop=quotas.stop):
            assert eventually(lambda: watched["list"] == 1)
            assert namespace.admit(claim("without the definition")) is PASSED

            team = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team-a"}}
            client.create(rest.NAMESPACES, team)
            stored = client.create(rest.QUOTAS, quota_document(vram="9Gi"))
            server.faults.remove(absent)
            assert namespace.refusals(claim("just defined", "10Gi"))

            assert eventually(lambda: busy.hits == 1)
            client.replace(rest.QUOTAS, {**stored, "spec": quota_document(vram="1Gi")["spec"]})
            assert namespace.refusals(claim("listed, and not watched yet", "9Gi"))


def quarter_claim(name: str, count: int = 1) -> Json:
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

    (error, other) = namespace.refusals(quarter_claim("five", 5))
    assert "requests.tflops: found 125, expected at most 100" in error
    assert "limits.tflops: found 150, expected at most 120" in other
    assert not any(namespace.refusals(quarter_claim(name)) for name in "abcd")
    for stored in ([], [quarter_claim(name) for name in "abcd"]):
        namespace.claims.stored = stored
        (error, other) = namespace.refusals(quarter_claim("e"))
        assert "100 of 100 are taken by a (25), b (25), c (25), d (25)" in error
        assert "120 of 120 are taken by a (30)" in other
    namespace.classes.listed = []
    assert namespace.admit(quarter_claim("of a class of somebody else")) is PASSED


def by_hand(name: str, vram: str) -> Json:
    """Return a claim of no pod."""
    document = claim(name, vram)
    del document["metadata"]["ownerReferences"]
    return document


def gib_of(documents: Iterable[Json]) -> int:
    amounts = (
        request["exactly"]["capacity"]["requests"]["vram"]
        for each in documents
        for request in each["spec"]["devices"]["requests"]
    )
    return sum(int(each.removesuffix("Gi")) for each in amounts)


@pytest.mark.parametrize("seed", range(8))
def test_no_order_of_reviews_and_storing_exceeds_a_quota(seed: int) -> None:
    draw, count = random.Random(seed), 24
    namespace = Namespace(quota_document(vram="40Gi"))
    replicas = [namespace.replica() for _ in range(3)]
    asked = [
        (by_hand if draw.random() < 0.3 else claim)(f"c{number}", f"{draw.randint(1, 12)}Gi")
        for number in range(count)
    ]
    waits = [draw.randint(0, 6) for _ in asked]
    begin, answered = Barrier(count), Semaphore(0)
    pending: set[str] = set()

    def settled(seconds: float) -> None:
        """Let an API server store what a claim by hand was admitted for, as it does at once."""
        assert seconds > 0
        assert eventually(lambda: not pending)

    namespace.sleep = settled  # type: ignore[method-assign]
    for each in replicas:
        each._sleep = settled

    def create(number: int) -> None:
        document, is_by_hand = asked[number], "ownerReferences" not in asked[number]["metadata"]
        name = document["metadata"]["name"]
        begin.wait()
        if is_by_hand:  # from the review on, as nobody can tell when its answer has arrived
            pending.add(name)
        decision = replicas[number % 3].claim(review_of(document))
        answered.release()
        if decision.errors:
            pending.discard(name)
            return
        if not is_by_hand:
            for _ in range(min(waits[number], count - 1)):
                answered.acquire(timeout=0.2)
        namespace.claims.stored.append(document)
        pending.discard(name)

    with ThreadPoolExecutor(count) as pool:
        list(pool.map(create, range(count)))

    assert 20 <= gib_of(namespace.claims.stored) <= 40


def test_limits_that_are_raised_at_once_do_not_exceed_a_quota_together() -> None:
    namespace = Namespace(quota_document(limits={"vram": "40Gi"}))
    replicas = [namespace.replica() for _ in range(2)]
    old = [claim(name, vram_limit="5Gi") for name in "abcdef"]
    new = [claim(name, vram_limit="10Gi") for name in "abcdef"]
    namespace.claims.stored = [*old]
    begin = Barrier(len(old))

    def raised(number: int) -> bool:
        begin.wait()
        asked = review_of(new[number], operation="UPDATE", old=old[number])
        return not replicas[number % 2].claim(asked).errors

    with ThreadPoolExecutor(len(old)) as pool:
        assert sum(pool.map(raised, range(len(old)))) == 2


def test_a_raise_counts_until_it_is_seen_and_not_only_the_claim_before() -> None:
    namespace = Namespace(quota_document(limits={"vram": "10Gi"}))
    old, new = claim("a", "1Gi", vram_limit="4Gi"), claim("a", "1Gi", vram_limit="9Gi")
    namespace.claims.stored = [old]
    namespace.admit(old)

    assert not namespace.refusals(new, operation="UPDATE", old=old)
    assert namespace.refusals(claim("b", "1Gi", vram_limit="2Gi"))
    namespace.claims.stored = [claim("a", "1Gi", vram_limit="8Gi")]
    assert namespace.refusals(claim("b", "1Gi", vram_limit="2Gi"))
    namespace.claims.stored = [new]
    assert namespace.refusals(claim("b", "1Gi", vram_limit="2Gi"))
    namespace.claims.stored = [old]  # lowered again
    assert not namespace.refusals(claim("b", "1Gi", vram_limit="2Gi"))


def test_another_replica_and_a_new_process_count_what_was_admitted_for_35_seconds() -> None:
    namespace = Namespace()
    assert not namespace.refusals(claim("a", "8Gi"))

    for seconds, is_refused in ((0, True), (34.8, True), (35.2, False)):
        namespace.now = 1000 + seconds
        found = namespace.replica().claim(review_of(claim("b"))).errors
        assert bool(found) is is_refused


def test_a_claim_that_was_seen_and_deleted_does_not_count_any_more() -> None:
    namespace = Namespace()
    namespace.admit(claim("a", "8Gi"))
    namespace.claims.stored = [claim("a", "8Gi")]
    assert namespace.refusals(claim("b"))

    namespace.claims.stored = []
    assert not namespace.refusals(claim("b"))


def test_a_claim_by_hand_that_is_stored_meanwhile_wins_and_the_other_one_is_not_counted() -> None:
    namespace = Namespace()
    namespace.admit(by_hand("first", "8Gi"))

    def stored(seconds: float) -> None:
        namespace.now += seconds
        namespace.claims.stored = [by_hand("first", "8Gi")]

    namespace.admission._sleep = stored
    (error,) = namespace.refusals(claim("a"))
    assert "8Gi of 10Gi are taken by first (8Gi)" in error
    assert not namespace.refusals(claim("b", "2Gi"))


def test_claims_by_hand_at_once_count_for_each_other() -> None:
    namespace = Namespace()

    assert not namespace.refusals(by_hand("a", "8Gi"))
    for seconds, is_refused in ((0, True), (34.8, True), (35.2, False)):
        namespace.now = 1000 + seconds
        assert bool(namespace.refusals(by_hand("b", "8Gi"))) is is_refused


@pytest.mark.parametrize(("seconds", "waits"), [(0, 1), (2.8, 1), (3.2, 0)])
def test_a_claim_by_hand_keeps_a_pods_claim_waiting_for_3_seconds(
    seconds: float, waits: int
) -> None:
    namespace, waited = Namespace(), list[float]()
    namespace.admit(by_hand("a", "8Gi"))
    namespace.now += seconds
    namespace.admission._sleep = waited.append

    assert not namespace.refusals(claim("b"))
    assert waited == [3.0] * waits


def test_the_larger_of_two_changes_counts_as_either_may_be_stored_last() -> None:
    namespace = Namespace(quota_document(limits={"vram": "10Gi"}))
    old, most, less = (claim("a", "1Gi", vram_limit=f"{each}Gi") for each in (4, 9, 5))
    namespace.claims.stored = [old]
    assert not namespace.refusals(most, operation="UPDATE", old=old)
    assert not namespace.refusals(less, operation="UPDATE", old=old)

    assert namespace.refusals(claim("b", "1Gi", vram_limit="2Gi"))


def test_quotas_are_read_before_claims_as_a_reservation_ends_with_a_stored_claim(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    namespace, other = Namespace(), Namespace()
    other.quotas, other.claims = namespace.quotas, namespace.claims
    another_replica = namespace.replica()
    assert not another_replica.claim(review_of(claim("a", "8Gi"))).errors
    read = namespace.claims.of_namespace

    def stored_meanwhile(*arguments: Any, **options: Any) -> Any:
        found = read(*arguments, **options)
        namespace.claims.stored = [claim("a", "8Gi")]
        monkeypatch.undo()
        another_replica.claim(review_of(claim("c", "1Gi")))  # drops the reservation of a
        return found

    monkeypatch.setattr(namespace.claims, "of_namespace", stored_meanwhile)

    assert namespace.refusals(claim("b", "4Gi"))


def test_reservation_of_a_claim_by_hand_is_written_within_a_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    namespace, seconds = Namespace(), list[float]()
    write = namespace.quotas.annotate

    def timed(*arguments: Any, wait_seconds: float) -> bool:
        seconds.append(wait_seconds)
        return write(*arguments, wait_seconds=wait_seconds)

    monkeypatch.setattr(namespace.quotas, "annotate", timed)

    assert not namespace.refusals(by_hand("a", "1Gi"))
    assert not namespace.refusals(claim("b", "1Gi"))

    assert 0 < seconds[0] <= 1 < seconds[1]


def test_two_raises_at_one_time_are_told_apart() -> None:
    namespace = Namespace(quota_document(limits={"vram": "10Gi"}))
    one, four, eight = (claim("a", "1Gi", vram_limit=f"{each}Gi") for each in (1, 4, 8))
    namespace.claims.stored = [one]
    assert not namespace.refusals(four, operation="UPDATE", old=one)
    namespace.claims.stored = [four]
    assert not namespace.refusals(claim("b", "1Gi", vram_limit="1Gi"))  # claim a is seen with 4Gi

    assert not namespace.refusals(eight, operation="UPDATE", old=four)

    assert namespace.refusals(claim("c", "1Gi", vram_limit="2Gi"))


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ({"refused": RetryableError("expected the right to patch")}, "expected the right to patch"),
        ({"text": "[]"}, "dra-admitted: found '[]', expected what the webhook wrote"),
        ({"text": '{"uid-x": [1, 2]}'}, "expected what the webhook wrote"),
        ({"text": '{"uid-x": [9e9, "x", true, {"requests.vram": "?"}]}'}, "what the webhook wrote"),
        ({"claims": UnreadableError("claim team-a/x: found too much")}, "x: found too much"),
        ({"seconds": 0.0}, "found no time left"),
    ],
    ids=["no right", "a list", "short", "no amount", "a claim that is too large", "late"],
)
def test_what_cannot_be_counted_or_kept_is_refused(fault: Json, expected: str) -> None:
    namespace = Namespace()
    namespace.quotas.refused = fault.get("refused")
    namespace.claims.error = fault.get("claims")
    if "text" in fault:
        (document,) = namespace.quotas.listed
        document["metadata"]["annotations"] = {names.QUOTA_ADMITTED: fault["text"]}

    asked = replace(review_of(claim("a", "1Gi")), wait_seconds=fault.get("seconds", 5.0))
    (error,) = namespace.admission.claim(asked).errors

    assert expected in str(error)


def test_strangers_reviews_are_bounded_in_number_and_pods_claims_beside_them_are_not() -> None:
    namespace = Namespace(quota_document(vram="1000Gi"))

    found = [bool(namespace.refusals(by_hand(f"s{n}", "1Gi"))) for n in range(60)]

    assert (found.count(False), found[-1]) == (50, True)
    assert not namespace.refusals(claim("a"))


def running_claim(name: str, **annotations: str) -> Json:
    """Return a claim that consumes 4Gi of a card."""
    document = claim(name, "4Gi", **annotations)
    result = {"driver": names.DRIVER, "request": document["spec"]["devices"]["requests"][0]["name"]}
    result |= {"pool": "pool/node-01", "device": "gpu-0", "consumedCapacity": {"vram": "4Gi"}}
    document["status"] = {"allocation": {"devices": {"results": [result]}}}
    return document


@pytest.mark.parametrize("is_by_hand", [False, True])
def test_eight_raises_of_running_claims_at_one_moment_do_not_pass_a_quota_together(
    is_by_hand: bool,
) -> None:
    namespace = Namespace(quota_document(limits={"vram": "64Gi"}))
    replicas = [namespace.replica() for _ in range(2)]
    old = [running_claim(f"c{number}", vram_limit="4Gi") for number in range(8)]
    new = [running_claim(f"c{number}", vram_limit="16Gi") for number in range(8)]
    for each in [*old, *new] if is_by_hand else ():
        del each["metadata"]["ownerReferences"]
    namespace.claims.stored = [*old]
    begin = Barrier(8)

    def raised(number: int) -> bool:
        begin.wait()
        asked = review_of(new[number], operation="UPDATE", old=old[number])
        return not replicas[number % 2].claim(asked).errors

    with ThreadPoolExecutor(8) as pool:
        granted = list(pool.map(raised, range(8)))

    # 32Gi are left of 64Gi, and each raise takes 12Gi of them.
    assert sum(granted) == 2
    namespace.claims.stored = [
        new[number] if is_granted else old[number] for number, is_granted in enumerate(granted)
    ]
    others = [number for number, is_granted in enumerate(granted) if not is_granted]
    assert all(
        namespace.refusals(new[number], operation="UPDATE", old=old[number]) for number in others
    )


@pytest.mark.parametrize(
    "annotations",
    [
        {"vram_limit": "much"},
        {"vram_limit": "40Gi", "isolation": "none"},
        {"qos": "highest"},
        {"vram_limit": "-1Gi"},
    ],
)
def test_a_running_claim_is_not_charged_less_by_an_annotation_that_no_node_follows(
    annotations: dict[str, str],
) -> None:
    namespace = Namespace(quota_document(limits={"vram": "44Gi"}))
    old = running_claim("a", vram_limit="40Gi")
    namespace.claims.stored = [old]

    assert namespace.refusals(running_claim("a", **annotations), operation="UPDATE", old=old)


def test_a_limit_below_the_request_is_charged_the_request() -> None:
    namespace = Namespace(quota_document(limits={"vram": "7Gi"}))
    namespace.claims.stored = [running_claim("a", vram_limit="1Mi")]

    assert namespace.refusals(claim("b", "4Gi", vram_limit="4Gi"))


def test_a_limit_that_was_lowered_is_free_for_others_once_its_node_has_followed() -> None:
    namespace = Namespace(quota_document(limits={"vram": "44Gi"}))
    old, new = running_claim("a", vram_limit="40Gi"), running_claim("a", vram_limit="20Gi")
    namespace.claims.stored = [old, running_claim("b", vram_limit="4Gi")]
    other = {"old": running_claim("b", vram_limit="4Gi"), "operation": "UPDATE"}

    assert namespace.refusals(running_claim("b", vram_limit="24Gi"), **other)
    assert not namespace.refusals(new, operation="UPDATE", old=old)
    namespace.claims.stored[0] = new
    namespace.now += 34
    assert namespace.refusals(running_claim("b", vram_limit="24Gi"), **other)
    namespace.now += 2
    assert not namespace.refusals(running_claim("b", vram_limit="24Gi"), **other)

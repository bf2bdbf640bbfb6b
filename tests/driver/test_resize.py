"""Limits of running shares follow their claims' annotations, whatever happens in between."""

from collections.abc import Mapping
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims import device_status, resize
from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.claims.device_status import Readiness
from tensorfusion_dra.core.claims.enforcer import Enforcer
from tensorfusion_dra.core.claims.use import Used
from tensorfusion_dra.core.errors import InputError, RetryableError
from tensorfusion_dra.core.kubernetes.quantity import GIB
from tensorfusion_dra.driver import resize as resize_follower
from tensorfusion_dra.driver.resize import MAX_NOTED, ResizeFollower
from tensorfusion_dra.driver.status import utc_now
from tensorfusion_dra.enforcers.nvidia.enforcer import Nvidia
from tensorfusion_dra.runtime.loops import Wakeup
from tests.support.logs import capture_logs
from tests.support.ports import EventsInMemory
from tests.support.prepared_node import (
    GPU_0,
    GPU_1,
    HAMI_CORE,
    MPS,
    TENSOR_FUSION,
    Setup,
    put_annotated_claim,
    put_claim,
    share_result,
)
from tests.support.threads import running
from tests.support.waiting import eventually

CARD_GIB: Final = 80
NODE: Final = "node-01"
LIMIT: Final = {"tflops": names.ANNOTATION_TFLOPS_LIMIT, "vram": names.ANNOTATION_VRAM_LIMIT}


class Node:
    """A node whose follower runs when a test says so; restart() replaces the process."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.events = EventsInMemory()
        self.begin()

    def begin(self) -> None:
        self.follower = ResizeFollower(
            self.setup.claims,
            self.setup.store,
            self.setup.upkeep(),
            self.setup.status,
            label=resize.node_label(NODE),
            catalog=self.setup.catalog,
            rules=self.setup.rules,
            events=self.events,
        )

    def restart(self) -> None:
        """End the process; the next one lists the claims with the label."""
        self.setup = self.setup.restarted()
        self.begin()
        stored = list(self.setup.claims.stored.values())
        kept = [each for each in map(self.follower.keep, stored) if each]
        self.follower.on_list(kept)
        self.setup.recover()
        self.follower.check()

    def claim(self, name: str, gib: int = 16, *devices: str, **limits: str) -> ClaimRef:
        """Prepare a claim of 100 TFLOPS and some GiB."""
        results = [
            share_result(device, vram=f"{gib}Gi", request=f"gpu-{number}")
            for number, device in enumerate(devices or (GPU_0,))
        ]
        ref = put_claim(self.setup, name, *results)
        self.annotate(ref, **limits)
        self.setup.prepared(ref)
        return ref

    def stored(self, ref: ClaimRef) -> Any:
        return self.setup.claims.stored[str(ref)]

    def annotate(self, ref: ClaimRef, **limits: str) -> None:
        self.stored(ref)["metadata"]["annotations"] = {LIMIT[key]: limits[key] for key in limits}

    def resize(self, ref: ClaimRef, **limits: str) -> str:
        """Change the annotations, follow them, and return the outcome as the status shows it."""
        self.annotate(ref, **limits)
        self.note(ref)
        self.follower.check()
        return self.outcome(ref)

    def note(self, ref: ClaimRef, event: str = "MODIFIED") -> None:
        """Have the watch bring the claim."""
        if kept := self.follower.keep(self.stored(ref)):
            self.follower.on_event(event, kept)

    def condition(self, ref: ClaimRef, used: int = 0) -> Mapping[str, Any]:
        record = self.setup.record(ref)
        assert record is not None
        found = self.setup.status.resized().get(ref.uid)
        ready = {each.device: Readiness(since=utc_now()) for each in record.shares}
        entry, *_ = device_status.status(
            record,
            ready,
            used=[Used(vram_bytes=used * GIB)] * len(record.shares),
            resized=(found, utc_now()) if found else None,
        )
        return device_status.condition(entry, device_status.CONDITION_CHANGED)

    def outcome(self, ref: ClaimRef) -> str:
        found = self.condition(ref)
        return f"{found.get('reason')}: {found.get('message')}"

    def limits(self) -> dict[str, list[int]]:
        """Return the memory limits in GiB, by claim."""
        return {
            each.ref.name: [s.limit.vram_bytes // GIB if s.limit else -1 for s in each.shares]
            for each in self.setup.store.claims()
        }

    def compute(self, ref: ClaimRef) -> list[int]:
        record = self.setup.record(ref)
        assert record is not None
        return [each.limit.sm_percent for each in record.shares if each.limit]


@pytest.fixture
def node(setup: Setup) -> Node:
    return Node(setup)


def of_enforcer(folder: Path, enforcer: Enforcer) -> Node:
    return Node(Setup(folder, enforcer=enforcer))


def test_a_raise_is_granted_then_taken_back_by_a_request_and_given_again(node: Node) -> None:
    ref = node.claim("a")

    assert node.resize(ref, vram="60Gi").startswith("Granted: ")
    assert node.limits() == {"a": [60]}
    other = node.claim("b", 40)
    assert node.limits() == {"a": [40], "b": [40]}
    assert node.outcome(ref).startswith("GrantedInPart: ")
    assert "60Gi of memory: the card lends no more now" in node.outcome(ref)
    node.setup.unprepare(other)
    assert node.limits() == {"a": [60]}
    assert node.outcome(ref).startswith("Granted: ")


def test_more_than_the_card_has_is_granted_in_part(node: Node) -> None:
    ref = node.claim("a")
    assert node.resize(ref, vram="1000Gi", tflops="100000").startswith("GrantedInPart: ")
    assert node.limits() == {"a": [CARD_GIB]}
    assert node.resize(ref, vram="81Gi").endswith("lends no more now, and never more than 80Gi")
    assert node.resize(ref, vram="80Gi").startswith("Granted: ")


def test_what_a_card_never_gives_is_said_and_what_it_lends_is_given(
    node: Node, tmp_path: Path
) -> None:
    ref = node.claim("a")
    found = node.resize(ref, tflops="312.1")
    assert (found.partition(":")[0], node.compute(ref)) == ("GrantedInPart", [100])
    assert found.endswith(": the card lends no more now, and never more than 312 TFLOPS")
    found = node.resize(ref, vram="81Gi", tflops="313")
    assert found.endswith(", and never more than 80Gi and 312 TFLOPS")
    assert node.resize(ref, tflops="312").startswith("Granted: ")

    of_hami = of_enforcer(tmp_path / "hami", HAMI_CORE)
    ref = of_hami.claim("a", 10)
    found = of_hami.resize(ref, vram="41Gi")
    assert found.endswith(": the card lends no more now, and never more than 40Gi")
    assert of_hami.limits() == {"a": [40]}
    assert of_hami.resize(ref, vram="40Gi").startswith("Granted: ")


def test_an_amount_that_is_not_asked_for_is_no_part_of_the_answer(node: Node) -> None:
    parameters = {"apiVersion": "tensor-fusion.ai/v1alpha1", "kind": "GpuShare"}
    ref = put_claim(node.setup, "a", share_result())
    node.stored(ref)["status"]["allocation"]["devices"]["config"] = [
        {
            "source": "FromClaim",
            "opaque": {
                "driver": names.DRIVER,
                "parameters": {**parameters, "limits": {"tflops": "312"}},
            },
        }
    ]
    node.setup.prepared(ref)
    node.claim("b")
    record = node.setup.record(ref)
    assert record is not None
    assert record.shares[0].compute_clamped

    # The webhook writes 0 for a limit that a pod does not set.
    assert node.resize(ref, vram="20Gi", tflops="0").startswith("Granted: ")


def test_compute_and_memory_change_alone_or_together(node: Node) -> None:
    ref = node.claim("a")
    before = node.compute(ref)

    node.resize(ref, vram="20Gi")
    assert (node.limits()["a"], node.compute(ref)) == ([20], before)
    node.resize(ref, vram="20Gi", tflops="200")
    assert node.compute(ref) == [65]
    node.resize(ref, vram="18Gi", tflops="200")
    assert (node.limits()["a"], node.compute(ref)) == ([18], [65])


def test_a_removed_annotation_leaves_the_request_which_alone_a_quota_charges(node: Node) -> None:
    ref = node.claim("a")
    node.resize(ref, vram="60Gi", tflops="200")

    assert node.resize(ref, tflops="200").startswith("Granted: ")
    assert (node.limits(), node.compute(ref)) == ({"a": [16]}, [65])
    assert node.resize(ref).startswith("Granted: ")
    assert node.compute(ref) == [33]


@pytest.mark.parametrize("annotated", ["", "much", "-1Gi", "1Gi\n", "x" * 100_000, "15Gi"])
def test_what_is_malformed_or_below_the_request_changes_nothing(node: Node, annotated: str) -> None:
    ref = node.claim("a")
    node.resize(ref, vram="60Gi")
    files = node.setup.files()

    found = node.resize(ref, vram=annotated, tflops="200")

    assert found.startswith("Refused: ")
    assert "vram" in found
    assert (node.limits(), node.setup.files()) == ({"a": [60]}, files)
    assert len(found) < 5000
    assert len(node.setup.status.resized()[ref.uid].asked.get("vram", "")) <= 64
    (event,) = [text for reason, text in node.events.noted if "Gi of memory" in text][1:]
    assert event in found


@pytest.mark.parametrize(
    ("enforcer", "isolation", "limits", "expected"),
    [
        (HAMI_CORE, "soft", {"tflops": "200"}, "tflops: HAMI"),
        (MPS, "soft", {"tflops": "200"}, "tflops: the MPS daemon fixes this limit when a"),
        (MPS, "soft", {"vram": "20Gi"}, "vram: the MPS daemon fixes this limit when a"),
        (TENSOR_FUSION, "hard", {"vram": "20Gi"}, "vram: the hypervisor fixes"),
        (TENSOR_FUSION, "hard", {"tflops": "200"}, "tflops: the hypervisor fixes"),
        (TENSOR_FUSION, "shared", {"vram": "20Gi"}, "the share has no limits"),
        (Nvidia(), "soft", {"tflops": "200"}, "the container memory-limits does not limit compute"),
    ],
)
def test_an_amount_that_an_enforcer_has_fixed_or_does_not_limit_is_refused(
    tmp_path: Path, enforcer: Enforcer, isolation: str, limits: dict[str, str], expected: str
) -> None:
    node = of_enforcer(tmp_path, enforcer)
    node.setup.enforcers.setdefault(enforcer.name, enforcer)
    amounts: dict[str, Any] = {"tflops": "312", "vram": "80Gi"} if isolation == "shared" else {}
    annotations = {names.ANNOTATION_ISOLATION: isolation}
    ref = put_annotated_claim(node.setup, "a", annotations, **amounts)
    result = node.stored(ref)["status"]["allocation"]
    source = {"apiVersion": "tensor-fusion.ai/v1alpha1", "kind": "GpuShare", "isolation": isolation}
    result["devices"]["config"] = [
        {"source": "FromClass", "opaque": {"driver": names.DRIVER, "parameters": source}}
    ]
    before = node.setup.prepared(ref)

    found = node.resize(ref, **limits)

    assert found.startswith("Refused: ")
    assert expected.replace("HAMI", "HAMi-core fixes") in found
    assert node.setup.record(ref) == before


@pytest.mark.parametrize("enforcer", [HAMI_CORE, Nvidia()])
def test_memory_changes_beside_compute_that_is_fixed_and_was_annotated_before(
    tmp_path: Path, enforcer: Enforcer
) -> None:
    node = of_enforcer(tmp_path, enforcer)
    node.setup.enforcers.setdefault(enforcer.name, enforcer)
    ref = node.claim("a", tflops="200", vram="20Gi")

    assert node.resize(ref, tflops="200", vram="40Gi").startswith("Granted: ")
    assert node.limits() == {"a": [40]}


def test_an_amount_that_is_fixed_and_no_longer_annotated_is_not_refused(tmp_path: Path) -> None:
    node = of_enforcer(tmp_path, MPS)
    ref = node.claim("a", tflops="200", vram="20Gi")
    before = node.setup.record(ref)

    assert node.resize(ref).startswith("Granted: ")
    assert node.setup.record(ref) == before


def test_compute_that_is_not_asked_for_is_what_the_node_gives_for_that(node: Node) -> None:
    ref = node.claim("a", tflops="200")
    node.follower._rules = replace(node.setup.rules, unasked_percent=50)

    node.resize(ref, vram="20Gi")

    assert node.compute(ref) == [50]


def test_limits_of_a_class_that_claims_do_not_override_stay(node: Node) -> None:
    ref = put_claim(node.setup, "a", share_result())
    parameters = {
        "apiVersion": "tensor-fusion.ai/v1alpha1",
        "kind": "GpuShare",
        "limits": {"vram": "32Gi"},
        "overridable": False,
    }
    node.stored(ref)["status"]["allocation"]["devices"]["config"] = [
        {"source": "FromClass", "opaque": {"driver": names.DRIVER, "parameters": parameters}}
    ]
    node.setup.prepared(ref)

    found = node.resize(ref, vram="60Gi", tflops="200")

    assert "vram: the DeviceClass sets the limit 32Gi, which claims keep" in found
    assert (node.limits(), node.compute(ref)) == ({"a": [32]}, [65])


def test_a_refusal_that_is_known_is_no_news(node: Node) -> None:
    ref = node.claim("a")
    node.resize(ref, vram="1Gi")
    answer = node.setup.status._known[ref.uid].resize
    node.follower._seen.clear()  # as after a restart, or of very many claims

    assert node.resize(ref, vram="1Gi").startswith("Refused: ")

    assert len(node.events.noted) == 1
    assert node.setup.status._known[ref.uid].resize is answer


def test_both_requests_of_a_claim_change_or_neither(node: Node) -> None:
    ref = node.claim("a", 16, GPU_0, GPU_1)
    node.claim("b", 50)

    assert node.resize(ref, vram="40Gi").startswith("GrantedInPart: ")
    assert node.limits() == {"a": [30, 40], "b": [50]}
    (_, event) = node.events.noted[0]
    assert "30Gi of memory of the wanted" in event
    assert "40Gi of memory" in event.rpartition("; ")[2]

    uneven = put_claim(
        node.setup,
        "c",
        share_result(GPU_1, vram="8Gi"),
        share_result(GPU_0, vram="10Gi", request="x"),
    )
    node.setup.prepared(uneven)
    assert node.resize(uneven, vram="9Gi").startswith("Refused: ")
    assert node.limits()["c"] == [8, 10]


def test_pods_that_use_the_claim_now_get_an_event_and_observed_cards_are_not_in_it(
    node: Node,
) -> None:
    observed = {**share_result(GPU_1, request="observe"), "adminAccess": True}
    del observed["shareID"], observed["consumedCapacity"]
    ref = put_claim(node.setup, "a", share_result(), observed, pods=["p0"])
    node.setup.prepared(ref)
    node.stored(ref)["status"]["reservedFor"] = [
        {"resource": "pods", "name": f"p{number}", "uid": f"uid-of-p{number}"}
        for number in range(8)
    ]

    assert node.resize(ref, vram="20Gi").startswith("Granted: ")

    assert [pod.name for pod in node.events.pods if pod] == ["p0", "p1", "p2", "p3"]
    assert {text for _, text in node.events.noted} == {node.outcome(ref).removeprefix("Granted: ")}


def test_a_lowered_limit_counts_at_once_and_says_so_until_it_is_free(node: Node) -> None:
    ref = node.claim("a", vram="60Gi")

    node.resize(ref, vram="20Gi")

    assert node.limits() == {"a": [20]}
    found = node.condition(ref, used=50)
    assert (found["status"], found["reason"]) == ("False", "GrantedInPart")
    assert "50Gi is in use and counts until the container frees it" in found["message"]
    assert node.condition(ref, used=20)["reason"] == "Granted"


def test_a_change_between_the_reading_of_a_claim_and_its_record_is_not_lost(node: Node) -> None:
    ref = put_claim(node.setup, "a", share_result())
    node.annotate(ref, vram="60Gi")
    node.note(ref)
    node.annotate(ref)
    node.follower.check()
    node.setup.prepared(ref)
    node.annotate(ref, vram="60Gi")

    node.follower.check()

    assert node.limits() == {"a": [60]}


def test_a_change_while_its_claim_is_read_is_followed_after_that(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim, fetch = node.claim("a"), node.setup.claims.fetch

    def fetching(ref: ClaimRef, *, wait_seconds: float) -> Mapping[str, Any]:
        found = deepcopy(fetch(ref, wait_seconds=wait_seconds))
        monkeypatch.undo()
        node.annotate(claim, vram="40Gi")
        node.note(claim)
        return found

    monkeypatch.setattr(node.setup.claims, "fetch", fetching)
    node.resize(claim, vram="20Gi")
    assert node.limits() == {"a": [20]}

    node.follower.check()

    assert node.limits() == {"a": [40]}


def test_a_claim_that_is_gone_or_replaced_is_forgotten_and_delays_no_other(node: Node) -> None:
    gone, replaced, ref = (node.claim(name, 8) for name in "abc")
    for each in (gone, replaced, ref):
        node.annotate(each, vram="10Gi")
        node.note(each)
    del node.setup.claims.stored[str(gone)]
    node.stored(replaced)["metadata"]["uid"] = "another"

    node.follower.check()
    node.setup.claims.fetched.clear()
    node.follower.check()

    assert node.limits() == {"a": [8], "b": [8], "c": [10]}
    assert node.setup.claims.fetched == []


def test_a_claim_that_was_allocated_again_keeps_its_record(node: Node) -> None:
    ref = node.claim("a")
    node.stored(ref)["status"]["allocation"]["devices"]["results"] = [share_result(GPU_1)]

    assert "found another allocation" in node.resize(ref, vram="60Gi")
    assert node.limits() == {"a": [16]}


def test_a_claim_that_is_allocated_anew_with_the_same_limits_is_answered_again(node: Node) -> None:
    ref = node.claim("a")
    node.resize(ref, vram="60Gi")
    node.setup.unprepare(ref)
    results = node.stored(ref)["status"]["allocation"]["devices"]["results"]
    results[0]["shareID"] = "7b0fc0f5-4ab7-4b1b-a4d4-3b9f7c1d0a55"
    node.note(ref)
    node.setup.prepared(ref)

    node.follower.check()

    assert node.outcome(ref).startswith("Granted: ")
    assert (node.limits(), len(node.events.noted)) == ({"a": [60]}, 1)


def test_a_change_waits_while_its_card_is_not_known_and_says_nothing(node: Node) -> None:
    ref, known = node.claim("a"), node.setup.catalog._current
    assert known is not None
    node.setup.catalog._current = replace(known, devices=())

    with pytest.raises(RetryableError, match=f"claim default/a: {GPU_0}: found no such card now"):
        node.resize(ref, vram="60Gi")
    assert (node.limits(), node.outcome(ref)) == ({"a": [16]}, "None: None")
    node.setup.catalog._current = known
    node.follower.check()

    assert node.limits() == {"a": [60]}
    assert node.outcome(ref).startswith("Granted: ")


def test_an_error_of_one_claim_delays_no_other_and_is_tried_again(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, other = node.claim("a"), node.claim("b")
    fetch = node.setup.claims.fetch

    def failing(ref: ClaimRef, *, wait_seconds: float) -> Mapping[str, Any]:
        if ref == first:
            raise RetryableError("500")
        return fetch(ref, wait_seconds=wait_seconds)

    monkeypatch.setattr(node.setup.claims, "fetch", failing)
    for each in (first, other):
        node.annotate(each, vram="20Gi")
        node.note(each)
    with pytest.raises(RetryableError, match="500"):
        node.follower.check()
    assert node.limits() == {"a": [16], "b": [20]}
    monkeypatch.setattr(node.setup.claims, "fetch", fetch)

    node.follower.check()

    assert node.limits() == {"a": [20], "b": [20]}


def test_a_restart_in_the_middle_ends_in_the_same_limits_without_another_event(node: Node) -> None:
    ref, other = node.claim("a"), node.claim("b", 30)
    node.resize(ref, vram="60Gi")
    before, files = node.limits(), node.setup.files()
    assert before == {"a": [50], "b": [30]}

    node.restart()

    assert (node.limits(), node.setup.files()) == (before, files)
    assert node.outcome(ref).startswith("GrantedInPart")
    assert len(node.events.noted) == 1
    node.annotate(other, vram="35Gi")  # while no process runs
    node.restart()
    assert node.limits() == {"a": [50], "b": [30]}
    assert node.outcome(other).startswith("GrantedInPart")


def test_labels_that_anybody_forges_take_no_room_and_no_request(node: Node) -> None:
    ref = node.claim("a")
    forged = put_claim(node.setup, "forged")
    elsewhere = put_claim(node.setup, "elsewhere", share_result(pool="default/node-02"))

    assert not node.follower.keep(node.stored(forged))
    assert not node.follower.keep(node.stored(elsewhere))
    node.annotate(ref, vram="60Gi")
    node.note(ref)
    for number in range(10_000):  # allocated here, and never prepared
        item = {"namespace": "evil", "name": f"c{number}", "uid": f"u{number}", "annotations": 1}
        node.follower.on_event("ADDED", item)
    node.setup.claims.fetched.clear()
    node.follower.check()
    assert node.outcome(ref).startswith("Granted: ")
    assert node.setup.claims.fetched == [str(ref)]
    assert [len(node.follower._due), len(node.follower._seen)] == [MAX_NOTED, MAX_NOTED]


def test_an_object_that_no_api_server_stores_is_left_out(node: Node) -> None:
    every: list[dict[str, Any]] = [{}, {"metadata": {"name": "a"}}, {"metadata": {}, "status": []}]
    for broken in every:
        with pytest.raises(InputError):
            node.follower.keep(broken)


def test_other_changes_of_a_claim_such_as_of_its_status_cost_no_request(node: Node) -> None:
    ref = node.claim("a")
    node.resize(ref, vram="60Gi")
    node.setup.claims.fetched.clear()

    for number in range(10):
        node.stored(ref)["metadata"]["annotations"]["example.com/n"] = str(number) * 100_000
        node.note(ref)
        node.follower.check()
    node.note(ref, "DELETED")
    node.follower.check()

    assert node.setup.claims.fetched == []


def test_annotations_that_change_all_the_time_are_followed_every_five_seconds(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    ref = node.claim("a")

    def flap(_: object, seconds: float) -> None:
        pauses.append(seconds)
        for number in range(20):
            node.annotate(ref, vram=f"{20 + number + len(pauses)}Gi")
            node.note(ref)
        if len(pauses) == 12:
            node.follower.stop()

    monkeypatch.setattr(Wakeup, "pause", flap)
    node.annotate(ref, vram="20Gi")
    node.note(ref)
    node.setup.claims.fetched.clear()
    node.follower.run()

    assert set(pauses) == {resize_follower.SPACING_SECONDS}
    assert len(node.setup.claims.fetched) == len(node.events.noted) == 12
    assert node.limits() == {"a": [50]}


def test_the_loop_follows_a_change_at_once_and_survives_an_outage(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resize_follower, "_MAX_WAIT_SECONDS", 3600.0)
    ref = node.claim("a")
    node.setup.claims.away = True
    node.annotate(ref, vram="60Gi")

    with capture_logs() as logs, running(node.follower.run, stop=node.follower.stop):
        node.note(ref)
        eventually(lambda: any(each["event"] == "resize_retried" for each in logs))
        node.setup.claims.away = False
        eventually(lambda: node.limits() == {"a": [60]})


def test_nothing_is_followed_before_the_cards_are_known(node: Node) -> None:
    ref = node.claim("a")
    node.annotate(ref, vram="60Gi")
    node.note(ref)
    node.follower._catalog = Setup(node.setup.folder / "empty").catalog
    node.follower._catalog._current = None

    with pytest.raises(RetryableError):
        node.follower.check()


def test_label_of_a_node_whose_name_is_longer_than_a_label_may_be() -> None:
    name = "node." + "x" * 200
    value = resize.node_label(name)

    assert len(value) == 63
    assert value.isalnum()
    assert resize.node_label(name + "y") != value
    assert resize.node_label("n" * 63) == "n" * 63


_DEVICES: Final = (GPU_0, GPU_1)
_AMOUNTS: Final = st.integers(min_value=1, max_value=100)


class AnySeries(RuleBasedStateMachine):
    """Resizes, prepares, ends, lost events, kills and restarts, on a card of each."""

    folder: Path

    @initialize(enforcer=st.sampled_from([TENSOR_FUSION, HAMI_CORE, MPS]))
    def begin(self, enforcer: Enforcer) -> None:
        self.number = getattr(type(self), "count", 0) + 1
        type(self).count = self.number
        self.node = of_enforcer(self.folder / str(self.number), enforcer)
        self.refs: dict[str, ClaimRef] = {}
        self.requests: dict[str, int] = {}

    def free(self, device: str) -> int:
        taken = sum(
            self.requests[ref.uid]
            for ref in self.refs.values()
            for share in self.node.stored(ref)["status"]["allocation"]["devices"]["results"]
            if share["device"] == device
        )
        return CARD_GIB - taken

    @rule(device=st.sampled_from(_DEVICES), vram=_AMOUNTS, limit=_AMOUNTS)
    def prepare(self, device: str, vram: int, limit: int) -> None:
        if vram > self.free(device) or len(self.refs) > 5:
            return
        name = f"claim-{self.number}-{len(self.requests)}"
        result = share_result(device, tflops="10", vram=f"{vram}Gi")
        ref = put_claim(self.node.setup, name, result)
        self.node.annotate(ref, vram=f"{max(limit, vram)}Gi")
        self.node.setup.prepared(ref)
        self.refs[name], self.requests[ref.uid] = ref, vram

    @rule(data=st.data(), vram=_AMOUNTS, is_seen=st.booleans(), is_followed=st.booleans())
    def resize(self, data: st.DataObject, vram: int, is_seen: bool, is_followed: bool) -> None:
        if self.refs:
            ref = self.refs[data.draw(st.sampled_from(sorted(self.refs)))]
            self.node.annotate(ref, vram=f"{vram}Gi")
            if is_seen:
                self.node.note(ref)
            if is_followed:
                self.node.follower.check()

    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        if self.refs:
            ref = self.refs.pop(data.draw(st.sampled_from(sorted(self.refs))))
            assert self.node.setup.unprepare(ref) == {ref.uid: None}
            del self.node.setup.claims.stored[str(ref)]

    @rule(is_away=st.booleans())
    def follow(self, is_away: bool) -> None:
        self.node.setup.claims.away = is_away
        with suppress(RetryableError):
            self.node.follower.check()
        self.node.setup.claims.away = False

    @rule()
    def kill(self) -> None:
        """End the process before it follows what it was brought."""
        self.node.restart()

    @rule()
    def kill_between_record_and_files(self) -> None:
        upkeep = self.node.follower._upkeep
        vars(upkeep)["update"] = lambda *_: None
        with suppress(RetryableError):
            self.node.follower.check()
        self.node.restart()

    @invariant()
    def memory_is_within_the_card_and_each_has_its_request(self) -> None:
        sums = dict.fromkeys(_DEVICES, 0)
        for record in self.node.setup.store.claims() if hasattr(self, "node") else ():
            for share in record.shares:
                assert share.limit is not None
                assert share.limit.vram_bytes >= self.requests[record.ref.uid] * GIB
                sums[share.device] += share.limit.vram_bytes
        assert all(each <= CARD_GIB * GIB for each in sums.values())

    def teardown(self) -> None:
        """After the last event, a restart changes nothing, and files say what the records say."""
        if not hasattr(self, "node"):
            return
        self.node.restart()
        limits, files = self.node.limits(), self.node.setup.files()
        self.node.restart()
        assert (self.node.limits(), self.node.setup.files()) == (limits, files)
        self.node.setup.store.close()


def test_any_series_keeps_memory_within_the_card_and_each_request(tmp_path: Path) -> None:
    machine = type("Machine", (AnySeries,), {"folder": tmp_path})

    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(machine, settings=settings(max_examples=30, stateful_step_count=25))

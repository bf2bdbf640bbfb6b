"""Verdicts about shares, by the enforcer's evidence, and their documented reasons."""

import re
from dataclasses import replace
from typing import Any, Final

import pytest

from tensorfusion_dra.core.claims import presence, verdicts
from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.claims.evidence import (
    Cache,
    Daemon,
    Evidence,
    EvidencePaths,
    FileEvidence,
    NodeEvidence,
    SharedMemory,
)
from tensorfusion_dra.core.claims.prepared import PreparedClaim, PreparedShare
from tensorfusion_dra.core.claims.verdicts import State, Verdict
from tensorfusion_dra.core.devices.gpu import Isolation
from tests.support import markdown
from tests.support.builders.prepared_claims import (
    admin_share,
    limit,
    prepared_claim,
    prepared_share,
    simulated_share,
)
from tests.support.markdown import ROOT

NOW: Final = 1_700_000_000.5
ALIVE: Final = SharedMemory(
    path="/shm", heartbeat=1_700_000_000, limits={"0": limit(25, 20)}, processes=1
)
LIMITER: Final = FileEvidence(path="/libcuda_limiter.so")
CACHE: Final = Cache(path="/gpu.cache", limits=(limit(25, 20),) * 16, processes=1)


def soft(*shares: PreparedShare, **changes: Any) -> PreparedClaim:
    shares = shares or (prepared_share(0, limit(25, 20)),)
    return prepared_claim(*shares, **{"enforcer": "tensor-fusion", **changes})


def hami(*shares: PreparedShare) -> PreparedClaim:
    return soft(*shares, enforcer="hami-core")


def memory(*, limiter: FileEvidence = LIMITER, **changes: Any) -> Evidence:
    return Evidence(read_at=NOW, files=(limiter,), shared_memory=replace(ALIVE, **changes))


def caches(**by_request: Cache) -> Evidence:
    return Evidence(read_at=NOW, files=(LIMITER,), caches=by_request)


def judged(claim: PreparedClaim, evidence: Evidence, *, is_new: bool = False) -> Verdict:
    (found, *others) = verdicts.of_claim(claim, evidence, is_new=is_new)
    assert not others
    return found


def outcome(verdict: Verdict) -> tuple[str, str]:
    return verdict.state.value, verdict.reason


def test_live_hypervisor_with_the_claims_limits_and_a_process_enforces() -> None:
    assert outcome(judged(soft(), memory())) == ("Enforced", "LimiterActive")


@pytest.mark.parametrize(
    ("changes", "reason", "text"),
    [
        ({"found": False}, "SharedMemoryMissing", "/shm: not found"),
        ({"is_replaced": True}, "SharedMemoryReplaced", "so they see no limits; delete the pod"),
        ({"heartbeat": 0}, "HeartbeatStale", "no heartbeat"),
        ({"heartbeat": 1_699_999_900}, "HeartbeatStale", "heartbeat is 100 s old"),
        ({"heartbeat": 1_700_000_100}, "HeartbeatStale", "100 s ahead of this node's clock"),
        ({"limits": {"1": limit(25, 20)}}, "DeviceMissing", "found 1, expected GPU-0"),
        ({"limits": {}}, "DeviceMissing", "found no GPU, expected GPU-0"),
        ({"limits": {"0": limit(26, 20)}}, "LimitsDiffer", "found 26% of compute, 20Gi"),
        ({"limits": {"0": limit(25, 21)}}, "LimitsDiffer", "expected 25% of compute, 20Gi"),
    ],
)
def test_soft_limits_do_not_hold(changes: dict[str, Any], reason: str, text: str) -> None:
    found = judged(soft(), memory(**changes))

    assert outcome(found) == ("NotEnforced", reason)
    assert text in found.text


@pytest.mark.parametrize("changes", [{"found": False}, {"heartbeat": 0}, {"limits": {}}])
def test_missing_signs_mean_nothing_right_after_new_limits(changes: dict[str, Any]) -> None:
    assert outcome(judged(soft(), memory(**changes), is_new=True)) == ("Unknown", "Starting")


@pytest.mark.parametrize(
    ("age_seconds", "state"), [(5, State.ENFORCED), (6, State.NOT_ENFORCED), (-2, State.ENFORCED)]
)
def test_heartbeat_is_fresh_for_five_seconds(age_seconds: int, state: State) -> None:
    evidence = replace(memory(heartbeat=1_700_000_000), read_at=1_700_000_000.0 + age_seconds)

    assert judged(soft(), evidence).state is state


@pytest.mark.parametrize("spelling", ["GPU-AB-1", "gpu-ab-1", "AB-1", "ab-1"])
def test_spelling_of_a_uuid_does_not_matter(spelling: str) -> None:
    claim = soft(prepared_share(0, limit(25, 20), gpu_uuid="GPU-ab-1"))

    assert judged(claim, memory(limits={spelling: limit(25, 20)})).state is State.ENFORCED


def test_smaller_limit_than_the_claims_holds() -> None:
    assert judged(soft(), memory(limits={"0": limit(20, 19)})).state is State.ENFORCED


def test_no_registered_process_shows_nothing() -> None:
    assert outcome(judged(soft(), memory(processes=0))) == ("Unknown", "NoProcessYet")


def test_without_the_limiter_on_the_node_no_process_can_register() -> None:
    gone = FileEvidence(path="/libcuda_limiter.so", trouble="not found")

    found = judged(soft(), memory(processes=0, limiter=gone))

    assert outcome(found) == ("NotEnforced", "LimiterMissing")
    assert found.text.startswith("/libcuda_limiter.so: not found")


def test_running_container_has_its_own_reference_to_the_limiter() -> None:
    gone = FileEvidence(path="/libcuda_limiter.so", trouble="not found")

    assert judged(soft(), memory(limiter=gone)).state is State.ENFORCED


def test_unreadable_shared_memory_shows_nothing() -> None:
    found = judged(soft(), memory(trouble="found 3 bytes, expected 35504"))

    assert outcome(found) == ("Unknown", "SignsUnreadable")


def test_claims_of_one_pod_share_its_limits() -> None:
    first = soft()
    second = replace(first, ref=ClaimRef(namespace="team-a", name="b", uid="uid-b"))
    evidence = memory(limits={"0": limit(50, 40)})

    (alone,) = verdicts.of_claim(first, evidence, is_new=False)
    (beside,) = verdicts.of_claim(first, evidence, is_new=False, beside=[second])

    assert (alone.reason, beside.reason) == ("LimitsDiffer", "LimiterActive")


def test_claims_of_the_same_shared_memory_are_beside_each_other_whatever_object_they_are() -> None:
    first, second, third = (
        replace(soft(), ref=ClaimRef(namespace="a", name=name, uid=name)) for name in "abc"
    )
    paths, others = EvidencePaths(shared_memory="/shm"), EvidencePaths(shared_memory="/other")
    every = [(first, paths), (second, paths), (third, others)]

    assert verdicts.beside(replace(first), "/shm", every) == [second]
    assert verdicts.beside(first, "", [(second, EvidencePaths())]) == []


def test_hard_limiter_in_the_image_leaves_no_sign() -> None:
    claim = soft(prepared_share(0, limit(25, 20), isolation=Isolation.HARD))

    assert outcome(judged(claim, Evidence(read_at=NOW))) == ("Unknown", "LimiterInImage")


@pytest.mark.parametrize("enforcer", ["tensor-fusion", "hami-core", "mps"])
def test_simulated_gpu_has_nothing_to_enforce(enforcer: str) -> None:
    claim = soft(simulated_share(0, limit(25, 20)), enforcer=enforcer)

    assert outcome(judged(claim, Evidence(read_at=NOW))) == ("Unknown", "SimulatedGPU")


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (admin_share(), "no limit to enforce: admin access"),
        (
            prepared_share(0, isolation=Isolation.SHARED),
            "no limit to enforce: isolation shared",
        ),
        (prepared_share(0), "no limit to enforce: isolation soft"),
    ],
    ids=["admin access", "shared", "limiter off"],
)
def test_share_without_a_limit_cannot_exceed_it(share: PreparedShare, text: str) -> None:
    found = judged(soft(share), Evidence(read_at=NOW))

    assert (*outcome(found), found.text) == ("Enforced", "NoLimit", text)


def test_each_share_has_its_own_verdict() -> None:
    claim = soft(prepared_share(0, limit(25, 20)), prepared_share(1, limit(25, 20)), admin_share(2))

    found = verdicts.of_claim(claim, memory(), is_new=False)

    assert [each.reason for each in found] == ["LimiterActive", "DeviceMissing", "NoLimit"]


def test_hami_core_with_the_claims_limits_and_a_process_enforces() -> None:
    assert outcome(judged(hami(), caches(gpu=CACHE))) == ("Enforced", "LimiterActive")


@pytest.mark.parametrize(
    "cache",
    [Cache(path="/gpu.cache", found=False), replace(CACHE, processes=0), Cache(path="/gpu.cache")],
    ids=["no file", "no process", "not initialized"],
)
def test_hami_core_before_the_first_process_shows_nothing(cache: Cache) -> None:
    assert outcome(judged(hami(), caches(gpu=cache))) == ("Unknown", "NoProcessYet")


@pytest.mark.parametrize(
    "other", [limit(26, 20), limit(25, 21), limit(25, 0), limit(0, 20)], ids=str
)
def test_hami_core_with_higher_limits_or_none_does_not_enforce(other: Any) -> None:
    found = judged(hami(), caches(gpu=replace(CACHE, limits=(other,) * 16)))

    assert outcome(found) == ("NotEnforced", "LimitsDiffer")


def test_limits_of_the_second_card_count_too() -> None:
    claim = hami(prepared_share(0, limit(25, 20)), prepared_share(1, limit(25, 20)))
    cache = replace(CACHE, limits=(limit(25, 20), limit(25, 30)))

    found = verdicts.of_claim(claim, caches(gpu=cache), is_new=False)

    assert {each.reason for each in found} == {"LimitsDiffer"}
    assert "card 1: found 25% of compute, 30Gi" in found[0].text


def test_container_that_uses_all_requests_counts_in_the_file_of_one() -> None:
    claim = hami(
        prepared_share(0, limit(25, 20), request="a"), prepared_share(1, limit(25, 20), request="b")
    )

    found = verdicts.of_claim(
        claim, caches(a=Cache(path="/a.cache", found=False), b=CACHE), is_new=False
    )

    assert [each.reason for each in found] == ["LimiterActive", "LimiterActive"]


def test_hami_core_that_is_gone_from_the_node_is_not_loaded() -> None:
    gone = FileEvidence(path="/libvgpu.so.1", trouble="not found")
    evidence = replace(caches(gpu=Cache(path="/gpu.cache", found=False)), files=(gone,))

    assert outcome(judged(hami(), evidence)) == ("NotEnforced", "LimiterMissing")


def test_file_of_another_version_shows_nothing() -> None:
    evidence = caches(gpu=Cache(path="/gpu.cache", trouble="found version 1.1, expected 1.2"))

    assert outcome(judged(hami(), evidence)) == ("Unknown", "SignsUnreadable")


def test_dead_mps_daemon_does_not_enforce() -> None:
    evidence = Evidence(read_at=NOW, daemon=Daemon(path="/pipe/control", trouble="nobody listens"))

    found = judged(soft(enforcer="mps"), evidence)

    assert outcome(found) == ("NotEnforced", "DaemonSilent")
    assert found.text.startswith("/pipe/control: nobody listens")


def test_live_mps_daemon_does_not_show_its_clients() -> None:
    evidence = Evidence(read_at=NOW, daemon=Daemon(path="/pipe/control"))

    assert outcome(judged(soft(enforcer="mps"), evidence)) == ("Unknown", "ClientsNotVisible")


CLAIM = prepared_claim(
    prepared_share(0, limit(25, 8)), prepared_share(1, limit(25, 8)), enforcer="another"
)
NO_SIGNS = Evidence(read_at=0.0)


class Judge:
    def judge(self, claim: PreparedClaim, share: PreparedShare, evidence: Evidence, /) -> Verdict:
        return verdicts.enforced("DaemonAlive", f"{claim.ref}: {share.device}")


def test_its_own_judge_decides_about_each_share() -> None:
    found = verdicts.of_claim(CLAIM, NO_SIGNS, is_new=False, judge=Judge())

    assert [each.text for each in found] == ["team-a/a: gpu-0", "team-a/a: gpu-1"]


def test_claim_whose_enforcer_is_gone_is_unknown() -> None:
    found = verdicts.of_claim(CLAIM, NO_SIGNS, is_new=False)

    assert {(each.state, each.reason) for each in found} == {
        (State.UNKNOWN, verdicts.UNKNOWN_ENFORCER)
    }


def test_share_without_a_limit_needs_no_judge() -> None:
    claim = replace(CLAIM, shares=(prepared_share(0, None),))

    (found,) = verdicts.of_claim(claim, NO_SIGNS, is_new=False)

    assert found.reason == verdicts.NO_LIMIT


@pytest.mark.parametrize(
    ("evidence", "state", "reason"),
    [
        (NodeEvidence(read_at=0.0), State.UNKNOWN, verdicts.NO_SIGNS),
        (
            NodeEvidence(read_at=0.0, files=(FileEvidence(path="/l.so", trouble="not found"),)),
            State.NOT_ENFORCED,
            verdicts.LIMITER_MISSING,
        ),
        (
            NodeEvidence(read_at=0.0, daemon=Daemon(path="/s", trouble="refused")),
            State.NOT_ENFORCED,
            verdicts.DAEMON_SILENT,
        ),
    ],
)
def test_missing_file_or_silent_daemon_refuses_claims_where_limits_are_required(
    evidence: NodeEvidence, state: State, reason: str
) -> None:
    found = presence.of_node("another", evidence)

    assert (found.state, found.reason) == (state, reason)
    assert bool(presence.refusal(CLAIM, evidence)) == (state is State.NOT_ENFORCED)


PAGE: Final = markdown.text(ROOT / "docs" / "limits.md")
OF_NODES: Final = {
    verdicts.ENFORCER_ALIVE,
    verdicts.HYPERVISOR_MISSING,
    verdicts.LIBRARY_INSTALLED,
}
"""Reasons in verdicts about a node, which have no condition."""
ENFORCED: Final = {verdicts.LIMITER_ACTIVE, verdicts.NO_LIMIT}
NOT_ENFORCED: Final = {
    verdicts.SHARED_MEMORY_MISSING,
    verdicts.SHARED_MEMORY_REPLACED,
    verdicts.HEARTBEAT_STALE,
    verdicts.DEVICE_MISSING,
    verdicts.LIMITS_DIFFER,
    verdicts.LIMITER_MISSING,
    verdicts.DAEMON_SILENT,
}


def reasons() -> set[str]:
    """Return every reason that the code has for a share."""
    texts = [value for name, value in vars(verdicts).items() if name.isupper()]
    return {each for each in texts if isinstance(each, str) and each.isalnum()} - OF_NODES


def documented() -> dict[str, str]:
    """Return the state of each reason in the table."""
    table = PAGE[PAGE.index("<!-- reasons:") : PAGE.index("<!-- end of reasons")]
    return dict(re.findall(r"^\| `(\w+)` \| (\w+) \|", table, re.MULTILINE))


def test_every_reason_is_documented() -> None:
    assert documented().keys() == reasons()


def test_reasons_have_the_states_of_the_table() -> None:
    for reason, state in documented().items():
        if reason in ENFORCED:
            assert state == State.ENFORCED
        elif reason in NOT_ENFORCED:
            assert state == State.NOT_ENFORCED
        else:
            assert state == State.UNKNOWN

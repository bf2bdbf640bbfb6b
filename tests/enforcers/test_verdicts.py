"""Verdicts about shares, by the enforcer's evidence, and their documented reasons."""

import re
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

import pytest

from tensorfusion_dra.core.claims import device_status, presence, verdicts
from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.claims.device_status import Readiness
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
from tensorfusion_dra.enforcers.choice import Choice
from tensorfusion_dra.core.claims.verdicts import CurrentVerdict, State, Verdict
from tensorfusion_dra.core.devices.gpu import Isolation
from tensorfusion_dra.core.kubernetes.quantity import GIB
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


GONE: Final = replace(LIMITER, trouble="not found")
NO_HAMI_CORE: Final = FileEvidence(path="/libvgpu.so.1", trouble="not found")
NOTHING: Final = Evidence(read_at=NOW)
NO_FILE: Final = Evidence(read_at=NOW, files=(LIMITER,), caches={"gpu": Cache(path="/gpu.cache")})
ENFORCED: Final = ("Enforced", "LimiterActive", "")
NO_PROCESS: Final = ("Unknown", "NoProcessYet", "")


def heartbeat(age_seconds: int) -> Evidence:
    return replace(memory(heartbeat=int(NOW) - age_seconds), read_at=int(NOW))


def cache(**changes: Any) -> Evidence:
    return caches(gpu=replace(CACHE, **changes))


def unsaid(reason: str) -> tuple[str, str, str]:
    return "Unknown", reason, ""


def broken(reason: str, text: str) -> tuple[str, str, str]:
    return "NotEnforced", reason, text


def unlimited(text: str) -> tuple[str, str, str]:
    return "Enforced", "NoLimit", f"no limit to enforce: {text}"


@pytest.mark.parametrize(
    ("claim", "evidence", "expected"),
    [
        # Shared memory of the hypervisor
        (soft(), memory(), ENFORCED),
        (soft(), memory(limits={"0": limit(20, 19)}), ENFORCED),
        (soft(), memory(found=False), broken("SharedMemoryMissing", "/shm: not found")),
        (
            soft(),
            memory(is_replaced=True),
            broken("SharedMemoryReplaced", "so they see no limits; delete the pod"),
        ),
        (soft(), memory(heartbeat=0), broken("HeartbeatStale", "no heartbeat")),
        (soft(), heartbeat(100), broken("HeartbeatStale", "heartbeat is 100 s old")),
        (soft(), heartbeat(-100), broken("HeartbeatStale", "100 s ahead of this node's clock")),
        (soft(), heartbeat(5), ENFORCED),
        (soft(), heartbeat(6), broken("HeartbeatStale", "")),
        (soft(), heartbeat(-2), ENFORCED),
        (
            soft(),
            memory(limits={"1": limit(25, 20)}),
            broken("DeviceMissing", "found 1, expected GPU-0"),
        ),
        (soft(), memory(limits={}), broken("DeviceMissing", "found no GPU, expected GPU-0")),
        (
            soft(),
            memory(limits={"0": limit(26, 20)}),
            broken("LimitsDiffer", "found 26% of compute, 20Gi"),
        ),
        (
            soft(),
            memory(limits={"0": limit(25, 21)}),
            broken("LimitsDiffer", "expected 25% of compute, 20Gi"),
        ),
        (soft(), memory(trouble="found 3 bytes"), unsaid("SignsUnreadable")),
        # Without the limiter no process can register; a running one has its own reference to it.
        (soft(), memory(processes=0), NO_PROCESS),
        (
            soft(),
            memory(processes=0, limiter=GONE),
            broken("LimiterMissing", "/libcuda_limiter.so: not found"),
        ),
        (soft(), memory(limiter=GONE), ENFORCED),
        # Caches of HAMi-core
        (hami(), cache(), ENFORCED),
        (hami(), NO_FILE, NO_PROCESS),
        (hami(), cache(processes=0), NO_PROCESS),
        (hami(), caches(gpu=Cache(path="/gpu.cache")), NO_PROCESS),  # not initialized
        (hami(), cache(limits=(limit(26, 20),) * 16), broken("LimitsDiffer", "")),
        (hami(), cache(limits=(limit(25, 21),) * 16), broken("LimitsDiffer", "")),
        (hami(), cache(limits=(limit(25, 0),) * 16), broken("LimitsDiffer", "")),
        (hami(), cache(limits=(limit(0, 20),) * 16), broken("LimitsDiffer", "")),
        (hami(), cache(trouble="found version 1.1, expected 1.2"), unsaid("SignsUnreadable")),
        (hami(), replace(NO_FILE, files=(NO_HAMI_CORE,)), broken("LimiterMissing", "")),
        # The daemon of MPS
        (
            soft(enforcer="mps"),
            replace(NOTHING, daemon=Daemon(path="/control", trouble="nobody listens")),
            broken("DaemonSilent", "/control: nobody listens"),
        ),
        (
            soft(enforcer="mps"),
            replace(NOTHING, daemon=Daemon(path="/control")),
            unsaid("ClientsNotVisible"),
        ),
        # Shares of which nothing on the node shows anything
        (
            soft(prepared_share(0, limit(25, 20), isolation=Isolation.HARD)),
            NOTHING,
            unsaid("LimiterInImage"),
        ),
        *(
            (
                soft(simulated_share(0, limit(25, 20)), enforcer=name),
                NOTHING,
                unsaid("SimulatedGPU"),
            )
            for name in ("tensor-fusion", "hami-core", "mps")
        ),
        (soft(admin_share()), NOTHING, unlimited("admin access")),
        (
            soft(prepared_share(0, isolation=Isolation.SHARED)),
            NOTHING,
            unlimited("isolation shared"),
        ),
        (soft(prepared_share(0)), NOTHING, unlimited("isolation soft")),
        # The spelling of a UUID does not matter.
        *(
            (
                soft(prepared_share(0, limit(25, 20), gpu_uuid="GPU-ab-1")),
                memory(limits={spelling: limit(25, 20)}),
                ENFORCED,
            )
            for spelling in ("GPU-AB-1", "gpu-ab-1", "AB-1", "ab-1")
        ),
    ],
)
def test_verdict_about_a_share_follows_from_the_evidence(
    claim: PreparedClaim, evidence: Evidence, expected: tuple[str, str, str]
) -> None:
    found = judged(claim, evidence)

    assert (found.state, found.reason) == expected[:2]
    assert expected[2] in found.text


@pytest.mark.parametrize("changes", [{"found": False}, {"heartbeat": 0}, {"limits": {}}])
def test_missing_signs_mean_nothing_right_after_new_limits(changes: dict[str, Any]) -> None:
    found = judged(soft(), memory(**changes), is_new=True)

    assert (found.state, found.reason) == ("Unknown", "Starting")


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

    assert verdicts.beside(replace(first), paths, every) == [second]
    assert verdicts.beside(first, EvidencePaths(), [(second, EvidencePaths())]) == []


def limited(percent: int = 25, **found: Any) -> tuple[PreparedClaim, Evidence]:
    claim = soft(prepared_share(0, limit(percent, 20)), enforcer="nvidia")
    card = claim.shares[0].gpu_uuid
    memory = dict.fromkeys([card], found["read"]) if found else {}
    silent = Daemon(path="/socket", trouble="" if found else "nobody listens")
    return claim, replace(NOTHING, memory=memory, daemon=silent)


COMPUTE: Final = (State.UNKNOWN, "ComputeNotLimited")


@pytest.mark.parametrize(
    ("given", "state", "limits"),
    [
        (limited(read=(20 * GIB, 5)), State.UNKNOWN, ((State.ENFORCED, "LimitInDriver"), COMPUTE)),
        (
            limited(100, read=(20 * GIB, 5)),
            State.ENFORCED,
            ((State.ENFORCED, "LimitInDriver"), (State.ENFORCED, "NoLimit")),
        ),
        (
            limited(read=(20 * GIB + 1, 5)),
            State.NOT_ENFORCED,
            ((State.NOT_ENFORCED, "LimitsDiffer"), COMPUTE),
        ),
        (
            limited(read="found no memory limit"),
            State.NOT_ENFORCED,
            ((State.NOT_ENFORCED, "LimitsDiffer"), COMPUTE),
        ),
        (limited(), State.UNKNOWN, ((State.UNKNOWN, "SignsUnreadable"), COMPUTE)),
    ],
)
def test_memory_and_compute_under_the_nvidia_driver_are_judged_apart(
    given: tuple[PreparedClaim, Evidence], state: State, limits: tuple[tuple[State, str], ...]
) -> None:
    (found,) = verdicts.of_claim(*given, is_new=False)

    assert (found.state, tuple(found.limits.values())) == (state, limits)
    kept = CurrentVerdict(verdict=found, since=datetime(2026, 1, 1, tzinfo=UTC))
    again = CurrentVerdict.from_json(kept.as_json())
    assert again.verdict.is_same(found)
    ready = {given[0].shares[0].device: Readiness(since=kept.since)}
    (entry,) = device_status.status(given[0], ready, [kept])
    assert entry["data"]["enforcement"] == found.limits_json()


def test_limit_of_a_pod_is_that_of_its_claims_together() -> None:
    claim, evidence = limited(read=(40 * GIB, 5))
    other = replace(claim, ref=replace(claim.ref, uid="uid-b"))

    (alone,) = verdicts.of_claim(claim, evidence, is_new=False)
    (beside,) = verdicts.of_claim(claim, evidence, is_new=False, beside=[other])

    assert alone.reason == "LimitsDiffer"
    assert beside.limits["memory"] == (State.ENFORCED, "LimitInDriver")


def test_each_share_has_its_own_verdict() -> None:
    claim = soft(prepared_share(0, limit(25, 20)), prepared_share(1, limit(25, 20)), admin_share(2))

    found = verdicts.of_claim(claim, memory(), is_new=False)

    assert [each.reason for each in found] == ["LimiterActive", "DeviceMissing", "NoLimit"]


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

    found = verdicts.of_claim(claim, caches(a=Cache(path="/a.cache"), b=CACHE), is_new=False)

    assert [each.reason for each in found] == ["LimiterActive", "LimiterActive"]


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
        (
            NodeEvidence(read_at=0.0, hypervisor="answers"),
            State.ENFORCED,
            verdicts.ENFORCER_ALIVE,
        ),
    ],
)
def test_missing_file_or_silent_daemon_refuses_claims_where_limits_are_required(
    evidence: NodeEvidence, state: State, reason: str
) -> None:
    claim = soft() if evidence.hypervisor else CLAIM

    cure = presence.cure(claim.enforcer)
    choice = Choice(
        enforcer=claim.enforcer, verdict=presence.of_node(claim.enforcer, evidence), cure=cure
    )
    found = choice.with_cure(is_required=True)

    assert (found.state, found.reason) == (state, reason)
    is_missing = state is State.NOT_ENFORCED
    assert (cure in found.text) is is_missing
    assert bool(presence.refusal(claim, evidence)) is is_missing


PAGE: Final = markdown.text(ROOT / "docs" / "limits.md")
OF_NODES: Final = {
    verdicts.DRIVER_CANNOT_LIMIT,
    verdicts.ENFORCER_ALIVE,
    verdicts.HYPERVISOR_MISSING,
    verdicts.LIBRARY_INSTALLED,
    verdicts.NONE_FOUND,
}
"""Reasons in verdicts about a node, which have no condition."""
STATES: Final = {
    verdicts.LIMITER_ACTIVE: State.ENFORCED,
    verdicts.LIMIT_IN_DRIVER: State.ENFORCED,
    verdicts.NO_LIMIT: State.ENFORCED,
    verdicts.SHARED_MEMORY_MISSING: State.NOT_ENFORCED,
    verdicts.SHARED_MEMORY_REPLACED: State.NOT_ENFORCED,
    verdicts.HEARTBEAT_STALE: State.NOT_ENFORCED,
    verdicts.DEVICE_MISSING: State.NOT_ENFORCED,
    verdicts.LIMITS_DIFFER: State.NOT_ENFORCED,
    verdicts.LIMIT_EXCEEDED: State.NOT_ENFORCED,
    verdicts.NO_ENFORCER: State.NOT_ENFORCED,
    verdicts.LIMITER_MISSING: State.NOT_ENFORCED,
    verdicts.DAEMON_SILENT: State.NOT_ENFORCED,
}
"""States of the reasons that are not for Unknown."""


def test_every_reason_is_documented_with_its_state() -> None:
    texts = [value for name, value in vars(verdicts).items() if name.isupper()]
    reasons = {each for each in texts if isinstance(each, str) and each.isalnum()} - OF_NODES

    table = PAGE[PAGE.index("<!-- reasons:") : PAGE.index("<!-- end of reasons")]
    documented = dict(re.findall(r"^\| `(\w+)` \| (\w+) \|", table, re.MULTILINE))
    assert documented == {each: STATES.get(each, State.UNKNOWN) for each in reasons}

"""Verdicts about shares, by what their enforcers read, and their documented reasons."""

import socket
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest

from tensorfusion_dra.core.claims import device_status, verdicts
from tensorfusion_dra.core.claims import enforcer as enforcers
from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.claims.device_status import Readiness
from tensorfusion_dra.core.claims.enforcer import Enforcer
from tensorfusion_dra.core.claims.prepared import PreparedClaim, PreparedShare
from tensorfusion_dra.core.claims.verdicts import CurrentVerdict, State, Verdict
from tensorfusion_dra.core.devices.gpu import Isolation
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.core.kubernetes.quantity import GIB
from tensorfusion_dra.enforcers import choice, hami_core
from tensorfusion_dra.enforcers.choice import EnforcerChoice
from tensorfusion_dra.enforcers.hami_core import Cache, HamiCore
from tensorfusion_dra.enforcers.mps import Mps
from tensorfusion_dra.enforcers.none import NoEnforcer
from tensorfusion_dra.enforcers.nvidia import LimitsClient, Nvidia
from tensorfusion_dra.enforcers.tensor_fusion import soft_verdict
from tensorfusion_dra.enforcers.tensor_fusion.enforcer import TensorFusion
from tensorfusion_dra.enforcers.tensor_fusion.shared_memory import SharedMemory
from tests.support import markdown
from tests.support.builders.prepared_claims import (
    admin_share,
    limit,
    prepared_claim,
    prepared_share,
    simulated_share,
)
from tests.support.markdown import ROOT
from tests.support.signs import ALIVE, NO_LIMITER

NOW: Final = 1_700_000_000.5
KEPT: Final = SharedMemory(
    path="/shm", heartbeat=1_700_000_000, limits={"0": limit(25, 20)}, processes=1
)
CACHE: Final = Cache(path="/gpu.cache", limits=(limit(25, 20),) * 16, processes=1)
ENFORCED: Final = ("Enforced", "LimiterActive", "")
NO_PROCESS: Final = ("Unknown", "NoProcessYet", "")


def soft(*shares: PreparedShare, **changes: Any) -> PreparedClaim:
    shares = shares or (prepared_share(0, limit(25, 20)),)
    return prepared_claim(*shares, **{"enforcer": "tensor-fusion", **changes})


def unsaid(reason: str) -> tuple[str, str, str]:
    return "Unknown", reason, ""


def broken(reason: str, text: str) -> tuple[str, str, str]:
    return "NotEnforced", reason, text


def of_card(
    uuid: str = "GPU-0",
    *,
    read_at: float = NOW,
    reason: str = "",
    is_new: bool = False,
    **memory: Any,
) -> Verdict:
    return soft_verdict.of_card(
        uuid,
        limit(25, 20),
        replace(KEPT, **memory),
        read_at=read_at,
        limiter_reason=reason,
        is_new=is_new,
    )


@pytest.mark.parametrize(
    ("memory", "expected"),
    [
        ({}, ENFORCED),
        ({"limits": {"0": limit(20, 19)}}, ENFORCED),
        ({"found": False}, broken("SharedMemoryMissing", "/shm: not found")),
        (
            {"is_replaced": True},
            broken("SharedMemoryReplaced", "so they see no limits; delete the pod"),
        ),
        ({"heartbeat": 0}, broken("HeartbeatStale", "no heartbeat")),
        ({"read_at": int(NOW) + 100}, broken("HeartbeatStale", "heartbeat is 100 s old")),
        ({"read_at": int(NOW) - 100}, broken("HeartbeatStale", "100 s ahead of this node's clock")),
        ({"read_at": int(NOW) + 5}, ENFORCED),
        ({"read_at": int(NOW) + 6}, broken("HeartbeatStale", "")),
        ({"read_at": int(NOW) - 2}, ENFORCED),
        ({"limits": {"1": limit(25, 20)}}, broken("DeviceMissing", "found 1, expected GPU-0")),
        ({"limits": {}}, broken("DeviceMissing", "found no GPU, expected GPU-0")),
        (
            {"limits": {"0": limit(26, 20)}},
            broken("LimitsDiffer", "found 26% of compute, 20Gi"),
        ),
        (
            {"limits": {"0": limit(25, 21)}},
            broken("LimitsDiffer", "expected 25% of compute, 20Gi"),
        ),
        ({"reason": "", "overruled": "tflops-limit"}, broken("LimitsDiffer", "tflops-limit")),
        # Without the limiter no process can register; a running one has its own reference to it.
        ({"processes": 0}, NO_PROCESS),
        (
            {"processes": 0, "reason": "/libcuda_limiter.so: not found"},
            broken("LimiterMissing", "/libcuda_limiter.so: not found"),
        ),
        ({"reason": "/libcuda_limiter.so: not found"}, ENFORCED),
        # The spelling of a UUID does not matter.
        *(
            ({"uuid": "GPU-ab-1", "limits": {spelling: limit(25, 20)}}, ENFORCED)
            for spelling in ("GPU-AB-1", "gpu-ab-1", "AB-1", "ab-1")
        ),
    ],
)
def test_soft_limit_is_judged_by_the_shared_memory(
    memory: dict[str, Any], expected: tuple[str, str, str]
) -> None:
    found = of_card(**memory)

    assert (found.state, found.reason) == expected[:2]
    assert expected[2] in found.text


def test_shared_memory_that_cannot_be_read_shows_nothing() -> None:
    memory = replace(KEPT, reason="found 3 bytes")

    found = soft_verdict.of_card(
        "GPU-0", limit(25, 20), memory, read_at=NOW, limiter_reason="", is_new=False
    )

    assert (found.state, found.reason) == ("Unknown", "SignsUnreadable")


@pytest.mark.parametrize("changes", [{"found": False}, {"heartbeat": 0}, {"limits": {}}])
def test_missing_signs_mean_nothing_right_after_new_limits(changes: dict[str, Any]) -> None:
    found = of_card(is_new=True, **changes)

    assert (found.state, found.reason) == ("Unknown", "Starting")


@pytest.mark.parametrize(
    ("cache", "library_reason", "expected"),
    [
        (CACHE, "", ENFORCED),
        (replace(CACHE, processes=0), "", NO_PROCESS),
        (Cache(path="/gpu.cache"), "", NO_PROCESS),  # not initialized
        (replace(CACHE, limits=(limit(26, 20),) * 16), "", broken("LimitsDiffer", "")),
        (replace(CACHE, limits=(limit(25, 21),) * 16), "", broken("LimitsDiffer", "")),
        (replace(CACHE, limits=(limit(25, 0),) * 16), "", broken("LimitsDiffer", "")),
        (replace(CACHE, limits=(limit(0, 20),) * 16), "", broken("LimitsDiffer", "")),
        (replace(CACHE, reason="found version 1.1"), "", unsaid("SignsUnreadable")),
        (
            Cache(path="/gpu.cache"),
            "/libvgpu.so.1: not found",
            broken("LimiterMissing", "/libvgpu.so.1: not found"),
        ),
    ],
)
def test_hami_core_is_judged_by_the_file_in_which_it_counts(
    cache: Cache, library_reason: str, expected: tuple[str, str, str]
) -> None:
    found = hami_core.of_request("gpu", (limit(25, 20),), {"gpu": cache}, library_reason)

    assert (found.state, found.reason) == expected[:2]
    assert expected[2] in found.text


def test_limits_of_the_second_card_count_too() -> None:
    cache = replace(CACHE, limits=(limit(25, 20), limit(25, 30)))

    found = hami_core.of_request("gpu", (limit(25, 20),) * 2, {"gpu": cache}, "")

    assert found.reason == "LimitsDiffer"
    assert "card 1: found 25% of compute, 30Gi" in found.text


def test_container_that_uses_all_requests_counts_in_the_file_of_one() -> None:
    caches = {"a": Cache(path="/a.cache"), "b": CACHE}

    found = [hami_core.of_request(each, (limit(25, 20),), caches, "") for each in "ab"]

    assert [each.reason for each in found] == ["LimiterActive", "LimiterActive"]


def test_clients_of_mps_are_hidden_and_its_daemon_is_not(tmp_path: Path) -> None:
    claim, mps = soft(enforcer="mps"), Mps(pipes=str(tmp_path))

    (silent,) = enforcers.judged(claim, mps, (), is_new=False)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.bind(str(tmp_path / "control"))
        server.listen()
        (alive,) = enforcers.judged(claim, mps, (), is_new=False)

    assert (silent.state, silent.reason) == ("NotEnforced", "DaemonSilent")
    assert "control: No such file or directory" in silent.text
    assert (alive.state, alive.reason) == ("Unknown", "ClientsNotVisible")


EVERY: Final = (
    TensorFusion(root="/nowhere"),
    HamiCore(library="/nowhere"),
    Mps(pipes="/nowhere"),
    Nvidia(root="/nowhere"),
    NoEnforcer(),
)


@pytest.mark.parametrize("by", EVERY, ids=lambda by: by.name)
@pytest.mark.parametrize(
    ("share", "expected"),
    [
        (simulated_share(0, limit(25, 20)), ("Unknown", "SimulatedGPU", "")),
        (admin_share(), ("Enforced", "NoLimit", "no limit to enforce: admin access")),
        (
            prepared_share(0, isolation=Isolation.SHARED),
            ("Enforced", "NoLimit", "no limit to enforce: isolation shared"),
        ),
        (prepared_share(0), ("Enforced", "NoLimit", "no limit to enforce: isolation soft")),
    ],
)
def test_shares_that_no_enforcer_keeps_are_judged_without_one(
    by: Enforcer, share: PreparedShare, expected: tuple[str, str, str]
) -> None:
    (found,) = enforcers.judged(soft(share, enforcer=by.name), by, (), is_new=False)

    assert (found.state, found.reason) == expected[:2]
    assert expected[2] in found.text


def test_limiter_in_the_image_leaves_no_sign() -> None:
    hard = soft(prepared_share(0, limit(25, 20), isolation=Isolation.HARD))

    (found,) = enforcers.judged(hard, TensorFusion(), (), is_new=False)

    assert (found.state, found.reason) == ("Unknown", "LimiterInImage")


class Memory(LimitsClient):
    """memory-limits with a limit of the one pod on each card; None for a silent one."""

    def __init__(self, found: tuple[int, int] | str | None) -> None:
        super().__init__("/nowhere")
        self.found = found

    def get(
        self, pod_uid: str, gpu_uuids: Iterable[str], *, wait_seconds: float
    ) -> dict[str, tuple[int, int] | str]:
        if self.found is None:
            raise RetryableError("nobody listens")
        return dict.fromkeys(gpu_uuids, self.found)


def judged_by_nvidia(
    claim: PreparedClaim, found: tuple[int, int] | str | None, *others: PreparedClaim
) -> Verdict:
    (verdict,) = enforcers.judged(claim, Nvidia(client=Memory(found)), others, is_new=False)
    return verdict


def limited(percent: int = 25) -> PreparedClaim:
    return soft(prepared_share(0, limit(percent, 20)), enforcer="nvidia")


COMPUTE: Final = (State.UNKNOWN, "ComputeNotLimited")


@pytest.mark.parametrize(
    ("percent", "read", "state", "limits"),
    [
        (25, (20 * GIB, 5), State.UNKNOWN, ((State.ENFORCED, "LimitInDriver"), COMPUTE)),
        (
            *(100, (20 * GIB, 5), State.ENFORCED),
            ((State.ENFORCED, "LimitInDriver"), (State.ENFORCED, "NoLimit")),
        ),
        (
            *(25, (20 * GIB + 1, 5), State.NOT_ENFORCED),
            ((State.NOT_ENFORCED, "LimitsDiffer"), COMPUTE),
        ),
        (
            *(25, "found no memory limit", State.NOT_ENFORCED),
            ((State.NOT_ENFORCED, "LimitsDiffer"), COMPUTE),
        ),
        (25, None, State.UNKNOWN, ((State.UNKNOWN, "SignsUnreadable"), COMPUTE)),
    ],
)
def test_memory_and_compute_under_the_nvidia_driver_are_judged_apart(
    percent: int,
    read: tuple[int, int] | str | None,
    state: State,
    limits: tuple[tuple[State, str], ...],
) -> None:
    claim = limited(percent)

    found = judged_by_nvidia(claim, read)

    assert (found.state, tuple(found.limits.values())) == (state, limits)
    kept = CurrentVerdict(verdict=found, since=datetime(2026, 1, 1, tzinfo=UTC))
    again = CurrentVerdict.from_json(kept.as_json())
    assert again.verdict.is_same(found)
    ready = {claim.shares[0].device: Readiness(since=kept.since)}
    (entry,) = device_status.status(claim, ready, [kept])
    assert entry["data"]["enforcement"] == found.limits_json()


def test_limit_of_a_pod_is_that_of_its_claims_together() -> None:
    claim = limited()
    other = replace(claim, ref=replace(claim.ref, uid="uid-b"))

    alone = judged_by_nvidia(claim, (40 * GIB, 5), claim)
    beside = judged_by_nvidia(claim, (40 * GIB, 5), claim, other)

    assert alone.reason == "LimitsDiffer"
    assert beside.limits["memory"] == (State.ENFORCED, "LimitInDriver")


def test_claims_of_one_pod_and_enforcer_are_beside_each_other_whatever_object_they_are() -> None:
    first, second, third, fourth, fifth = (
        replace(soft(), ref=ClaimRef(namespace="a", name=name, uid=name)) for name in "abcde"
    )
    third = replace(third, pods=(replace(first.pods[0], uid="of an earlier pod of this name"),))
    fourth = replace(fourth, enforcer="mps")
    fifth = replace(fifth, pods=())
    every = [first, second, third, fourth, fifth]

    assert enforcers.beside(replace(first), every) == [second]
    assert enforcers.beside(fifth, [*every, replace(fifth, ref=first.ref)]) == []


CLAIM = prepared_claim(
    prepared_share(0, limit(25, 8)),
    prepared_share(1, limit(25, 8)),
    prepared_share(2, None),
    enforcer="another",
)


class Judge(Enforcer):
    """An enforcer with a verdict of its own."""

    name = "another"

    def judge(
        self,
        claim: PreparedClaim,
        shares: Sequence[PreparedShare],
        others: Iterable[PreparedClaim],
        *,
        is_new: bool,
    ) -> Sequence[Verdict]:
        return [
            verdicts.enforced("DaemonAlive", f"{claim.ref}: {share.device}") for share in shares
        ]


def test_enforcer_judges_each_share_that_has_a_limit() -> None:
    found = enforcers.judged(CLAIM, Judge(), (), is_new=False)

    assert [each.text for each in found[:2]] == ["team-a/a: gpu-0", "team-a/a: gpu-1"]
    assert found[2].reason == verdicts.NO_LIMIT


def test_claim_whose_enforcer_is_gone_is_unknown() -> None:
    found = enforcers.judged(CLAIM, None, (), is_new=False)

    assert {(each.state, each.reason) for each in found[:2]} == {
        (State.UNKNOWN, verdicts.UNKNOWN_ENFORCER)
    }


def test_text_of_a_missing_enforcer_ends_with_its_remedy() -> None:
    remedy = choice.remedy(Judge())

    for sign in (ALIVE, NO_LIMITER):
        found = EnforcerChoice(enforcer="another", sign=sign, remedy=remedy).with_remedy(
            is_required=True
        )
        assert found.text.endswith(remedy) is (found.state is State.NOT_ENFORCED)
    assert "install what enforcer another needs" in remedy


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

    documented = {
        code: state
        for state, cell in markdown.table(PAGE, "reasons")
        for code in markdown.codes(cell)
        if code[0].isupper()
    }
    assert documented == {each: STATES.get(each, State.UNKNOWN) for each in reasons}

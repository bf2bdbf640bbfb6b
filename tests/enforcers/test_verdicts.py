"""Verdicts about shares and nodes, and the evidence for them, which containers can write."""

import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from threading import Thread
from typing import Any, Final

import pytest

from tensorfusion_dra.core.claims import device_status, verdicts
from tensorfusion_dra.core.claims import enforcer as enforcer_rules
from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.claims.device_status import Readiness
from tensorfusion_dra.core.claims.enforcer import Enforcer
from tensorfusion_dra.core.claims.prepared import PreparedClaim, PreparedShare
from tensorfusion_dra.core.claims.verdicts import CurrentVerdict, State, Verdict
from tensorfusion_dra.core.devices.gpu import Isolation
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.core.kubernetes.quantity import GIB
from tensorfusion_dra.enforcers import choice
from tensorfusion_dra.enforcers.choice import EnforcerChoice
from tensorfusion_dra.enforcers.hami_core import cache as cache_file
from tensorfusion_dra.enforcers.hami_core import enforcer as hami_core
from tensorfusion_dra.enforcers.hami_core.cache import Cache
from tensorfusion_dra.enforcers.hami_core.enforcer import HamiCore
from tensorfusion_dra.enforcers.mps.enforcer import Mps
from tensorfusion_dra.enforcers.none import NoEnforcer
from tensorfusion_dra.enforcers.nvidia.enforcer import LimitsClient, Nvidia
from tensorfusion_dra.enforcers.tensor_fusion import shared_memory, soft_verdict
from tensorfusion_dra.enforcers.tensor_fusion.enforcer import HYPERVISOR_MISSING, TensorFusion
from tensorfusion_dra.enforcers.tensor_fusion.shared_memory import SharedMemory, WorkerMemory
from tests.support import enforcer_files, markdown
from tests.support.builders.prepared_claims import (
    POD,
    admin_share,
    limit,
    prepared_claim,
    prepared_share,
    simulated_share,
)
from tests.support.markdown import ROOT
from tests.support.signs import ALIVE, NO_LIMITER

KEPT: Final = SharedMemory(
    path="/shm", heartbeat=1_700_000_000, limits={"0": limit(25, 20)}, processes=1
)
CACHE: Final = Cache(path="/gpu.cache", limits=(limit(25, 20),) * 16, processes=1)
ENFORCED: Final = ("Enforced", "LimiterActive", "")
NO_PROCESS: Final = ("Unknown", "NoProcessYet", "")


def soft(*shares: PreparedShare, **changes: Any) -> PreparedClaim:
    shares = shares or (prepared_share(0, limit(25, 20)),)
    return prepared_claim(*shares, **{"enforcer": "tensor-fusion", **changes})


def is_like(verdict: Verdict, expected: tuple[str, str, str]) -> bool:
    """Return True if the verdict has this state and reason, and a text that contains this one."""
    return (verdict.state, verdict.reason) == expected[:2] and expected[2] in verdict.text


def judged(
    claim: PreparedClaim, by: Enforcer | None, others: Iterable[PreparedClaim] = ()
) -> Sequence[Verdict]:
    return enforcer_rules.judged(claim, by, others, is_new=False)


@pytest.mark.parametrize(
    ("memory", "given", "expected"),
    [
        ({}, {}, ENFORCED),
        ({"limits": {"0": limit(20, 19)}}, {}, ENFORCED),
        ({"found": False}, {}, ("NotEnforced", "SharedMemoryMissing", "/shm: not found")),
        (
            *({"is_replaced": True}, {}),
            ("NotEnforced", "SharedMemoryReplaced", "so they see no limits; delete the pod"),
        ),
        ({"reason": "found 3 bytes"}, {}, ("Unknown", "SignsUnreadable", "found 3 bytes")),
        ({"heartbeat": 0}, {}, ("NotEnforced", "HeartbeatStale", "no heartbeat")),
        ({}, {"age": 100}, ("NotEnforced", "HeartbeatStale", "heartbeat is 100 s old")),
        ({}, {"age": -100}, ("NotEnforced", "HeartbeatStale", "100 s ahead of this node's clock")),
        ({}, {"age": 5}, ENFORCED),
        ({}, {"age": 6}, ("NotEnforced", "HeartbeatStale", "")),
        ({}, {"age": -2}, ENFORCED),
        (
            *({"limits": {"1": limit(25, 20)}}, {}),
            ("NotEnforced", "DeviceMissing", "found 1, expected GPU-0"),
        ),
        ({"limits": {}}, {}, ("NotEnforced", "DeviceMissing", "found no GPU, expected GPU-0")),
        (
            *({"limits": {"0": limit(26, 20)}}, {}),
            ("NotEnforced", "LimitsDiffer", "found 26% of compute, 20Gi"),
        ),
        (
            *({"limits": {"0": limit(25, 21)}}, {}),
            ("NotEnforced", "LimitsDiffer", "expected 25% of compute, 20Gi"),
        ),
        ({"overruled": "tflops-limit"}, {}, ("NotEnforced", "LimitsDiffer", "tflops-limit")),
        # Without the limiter no process can register; a running one has its own reference to it.
        ({"processes": 0}, {}, NO_PROCESS),
        ({"processes": 0}, {"limiter_reason": "gone"}, ("NotEnforced", "LimiterMissing", "gone")),
        ({}, {"limiter_reason": "/libcuda_limiter.so: not found"}, ENFORCED),
        # The spelling of a UUID does not matter.
        *(
            ({"limits": {spelling: limit(25, 20)}}, {"gpu_uuid": "GPU-ab-1"}, ENFORCED)
            for spelling in ("GPU-AB-1", "gpu-ab-1", "AB-1", "ab-1")
        ),
        # Missing signs mean nothing right after new limits.
        *(
            ({name: value}, {"is_new": True}, ("Unknown", "Starting", ""))
            for name, value in (("found", False), ("heartbeat", 0), ("limits", {}))
        ),
    ],
)
def test_soft_limit_is_judged_by_the_shared_memory(
    memory: dict[str, Any], given: dict[str, Any], expected: tuple[str, str, str]
) -> None:
    facts = {"gpu_uuid": "GPU-0", "age": 0, "limiter_reason": "", "is_new": False, **given}
    found = soft_verdict.of_card(
        facts["gpu_uuid"],
        limit(25, 20),
        replace(KEPT, **memory),
        read_at=KEPT.heartbeat + facts["age"],
        limiter_reason=facts["limiter_reason"],
        is_new=facts["is_new"],
    )

    assert is_like(found, expected)


@pytest.mark.parametrize(
    ("cache", "library_reason", "expected"),
    [
        (CACHE, "", ENFORCED),
        (replace(CACHE, processes=0), "", NO_PROCESS),
        (Cache(path="/gpu.cache"), "", NO_PROCESS),  # not initialized
        *(
            (replace(CACHE, limits=(first, second)), "", ("NotEnforced", "LimitsDiffer", text))
            for first, second, text in (
                (limit(26, 20), limit(25, 20), "card 0: found 26% of compute, 20Gi"),
                (limit(25, 21), limit(25, 20), ""),
                (limit(25, 0), limit(25, 20), ""),
                (limit(0, 20), limit(25, 20), ""),
                (limit(25, 20), limit(25, 30), "card 1: found 25% of compute, 30Gi"),
            )
        ),
        (replace(CACHE, reason="version 1.1"), "", ("Unknown", "SignsUnreadable", "version 1.1")),
        (Cache(path="/gpu.cache"), "not found", ("NotEnforced", "LimiterMissing", "not found")),
    ],
)
def test_hami_core_is_judged_by_the_file_in_which_it_counts(
    cache: Cache, library_reason: str, expected: tuple[str, str, str]
) -> None:
    found = hami_core.of_request("gpu", (limit(25, 20),) * 2, {"gpu": cache}, library_reason)

    assert is_like(found, expected)


def test_container_that_uses_all_requests_counts_in_the_file_of_one() -> None:
    caches = {"a": Cache(path="/a.cache"), "b": CACHE}

    for request in "ab":
        assert is_like(hami_core.of_request(request, (limit(25, 20),), caches, ""), ENFORCED)


def test_clients_of_mps_are_hidden_and_its_daemon_is_not(tmp_path: Path) -> None:
    claim, mps = soft(enforcer="mps"), Mps(pipes=str(tmp_path))

    (silent,) = judged(claim, mps)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.bind(str(tmp_path / "control"))
        server.listen()
        (alive,) = judged(claim, mps)

    assert is_like(silent, ("NotEnforced", "DaemonSilent", "control: No such file or directory"))
    assert is_like(alive, ("Unknown", "ClientsNotVisible", ""))


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
def test_shares_that_no_enforcer_keeps_are_judged_without_one_and_need_no_evidence(
    by: Enforcer, share: PreparedShare, expected: tuple[str, str, str]
) -> None:
    claim = soft(share, enforcer=by.name)
    (found,) = judged(claim, by)

    assert is_like(found, expected)
    assert not enforcer_rules.needs_evidence(claim, by)


def test_limiter_in_the_image_leaves_no_evidence_and_another_has_to() -> None:
    hard = soft(prepared_share(0, limit(25, 20), isolation=Isolation.HARD))

    (found,) = judged(hard, TensorFusion())

    assert is_like(found, ("Unknown", "LimiterInImage", ""))
    needed = [enforcer_rules.needs_evidence(claim, TensorFusion()) for claim in (hard, soft())]
    assert needed == [False, True]


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
    (verdict,) = judged(claim, Nvidia(client=Memory(found)), others)
    return verdict


def limited(percent: int = 25) -> PreparedClaim:
    return soft(prepared_share(0, limit(percent, 20)), enforcer="nvidia")


IN_DRIVER: Final = (State.ENFORCED, "LimitInDriver")
COMPUTE: Final = (State.UNKNOWN, "ComputeNotLimited")
DIFFERS: Final = (State.NOT_ENFORCED, "LimitsDiffer")


@pytest.mark.parametrize(
    ("percent", "read", "state", "limits"),
    [
        (25, (20 * GIB, 5), State.UNKNOWN, (IN_DRIVER, COMPUTE)),
        (100, (20 * GIB, 5), State.ENFORCED, (IN_DRIVER, (State.ENFORCED, "NoLimit"))),
        (25, (20 * GIB + 1, 5), State.NOT_ENFORCED, (DIFFERS, COMPUTE)),
        (25, "found no memory limit", State.NOT_ENFORCED, (DIFFERS, COMPUTE)),
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
    assert CurrentVerdict.from_json(kept.as_json()).verdict.is_same(found)
    ready = {claim.shares[0].device: Readiness(since=kept.since)}
    (entry,) = device_status.status(claim, ready, [kept])
    assert entry["data"]["enforcement"] == found.limits_json()


def test_limit_of_a_pod_is_that_of_its_claims_together() -> None:
    claim = limited()
    other = replace(claim, ref=replace(claim.ref, uid="uid-b"))

    found = [judged_by_nvidia(claim, (40 * GIB, 5), claim, *more) for more in ((), (other,))]

    assert [each.limits["memory"] for each in found] == [DIFFERS, IN_DRIVER]


def test_claims_of_one_pod_and_enforcer_are_beside_each_other_whatever_object_they_are() -> None:
    def claim(name: str, **changes: Any) -> PreparedClaim:
        return soft(ref=ClaimRef(namespace="a", name=name, uid=name), **changes)

    first, second, orphan = claim("a"), claim("b"), claim("e", pods=())
    earlier = claim("c", pods=(replace(POD, uid="of an earlier pod of this name"),))
    every = [first, second, earlier, claim("d", enforcer="mps"), orphan]

    assert enforcer_rules.beside(claim("a"), every) == [second]
    assert enforcer_rules.beside(orphan, [*every, replace(orphan, ref=first.ref)]) == []


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
        return [verdicts.enforced("DaemonAlive", share.device) for share in shares]


def test_enforcer_judges_each_share_that_has_a_limit_and_a_missing_one_none() -> None:
    limited = (prepared_share(card, limit(25, 8)) for card in range(2))
    claim = prepared_claim(*limited, prepared_share(2, None), enforcer="another")

    assert [each.text for each in judged(claim, Judge())[:2]] == ["gpu-0", "gpu-1"]
    for by, reason in ((Judge(), "DaemonAlive"), (None, verdicts.UNKNOWN_ENFORCER)):
        assert [each.reason for each in judged(claim, by)] == [reason, reason, verdicts.NO_LIMIT]
    assert judged(claim, None)[0].state is State.UNKNOWN


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
    HYPERVISOR_MISSING,
    verdicts.LIBRARY_INSTALLED,
    verdicts.NONE_FOUND,
}
"""Reasons in verdicts about a node, which have no condition."""
STATES: Final = {
    verdicts.LIMITER_ACTIVE: State.ENFORCED,
    verdicts.LIMIT_IN_DRIVER: State.ENFORCED,
    verdicts.LIMIT_IN_HARDWARE: State.ENFORCED,
    verdicts.IDLE_COMPUTE_LENT: State.ENFORCED,
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


# Evidence


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """A short path for sockets, with the limiter in it."""
    (tmp_path / "libcuda_limiter.so").write_bytes(b"\x7fELF...")
    return tmp_path


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        yield server


def hypervisor(folder: Path, **address: Any) -> TensorFusion:
    return TensorFusion(root=str(folder), device_plugins=str(folder), **address)


def found(enforcer: Enforcer) -> tuple[str, str]:
    verdict = enforcer.sign().verdict
    return verdict.state.value, verdict.reason


@pytest.mark.parametrize("spoil", [Path.unlink, lambda library: library.write_text("no ELF")])
def test_device_plugin_that_accepts_is_a_live_hypervisor_but_not_without_the_limiter(
    node: Path, listener: socket.socket, spoil: Callable[[Path], object]
) -> None:
    listener.bind(str(node / "tensor-fusion-index-3.sock"))
    assert "ended process" in hypervisor(node).sign().verdict.text

    listener.listen()
    assert found(hypervisor(node))[0] == "Enforced"

    spoil(node / "libcuda_limiter.so")
    assert found(hypervisor(node)) == ("NotEnforced", "LimiterMissing")


@pytest.mark.parametrize("ahead_seconds", [0, 1, 10**9])
def test_heartbeat_that_a_container_can_write_is_no_live_hypervisor(
    node: Path, ahead_seconds: int
) -> None:
    heartbeat = enforcer_files.shared_memory({}, heartbeat=int(time.time()) + ahead_seconds)
    enforcer_files.write_shared_memory(node / "shm" / "ns" / "pod" / "shm", heartbeat)

    assert found(hypervisor(node)) == ("NotEnforced", "HypervisorMissing")


@pytest.mark.parametrize(
    ("answer", "state"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\n", "Enforced"),
        (b"HTTP/1.1 503 No\r\n\r\n", "NotEnforced"),
        (b"", "NotEnforced"),
    ],
)
def test_healthz_of_the_hypervisor_is_asked_last(node: Path, answer: bytes, state: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with server.accept()[0] as client:
                client.recv(1024)
                client.sendall(answer)

        thread = Thread(target=serve, daemon=True)
        thread.start()
        address = {"hypervisor_ip": "127.0.0.1", "hypervisor_port": server.getsockname()[1]}

        assert found(hypervisor(node, **address))[0] == state
        thread.join()


def test_mps_daemon_has_to_accept(tmp_path: Path, listener: socket.socket) -> None:
    mps = Mps(pipes=str(tmp_path))
    absent = f"no MPS daemon answers at {tmp_path}/control: No such file"
    assert is_like(mps.sign().verdict, ("NotEnforced", "DaemonSilent", absent))

    listener.bind(str(tmp_path / "control"))
    assert found(mps) == ("NotEnforced", "DaemonSilent")

    listener.listen()
    assert found(mps) == ("Enforced", "EnforcerAlive")


def test_installed_library_of_hami_core_shows_nothing(node: Path) -> None:
    library = str(node / "libcuda_limiter.so")

    assert found(HamiCore(library=library)) == ("Unknown", "LibraryInstalled")


def test_memory_in_another_folder_than_the_registered_one_never_enforces(tmp_path: Path) -> None:
    claim = soft()
    gpu = claim.shares[0].gpu_uuid
    memory, enforcer = WorkerMemory(tmp_path / "shm"), TensorFusion(root=str(tmp_path))
    file = Path(enforcer.needs(claim).folders[0].path) / "shm"
    content = enforcer_files.shared_memory(
        {gpu: limit(25, 20)}, heartbeat=int(time.time()), processes=1
    )
    enforcer_files.write_shared_memory(file, content)
    memory.record_registered(POD)

    def reason() -> tuple[str, bool]:
        return judged(claim, enforcer)[0].reason, memory.is_kept(POD, (gpu.lower(),))

    assert reason() == ("LimiterActive", True)

    memory.record_reason(POD, "tensor-fusion.ai/tflops-limit: found 312")
    assert reason() == ("LimitsDiffer", True)
    memory.record_reason(POD, "")
    assert reason() == ("LimiterActive", True)

    file.parent.rename(file.parent.with_name("mounted"))
    assert reason() == ("SharedMemoryReplaced", False)

    enforcer_files.write_shared_memory(file, content)
    assert reason() == ("SharedMemoryReplaced", False)


@pytest.mark.parametrize(("wanted", "says"), [(25, False), (26, True)])
def test_soft_verdict_tells_who_wants_more_compute_that_idle_one_is_not_lent(
    tmp_path: Path, wanted: int, says: bool
) -> None:
    share = replace(
        prepared_share(0, limit(25, 20)), requested_sm_percent=25, wanted_sm_percent=wanted
    )

    (found,) = judged(soft(share), TensorFusion(root=str(tmp_path)))

    assert ("is not lent while it is idle" in found.text) is says


LIMITS: Final = (limit(25, 20), limit(50, 40))
BY_GPU: Final = dict(zip(("ABCD-01", "GPU-abcd-02"), LIMITS, strict=True))
Read = Callable[[str], Cache | SharedMemory]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "file"


def test_limits_and_processes_of_hami_core_are_read(path: Path) -> None:
    path.write_bytes(enforcer_files.hami_cache(LIMITS, processes=2))

    found = cache_file.read(str(path))

    assert found == Cache(path=str(path), limits=(*LIMITS, *[limit(0, 0)] * 14), processes=2)


def test_limits_heartbeat_and_processes_of_the_hypervisor_are_read(path: Path) -> None:
    path.write_bytes(enforcer_files.shared_memory(BY_GPU, heartbeat=1_700_000_000, processes=3))

    assert shared_memory.read(str(path)) == SharedMemory(
        path=str(path), heartbeat=1_700_000_000, limits=BY_GPU, processes=3
    )


def test_bytes_that_are_no_text_are_no_error(path: Path) -> None:
    content = bytearray(enforcer_files.shared_memory(BY_GPU, heartbeat=1, processes=2**40))
    content[8:12] = b"\xff\xfe\xff\xfe"
    path.write_bytes(content)

    found = shared_memory.read(str(path))

    assert (len(found.limits), found.processes, found.reason) == (2, 2048, "")


@pytest.mark.parametrize(
    ("read", "content", "reason"),
    [
        # A file that no process of HAMi-core has initialized yet has no limits.
        (cache_file.read, b"", ""),
        (cache_file.read, bytes(2_008_953), ""),
        (cache_file.read, enforcer_files.hami_cache(LIMITS, flag=0), ""),
        (
            cache_file.read,
            enforcer_files.hami_cache(LIMITS, version=(1, 1)),
            "found version 1.1, expected 1.2",
        ),
        (shared_memory.read, b"", "found 0 bytes, expected 35504"),
        (shared_memory.read, bytes(35_496), "found 35496 bytes, expected 35504"),
        (
            shared_memory.read,
            enforcer_files.shared_memory(BY_GPU, heartbeat=1, discriminant=0),
            "found version 1, expected 2",
        ),
    ],
)
def test_file_of_another_layout_has_no_limits(
    path: Path, read: Read, content: bytes, reason: str
) -> None:
    path.write_bytes(content)

    found = read(str(path))

    assert (tuple(found.limits), found.processes, found.reason) == ((), 0, reason)


@pytest.mark.parametrize(
    ("read", "content"),
    [
        (cache_file.read, enforcer_files.hami_cache(LIMITS)),
        (shared_memory.read, enforcer_files.shared_memory(BY_GPU, heartbeat=1)),
    ],
)
def test_links_and_pipes_of_a_tenant_are_not_followed(
    path: Path, read: Read, content: bytes
) -> None:
    missing = read(str(path))
    assert (tuple(missing.limits), missing.reason) == ((), "")

    path.with_name("real").write_bytes(content)
    path.symlink_to("real")
    link = read(str(path))
    assert (tuple(link.limits), bool(link.reason)) == ((), True)

    path.unlink()
    os.mkfifo(path)
    assert read(str(path)).reason == "found something else, expected a regular file"

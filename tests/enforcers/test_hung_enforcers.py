"""A process behind an enforcer hangs: that costs the claims that need it, and no others."""

import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any, cast

import grpc
import pytest

from tensorfusion_dra.app.memory_limits import LimitsServer
from tensorfusion_dra.core.claims import enforcer as enforcer_rules
from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.claims.enforcer import (
    Enforcer,
    NodeAccess,
    Records,
    SilentEnforcerError,
)
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.claims.verdicts import State
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.enforcers import patience
from tensorfusion_dra.enforcers.hami_core.enforcer import HamiCore
from tensorfusion_dra.enforcers.mps.enforcer import Mps
from tensorfusion_dra.enforcers.nvidia.enforcer import FOLDER, Nvidia
from tensorfusion_dra.enforcers.patience import MAX_WAITING, HungEnforcerError, Patience
from tensorfusion_dra.enforcers.tensor_fusion.device_plugin import DevicePlugin, socket_name
from tensorfusion_dra.enforcers.tensor_fusion.enforcer import TensorFusion
from tensorfusion_dra.enforcers.tensor_fusion.workers import Workers
from tensorfusion_dra.runtime.supervisor import Supervisor
from tensorfusion_dra.state.claim_files import HostFiles
from tests.support.builders.prepared_claims import limit, prepared_claim, prepared_share
from tests.support.ports import HostFilesInMemory
from tests.support.prepared_node import (
    GPU_0,
    GPU_1,
    Setup,
    put_claim,
    share_result,
    use_real_cards,
)
from tests.support.threads import running
from tests.support.waiting import FOREVER, PATIENCE_SECONDS, eventually
from tests.support.worker_node import WorkerPodsInMemory

WHOLE = {"tflops": "312", "vram": "80Gi"}
MANY = 20


@pytest.fixture
def short() -> Iterator[Path]:
    """Yield a folder with a short path, for sockets."""
    with tempfile.TemporaryDirectory(prefix="tfd-") as made:
        yield Path(made)


class Limits:
    """Limits that are always as wanted, of a process that hangs while `answers` is not set."""

    def __init__(self) -> None:
        self.answers = Event()
        self.answers.set()

    def check_driver(self) -> None:
        assert self.answers.wait(PATIENCE_SECONDS)

    def check(self) -> list[str]:
        self.check_driver()
        return [""]

    def set(self, pod: str, limits: Mapping[str, int], beside: object) -> list[str]:
        self.check_driver()
        return [*limits]

    def get(self, pod: str, gpus: list[str]) -> dict[str, tuple[int, int]]:
        self.check_driver()
        return dict.fromkeys(gpus, (1, 1))


def node_with(folder: Path, enforcer: Enforcer, **more: Any) -> Setup:
    """Return a node with real cards whose claims have this enforcer."""
    setup = Setup(folder, enforcer=enforcer, **more)
    setup.enforcers[enforcer.name] = enforcer
    use_real_cards(setup)
    return setup


@pytest.fixture
def memory_limits(short: Path) -> Iterator[Limits]:
    """Serve these limits in the folder."""
    limits, supervisor = Limits(), Supervisor()
    server = LimitsServer(cast("Any", limits), short / FOLDER)

    def stop() -> None:
        supervisor.stopping.set()
        limits.answers.set()

    with running(lambda: server.run(supervisor), stop=stop):
        yield limits


@contextmanager
def hung_process(path: Path, kind: socket.SocketKind = socket.SOCK_STREAM) -> Iterator[None]:
    """Bind a socket whose process takes nothing of what the kernel accepts for it."""
    with socket.socket(socket.AF_UNIX, kind) as server:
        server.bind(str(path))
        server.listen(2 if kind is socket.SOCK_SEQPACKET else 128)
        yield


def put(setup: Setup, name: str, device: str = GPU_0, **amounts: str) -> ClaimRef:
    return put_claim(setup, name, share_result(device, **{"tflops": "1", "vram": "1Gi", **amounts}))


def call(function: Callable[..., Any], ref: ClaimRef) -> Any:
    return function([ref], deadline=time.monotonic() + PATIENCE_SECONDS)[ref.uid]


def others_go_on(setup: Setup, held: ClaimRef) -> None:
    """Check that what needs no hung enforcer is done while calls that need one wait.

    Args:
        setup: The node.
        held: A claim that was prepared with the enforcer.
    """
    whole = put(setup, "whole", GPU_1, **WHOLE)
    assert [setup.prepared(whole).shares[0].limit for _ in range(2)] == [None] * 2
    own, setup.enforcer = setup.enforcer, setup.enforcers["hami-core"]
    other, ref = setup.with_claims(setup.claims), put(setup, "another")
    setup.enforcer = own
    assert isinstance(call(other.prepare, ref), PreparedClaim)
    assert [call(other.unprepare, each) for each in (ref, whole, held)] == [None] * 3
    assert not {ref, whole, held} & {claim.ref for claim in setup.store.claims()}


@contextmanager
def held_up(setup: Setup, refs: Sequence[ClaimRef], held: ClaimRef) -> Iterator[list[Future[Any]]]:
    """Prepare claims that wait for their enforcer, and others meanwhile; yield the calls."""
    with ThreadPoolExecutor(MANY) as pool:
        calls = [pool.submit(call, setup.preparer.prepare, ref) for ref in refs]
        assert eventually(lambda: sum(map(Future.done, calls)) == MANY - MAX_WAITING)
        others_go_on(setup, held)
        assert sum(map(Future.done, calls)) == MANY - MAX_WAITING
        yield calls


def test_hung_memory_limits_cost_only_the_claims_that_need_it(
    tmp_path: Path, short: Path, memory_limits: Limits
) -> None:
    setup = node_with(tmp_path, Nvidia(root=str(short), wait_seconds=FOREVER))
    held = setup.prepared(put(setup, "held")).ref
    memory_limits.answers.clear()
    refs = [put(setup, f"part-{number}") for number in range(MANY)]

    with held_up(setup, refs, held) as calls:
        memory_limits.answers.set()
        found = [each.result() for each in calls]

    refused = [each.text for each in found if not isinstance(each, PreparedClaim)]
    assert refused == [
        f"the container memory-limits: found {MAX_WAITING} calls that wait for it, expected answers"
    ] * (MANY - MAX_WAITING)
    for ref in refs:
        setup.prepared(ref)


def test_claims_wait_for_a_hung_enforcer_once_and_the_watch_too(
    tmp_path: Path, short: Path, memory_limits: Limits
) -> None:
    nvidia = Nvidia(root=str(short), wait_seconds=0.2)
    setup = node_with(tmp_path, nvidia)
    prepared = setup.prepared(put(setup, "a"))
    memory_limits.answers.clear()

    first, second = (setup.refused(put(setup, name)) for name in "bc")
    (judged,) = enforcer_rules.judged(prepared, nvidia, [prepared], is_new=False)

    assert "found no answer within 0 s" in first
    for text in (second, judged.text, nvidia.sign().verdict.text):
        assert "found no answer a moment ago" in text
    assert nvidia.used(prepared) == {}


def test_hung_hypervisor_costs_only_the_claims_that_need_it(tmp_path: Path, short: Path) -> None:
    setup = Setup(tmp_path)
    pods = WorkerPodsInMemory()
    enforcer = TensorFusion(root=str(short), bridge=str(short))
    workers = enforcer.loops(NodeAccess(setup.store.claims, pods, pods))["workers"]
    assert isinstance(workers, Workers)
    workers.allocate_seconds = FOREVER
    setup.enforcers[enforcer.name] = enforcer
    setup.use(enforcer=enforcer)
    held = setup.prepared(put(setup, "held")).ref  # its pod is gone, so nothing is allocated
    refs = [put(setup, f"part-{number}") for number in range(MANY)]
    for name in (*(ref.name for ref in refs), "whole"):
        pods.put(name)

    with ExitStack() as hung:
        for number in range(16):
            hung.enter_context(hung_process(short / socket_name(number)))
        with held_up(setup, refs, held) as calls:
            hung.close()
            assert not any(isinstance(each.result(), PreparedClaim) for each in calls)


def test_hung_device_plugin_is_told_from_one_that_does_not_see_a_pod(short: Path) -> None:
    plugin, path = DevicePlugin(short), short / socket_name(15)
    with ThreadPoolExecutor(1) as pool:
        server = grpc.server(pool)
        server.add_insecure_port(f"unix:{path}")
        server.start()
        with pytest.raises(RetryableError, match="expected cards for worker index 128"):
            plugin.allocate(128, wait_seconds=PATIENCE_SECONDS)
        server.stop(grace=None).wait()
    path.unlink(missing_ok=True)

    with hung_process(path), pytest.raises(HungEnforcerError, match="nor to any other call"):
        plugin.allocate(128, wait_seconds=0.1)


class HostFilesOnDisk(HostFilesInMemory):
    """Checks files and sockets as on a node."""

    missing = staticmethod(HostFiles.missing)


@pytest.fixture
def mps(tmp_path: Path, short: Path) -> Setup:
    """A node with MPS, whose daemon listens at `control` if a test runs it."""
    library = short / "libvgpu.so.1"
    library.touch()
    setup = node_with(tmp_path, Mps(pipes=str(short), shm=str(short)), host_files=HostFilesOnDisk())
    setup.enforcers["hami-core"] = HamiCore(library=str(library), root=str(tmp_path))
    return setup


def test_hung_mps_daemon_refuses_its_claims_at_once_and_no_others(mps: Setup, short: Path) -> None:
    with hung_process(short / "control", socket.SOCK_SEQPACKET):
        # The kernel accepts a few connections in place of the process.
        held = mps.prepared(put(mps, "held")).ref

        found = [call(mps.preparer.prepare, put(mps, f"part-{n}")) for n in range(MANY)]

        assert "found a process that accepts no connections" in found[-1].text
        others_go_on(mps, held)


def test_claim_waits_for_the_mps_daemon_at_each_call_and_is_unprepared_without_it(
    mps: Setup, short: Path
) -> None:
    claim, control = put(mps, "a"), short / "control"

    assert f"{control}: No such file or directory" in mps.refused(claim)
    with hung_process(control, socket.SOCK_SEQPACKET):
        mps.prepared(claim)
    assert mps.spec_of(claim) is not None

    for _ in range(2):
        assert f"{control}: found a socket of an ended process" in mps.refused(claim)
        mps.unprepare(claim)
        assert mps.spec_of(claim) is None


@dataclass(kw_only=True)
class Interrupted(TensorFusion):
    """An enforcer that calls a function each time it applies or releases limits."""

    name = "interrupted"
    meanwhile: Callable[[str], None]

    def apply(self, claim: PreparedClaim, records: Records, deadline: float) -> None:
        self.meanwhile(f"apply {claim.ref.name}")

    def release(self, claim: PreparedClaim, records: Records) -> None:
        self.meanwhile(f"release {claim.ref.name}")


def test_other_claims_are_prepared_while_an_enforcer_applies_or_releases(setup: Setup) -> None:
    others = setup.preparer
    borrower, second = put(setup, "a", vram="20Gi"), put(setup, "b", vram="30Gi")
    setup.annotate(borrower, vram_limit="60Gi")
    calls: list[tuple[str, object]] = []

    with ThreadPoolExecutor(1) as thread:

        def prepare_another(what: str) -> None:
            ref = put(setup, f"other-{len(calls)}", GPU_1)
            # The store lets nobody wait for long, so with its lock held this is an error.
            found = thread.submit(call, others.prepare, ref).result(PATIENCE_SECONDS)
            calls.append((what, found))

        enforcer = Interrupted(meanwhile=prepare_another)
        setup.enforcers[enforcer.name] = enforcer
        setup.use(enforcer=enforcer)
        setup.prepared(borrower)
        setup.prepared(second)  # takes back what was lent, so the borrower's limit changes
        setup.unprepare(second)
        setup.unprepare(borrower)

    assert [found for _, found in calls if not isinstance(found, PreparedClaim)] == []
    expected = ["apply a", "apply a", "apply b", "release b", "apply a", "release a"]
    assert [what for what, _ in calls] == expected


def test_enforcer_is_asked_again_after_a_while() -> None:
    seconds = 0.0
    patient = Patience("the daemon", clock=lambda: seconds)

    with pytest.raises(HungEnforcerError), patient.waiting():
        raise HungEnforcerError("no answer")
    with pytest.raises(SilentEnforcerError, match="a moment ago"), patient.waiting():
        raise AssertionError
    seconds = patience.QUIET_SECONDS
    with patient.waiting():
        pass


def test_silent_enforcer_that_is_required_refuses_a_part_and_no_whole_card(tmp_path: Path) -> None:
    """Its sign is not read for a whole card, which would wait for it."""
    nvidia = Nvidia(root="/nowhere")
    setup = node_with(tmp_path, nvidia)
    setup.use(required=nvidia.sign)

    assert "found No such file or directory" in setup.refused(put(setup, "a"))
    assert setup.prepared(put(setup, "whole", **WHOLE)).shares[0].limit is None
    claim = prepared_claim(prepared_share(0, limit(25, 20)), enforcer="nvidia")
    (found,) = enforcer_rules.judged(claim, nvidia, (), is_new=False)
    assert found.state is State.UNKNOWN

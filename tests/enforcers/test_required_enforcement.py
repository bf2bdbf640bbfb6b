"""Nodes on which the enforcer is missing, dead or required."""

import socket
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from tensorfusion_dra.core.claims import enforcer as enforcers
from tensorfusion_dra.core.claims.enforcer import Enforcer, Needs, Sign
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.devices.gpu import Isolation
from tensorfusion_dra.enforcers import choice
from tensorfusion_dra.enforcers.mps import Mps
from tensorfusion_dra.state.claim_files import HostFiles
from tests.support.ports import HostFilesInMemory
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
    use_real_cards,
)
from tests.support.signs import ALIVE, NO_HYPERVISOR

MISSING: Final = {
    "/run/tensor-fusion/libcuda_limiter.so",
    "/libvgpu.so.1",
    "/run/nvidia/mps/pipe/control",
}


ENFORCERS: Final = (TENSOR_FUSION, HAMI_CORE, MPS)


WHOLE: Final = {"tflops": "312", "vram": "80Gi"}


PART: Final = {"tflops": "100", "vram": "16Gi"}


@pytest.fixture
def bare(setup: Setup) -> Callable[[Enforcer], Setup]:
    """Make a node with real cards on which the enforcer's files and sockets are missing."""

    def made(enforcer: Enforcer = TENSOR_FUSION) -> Setup:
        use_real_cards(setup)
        setup.host_files.absent = {*MISSING}
        setup.use(enforcer=enforcer)
        return setup

    return made


def exclusive(device: str) -> dict[str, Any]:
    """Return an allocation of the device that nothing can share."""
    result: dict[str, Any] = share_result(device)
    del result["shareID"], result["consumedCapacity"]
    return result


@pytest.mark.parametrize("enforcer", ENFORCERS, ids=lambda each: each.name)
def test_part_of_a_card_waits_and_the_error_names_enforcer_and_cures(
    bare: Callable[[Enforcer], Setup], enforcer: Enforcer
) -> None:
    node = bare(enforcer)
    ref = put_claim(node, "a", share_result())

    text = node.refused(ref)

    assert text.startswith("claim default/a: nothing on this node would enforce its limits: ")
    assert f"enforcer {enforcer.name}: " in text
    assert ": No such file or directory; " in text
    assert text.endswith(choice.remedy(enforcer))
    assert (node.store.claims(), node.spec_of(ref)) == ([], None)


CLAIMS: Final[Mapping[str, tuple[list[dict[str, Any]], bool]]] = {
    "a whole card": ([share_result(GPU_0, **WHOLE)], True),
    "a card allocated exclusively": ([exclusive(GPU_0)], True),
    "two whole cards": ([share_result(GPU_0, **WHOLE), share_result(GPU_1, **WHOLE)], True),
    "a whole card, and admin access to another": (
        [share_result(GPU_0, **WHOLE), {**exclusive(GPU_1), "adminAccess": True}],
        True,
    ),
    "a whole card and a part of another": (
        [share_result(GPU_0, **WHOLE), share_result(GPU_1, **PART)],
        False,
    ),
    "both halves of a card": (
        [share_result(GPU_0, tflops="156", vram="40Gi") for _ in range(2)],
        False,
    ),
    "all memory": ([share_result(GPU_0, tflops="311", vram="80Gi")], False),
    "all compute": ([share_result(GPU_0, tflops="312", vram="81919Mi")], False),
}


@pytest.mark.parametrize("case", CLAIMS)
def test_only_claims_for_nothing_but_whole_cards_are_prepared(
    bare: Callable[[Enforcer], Setup], case: str
) -> None:
    node = bare(TENSOR_FUSION)
    results, is_prepared = CLAIMS[case]
    ref = put_claim(node, "a", *results)

    outcome = node.prepare(ref)[ref.uid]

    assert isinstance(outcome, PreparedClaim) is is_prepared


@pytest.mark.parametrize("enforcer", ENFORCERS, ids=lambda each: each.name)
@pytest.mark.parametrize("mode", ["", "soft", "hard"])
def test_whole_card_is_prepared_in_isolation_shared(
    bare: Callable[[Enforcer], Setup], enforcer: Enforcer, mode: str
) -> None:
    if mode == "hard" and not enforcer.facts.enforces_hard:
        return  # refused to tenants, and for administrators the limiter is in the image
    node = bare(enforcer)
    annotations = {"tensor-fusion.ai/isolation": mode} if mode else {}
    ref = put_annotated_claim(node, "a", annotations, **WHOLE)

    outcome = node.prepared(ref)

    (share,) = outcome.shares
    assert (share.limit, share.isolation) == (None, Isolation.SHARED)
    (found,) = enforcers.judged(outcome, enforcer, (), is_new=False)
    assert (found.state, found.reason) == ("Enforced", "NoLimit")
    assert node.store.claims() == [outcome]
    assert "TF_ISOLATION_MODE=shared" in str(node.spec_of(ref))


def test_whole_card_stays_without_limit_once_the_enforcer_is_there(
    bare: Callable[[Enforcer], Setup],
) -> None:
    """Its container may be running; a repeated call gets the same answer."""
    node = bare(TENSOR_FUSION)
    ref = put_claim(node, "a", share_result(GPU_0, **WHOLE))
    first = node.prepared(ref)

    node.host_files.absent = set()

    assert node.prepared(ref) == first


class NodeWithHypervisor:
    """A node whose hypervisor lives or not."""

    def __init__(self) -> None:
        self.is_alive = False

    def sign(self) -> Sign:
        return ALIVE if self.is_alive else NO_HYPERVISOR


@pytest.fixture
def hypervisor(setup: Setup) -> NodeWithHypervisor:
    """Require the signs of a hypervisor, on a node with real cards."""
    found = NodeWithHypervisor()
    setup.use(required=found.sign)
    return found


def test_claim_waits_until_the_hypervisor_is_alive(
    setup: Setup, hypervisor: NodeWithHypervisor
) -> None:
    use_real_cards(setup)
    ref = put_claim(setup, "a", share_result())

    assert setup.refused(ref).startswith(
        "claim default/a: nothing would enforce its limits (require-enforcement): no sign of a "
        "hypervisor (device plugin: not found); run Tensor Fusion's hypervisor on this node"
    )
    hypervisor.is_alive = True
    setup.prepared(ref)

    # Once prepared, its containers may run; the kubelet repeats the call when it restarts.
    hypervisor.is_alive = False
    setup.prepared(ref)


class HostFilesOnDisk(HostFilesInMemory):
    """Checks files and sockets as on a node."""

    def missing(self, needs: Needs) -> str:
        return HostFiles.missing(self, needs)


@pytest.fixture
def pipes() -> Iterator[Path]:
    """Yield a folder with a short path."""
    with tempfile.TemporaryDirectory(prefix="tfd-") as made:
        yield Path(made)


@pytest.fixture
def node(tmp_path: Path, pipes: Path) -> Setup:
    mps = Mps(pipes=str(pipes), shm=str(pipes))
    setup = Setup(tmp_path, enforcer=mps, host_files=HostFilesOnDisk())
    setup.enforcers[mps.name] = mps
    use_real_cards(setup)
    return setup


@contextmanager
def daemon(pipes: Path) -> Iterator[None]:
    (pipes / "control").unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.bind(str(pipes / "control"))
        server.listen(128)
        yield


def test_claim_waits_for_the_daemon_at_each_call_and_is_unprepared_without_it(
    node: Setup, pipes: Path
) -> None:
    claim = put_claim(node, "a", share_result())

    assert f"{pipes}/control: No such file or directory" in node.refused(claim)
    with daemon(pipes):
        pass
    assert f"{pipes}/control: found a socket of an ended process" in node.refused(claim)
    assert node.spec_of(claim) is None

    with daemon(pipes):
        node.prepared(claim)
    assert node.spec_of(claim) is not None

    assert "found a socket of an ended process" in node.refused(claim)
    node.unprepare(claim)
    assert node.spec_of(claim) is None

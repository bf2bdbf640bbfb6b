"""The enforcer that a node takes for new claims, as enforcers come and go."""

import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

import pytest

from tensorfusion_dra.app.shared.node_settings import Settings as NodeSettings
from tensorfusion_dra.core.claims import verdicts
from tensorfusion_dra.core.claims.enforcer import Enforcer, Sign
from tensorfusion_dra.core.claims.verdicts import State, Verdict
from tensorfusion_dra.core.devices.capacity import Oversubscription
from tensorfusion_dra.core.devices.device import Enforcement
from tensorfusion_dra.enforcers.choice import CHECK_SECONDS, NodeEnforcer
from tensorfusion_dra.enforcers.none import NoEnforcer
from tensorfusion_dra.enforcers.nvidia import Nvidia
from tests.support import helm, markdown
from tests.support.builders.devices import NODE
from tests.support.ports import EventsInMemory
from tests.support.prepared_node import (
    GPU_0,
    HAMI_CORE,
    MPS,
    TENSOR_FUSION,
    Setup,
    limits_document,
    put_claim,
    share_result,
    use_real_cards,
)
from tests.support.signs import signing

ABSENT: Final = {
    "nvidia": verdicts.not_enforced(
        verdicts.DRIVER_CANNOT_LIMIT,
        "/run/tensor-fusion/nvidia/memory-limits/socket: found No such file or directory, expected "
        "the container memory-limits",
    ),
    "tensor-fusion": verdicts.not_enforced(
        verdicts.LIMITER_MISSING, "/run/tensor-fusion/libcuda_limiter.so: not found"
    ),
    "hami-core": verdicts.not_enforced(
        verdicts.LIMITER_MISSING, "/usr/local/vgpu/libvgpu.so.1: not found"
    ),
    "mps": verdicts.not_enforced(
        verdicts.DAEMON_SILENT,
        "no MPS daemon answers at /run/nvidia/mps/pipe/control: No such file or directory",
    ),
}
KINDS: Final = {each.name: each for each in (Nvidia(), TENSOR_FUSION, HAMI_CORE, MPS, NoEnforcer())}
ORDER: Final = NodeSettings(node_name="node-01").candidates
EXPANDING: Final = replace(
    NODE,
    oversubscription=Oversubscription(
        tflops_percent=100, host_memory_percent=50, host_disk_percent=0
    ),
)
BOTH: Final[dict[str, Any]] = {"compute": True, "memory": True}
NOW: Final = datetime(2026, 3, 1, tzinfo=UTC)


class NodeWith:
    """Signs of a node with these enforcers and no other."""

    def __init__(self) -> None:
        self.present: set[str] = set()
        self.read: list[str] = []

    def has(self, enforcer: Enforcer) -> Enforcer:
        """Return the enforcer, which is there if it is present on this node."""
        return signing(enforcer, lambda: self._sign(enforcer))

    def _sign(self, enforcer: Enforcer) -> Sign:
        self.read.append(enforcer.name)
        if isinstance(enforcer, NoEnforcer):
            return enforcer.sign()
        return Sign(verdict=self._verdict(enforcer.name))

    def _verdict(self, name: str) -> Verdict:
        if name not in self.present:
            return ABSENT[name]
        if name == "hami-core":
            return verdicts.unknown(verdicts.LIBRARY_INSTALLED, "the library is there")
        text = "the MPS daemon answers at /run/nvidia/mps/pipe/control"
        return verdicts.enforced(verdicts.ENFORCER_ALIVE, text)


class Chooser:
    """A chooser with a clock that a test moves."""

    def __init__(self, *candidates: str, is_auto: bool = True, **more: Any) -> None:
        self.seconds = 0.0
        self.node = NodeWith()
        self.events = EventsInMemory()
        self.changes = 0
        self.chooser = NodeEnforcer(
            {name: self.node.has(KINDS[name]) for name in candidates or ORDER},
            is_auto=is_auto,
            on_change=self._changed,
            now=lambda: NOW,
            clock=lambda: self.seconds,
            **{"is_required": False, **more},
        )

    def _changed(self) -> None:
        self.changes += 1

    def chosen(self, *present: str) -> str:
        self.node.present = {*present}
        return self.chooser.of_new_claim().enforcer

    def check(self, *present: str, after: float = CHECK_SECONDS) -> None:
        self.node.present = {*present}
        self.seconds += after
        self.chooser.check(self.events.warn)


@pytest.mark.parametrize(
    ("present", "chosen"),
    [
        (("nvidia", "mps"), "nvidia"),
        (("tensor-fusion", "hami-core", "mps"), "tensor-fusion"),
        (("mps", "hami-core"), "hami-core"),
        (("mps",), "mps"),
        ((), "none"),
    ],
)
def test_first_enforcer_that_is_there_is_chosen(present: tuple[str, ...], chosen: str) -> None:
    assert Chooser().chosen(*present) == chosen


def test_order_is_that_of_the_setting() -> None:
    assert Chooser("mps", "hami-core").chosen("hami-core", "mps") == "mps"


def test_living_enforcer_is_read_once_in_a_while_and_a_missing_one_at_each_prepare() -> None:
    setup = Chooser("hami-core")

    assert [setup.chosen() for _ in range(3)] == ["none"] * 3
    assert len(setup.node.read) == 3
    assert [setup.chosen("hami-core") for _ in range(3)] == ["hami-core"] * 3
    assert len(setup.node.read) == 4
    setup.seconds += 5
    assert setup.chosen() == "none"
    assert len(setup.node.read) == 5


NONE_FOUND: Final = (
    "nothing on this node would enforce its limits: found no enforcer: "
    "nvidia (/run/tensor-fusion/nvidia/memory-limits/socket: found No such file or directory, "
    "expected the container memory-limits); "
    "tensor-fusion (/run/tensor-fusion/libcuda_limiter.so: not found); "
    "hami-core (/usr/local/vgpu/libvgpu.so.1: not found); "
    "mps (no MPS daemon answers at /run/nvidia/mps/pipe/control: No such file or directory); "
    "install one, or let limits be advisory (chart value settings.enforcer=none); "
    "claims for whole cards need none; "
    "nvidia: run NVIDIA driver 615 or later on this node and the container memory-limits "
    "(chart value enforcers.nvidia.install=true); "
    "tensor-fusion: run Tensor Fusion's hypervisor on this node, which puts its limiter there "
    "(chart tensor-fusion of NexusGPU/tensor-fusion); "
    "hami-core: put HAMi-core's library there (chart value enforcers.hamiCore.install=true, or "
    "setting hami-core-library); "
    "mps: run NVIDIA's MPS control daemon on this node (chart value enforcers.mps.install=true)"
)


def test_text_of_a_bare_node_names_the_way_to_each_enforcer_and_the_page_has_an_excerpt() -> None:
    page = markdown.text(helm.ROOT / "docs" / "install.md")
    excerpt = page.partition("<!-- refusal:")[2].split("```")[1].removeprefix("text")
    parts = " ".join(excerpt.split()).split(markdown.ELIDED)

    assert Chooser().chooser.of_new_claim().none_found == NONE_FOUND
    assert re.fullmatch(".*".join(map(re.escape, parts)), NONE_FOUND)


def test_devices_are_published_again_if_the_choice_changes() -> None:
    setup = Chooser()
    assert setup.chooser.of_devices(NODE) == Enforcement(enforcer="none")

    setup.check()
    assert setup.changes == 0
    assert setup.chosen("hami-core") == "hami-core"
    assert setup.changes == 1
    assert setup.chooser.of_devices(NODE) == Enforcement(enforcer="hami-core", **BOTH)
    setup.check("hami-core")
    assert setup.changes == 1
    setup.check("mps", "tensor-fusion")
    assert setup.changes == 2
    assert setup.chooser.of_devices(NODE) == Enforcement(enforcer="tensor-fusion", **BOTH)


def test_pool_that_expands_memory_takes_only_enforcers_that_can() -> None:
    setup = Chooser()
    assert setup.chosen("hami-core") == "hami-core"

    assert setup.chooser.of_devices(EXPANDING) == Enforcement(enforcer="none")
    assert "hami-core (" not in setup.chooser.of_new_claim().none_found
    assert setup.chosen("hami-core", "tensor-fusion") == "tensor-fusion"
    assert setup.chooser.of_devices(NODE).enforcer == "tensor-fusion"


def test_named_enforcer_is_chosen_there_or_not_and_not_read_at_a_prepare() -> None:
    setup = Chooser("hami-core", is_auto=False)
    assert setup.chooser.of_devices(NODE) == Enforcement(enforcer="hami-core")
    setup.seconds += 10

    choice = setup.chooser.of_new_claim()

    assert (choice.enforcer, choice.none_found) == ("hami-core", "")
    assert len(setup.node.read) == 1
    setup.check("hami-core")
    assert setup.chooser.of_devices(NODE) == Enforcement(enforcer="hami-core", **BOTH)


def test_simulated_gpus_show_their_enforcer_and_nothing_is_read() -> None:
    setup = Chooser("tensor-fusion", is_auto=False, is_real=False)

    assert setup.chooser.of_devices(NODE) == Enforcement(enforcer="tensor-fusion", **BOTH)
    assert setup.node.read == []


def test_minutely_check_reports_the_choice() -> None:
    setup = Chooser()

    setup.check()
    setup.check()
    missing = setup.chooser.current
    setup.check("mps")
    found = setup.chooser.current

    assert missing is not None
    assert found is not None
    assert (missing.verdict.state, missing.verdict.reason) == (State.NOT_ENFORCED, "NoneFound")
    (event,) = setup.events.written
    assert missing.verdict.text in str(event)
    assert "every claim for a part of a GPU waits" in missing.verdict.text
    assert (
        found.verdict.text == "enforcer mps: the MPS daemon answers at /run/nvidia/mps/pipe/control"
    )


def test_advisory_limits_are_said_without_an_event() -> None:
    setup = Chooser("none", is_auto=False)

    setup.check()

    current = setup.chooser.current
    assert current is not None
    assert (current.verdict.state, current.verdict.reason) == (State.NOT_ENFORCED, "NoEnforcer")
    assert "claims are prepared, but nothing keeps them within their limits" in current.verdict.text
    assert setup.events.written == []
    assert setup.chooser.of_devices(NODE) == Enforcement(enforcer="none")


def test_missing_enforcer_is_awaited_at_the_scheduler_and_then_given_up() -> None:
    setup = Chooser("mps", "hami-core", wait_seconds=90)
    shown = [setup.chooser.of_devices(NODE)]

    for seconds, *present in ((80, ""), (20, ""), (100, ""), (10, "mps"), (60, "")):
        setup.check(*present, after=seconds)
        shown.append(setup.chooser.of_devices(NODE))

    awaited = Enforcement(is_awaited=True)
    given_up = Enforcement(given_up_since=NOW)
    assert shown == [awaited, awaited, given_up, given_up, Enforcement(enforcer="mps"), awaited]
    assert setup.changes == 3


@pytest.mark.parametrize(
    ("candidate", "arguments"),
    [
        ("mps", {"wait_seconds": 0}),
        ("mps", {"is_needed": False}),  # the default isolation needs none
        ("none", {"is_auto": False}),  # limits are advisory
        ("tensor-fusion", {"is_real": False, "is_auto": False}),  # simulated GPUs
    ],
)
def test_enforcer_that_refuses_no_claim_is_not_awaited(
    candidate: str, arguments: dict[str, Any]
) -> None:
    setup = Chooser(candidate, **{"wait_seconds": 90, **arguments})

    assert not setup.chooser.of_devices(NODE).is_awaited
    setup.check(after=100)
    assert setup.chooser.of_devices(NODE).given_up_since is None


@pytest.fixture
def bare(setup: Setup) -> Callable[..., Chooser]:
    """Make a node with real cards that chooses among these enforcers, with none there."""

    def made(*candidates: str, **more: Any) -> Chooser:
        chooser = Chooser(*candidates, **more)
        use_real_cards(setup)
        setup.enforcers["none"] = KINDS["none"]
        setup.use(node_enforcer=chooser.chooser)
        return chooser

    return made


def test_part_of_a_card_waits_on_a_bare_node_until_an_enforcer_comes(
    setup: Setup, bare: Callable[..., Chooser]
) -> None:
    node = bare()
    ref = put_claim(setup, "a", share_result())
    hard = put_claim(setup, "b", share_result(), uid="uid-b")
    setup.annotate(hard, **{"tensor-fusion.ai/isolation": "hard"})

    assert setup.refused(ref) == f"claim {ref}: {node.chooser.of_new_claim().none_found}"
    assert setup.refused(hard) == f"claim {hard}: {node.chooser.of_new_claim().none_found}"
    assert setup.store.claims() == []
    whole = setup.prepared(put_claim(setup, "whole", WHOLE))
    assert (whole.enforcer, whole.shares[0].limit) == ("none", None)
    setup.unprepare(whole.ref)
    node.node.present = {"hami-core"}
    assert setup.prepared(ref).enforcer == "hami-core"


def test_prepared_claim_keeps_its_enforcer(setup: Setup, bare: Callable[..., Chooser]) -> None:
    node = bare()
    node.node.present = {"hami-core"}
    first, second = (put_claim(setup, name, share_result(), uid=f"uid-{name}") for name in "ab")
    setup.prepared(first)
    spec = setup.spec_of(first)
    node.seconds += 60
    node.node.present = set()

    assert setup.prepared(first).enforcer == "hami-core"
    assert setup.spec_of(first) == spec
    assert "found no enforcer" in setup.refused(second)


WHOLE: Final = share_result(GPU_0, tflops="312", vram="80Gi")


def test_advisory_limits_are_told_to_containers_without_a_limiter(
    setup: Setup, bare: Callable[..., Chooser]
) -> None:
    bare("none", is_auto=False)
    ref = put_claim(setup, "a", share_result())

    record = setup.prepared(ref)

    spec = setup.spec_of(ref)
    edits = [spec["containerEdits"], *(each["containerEdits"] for each in spec["devices"])]
    env = dict(each.split("=", 1) for every in edits for each in every.get("env", ()))
    assert (record.enforcer, record.shares[0].limit is None) == ("none", False)
    assert env["TF_ISOLATION_MODE"] == "soft"
    assert [name for name in env if "LIMIT" in name or name == "LD_PRELOAD"] == []
    assert any(name.startswith("TENSOR_FUSION_SHARE_") for name in env)
    assert limits_document(setup, ref)
    assert "limiter" not in str(spec)

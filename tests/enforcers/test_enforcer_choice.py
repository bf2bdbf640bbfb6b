"""The enforcer of new claims on a node: chosen among those there, missing, dead or required."""

import re
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

import pytest

from tensorfusion_dra.core.claims import enforcer as enforcer_rules
from tensorfusion_dra.core.claims.enforcer import Enforcer, Sign
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.claims.verdicts import State
from tensorfusion_dra.core.devices.capacity import Oversubscription
from tensorfusion_dra.core.devices.device import Enforcement
from tensorfusion_dra.core.devices.gpu import Isolation
from tensorfusion_dra.enforcers import choice, registered
from tests.support import helm, markdown
from tests.support.builders.devices import NODE
from tests.support.enforcer_choice import KINDS, NOW, Chooser
from tests.support.logs import capture_logs
from tests.support.prepared_node import (
    GPU_0,
    GPU_1,
    HAMI_CORE,
    MPS,
    TENSOR_FUSION,
    Setup,
    limits_document,
    put_claim,
    share_result,
    use_real_cards,
)
from tests.support.signs import ALIVE, NO_HYPERVISOR, NO_LIMITER

EXPANDING: Final = replace(
    NODE,
    oversubscription=Oversubscription(
        tflops_percent=100, host_memory_percent=50, host_disk_percent=0
    ),
)
BOTH: Final[dict[str, Any]] = {"compute": True, "memory": True}


@pytest.mark.parametrize(
    ("candidates", "present", "chosen"),
    [
        ((), ("nvidia", "mps"), "nvidia"),
        ((), ("tensor-fusion", "hami-core", "mps"), "tensor-fusion"),
        ((), ("mps", "hami-core"), "hami-core"),
        ((), ("mps",), "mps"),
        ((), (), "none"),
        (("mps", "hami-core"), ("hami-core", "mps"), "mps"),
    ],
)
def test_first_enforcer_that_is_there_is_chosen(
    candidates: tuple[str, ...], present: tuple[str, ...], chosen: str
) -> None:
    assert Chooser(*candidates).chosen(*present) == chosen


def test_living_enforcer_is_read_once_in_a_while_and_a_missing_one_at_each_prepare() -> None:
    setup = Chooser("hami-core")

    def chosen(*present: str) -> tuple[str, int]:
        return setup.chosen(*present), len(setup.read)

    assert [chosen() for _ in range(3)] == [("none", 1), ("none", 2), ("none", 3)]
    assert [chosen("hami-core") for _ in range(3)] == [("hami-core", 4)] * 3
    setup.seconds += 5
    assert chosen() == ("none", 5)


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

    def shown() -> tuple[Enforcement, int]:
        return setup.chooser.of_devices(NODE), setup.changes

    assert shown() == (Enforcement(enforcer="none"), 0)
    setup.check()
    assert setup.changes == 0
    assert setup.chosen("hami-core") == "hami-core"
    assert shown() == (Enforcement(enforcer="hami-core", **BOTH), 1)
    setup.check("hami-core")
    assert setup.changes == 1
    setup.check("mps", "tensor-fusion")
    assert shown() == (Enforcement(enforcer="tensor-fusion", **BOTH), 2)


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

    found = setup.chooser.of_new_claim()

    assert (found.enforcer, found.none_found, len(setup.read)) == ("hami-core", "", 1)
    setup.check("hami-core")
    assert setup.chooser.of_devices(NODE) == Enforcement(enforcer="hami-core", **BOTH)


def test_simulated_gpus_show_their_enforcer_and_nothing_is_read() -> None:
    setup = Chooser("tensor-fusion", is_auto=False, is_real=False)

    assert setup.chooser.of_devices(NODE) == Enforcement(enforcer="tensor-fusion", **BOTH)
    assert setup.read == []


def test_minutely_check_reports_the_choice() -> None:
    setup = Chooser()

    setup.check()
    setup.check()
    missing = setup.current()
    setup.check("mps")

    (event,) = setup.events.written
    assert (missing.state, missing.reason) == (State.NOT_ENFORCED, "NoneFound")
    assert "every claim for a part of a GPU waits" in missing.text
    assert missing.text in str(event)
    assert setup.current().text == (
        "enforcer mps: the MPS daemon answers at /run/nvidia/mps/pipe/control"
    )


def test_advisory_limits_are_said_without_an_event() -> None:
    setup = Chooser("none", is_auto=False)

    setup.check()

    found = setup.current()
    assert (found.state, found.reason) == (State.NOT_ENFORCED, "NoEnforcer")
    assert "claims are prepared, but nothing keeps them within their limits" in found.text
    assert setup.events.written == []
    assert setup.chooser.of_devices(NODE) == Enforcement(enforcer="none")


@pytest.mark.parametrize("enforcer", KINDS.values(), ids=KINDS)
def test_missing_enforcer_has_the_others_as_alternatives_and_not_itself(enforcer: Enforcer) -> None:
    text = choice.remedy(enforcer)

    for name, declared in registered.DECLARED.items():
        assert not declared.alternative or (declared.alternative in text) == (name != enforcer.name)


@pytest.mark.parametrize(
    ("sign", "is_required", "consequence"),
    [
        (NO_LIMITER, False, "every claim for a part of a GPU waits"),
        (NO_HYPERVISOR, True, "every claim for a part of a GPU waits"),
        (NO_HYPERVISOR, False, "claims are prepared, but nothing keeps them within their limits"),
    ],
)
def test_missing_enforcer_has_one_event_with_consequence_and_remedy(
    sign: Sign, is_required: bool, consequence: str
) -> None:
    setup = Chooser("tensor-fusion", is_auto=False, is_required=is_required)
    setup.absent["tensor-fusion"] = sign.verdict
    setup.dispensable = {"tensor-fusion"} if sign.may_be_missing else set()

    with capture_logs() as logs:
        for minute in range(3):
            setup.time = NOW + timedelta(minutes=minute)
            setup.check()

    ((reason, text),) = setup.events.written
    assert reason == "EnforcerMissing"
    assert text.startswith("enforcer tensor-fusion: ")
    assert consequence in text
    assert text.endswith(choice.remedy(TENSOR_FUSION))
    assert len(text.encode()) < 1024  # of an Event's note
    assert setup.events.pods == [None]
    assert [line["event"] for line in logs] == ["enforcer_not_seen"]
    assert setup.chooser.current is not None
    assert (setup.current().state, setup.chooser.current.since) == (State.NOT_ENFORCED, NOW)


def test_enforcer_that_came_and_went_again_has_another_event() -> None:
    setup = Chooser("tensor-fusion", is_auto=False)
    with capture_logs() as logs:
        for present in ("tensor-fusion", "", "tensor-fusion", ""):
            setup.check(present)

    assert len(setup.events.written) == 2
    assert [line["event"] for line in logs] == [
        *("enforcer_not_seen", "enforcer_seen", "enforcer_not_seen")
    ]


def test_event_is_written_once_the_api_server_answers_and_signs_are_read_once_a_minute() -> None:
    setup = Chooser("tensor-fusion", is_auto=False)
    setup.events.away = True
    setup.check()
    setup.check(after=1)
    setup.events.away = False

    setup.check(after=1)

    assert (len(setup.events.written), len(setup.read)) == (1, 1)


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
    soft, hard = (put_claim(setup, name, share_result()) for name in ("soft", "hard"))
    setup.annotate(hard, isolation="hard")

    for ref in (soft, hard):
        assert setup.refused(ref) == f"claim {ref}: {node.chooser.of_new_claim().none_found}"
    assert setup.store.claims() == []
    whole = setup.prepared(put_claim(setup, "whole", share_result(**WHOLE)))
    assert (whole.enforcer, whole.shares[0].limit) == ("none", None)
    setup.unprepare(whole.ref)
    node.present = {"hami-core"}
    assert setup.prepared(soft).enforcer == "hami-core"


def test_prepared_claim_keeps_its_enforcer(setup: Setup, bare: Callable[..., Chooser]) -> None:
    node = bare()
    node.present = {"hami-core"}
    first, second = (put_claim(setup, name, share_result()) for name in "ab")
    record, spec = setup.prepared(first), setup.spec_of(first)
    node.seconds += 60
    node.present = set()

    assert (setup.prepared(first), setup.spec_of(first)) == (record, spec)
    assert record.enforcer == "hami-core"
    assert "found no enforcer" in setup.refused(second)


def test_advisory_limits_are_told_to_containers_without_a_limiter(
    setup: Setup, bare: Callable[..., Chooser]
) -> None:
    bare("none", is_auto=False)
    ref = put_claim(setup, "a", share_result())

    record, spec = setup.prepared(ref), setup.spec_of(ref)

    edits = [spec["containerEdits"], *(each["containerEdits"] for each in spec["devices"])]
    env = dict(each.split("=", 1) for every in edits for each in every.get("env", ()))
    assert (record.enforcer, record.shares[0].limit is None) == ("none", False)
    assert env["TF_ISOLATION_MODE"] == "soft"
    assert [name for name in env if "LIMIT" in name or name == "LD_PRELOAD"] == []
    assert any(name.startswith("TENSOR_FUSION_SHARE_") for name in env)
    assert limits_document(setup, ref)
    assert "limiter" not in str(spec)


MISSING: Final = {
    "/run/tensor-fusion/libcuda_limiter.so",
    "/libvgpu.so.1",
    "/run/nvidia/mps/pipe/control",
}

WHOLE: Final = {"tflops": "312", "vram": "80Gi"}
EACH: Final = pytest.mark.parametrize(
    "enforcer", [TENSOR_FUSION, HAMI_CORE, MPS], ids=lambda each: each.name
)


@pytest.fixture
def lacking(setup: Setup) -> Callable[[Enforcer], Setup]:
    """Make a node with real cards on which the enforcer's files and sockets are missing."""

    def made(enforcer: Enforcer) -> Setup:
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


@EACH
def test_part_of_a_card_waits_and_the_error_names_enforcer_and_cures(
    lacking: Callable[[Enforcer], Setup], enforcer: Enforcer
) -> None:
    node = lacking(enforcer)
    ref = put_claim(node, "a", share_result())

    text = node.refused(ref)

    assert text.startswith("claim default/a: nothing on this node would enforce its limits: ")
    assert f"enforcer {enforcer.name}: " in text
    assert ": No such file or directory; " in text
    assert text.endswith(choice.remedy(enforcer))
    assert (node.store.claims(), node.spec_of(ref)) == ([], None)


@pytest.mark.parametrize(
    ("results", "is_prepared"),
    [
        ([share_result(GPU_0, **WHOLE)], True),
        ([exclusive(GPU_0)], True),
        ([share_result(GPU_0, **WHOLE), share_result(GPU_1, **WHOLE)], True),
        ([share_result(GPU_0, **WHOLE), {**exclusive(GPU_1), "adminAccess": True}], True),
        ([share_result(GPU_0, **WHOLE), share_result(GPU_1)], False),
        ([share_result(GPU_0, tflops="156", vram="40Gi") for _ in range(2)], False),
        ([share_result(GPU_0, tflops="311", vram="80Gi")], False),
        ([share_result(GPU_0, tflops="312", vram="81919Mi")], False),
    ],
    ids=[
        *("whole", "exclusive", "two whole", "whole and admin access", "whole and part of another"),
        *("both halves", "all memory", "all compute"),
    ],
)
def test_only_claims_for_nothing_but_whole_cards_are_prepared(
    lacking: Callable[[Enforcer], Setup], results: list[Any], is_prepared: bool
) -> None:
    node = lacking(TENSOR_FUSION)
    ref = put_claim(node, "a", *results)

    assert isinstance(node.prepare(ref)[ref.uid], PreparedClaim) is is_prepared


@EACH
@pytest.mark.parametrize("mode", [{}, {"isolation": "soft"}, {"isolation": "hard"}], ids=str)
def test_whole_card_is_prepared_in_isolation_shared_and_stays_without_limit(
    lacking: Callable[[Enforcer], Setup], enforcer: Enforcer, mode: dict[str, str]
) -> None:
    if "hard" in mode.values() and not enforcer.facts.enforces_hard:
        return  # refused to tenants, and for administrators the limiter is in the image
    node = lacking(enforcer)
    ref = put_claim(node, "a", share_result(**WHOLE))
    node.annotate(ref, **mode)

    record = node.prepared(ref)

    (share,) = record.shares
    assert (share.limit, share.isolation) == (None, Isolation.SHARED)
    (found,) = enforcer_rules.judged(record, enforcer, (), is_new=False)
    assert (found.state, found.reason) == ("Enforced", "NoLimit")
    assert node.store.claims() == [record]
    assert "TF_ISOLATION_MODE=shared" in str(node.spec_of(ref))
    node.host_files.absent = set()  # its container may be running, once the enforcer is there
    assert node.prepared(ref) == record


def test_claim_waits_until_a_required_hypervisor_is_alive(setup: Setup) -> None:
    signs = [NO_HYPERVISOR]
    setup.use(required=lambda: signs[-1])
    use_real_cards(setup)
    ref = put_claim(setup, "a", share_result())

    assert setup.refused(ref).startswith(
        "claim default/a: nothing would enforce its limits (require-enforcement): no sign of a "
        "hypervisor (device plugin: not found); run Tensor Fusion's hypervisor on this node"
    )
    signs.append(ALIVE)
    setup.prepared(ref)

    # Once prepared, its containers may run; the kubelet repeats the call when it restarts.
    signs.append(NO_HYPERVISOR)
    setup.prepared(ref)

"""Enforcers of other packages: the way of a claim with one, and faults, which cost that claim."""

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tensorfusion_dra.app.shared import node_parts
from tensorfusion_dra.app.shared.node_settings import Settings
from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims import cdi, verdicts
from tensorfusion_dra.core.claims import enforcer as enforcer_rules
from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.claims.enforcer import (
    Edits,
    EnforcerFacts,
    EnforcerSettings,
    Needs,
    Sign,
    SilentEnforcerError,
)
from tensorfusion_dra.core.claims.index_limits import limits as limits_by_index
from tensorfusion_dra.core.claims.prepared import Limit, PreparedClaim, PreparedShare
from tensorfusion_dra.core.claims.verdicts import State
from tensorfusion_dra.core.devices.gpu import Isolation
from tensorfusion_dra.core.errors import ClaimError, InputError, RetryableError
from tensorfusion_dra.core.kubernetes import cdi_rules
from tensorfusion_dra.core.kubernetes.quantity import GIB
from tensorfusion_dra.enforcers.guarded import GuardedEnforcer
from tests.support.another_enforcer import Another, variant
from tests.support.builders.allocations import allocation
from tests.support.builders.claims import claim_record
from tests.support.builders.gpus import gpu
from tests.support.builders.nodes import node_facts
from tests.support.installed_packages import install
from tests.support.prepared_node import (
    TENSOR_FUSION,
    Setup,
    put_annotated_claim,
    put_claim,
    share_result,
    spec_file,
    use_real_cards,
)
from tests.support.waiting import FOREVER, PATIENCE_SECONDS, eventually

VRAM_LIMIT = "tensor-fusion.ai/vram-limit"
FOLDER = "/run/tensor-fusion/another"
SETTINGS = EnforcerSettings(folder=FOLDER, claims_root=f"{FOLDER}/claims")
NODE = node_facts(gpu())
(CARD,) = NODE.devices
CLAIM = claim_record("a", allocation(CARD, 1, tflops="78", vram="20Gi"), on=NODE)


def guarded(kind: object, *, budget_seconds: float = FOREVER) -> GuardedEnforcer:
    return GuardedEnforcer("another", lambda: kind, SETTINGS, budget_seconds=budget_seconds)


def test_edits_become_a_valid_cdi_spec() -> None:
    spec = cdi.spec(CLAIM, guarded(Another))

    assert spec is not None
    cdi_rules.check(spec)
    edits = spec["devices"][-1]["containerEdits"]
    assert {*edits["env"]} >= {
        "ANOTHER_MEMORY_0=21474836480",
        f"{names.ENV_ISOLATION_MODE}=soft",
    }
    assert edits["mounts"][0]["hostPath"] == f"{FOLDER}/claims/uid-a"


def test_members_that_are_left_out_promise_least_and_others_count() -> None:
    enforcer = guarded(Another)

    assert enforcer.facts == EnforcerFacts()
    assert enforcer.facts.fixed_memory == frozenset(Isolation)
    assert enforcer.claims_root == f"{FOLDER}/claims"
    enforcer.apply(CLAIM, tuple, 0.0)
    enforcer.release(CLAIM, tuple)
    own = EnforcerFacts(
        enforces_hard=True, counts_by_pid=False, fixed_compute=frozenset(), fixed_memory=frozenset()
    )
    assert guarded(variant(facts=own)).facts == own


def test_facts_are_read_once() -> None:
    read: list[EnforcerFacts] = []

    def facts(_self: Another) -> EnforcerFacts:
        read.append(EnforcerFacts(enforces_hard=not read))
        return read[-1]

    enforcer = guarded(variant(facts=property(facts)))

    assert [enforcer.facts.enforces_hard for _ in range(3)] == [True] * 3
    assert len(read) == 1


def raising(error: BaseException) -> Callable[..., Any]:
    def member(*_: object) -> None:
        raise error

    return member


@pytest.mark.parametrize(
    ("member", "arguments", "answer", "error", "text"),
    [
        # Its own refusal is passed on.
        ("needs", (CLAIM,), raising(ClaimError("found 5 bytes")), ClaimError, "^found 5 bytes"),
        (
            *("apply", (CLAIM, tuple, 0.0), raising(RetryableError("found 5 bytes"))),
            *(RetryableError, "^found 5 bytes"),
        ),
        ("needs", (CLAIM,), lambda *_: None, ClaimError, "enforcer another: .*: found None, exp"),
        (
            *("edits", (CLAIM, CLAIM.shares), lambda *_: None, ClaimError),
            "claim default/a: enforcer another: .*: found None, exp",
        ),
        *(
            ("edits", (CLAIM, CLAIM.shares), raising(each), ClaimError, "a: enforcer another: ")
            for each in (ValueError("x"), SystemExit(1), KeyboardInterrupt())
        ),
    ],
)
def test_refusal_exception_or_answer_of_another_type_fails_the_claim(
    member: str,
    arguments: tuple[Any, ...],
    answer: Callable[..., Any],
    error: type[Exception],
    text: str,
) -> None:
    with pytest.raises(error, match=text):
        getattr(guarded(variant(**{member: answer})), member)(*arguments)


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Yield what hanging members wait for, and let them go on at the end."""
    gate = threading.Event()
    yield gate
    gate.set()


def test_late_answer_fails_the_claim_and_later_ones_at_once(gate: threading.Event) -> None:
    enforcer = guarded(variant(needs=lambda *_: gate.wait(PATIENCE_SECONDS)), budget_seconds=0.01)

    for _ in range(2):
        with pytest.raises(ClaimError, match=r"no answer within 0.01 s"):
            enforcer.needs(CLAIM)


@pytest.mark.parametrize(
    "kind", [None, variant(name="other"), variant(from_settings=None), "another"]
)
def test_class_that_cannot_be_used_is_an_error_at_the_start(kind: object) -> None:
    with pytest.raises(InputError, match="enforcer: another: "):
        guarded(kind).check()


ALIVE = verdicts.enforced("DaemonAlive", "seen")


@pytest.mark.parametrize(
    ("members", "state", "reason"),
    [
        ({}, State.UNKNOWN, verdicts.NO_SIGNS),
        ({"judge": lambda *_, is_new: [ALIVE]}, State.ENFORCED, "DaemonAlive"),
        *(
            ({"judge": lambda *_, is_new, found=found: found}, State.UNKNOWN, verdicts.UNREADABLE)
            for found in (["Enforced"], [], None)
        ),
    ],
)
def test_claim_is_judged_by_what_its_enforcer_sees(
    members: dict[str, Any], state: State, reason: str
) -> None:
    (found,) = guarded(variant(**members)).judge(CLAIM, CLAIM.shares, (), is_new=False)

    assert (found.state, found.reason) == (state, reason)


@pytest.mark.parametrize(
    ("members", "state", "reason"),
    [
        ({}, State.UNKNOWN, verdicts.NO_SIGNS),
        ({"sign": lambda _: Sign(verdict=ALIVE)}, State.ENFORCED, "DaemonAlive"),
        # What a claim needs is a sign.
        *(
            ({"needs": lambda *_, needs=needs: needs}, State.NOT_ENFORCED, reason)
            for needs, reason in (
                (Needs(files=("/nowhere/limiter.so",)), verdicts.LIMITER_MISSING),
                (Needs(sockets=("/nowhere/socket",)), verdicts.DAEMON_SILENT),
            )
        ),
    ],
)
def test_node_is_judged_by_the_enforcers_sign(
    members: dict[str, Any], state: State, reason: str
) -> None:
    found = guarded(variant(**members)).sign().verdict

    assert (found.state, found.reason) == (state, reason)


def test_enforcer_that_hangs_while_it_acts_holds_up_no_admission(gate: threading.Event) -> None:
    enforcer = guarded(variant(apply=lambda *_: gate.wait(PATIENCE_SECONDS)), budget_seconds=0.01)

    for _ in range(2):
        with pytest.raises(SilentEnforcerError, match="enforcer another: no answer"):
            enforcer.apply(CLAIM, tuple, 0.0)

    def answers() -> bool:
        with contextlib.suppress(ClaimError):  # too late, on a busy machine
            return enforcer.needs(CLAIM) == guarded(Another).needs(CLAIM)
        return False

    assert eventually(answers)


CODE = """
from tensorfusion_dra.extend import (
    Edits, Enforcer, EnforcerFacts, Needs, RetryableError, Sign, State, Verdict, limits_by_index,
)

CALLS = []
WORLD = {"alive": True, "kept": {}, "refuses": False}


class Sixth(Enforcer):
    name = "sixth"
    facts = EnforcerFacts(enforces_memory=True, remedy="start the sixth daemon")

    @classmethod
    def from_settings(cls, settings):
        return cls()

    def needs(self, claim):
        return Needs()

    def edits(self, claim, shares):
        return Edits(env={"SIXTH_LIMIT": str(limits_by_index(shares)[0].vram_bytes)})

    def sign(self):
        state = State.ENFORCED if WORLD["alive"] else State.NOT_ENFORCED
        return Sign(verdict=Verdict(state=state, reason="SixthDaemon", text="seen or not"))

    def judge(self, claim, shares, others, *, is_new):
        kept = claim.ref.uid in WORLD["kept"]
        state = State.ENFORCED if kept else State.NOT_ENFORCED
        return [Verdict(state=state, reason="SixthDaemon", text="kept or not") for _ in shares]

    def apply(self, claim, records, deadline):
        if WORLD["refuses"]:
            raise RetryableError("the sixth daemon is busy")
        WORLD["kept"] = {each.ref.uid: each for each in records()}

    def release(self, claim, records):
        del WORLD["kept"][claim.ref.uid]
"""


@pytest.fixture
def node(tmp_path: Path, setup: Setup, monkeypatch: pytest.MonkeyPatch) -> Setup:
    """Return a node with real cards whose settings name the enforcer of an installed package."""
    monkeypatch.syspath_prepend(tmp_path)
    install(tmp_path, "sixth-package", {names.ENFORCERS: {"sixth": "sixth_package:Sixth"}}, CODE)
    settings = Settings(node_name="node-01", enforcer="sixth", require_enforcement=True)
    every = node_parts.enforcers(settings)
    setup.enforcers |= every
    setup.use(enforcer=every["sixth"], node_enforcer=node_parts.node_enforcer(settings, every))
    use_real_cards(setup)
    return setup


def test_claim_is_prepared_judged_and_unprepared_with_it(node: Setup) -> None:
    world: dict[str, Any] = sys.modules["sixth_package"].WORLD
    ref = put_claim(node, "a", share_result(vram="16Gi"))

    world["alive"] = False
    assert node.refused(ref).endswith(
        "nothing would enforce its limits (require-enforcement): seen or not; start the sixth "
        "daemon, or choose another enforcer (setting enforcer; hami-core needs only a library on "
        "each node: chart value enforcers.hamiCore.install=true); claims for whole cards need none"
    )
    world |= {"alive": True, "refuses": True}
    assert node.refused(ref) == "the sixth daemon is busy"
    world["refuses"] = False
    record = node.prepared(ref)

    assert record.enforcer == "sixth"
    assert f"SIXTH_LIMIT={16 * 2**30}" in str(node.spec_of(ref))
    assert world["kept"] == {ref.uid: record}
    (found,) = enforcer_rules.judged(record, node.enforcer, [record], is_new=False)
    assert (found.state, found.reason) == (State.ENFORCED, "SixthDaemon")
    assert node.unprepare(ref) == {ref.uid: None}
    assert world["kept"] == {}


# Limits that are divided among the claims of a card, with an enforcer that can change them


def lending(node: Setup, **members: Any) -> GuardedEnforcer:
    """Have the node's new claims get an enforcer whose limits are lent."""
    facts = EnforcerFacts(fixed_compute=frozenset(), fixed_memory=frozenset(), enforces_memory=True)
    enforcer = guarded(variant(facts=facts, **members))
    node.enforcers[enforcer.name] = enforcer
    node.use(enforcer=enforcer)
    return enforcer


def put_wanting(node: Setup, name: str, vram: str, limit: str) -> ClaimRef:
    return put_annotated_claim(node, name, {VRAM_LIMIT: limit}, tflops="1", vram=vram)


def gib_by_name(node: Setup) -> dict[str, float]:
    shares = [(claim.ref.name, share) for claim in node.store.claims() for share in claim.shares]
    return {name: share.limit.vram_bytes / GIB for name, share in shares if share.limit}


def test_divided_limits_are_in_the_answer_in_the_spec_and_in_what_the_enforcer_is_asked(
    setup: Setup,
) -> None:
    asked: dict[str, int] = {}

    def edits(self: Another, claim: PreparedClaim, shares: Sequence[PreparedShare]) -> Edits:
        (limit,) = limits_by_index(shares)
        asked[claim.ref.name] = limit.vram_bytes
        return Another.edits(self, claim, shares)

    lending(setup, edits=edits)
    a = setup.prepared(put_wanting(setup, "a", "20Gi", "60Gi"))
    b = setup.prepared(put_wanting(setup, "b", "30Gi", "70Gi"))

    assert gib_by_name(setup) == {"a": 50, "b": 30}
    assert asked == {"a": 50 * GIB, "b": 30 * GIB}
    assert b.shares[0].limit == Limit(sm_percent=1, vram_bytes=30 * GIB)
    for claim, gib in ((a, 50), (b, 30)):
        assert f"ANOTHER_MEMORY_0={gib * GIB}" in str(setup.spec_of(claim.ref))


def test_claim_whose_divided_limit_its_enforcer_refuses_gets_no_file_and_no_more_of_the_card(
    setup: Setup,
) -> None:
    """The enforcer breaks the contract, which testing.check_enforcer() would tell."""

    def needs(_self: Another, claim: PreparedClaim) -> Needs:
        if any(share.limit.vram_bytes < 50 * GIB for share in claim.shares if share.limit):
            raise ClaimError("found less than 50Gi, expected more")
        return Needs()

    lending(setup, needs=needs)
    setup.prepared(put_wanting(setup, "a", "20Gi", "60Gi"))
    b = put_wanting(setup, "b", "10Gi", "70Gi")

    assert setup.refused(b) == "found less than 50Gi, expected more"

    assert gib_by_name(setup) == {"a": 60, "b": 20}
    assert setup.spec_of(b) is None
    assert [claim.ref for claim in setup.recover().unenforceable] == [b]
    setup.unprepare(b)
    assert gib_by_name(setup) == {"a": 60}


def test_status_says_that_an_enforcer_refuses_to_take_back_what_was_lent(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    def needs(_self: Another, claim: PreparedClaim) -> Needs:
        if any(share.limit.vram_bytes < 60 * GIB for share in claim.shares if share.limit):
            raise ClaimError("found less than 60Gi, expected more")
        return Needs()

    reported: list[tuple[str, str]] = []

    def report(claim: PreparedClaim, *, reason: str = "") -> None:
        reported.append((claim.ref.name, reason))

    monkeypatch.setattr(setup.status, "report", report)
    lending(setup, needs=needs)
    setup.prepared(put_wanting(setup, "a", "20Gi", "60Gi"))
    setup.use(enforcer=TENSOR_FUSION)

    setup.prepared(put_wanting(setup, "b", "30Gi", "30Gi"))

    assert gib_by_name(setup) == {"a": 50, "b": 30}
    assert [each for each in reported if each[1]] == [("a", "found less than 60Gi, expected more")]


def test_nothing_of_it_runs_under_the_lock_of_the_store(setup: Setup) -> None:
    """Else the other instance could not take the lock, and the call would fail after 5 seconds."""
    calls: list[str] = []

    def alone(name: str) -> Callable[..., Any]:
        def member(self: Another, *arguments: Any) -> Any:
            with other.store.transaction():
                calls.append(name)
            return getattr(Another, name)(self, *arguments)

        return member

    names_of_calls = ("needs", "edits", "apply", "release")
    other = Setup(setup.folder, setup.claims)
    lending(setup, **{name: alone(name) for name in names_of_calls})
    a = put_wanting(setup, "a", "20Gi", "60Gi")
    for ref in (a, put_wanting(setup, "b", "30Gi", "70Gi"), a):
        setup.prepared(ref)
    (setup.cdi_folder / spec_file(a.uid)).unlink()
    found = setup.recover()
    setup.divide()
    assert setup.unprepare(a) == {a.uid: None}

    assert (found.files_written, found.reasons) == (1, {})
    assert {*calls} == {*names_of_calls}


def test_needs_of_a_record_are_asked_for_once_before_the_lock_and_once_for_its_files(
    setup: Setup,
) -> None:
    asked: list[tuple[str, int]] = []

    def needs(self: Another, claim: PreparedClaim) -> Needs:
        limits = (share.limit for share in claim.shares if share.limit)
        asked.extend((claim.ref.name, limit.vram_bytes // GIB) for limit in limits)
        return Another.needs(self, claim)

    lending(setup, needs=needs)
    a, b = put_wanting(setup, "a", "20Gi", "60Gi"), put_wanting(setup, "b", "30Gi", "70Gi")
    setup.prepared(a)
    asked.clear()

    setup.prepared(b)
    setup.prepared(a)

    of_claims = [each for each in asked if each[0] in {"a", "b"}]  # others are asked by examples
    assert of_claims == [("b", 70), ("a", 50), ("b", 30), ("a", 50)]

"""Enforcers of other packages: a fault costs the claim at hand, and nothing else."""

import threading
from typing import Any

import pytest

from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims import cdi, verdicts
from tensorfusion_dra.core.claims.enforcer import (
    Edits,
    EnforcerFacts,
    EnforcerSettings,
    Needs,
    Sign,
    SilentEnforcerError,
)
from tensorfusion_dra.core.claims.verdicts import State, Verdict
from tensorfusion_dra.core.devices.gpu import Isolation
from tensorfusion_dra.core.errors import ClaimError, InputError, RetryableError
from tensorfusion_dra.core.kubernetes import cdi_rules
from tensorfusion_dra.enforcers.guarded import GuardedEnforcer
from tests.support.another_enforcer import Another, variant
from tests.support.builders.allocations import allocation
from tests.support.builders.claims import claim_record
from tests.support.builders.gpus import gpu
from tests.support.builders.nodes import node_facts
from tests.support.waiting import FOREVER, PATIENCE_SECONDS

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
    assert "ANOTHER_MEMORY_0=21474836480" in edits["env"]
    assert f"{names.ENV_ISOLATION_MODE}=soft" in edits["env"]
    assert edits["mounts"][0]["hostPath"] == f"{FOLDER}/claims/uid-a"


def test_members_that_are_left_out_promise_least_and_others_count() -> None:
    enforcer = guarded(Another)

    assert enforcer.facts == EnforcerFacts()
    assert enforcer.facts.fixed == frozenset(Isolation)
    assert enforcer.claims_root == f"{FOLDER}/claims"
    enforcer.apply(CLAIM, tuple, 0.0)
    enforcer.release(CLAIM, tuple)
    own = EnforcerFacts(enforces_hard=True, counts_by_pid=False, fixed=frozenset())
    assert guarded(variant(facts=own)).facts == own


@pytest.mark.parametrize(
    ("member", "arguments", "error"),
    [("needs", (CLAIM,), ClaimError), ("apply", (CLAIM, tuple, 0.0), RetryableError)],
)
def test_its_own_refusal_is_passed_on(
    member: str, arguments: tuple[Any, ...], error: type[Exception]
) -> None:
    def refuses(*_: object) -> None:
        raise error("GPU-0: found 5 bytes, expected 4")

    with pytest.raises(error, match=r"^GPU-0: found 5 bytes"):
        getattr(guarded(variant(**{member: refuses})), member)(*arguments)


@pytest.mark.parametrize("member", ["needs", "edits"])
def test_answer_of_another_type_fails_the_claim(member: str) -> None:
    enforcer = guarded(variant(**{member: lambda *_: None}))
    arguments = (CLAIM, CLAIM.shares) if member == "edits" else (CLAIM,)

    with pytest.raises(ClaimError, match=r"claim default/a: enforcer another: .*: found None, exp"):
        getattr(enforcer, member)(*arguments)


@pytest.mark.parametrize("error", [ValueError("x"), SystemExit(1), KeyboardInterrupt()])
def test_exception_fails_the_claim(error: BaseException) -> None:
    def edits(*_: object) -> Edits:
        raise error

    with pytest.raises(ClaimError, match="claim default/a: enforcer another: "):
        guarded(variant(edits=edits)).edits(CLAIM, CLAIM.shares)


def test_late_answer_fails_the_claim_and_later_ones_at_once() -> None:
    gate = threading.Event()

    def needs(_self: object, _claim: object) -> Needs:
        assert gate.wait(PATIENCE_SECONDS)
        return Needs()

    enforcer = guarded(variant(needs=needs), budget_seconds=0.01)

    for _ in range(2):
        with pytest.raises(ClaimError, match=r"no answer within 0.01 s"):
            enforcer.needs(CLAIM)
    gate.set()


@pytest.mark.parametrize(
    "kind", [None, variant(name="other"), variant(from_settings=None), "another"]
)
def test_class_that_cannot_be_used_is_an_error_at_the_start(kind: object) -> None:
    with pytest.raises(InputError, match="enforcer: another: "):
        guarded(kind).check()


def judged(enforcer: GuardedEnforcer) -> Verdict:
    (found,) = enforcer.judge(CLAIM, CLAIM.shares, (), is_new=False)
    return found


def test_enforcer_without_signs_is_unknown() -> None:
    enforcer = guarded(Another)

    for found in (judged(enforcer), enforcer.sign().verdict):
        assert (found.state, found.reason) == (State.UNKNOWN, verdicts.NO_SIGNS)


@pytest.mark.parametrize(
    ("needs", "reason"),
    [
        (Needs(files=("/nowhere/limiter.so",)), verdicts.LIMITER_MISSING),
        (Needs(sockets=("/nowhere/socket",)), verdicts.DAEMON_SILENT),
    ],
)
def test_what_a_claim_needs_is_a_sign(needs: Needs, reason: str) -> None:
    found = guarded(variant(needs=lambda *_: needs)).sign().verdict

    assert (found.state, found.reason) == (State.NOT_ENFORCED, reason)


def test_enforcer_judges_by_its_own_signs() -> None:
    alive = verdicts.enforced("DaemonAlive", "seen")
    enforcer = guarded(
        variant(judge=lambda *_, is_new: [alive], sign=lambda _: Sign(verdict=alive))
    )

    assert (judged(enforcer), enforcer.sign().verdict) == (alive, alive)


@pytest.mark.parametrize("answer", [["Enforced"], [], None])
def test_verdict_of_another_type_is_unknown(answer: object) -> None:
    found = judged(guarded(variant(judge=lambda *_, is_new: answer)))

    assert (found.state, found.reason) == (State.UNKNOWN, verdicts.UNREADABLE)


def test_enforcer_that_hangs_while_it_acts_holds_up_no_admission() -> None:
    gate = threading.Event()

    def apply(*_: object) -> None:
        assert gate.wait(PATIENCE_SECONDS)

    enforcer = guarded(variant(apply=apply), budget_seconds=0.01)

    for _ in range(2):
        with pytest.raises(SilentEnforcerError, match="enforcer another: no answer"):
            enforcer.apply(CLAIM, tuple, 0.0)
    calm = guarded(variant(apply=apply))
    calm.check()
    assert enforcer.needs(CLAIM) == calm.needs(CLAIM)
    gate.set()

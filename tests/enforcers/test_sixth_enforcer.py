"""A sixth enforcer is one file and an entry point: the whole way of a claim with it."""

import sys
from pathlib import Path
from typing import Any

import pytest

from tensorfusion_dra.app.shared import node_parts
from tensorfusion_dra.app.shared.node_settings import Settings
from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims import enforcer as enforcers
from tensorfusion_dra.core.claims.verdicts import State
from tests.support.installed_packages import install
from tests.support.prepared_node import Setup, put_claim, share_result, use_real_cards

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
    entries = {"sixth": "sixth_package:Sixth"}
    install(tmp_path, "sixth-package", {names.ENFORCERS: entries}, CODE)
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
    (found,) = enforcers.judged(record, node.enforcer, [record], is_new=False)
    assert (found.state, found.reason) == (State.ENFORCED, "SixthDaemon")
    assert node.unprepare(ref) == {ref.uid: None}
    assert world["kept"] == {}

"""Verdicts about claims and nodes whose enforcer is of another package."""

from dataclasses import replace

import pytest

from tensorfusion_dra.core.claims.enforcement import presence, verdict, verdicts
from tensorfusion_dra.core.claims.enforcement.signs import Daemon, FileSign, NodeSigns, Signs
from tensorfusion_dra.core.claims.enforcement.verdict import State, Verdict
from tensorfusion_dra.core.claims.prepared import PreparedClaim, PreparedShare
from tests.support.builders.prepared_claims import limit, prepared_claim, prepared_share

CLAIM = prepared_claim(
    prepared_share(0, limit(25, 8)), prepared_share(1, limit(25, 8)), enforcer="another"
)
NO_SIGNS = Signs(read_at=0.0)


class Judge:
    def judge(self, claim: PreparedClaim, share: PreparedShare, signs: Signs, /) -> Verdict:
        return verdict.enforced("DaemonAlive", f"{claim.ref}: {share.device}")


def test_its_own_judge_decides_about_each_share() -> None:
    found = verdicts.of_claim(CLAIM, NO_SIGNS, is_new=False, judge=Judge())

    assert [each.text for each in found] == ["team-a/a: gpu-0", "team-a/a: gpu-1"]


def test_claim_whose_enforcer_is_gone_is_unknown() -> None:
    found = verdicts.of_claim(CLAIM, NO_SIGNS, is_new=False)

    assert {(each.state, each.reason) for each in found} == {
        (State.UNKNOWN, verdict.UNKNOWN_ENFORCER)
    }


def test_share_without_a_limit_needs_no_judge() -> None:
    claim = replace(CLAIM, shares=(prepared_share(0, None),))

    (found,) = verdicts.of_claim(claim, NO_SIGNS, is_new=False)

    assert found.reason == verdict.NO_LIMIT


@pytest.mark.parametrize(
    ("signs", "state", "reason"),
    [
        (NodeSigns(read_at=0.0), State.UNKNOWN, verdict.NO_SIGNS),
        (
            NodeSigns(read_at=0.0, files=(FileSign(path="/l.so", trouble="not found"),)),
            State.NOT_ENFORCED,
            verdict.LIMITER_MISSING,
        ),
        (
            NodeSigns(read_at=0.0, daemon=Daemon(path="/s", trouble="refused")),
            State.NOT_ENFORCED,
            verdict.DAEMON_SILENT,
        ),
    ],
)
def test_missing_file_or_silent_daemon_refuses_claims_where_limits_are_required(
    signs: NodeSigns, state: State, reason: str
) -> None:
    found = presence.of_node("another", signs)

    assert (found.state, found.reason) == (state, reason)
    assert bool(presence.refusal(CLAIM, signs)) == (state is State.NOT_ENFORCED)

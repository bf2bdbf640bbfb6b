"""Findings about the webhook and a dry run of a pod."""

from collections.abc import Iterable
from typing import Any

import pytest

from tensorfusion_dra.core.doctor import webhook
from tensorfusion_dra.core.doctor.finding import Finding, Level
from tests.support import findings
from tests.support.findings import Expected


def configuration(*names: str) -> dict[str, Any]:
    return {"webhooks": [{"name": name} for name in names]}


def test_this_drivers_webhooks_are_recognized_by_their_domain() -> None:
    configurations = [
        configuration("vpod.kb.io", "pods.dra.tensor-fusion.ai"),
        configuration("claims.dra.tensor-fusion.ai"),
        configuration("mpod-v1.kb.io.tensor-fusion.ai"),
    ]

    found = webhook.ours(configurations)

    assert found == ["pods.dra.tensor-fusion.ai", "claims.dra.tensor-fusion.ai"]
    assert [finding.level for finding in webhook.installed(found)] == [Level.OK]


def test_missing_webhook_is_only_a_note() -> None:
    assert webhook.ours([configuration("vpod.kb.io"), {"webhooks": None}]) == []
    assert [finding.level for finding in webhook.installed(())] == [Level.NOTE]


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (webhook.admitted(webhook.trial_pod("default")), (Level.PROBLEM, "added no claim")),
        (webhook.admitted({"spec": {"resourceClaims": [{"name": "gpu"}]}}), (Level.OK, "gpu")),
        (
            [webhook.refused('500: failed calling webhook "pods.dra.tensor-fusion.ai": refused')],
            (Level.PROBLEM, "port 9443"),
        ),
        ([webhook.refused("403: exceeded quota")], (Level.WARNING, "exceeded quota")),
    ],
)
def test_dry_run_of_a_pod(found: Iterable[Finding], expected: Expected) -> None:
    findings.check(found, [expected])

"""Findings about the webhook and a dry run of a pod."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tensorfusion_dra.core.doctor import webhook
from tensorfusion_dra.core.doctor.finding import Finding, Level
from tensorfusion_dra.core.doctor.webhook import Bundle, Service
from tests.support import findings
from tests.support.findings import Expected

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SERVICE = Service(namespace="tensorfusion-dra", name="tensorfusion-dra-webhook")


def configuration(*names: str, ca_bundle: str = "UEVN") -> dict[str, Any]:
    client = {
        "service": {"namespace": SERVICE.namespace, "name": SERVICE.name},
        "caBundle": ca_bundle,
    }
    return {"webhooks": [{"name": name, "clientConfig": client} for name in names]}


def test_this_drivers_webhooks_are_recognized_by_their_domain() -> None:
    configurations = [
        configuration("vpod.kb.io", "pods.dra.tensor-fusion.ai"),
        configuration("claims.dra.tensor-fusion.ai"),
        configuration("mpod-v1.kb.io.tensor-fusion.ai"),
    ]

    found = webhook.ours(configurations)

    assert [item.name for item in found] == [
        "pods.dra.tensor-fusion.ai",
        "claims.dra.tensor-fusion.ai",
    ]
    assert {item.service for item in found} == {SERVICE}
    assert [finding.level for finding in webhook.installed(found)] == [Level.OK]


def test_missing_webhook_is_only_a_note() -> None:
    assert webhook.ours([configuration("vpod.kb.io"), {"webhooks": None}]) == ()
    assert [finding.level for finding in webhook.installed(())] == [Level.NOTE]


@pytest.mark.parametrize(
    ("text", "found", "level"),
    [
        ("UEVN", Bundle(ends=NOW + timedelta(days=300)), Level.OK),
        ("UEVN", Bundle(), Level.OK),
        ("UEVN", Bundle(ends=NOW + timedelta(days=3)), Level.WARNING),
        ("UEVN", Bundle(ends=NOW - timedelta(days=3)), Level.PROBLEM),
        ("UEVN", Bundle(trouble="no certificate in it"), Level.PROBLEM),
        ("", Bundle(), Level.PROBLEM),
    ],
)
def test_ca_bundle_must_be_valid_for_two_more_weeks(text: str, found: Bundle, level: Level) -> None:
    (item,) = webhook.ours([configuration("pods.dra.tensor-fusion.ai", ca_bundle=text)])

    findings.check(webhook.bundle(item, found, now=NOW), [(level, "")])


def endpoint_slice(*conditions: dict[str, bool]) -> dict[str, Any]:
    return {"endpoints": [{"conditions": each} for each in conditions]}


@pytest.mark.parametrize(
    ("slices", "level"),
    [
        ([endpoint_slice({"ready": True}, {"ready": False})], Level.OK),
        ([endpoint_slice({})], Level.OK),
        ([endpoint_slice({"ready": False})], Level.PROBLEM),
        ([], Level.PROBLEM),
        ([{"endpoints": None}], Level.PROBLEM),
        (None, Level.PROBLEM),
    ],
)
def test_at_least_one_endpoint_must_be_ready(
    slices: list[dict[str, Any]] | None, level: Level
) -> None:
    findings.check(webhook.endpoints(SERVICE, slices), [(level, "")])


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

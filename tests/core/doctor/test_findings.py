"""The doctor's findings: levels, and permissions."""

from typing import Any

import pytest

from tensorfusion_dra.core.doctor import finding, permissions
from tensorfusion_dra.core.doctor.finding import Finding, Level
from tensorfusion_dra.core.doctor.permissions import AccessAnswer


def of(level: Level) -> Finding:
    return Finding(level=level, subject="a", found="b")


@pytest.mark.parametrize(
    ("levels", "expected"),
    [
        ([], Level.OK),
        ([Level.NOTE, Level.OK], Level.NOTE),
        ([Level.WARNING, Level.NOTE], Level.WARNING),
        ([Level.COULD_NOT_LOOK, Level.WARNING], Level.COULD_NOT_LOOK),
        ([Level.OK, Level.PROBLEM, Level.COULD_NOT_LOOK], Level.PROBLEM),
    ],
)
def test_worst_finding_counts_and_could_not_look_is_worse_than_a_warning(
    levels: list[Level], expected: Level
) -> None:
    assert finding.worst(map(of, levels)) is expected


@pytest.mark.parametrize(
    ("text", "minor"), [("v1.36.2", 36), ("1.36+", 36), ("v1.9.0-rc.1", 9), ("v2.0.0", None)]
)
def test_minor_version_of_a_server(text: str, minor: int | None) -> None:
    assert permissions.minor_version(text) == minor


POOL = {"pool_source": "node-labels"}
HYPERVISOR = {"read_pods": False, "marks_pods": True}


@pytest.mark.parametrize(
    ("settings", "resource", "verbs"),
    [
        ({}, "resourceslices", {"list", "watch", "create", "update", "delete"}),
        ({}, "resourceclaims", {"get"}),
        ({"lists_claims": True}, "resourceclaims", {"get", "list"}),
        ({}, "nodes", {"get", "list", "watch"}),
        ({"releases_driver": False}, "nodes", {"get"}),
        ({}, "gpupools", set()),
        ({"pool_source": "object"}, "gpupools", {"list", "watch"}),
        ({"pool_source": "object"}, "nodes", {"get", "list", "watch"}),
        (POOL, "gpupools", {"list", "watch"}),
        (POOL, "nodes", {"get", "list", "watch"}),
        ({"read_pods": True}, "pods", {"get"}),
        ({"read_pods": False}, "pods", set()),
        (HYPERVISOR, "pods", {"get", "list", "watch", "patch"}),
    ],
)
def test_rights_of_the_node_plugin_follow_from_its_settings(
    settings: dict[str, Any], resource: str, verbs: set[str]
) -> None:
    table = permissions.of_node_plugin(**settings)

    assert {permission.verb for permission in table if permission.resource == resource} == verbs


def test_without_a_right_to_events_claims_are_prepared_all_the_same() -> None:
    events = [
        permission
        for permission in permissions.of_node_plugin(pool_source="object")
        if permission.resource == "events"
    ]

    assert [(permission.namespace, permission.vital) for permission in events] == [
        ("", False),
        ("default", False),
    ]


def test_the_webhook_reads_pools_and_pods_and_writes_nothing() -> None:
    table = permissions.of_webhook()

    assert {permission.verb for permission in table} == {"get", "list", "watch"}
    assert {permission.verb for permission in table if permission.resource == "gpupools"} == {
        "list",
        "watch",
    }
    assert [permission.verb for permission in table if permission.resource == "pods"] == ["get"]


TABLE = permissions.of_node_plugin()


def test_missing_right_is_a_problem_with_its_rule_and_purpose() -> None:
    permission = next(r for r in TABLE if r.verb == "watch")

    (finding,) = permissions.findings(
        "you", [AccessAnswer(permission, allowed=False, reason="no binding")]
    )

    assert finding.level is Level.PROBLEM
    assert finding.subject == "right to watch resourceslices.resource.k8s.io"
    assert "no binding" in finding.found
    assert permission.purpose in finding.expected
    assert 'apiGroups: ["resource.k8s.io"], resources: [resourceslices]' in finding.remedy


def test_missing_granular_verb_for_the_status_of_claims_is_a_warning() -> None:
    (permission,) = (each for each in TABLE if each.resource == "resourceclaims/driver")

    (finding,) = permissions.findings("you", [AccessAnswer(permission, allowed=False)])

    assert finding.level is Level.WARNING
    assert finding.subject == (
        "right to associated-node:patch resourceclaims.resource.k8s.io/driver "
        "named tensor-fusion.ai.dra-driver"
    )
    assert "resourceNames: [tensor-fusion.ai.dra-driver]" in finding.remedy

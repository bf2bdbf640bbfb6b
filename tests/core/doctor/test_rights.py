"""The rights of each process, and findings about missing ones."""

from typing import Any

import pytest

from tensorfusion_dra.core import names
from tensorfusion_dra.core.doctor import rights
from tensorfusion_dra.core.doctor.finding import Level
from tensorfusion_dra.core.doctor.rights import Answer

POOL = {"pool_source": "node-labels"}
HYPERVISOR = {"read_pods": False, "marks_pods": True}


@pytest.mark.parametrize(
    ("settings", "resource", "verbs"),
    [
        ({}, "resourceslices", {"list", "watch", "create", "update", "delete"}),
        ({}, "resourceclaims", {"get"}),
        ({}, "nodes", {"get"}),
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
    table = rights.of_node_plugin(**settings)

    assert {right.verb for right in table if right.resource == resource} == verbs


def test_status_of_a_claim_needs_the_granular_verb_for_this_driver_only() -> None:
    (granular,) = (r for r in rights.of_node_plugin() if r.resource == "resourceclaims/driver")

    assert (granular.verb, granular.name) == ("associated-node:patch", names.DRIVER)
    assert not granular.vital
    assert str(granular) == (
        "associated-node:patch resourceclaims.resource.k8s.io/driver "
        "named tensor-fusion.ai.dra-driver"
    )


def test_without_a_right_to_events_claims_are_prepared_all_the_same() -> None:
    events = [
        right for right in rights.of_node_plugin(pool_source="object") if right.resource == "events"
    ]

    assert [(right.namespace, right.vital) for right in events] == [("", False), ("default", False)]


def test_the_webhook_reads_pools_and_pods_and_writes_nothing() -> None:
    table = rights.of_webhook()

    assert {right.verb for right in table} == {"get", "list", "watch"}
    assert {right.verb for right in table if right.resource == "gpupools"} == {"list", "watch"}
    assert [right.verb for right in table if right.resource == "pods"] == ["get"]


TABLE = rights.of_node_plugin()


def test_granted_rights_are_one_finding() -> None:
    (finding,) = rights.findings("you", [Answer(right, allowed=True) for right in TABLE])

    assert (finding.level, finding.found) == (Level.OK, f"{len(TABLE)} granted")


def test_missing_right_is_a_problem_with_its_rule_and_purpose() -> None:
    right = next(r for r in TABLE if r.verb == "watch")

    (finding,) = rights.findings("you", [Answer(right, allowed=False, reason="no binding")])

    assert finding.level is Level.PROBLEM
    assert finding.subject == "right to watch resourceslices.resource.k8s.io"
    assert "no binding" in finding.found
    assert right.purpose in finding.expected
    assert 'apiGroups: ["resource.k8s.io"], resources: [resourceslices]' in finding.cure


def test_missing_right_to_the_status_is_a_warning_with_its_resource_name() -> None:
    right = next(r for r in TABLE if r.resource == "resourceclaims/driver")

    (finding,) = rights.findings("you", [Answer(right, allowed=False)])

    assert finding.level is Level.WARNING
    assert "resourceNames: [tensor-fusion.ai.dra-driver]" in finding.cure

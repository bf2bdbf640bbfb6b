"""Findings about granted and missing rights."""

from tensorfusion_dra.core.doctor import required_rights as rights
from tensorfusion_dra.core.doctor import rights as judge
from tensorfusion_dra.core.doctor.finding import Level
from tensorfusion_dra.core.doctor.rights import Answer

TABLE = rights.of_node_plugin()


def test_granted_rights_are_one_finding() -> None:
    (finding,) = judge.findings("you", [Answer(right, allowed=True) for right in TABLE])

    assert (finding.level, finding.found) == (Level.OK, f"{len(TABLE)} granted")


def test_missing_right_is_a_problem_with_its_rule_and_purpose() -> None:
    right = next(r for r in TABLE if r.verb == "watch")

    (finding,) = judge.findings("you", [Answer(right, allowed=False, reason="no binding")])

    assert finding.level is Level.PROBLEM
    assert finding.subject == "right to watch resourceslices.resource.k8s.io"
    assert "no binding" in finding.found
    assert right.purpose in finding.expected
    assert 'apiGroups: ["resource.k8s.io"], resources: [resourceslices]' in finding.cure


def test_missing_right_to_the_status_is_a_warning_with_its_resource_name() -> None:
    right = next(r for r in TABLE if r.resource == "resourceclaims/driver")

    (finding,) = judge.findings("you", [Answer(right, allowed=False)])

    assert finding.level is Level.WARNING
    assert "resourceNames: [tensor-fusion.ai.dra-driver]" in finding.cure

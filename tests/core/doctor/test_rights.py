"""What a missing right means."""

from tensorfusion_dra.core.doctor import required_rights as rights
from tensorfusion_dra.core.doctor import rights as judge
from tensorfusion_dra.core.doctor.finding import Level
from tensorfusion_dra.core.doctor.rights import Answer

TABLE = rights.of_node_plugin()


def test_rights_that_are_all_there_are_one_line() -> None:
    (finding,) = judge.judged("you", [Answer(right, allowed=True) for right in TABLE])

    assert (finding.level, finding.found) == (Level.OK, f"{len(TABLE)} granted")


def test_a_missing_right_names_the_rule_and_what_does_not_work_without_it() -> None:
    right = next(r for r in TABLE if r.verb == "watch")

    (finding,) = judge.judged("you", [Answer(right, allowed=False, reason="no binding")])

    assert finding.level is Level.PROBLEM
    assert finding.looked_at == "right to watch resourceslices.resource.k8s.io"
    assert "no binding" in finding.found
    assert right.purpose in finding.expected
    assert 'apiGroups: ["resource.k8s.io"], resources: [resourceslices]' in finding.cure


def test_a_right_that_only_the_status_needs_is_a_warning_with_its_resource_name() -> None:
    right = next(r for r in TABLE if r.resource == "resourceclaims/driver")

    (finding,) = judge.judged("you", [Answer(right, allowed=False)])

    assert finding.level is Level.WARNING
    assert "resourceNames: [tensor-fusion.ai.dra-driver]" in finding.cure

"""Reasons for which a node is unfit for a pod, whatever devices it has."""

from typing import Any

import pytest

from tensorfusion_dra.core.kubernetes import pod_placement
from tests.support.objects import node, pod

TAINT = {"key": "team", "value": "b", "effect": "NoSchedule"}
WEST = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["west"]}]}


def refusal(of_pod: dict[str, Any], of_node: dict[str, Any], **labels: str) -> str:
    made = pod()
    made["spec"].update(of_pod)
    return pod_placement.refusal(made, {**node(**labels), "spec": of_node})


def required(*terms: object) -> dict[str, Any]:
    selector = {"nodeSelectorTerms": list(terms)}
    rule = {"requiredDuringSchedulingIgnoredDuringExecution": selector}
    return {"affinity": {"nodeAffinity": rule}}


@pytest.mark.parametrize(
    ("of_pod", "of_node", "expected"),
    [
        ({}, {}, ""),
        ({}, {"unschedulable": True}, "unschedulable (cordoned)"),
        ({"tolerations": [{"operator": "Exists"}]}, {"unschedulable": True, "taints": [TAINT]}, ""),
        ({}, {"taints": [TAINT]}, "taint team=b:NoSchedule is not tolerated"),
        ({}, {"taints": [{**TAINT, "effect": "PreferNoSchedule"}]}, ""),
        ({"tolerations": [{"key": "team", "value": "b"}]}, {"taints": [TAINT]}, ""),
        (
            {"tolerations": [{"key": "team", "value": "c"}]},
            {"taints": [TAINT]},
            "taint team=b:NoSchedule is not tolerated",
        ),
        (
            {"tolerations": [{"key": "team", "operator": "Exists", "effect": "NoExecute"}]},
            {"taints": [TAINT]},
            "taint team=b:NoSchedule is not tolerated",
        ),
        ({"nodeSelector": {"zone": "east"}}, {}, ""),
        (
            {"nodeSelector": {"zone": "west"}},
            {},
            "nodeSelector zone=west, node has zone=east",
        ),
        ({"nodeSelector": {"disk": "ssd"}}, {}, "nodeSelector disk=ssd, node has no label disk"),
        (required(WEST), {}, "nodeAffinity does not select it"),
        (required(WEST, {"matchExpressions": [{"key": "zone", "operator": "Exists"}]}), {}, ""),
        (
            required({"matchExpressions": [{"key": "zone", "operator": "Near"}]}),
            {},
            "nodeAffinity: nodeSelectorTerms[0].matchExpressions[0]: found operator 'Near', "
            "expected In, NotIn, Exists, DoesNotExist, Gt or Lt",
        ),
    ],
)
def test_first_reason_is_returned(
    of_pod: dict[str, Any], of_node: dict[str, Any], expected: str
) -> None:
    assert refusal(of_pod, of_node, zone="east") == expected

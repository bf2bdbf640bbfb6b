"""Nodes that a selector selects, and those on which a pod may run."""

from typing import Any

import pytest

from tensorfusion_dra.core.errors import InputError
from tensorfusion_dra.core.kubernetes import node_fit
from tensorfusion_dra.core.kubernetes.node_fit import NodeLabels
from tests.support.objects import node, pod

TAINT = {"key": "team", "value": "b", "effect": "NoSchedule"}
WEST = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["west"]}]}


def required(*terms: object) -> dict[str, Any]:
    rule = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}
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
    made = pod()
    made["spec"].update(of_pod)

    assert node_fit.refusal(made, {**node(zone="east"), "spec": of_node}) == expected


NODE = NodeLabels(name="node-01", labels={"pool": "prod", "gpus": "8", "empty": ""})


def requirement(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": operator, **({"values": list(values)} if values else {})}


def policy(*found: Any) -> dict[str, Any]:
    return {"nodeSelectorTerms": list(found)}


def expressions(*found: Any) -> dict[str, Any]:
    return policy({"matchExpressions": list(found)})


PROD, TEST = requirement("pool", "In", "prod"), requirement("pool", "In", "test")
NAMED = requirement("metadata.name", "In", "node-01")


@pytest.mark.parametrize(
    ("found", "selected"),
    [
        *(
            (expressions(found), selected)
            for found, selected in (
                (requirement("pool", "In", "test", "prod"), True),
                (TEST, False),
                (requirement("absent", "In", ""), False),
                (requirement("empty", "In", ""), True),
                (requirement("pool", "NotIn", "test"), True),
                (requirement("pool", "NotIn", "prod"), False),
                (requirement("absent", "NotIn", "prod"), True),
                (requirement("empty", "Exists"), True),
                (requirement("absent", "Exists"), False),
                (requirement("absent", "DoesNotExist"), True),
                (requirement("pool", "DoesNotExist"), False),
                (requirement("gpus", "Gt", "7"), True),
                (requirement("gpus", "Gt", "8"), False),
                (requirement("gpus", "Lt", "9"), True),
                (requirement("gpus", "Lt", "-9"), False),
                (requirement("pool", "Gt", "1"), False),
                (requirement("absent", "Lt", "1"), False),
            )
        ),
        # Terms are ORed, the requirements of a term are ANDed.
        (policy({"matchExpressions": [TEST]}, {"matchExpressions": [PROD]}), True),
        (expressions(PROD, TEST), False),
        (policy({"matchFields": [NAMED], "matchExpressions": [PROD]}), True),
        (policy({"matchFields": [NAMED], "matchExpressions": [TEST]}), False),
        # A term that matches wins over a malformed one.
        (policy("x", {"matchExpressions": [requirement("pool", "Exists")]}), True),
        # Nothing is selected by an absent selector, an empty term or another node's name.
        (None, False),
        ({}, False),
        (policy(), False),
        (policy({}), False),
        (policy({"matchExpressions": [], "matchFields": None}), False),
        (policy({"matchFields": [requirement("metadata.name", "NotIn", "node-01")]}), False),
    ],
)
def test_selector_selects_the_node(found: Any, *, selected: bool) -> None:
    assert node_fit.selects(found, NODE) is selected


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ("prod", "nodeSelector: found 'prod', expected an object"),
        (
            {"matchLabels": {"pool": "prod"}},
            "nodeSelector: found ['matchLabels'], expected ['nodeSelectorTerms']",
        ),
        ({"nodeSelectorTerms": "x"}, "nodeSelectorTerms: found 'x', expected a list"),
        (policy("x"), "nodeSelectorTerms[0]: found 'x', expected an object"),
        (
            policy({"matchLabels": {}}),
            "[0]: found ['matchLabels'], expected ['matchFields', 'matchExpressions']",
        ),
        (policy({"matchExpressions": {}, "matchFields": 3}), "matchFields: found 3, expected"),
        (expressions("x"), "matchExpressions[0]: found 'x', expected an object"),
        (expressions({"key": "a", "operator": "In", "values": [1]}), "values: found [1], expected"),
        (expressions(requirement("a b", "Exists")), "found key 'a b', expected the key of a label"),
        (expressions(requirement("a", "in", "b")), "found operator 'in', expected In, NotIn,"),
        (expressions(requirement("a", "In")), "found no values, expected some"),
        (expressions(requirement("a", "Exists", "b")), "found 1 values, expected none"),
        (expressions(requirement("a", "Gt", "b")), "found values ['b'], expected one whole number"),
        (expressions(requirement("a", "Lt", "1", "2")), "expected one whole number"),
        (
            policy({"matchFields": [requirement("spec.x", "In", "a")]}),
            "matchFields[0]: found key 'spec.x', expected metadata.name",
        ),
        (
            policy({"matchFields": [requirement("metadata.name", "Exists")]}),
            "found operator 'Exists', expected In or NotIn",
        ),
        (
            policy({"matchFields": [requirement("metadata.name", "In", "a", "b")]}),
            "found 2 values, expected one",
        ),
        (policy({"matchExpressions": ["x"]}, "y"), "found 'x', expected an object; "),
    ],
)
def test_malformed_selector_is_refused(found: Any, expected: str) -> None:
    with pytest.raises(InputError) as caught:
        node_fit.selects(found, NODE)

    assert expected in str(caught.value)

"""Isolation that a GPUPool sets for its nodes."""

from typing import Any

import pytest

from tensorfusion_dra.core.claims import pool_isolation
from tensorfusion_dra.core.errors import InputError
from tensorfusion_dra.core.kubernetes.node_selector import NodeLabels
from tests.support.admission import Json, gpupool

NODE = NodeLabels(name="node-01", labels={"type": "p5", "workload": "batch"})


def pool(default: Any = None, *rules: tuple[str, Any]) -> Json:
    config: Json = {"isolationModeRules": [{"mode": m, "selector": s} for m, s in rules]}
    if default is not None:
        config["defaultIsolationMode"] = default
    return gpupool("prod", nodeManagerConfig=config)


def labels(**wanted: str) -> Json:
    return {"matchLabels": wanted}


def expression(key: str, operator: str, *values: str) -> Json:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (gpupool("prod"), None),
        (gpupool("prod", nodeManagerConfig={"defaultIsolationMode": ""}), None),
        (pool("soft"), "soft"),
        (pool("hard"), "hard"),
        (pool("soft", ("hard", labels(type="p5"))), "hard"),
        (pool("soft", ("hard", labels(type="p4"))), "soft"),
        (pool("soft", ("hard", labels(type="p5", workload="web"))), "soft"),
        (pool("soft", ("hard", labels(type="p5")), ("shared", labels(type="p5"))), "hard"),
        (pool("soft", ("hard", {}), ("shared", labels(type="p5"))), "hard"),
        (pool("soft", ("hard", None), ("shared", labels(type="p5"))), "shared"),
        (pool("soft", ("hard", expression("type", "In", "p4", "p5"))), "hard"),
        (pool("soft", ("hard", expression("type", "NotIn", "p4"))), "hard"),
        (pool("soft", ("hard", expression("zone", "NotIn", "a"))), "hard"),
        (pool("soft", ("hard", expression("zone", "DoesNotExist"))), "hard"),
        (pool("soft", ("hard", expression("zone", "Exists"))), "soft"),
        (pool(None, ("hard", labels(type="p4"))), None),
        # An unsupported mode is no error for a node that the rule does not select.
        (pool("soft", ("partitioned", labels(type="p4"))), "soft"),
    ],
)
def test_first_rule_that_selects_the_node_precedes_the_default(
    found: Json, expected: str | None
) -> None:
    assert pool_isolation.of_node(found, NODE) == expected


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (pool("none"), "defaultIsolationMode: found 'none', expected one of soft, hard, shared"),
        (pool("partitioned"), "defaultIsolationMode: found 'partitioned', expected one of soft"),
        (pool("soft", ("partitioned", {})), r"isolationModeRules\[0\].mode: found 'partitioned'"),
        (pool("soft", ("hard", "x")), r"isolationModeRules\[0\].selector: found 'x', expected an"),
        (pool("soft", ("hard", {"labels": {}})), r"selector: found \['labels'\], expected match"),
        (pool("soft", ("hard", expression("a", "Gt", "1"))), "found operator 'Gt', expected one"),
        (pool("soft", ("hard", expression("a", "In"))), "found no values, expected some"),
    ],
)
def test_invalid_values_are_reported_with_their_path(found: Json, expected: str) -> None:
    with pytest.raises(InputError, match=rf"^spec\.nodeManagerConfig\..*{expected}"):
        pool_isolation.of_node(found, NODE)


def test_modes_of_a_pool_are_those_of_all_its_rules() -> None:
    found = pool("soft", ("hard", labels(type="p4")), ("partitioned", {}), ("none", {}))

    assert pool_isolation.modes(found) == {"soft", "hard"}
    assert pool_isolation.modes(gpupool("prod")) == frozenset()


def test_only_rules_depend_on_node_labels() -> None:
    assert pool_isolation.has_rules(pool("soft", ("hard", {})))
    assert not pool_isolation.has_rules(pool("hard"))
    assert not pool_isolation.has_rules(gpupool("prod"))

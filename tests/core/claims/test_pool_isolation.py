"""Isolation that a GPUPool sets for its nodes."""

from typing import Any

import pytest

from tensorfusion_dra.core.claims import pool_isolation
from tensorfusion_dra.core.errors import InputError
from tensorfusion_dra.core.kubernetes.node_selector import NodeLabels
from tests.support.admission import Json
from tests.support.builders.gpupools import gpupool_document

NODE = NodeLabels(name="node-01", labels={"type": "p5", "workload": "batch"})


def pool_with_isolation(default: Any = None, *rules: tuple[str, Any]) -> Json:
    config: Json = {"isolationModeRules": [{"mode": m, "selector": s} for m, s in rules]}
    if default is not None:
        config["defaultIsolationMode"] = default
    return gpupool_document("prod", nodeManagerConfig=config)


def labels(**wanted: str) -> Json:
    return {"matchLabels": wanted}


def expression(key: str, operator: str, *values: str) -> Json:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (gpupool_document("prod"), None),
        (gpupool_document("prod", nodeManagerConfig={"defaultIsolationMode": ""}), None),
        (pool_with_isolation("soft"), "soft"),
        (pool_with_isolation("hard"), "hard"),
        (pool_with_isolation("soft", ("hard", labels(type="p5"))), "hard"),
        (pool_with_isolation("soft", ("hard", labels(type="p4"))), "soft"),
        (pool_with_isolation("soft", ("hard", labels(type="p5", workload="web"))), "soft"),
        (
            pool_with_isolation("soft", ("hard", labels(type="p5")), ("shared", labels(type="p5"))),
            "hard",
        ),
        (pool_with_isolation("soft", ("hard", {}), ("shared", labels(type="p5"))), "hard"),
        (pool_with_isolation("soft", ("hard", None), ("shared", labels(type="p5"))), "shared"),
        (pool_with_isolation("soft", ("hard", expression("type", "In", "p4", "p5"))), "hard"),
        (pool_with_isolation("soft", ("hard", expression("type", "NotIn", "p4"))), "hard"),
        (pool_with_isolation("soft", ("hard", expression("zone", "NotIn", "a"))), "hard"),
        (pool_with_isolation("soft", ("hard", expression("zone", "DoesNotExist"))), "hard"),
        (pool_with_isolation("soft", ("hard", expression("zone", "Exists"))), "soft"),
        (pool_with_isolation(None, ("hard", labels(type="p4"))), None),
        # An unsupported mode is no error for a node that the rule does not select.
        (pool_with_isolation("soft", ("partitioned", labels(type="p4"))), "soft"),
    ],
)
def test_first_rule_that_selects_the_node_precedes_the_default(
    found: Json, expected: str | None
) -> None:
    assert pool_isolation.of_node(found, NODE) == expected


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (
            pool_with_isolation("none"),
            "defaultIsolationMode: found 'none', expected one of soft, hard, shared",
        ),
        (
            pool_with_isolation("partitioned"),
            "defaultIsolationMode: found 'partitioned', expected one of soft",
        ),
        (
            pool_with_isolation("soft", ("partitioned", {})),
            r"isolationModeRules\[0\].mode: found 'partitioned'",
        ),
        (
            pool_with_isolation("soft", ("hard", "x")),
            r"isolationModeRules\[0\].selector: found 'x', expected an",
        ),
        (
            pool_with_isolation("soft", ("hard", {"labels": {}})),
            r"selector: found \['labels'\], expected match",
        ),
        (
            pool_with_isolation("soft", ("hard", expression("a", "Gt", "1"))),
            "found operator 'Gt', expected one",
        ),
        (
            pool_with_isolation("soft", ("hard", expression("a", "In"))),
            "found no values, expected some",
        ),
    ],
)
def test_invalid_values_are_reported_with_their_path(found: Json, expected: str) -> None:
    with pytest.raises(InputError, match=rf"^spec\.nodeManagerConfig\..*{expected}"):
        pool_isolation.of_node(found, NODE)


def test_modes_of_a_pool_are_those_of_all_its_rules() -> None:
    found = pool_with_isolation(
        "soft", ("hard", labels(type="p4")), ("partitioned", {}), ("none", {})
    )

    assert pool_isolation.modes(found) == {"soft", "hard"}
    assert pool_isolation.modes(gpupool_document("prod")) == frozenset()


def test_only_rules_depend_on_node_labels() -> None:
    assert pool_isolation.has_rules(pool_with_isolation("soft", ("hard", {})))
    assert not pool_isolation.has_rules(pool_with_isolation("hard"))
    assert not pool_isolation.has_rules(gpupool_document("prod"))

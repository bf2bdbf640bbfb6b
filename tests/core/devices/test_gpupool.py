"""Settings of a GPUPool, with its isolation modes, and the choice of a node's pool."""

from contextlib import nullcontext
from typing import Any

import pytest

from tensorfusion_dra.core.claims import isolation
from tensorfusion_dra.core.devices import gpupool
from tensorfusion_dra.core.devices.capacity import Oversubscription
from tensorfusion_dra.core.devices.gpupool import GpuPool
from tensorfusion_dra.core.errors import InputError
from tensorfusion_dra.core.kubernetes.node_fit import NodeLabels
from tests.support.builders.gpupools import gpupool_document

Json = dict[str, Any]

NODE = NodeLabels.of({"metadata": {"name": "node-01", "labels": {"pool": "prod"}}})


def prod_pool(name: str = "prod", /, **spec: Any) -> Json:
    return gpupool_document(name, **spec)


def selecting(name: str, value: str, operator: str = "In") -> Json:
    return prod_pool(name, nodeManagerConfig={"nodeSelector": selector(value, operator)})


def selector(value: str, operator: str = "In") -> Json:
    requirement = {"key": "pool", "operator": operator, "values": [value]}
    return {"nodeSelectorTerms": [{"matchExpressions": [requirement]}]}


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ({"metadata": {"name": "prod"}}, ("medium", None)),
        (prod_pool(), ("medium", None)),
        (prod_pool(qosConfig={}, capacityConfig={}), ("medium", None)),
        (prod_pool(qosConfig={"defaultQoS": ""}), ("medium", None)),
        (prod_pool(qosConfig={"defaultQoS": "critical", "pricing": []}), ("critical", None)),
        (prod_pool(capacityConfig={"oversubscription": None}), ("medium", None)),
        (
            prod_pool(capacityConfig={"oversubscription": {}}),
            (
                "medium",
                Oversubscription(tflops_percent=500, host_memory_percent=50, host_disk_percent=70),
            ),
        ),
        (
            prod_pool(
                capacityConfig={
                    "oversubscription": {
                        "tflopsOversellRatio": 100,
                        "vramExpandToHostMem": 0,
                        "vramExpandToHostDisk": 0,
                    }
                }
            ),
            ("medium", None),
        ),
    ],
)
def test_absent_values_have_tensor_fusions_defaults(
    found: Json, expected: tuple[str, Oversubscription | None]
) -> None:
    qos, ratios = expected

    assert gpupool.parse(found) == GpuPool(name="prod", qos=qos, oversubscription=ratios)


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (
            prod_pool(
                qosConfig={"defaultQoS": "gold"},
                capacityConfig={
                    "oversubscription": {
                        "tflopsOversellRatio": 99,
                        "vramExpandToHostMem": True,
                        "vramExpandToHostDisk": "50",
                    }
                },
            ),
            "GPUPool prod: "
            "spec.qosConfig.defaultQoS: found 'gold', expected one of low, medium, high, critical; "
            "spec.capacityConfig.oversubscription.tflopsOversellRatio: "
            "found 99, expected a whole number 100 to 100000; "
            "spec.capacityConfig.oversubscription.vramExpandToHostMem: "
            "found True, expected a whole number 0 to 100; "
            "spec.capacityConfig.oversubscription.vramExpandToHostDisk: "
            "found '50', expected a whole number 0 to 100",
        ),
        ({"metadata": {"name": "prod"}, "spec": []}, "spec: found [], expected an object"),
        (prod_pool(qosConfig="high"), "spec.qosConfig: found 'high', expected an object"),
        (prod_pool(capacityConfig=7), "spec.capacityConfig: found 7, expected an object"),
        (
            prod_pool(capacityConfig={"oversubscription": 7}),
            "oversubscription: found 7, expected an object",
        ),
        (prod_pool(qosConfig={"defaultQoS": 0}), "defaultQoS: found 0, expected one of low"),
    ],
)
def test_all_invalid_values_are_reported_at_once(found: Json, text: str) -> None:
    with pytest.raises(InputError) as caught:
        gpupool.parse(found)

    assert text in str(caught.value)


def test_names_that_are_too_long_together_are_refused() -> None:
    found = GpuPool(name="p" * 200, qos="high", oversubscription=None)

    assert found.node("n" * 52).pool
    with pytest.raises(InputError, match="254 bytes with the node's name, expected at most 253"):
        found.node("n" * 53)


def test_pool_is_found_by_its_name() -> None:
    assert gpupool.named([prod_pool("a"), prod_pool("b")], "b") == prod_pool("b")
    with pytest.raises(InputError, match="GPUPool c: found none of this name"):
        gpupool.named([prod_pool("a"), prod_pool("b")], "c")


def by_vendor(**selectors: Json | None) -> Json:
    """Return a pool with selectors by vendor beside a common one that selects the node."""
    config = {"nodeSelector": selector("prod"), "multiVendorNodeSelector": selectors}
    return prod_pool("by-vendor", nodeManagerConfig=config)


PROD, TEST = selecting("a", "prod"), selecting("b", "test")
BROKEN = selecting("b", "x", "Near")
NONE = "node node-01: no GPUPool selects it, expected one$"


@pytest.mark.parametrize(
    ("pools", "expected"),
    [
        ([prod_pool("none"), TEST, PROD], "a"),
        ([TEST], NONE),
        ([selecting("b", "prod"), PROD], "node node-01: a, b select it, expected one GPUPool"),
        # What is wrong with a pool matters only if it might be the node's.
        ([BROKEN, PROD], "a"),
        ([BROKEN], r"no GPUPool selects it.*; GPUPool b: .*'Near'"),
        ([prod_pool("b", qosConfig=7, nodeManagerConfig={}), PROD], "a"),
        # Selectors by vendor replace the common one.
        ([by_vendor(NVIDIA=selector("prod"))], "by-vendor"),
        ([by_vendor(AMD=selector("test"), NVIDIA=selector("prod"))], "by-vendor"),
        ([by_vendor(AMD=selector("x", "Near"), NVIDIA=selector("prod"))], "by-vendor"),
        ([by_vendor(NVIDIA=selector("test"))], NONE),
        ([by_vendor(NVIDIA=None)], NONE),
        ([by_vendor()], "by-vendor"),
    ],
)
def test_pool_that_selects_the_node_is_chosen(pools: list[Json], expected: str) -> None:
    """Expected is the name of the chosen pool, or the text of a refusal."""
    with pytest.raises(InputError, match=expected) if " " in expected else nullcontext():
        assert gpupool.choose(pools, NODE)["metadata"]["name"] == expected


LABELED_NODE = NodeLabels(name="node-01", labels={"type": "p5", "workload": "batch"})


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
    assert isolation.pool_mode(found, LABELED_NODE) == expected


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
        isolation.pool_mode(found, LABELED_NODE)


@pytest.mark.parametrize(
    ("found", "modes", "has_rules"),
    [
        (
            pool_with_isolation(
                "soft", ("hard", labels(type="p4")), ("partitioned", {}), ("none", {})
            ),
            {"soft", "hard"},
            True,
        ),
        (pool_with_isolation("hard"), {"hard"}, False),
        (gpupool_document("prod"), set(), False),
    ],
)
def test_modes_of_a_pool_are_those_of_all_its_rules(
    found: Json, modes: Any, *, has_rules: bool
) -> None:
    """Only a pool with rules depends on the labels of a node."""
    assert (isolation.pool_modes(found), isolation.pool_has_rules(found)) == (modes, has_rules)

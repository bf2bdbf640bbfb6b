"""Settings of a GPUPool, and the choice of a node's pool."""

from typing import Any

import pytest

from tensorfusion_dra.core.devices import gpupool
from tensorfusion_dra.core.devices.capacity import Oversubscription
from tensorfusion_dra.core.devices.gpupool import GpuPool
from tensorfusion_dra.core.errors import InputError
from tensorfusion_dra.core.kubernetes.node_fit import NodeLabels
from tests.support.builders.gpupools import gpupool_document

NODE = NodeLabels.of({"metadata": {"name": "node-01", "labels": {"pool": "prod"}}})
DEFAULTS = Oversubscription(tflops_percent=500, host_memory_percent=50, host_disk_percent=70)


def prod_pool(name: str = "prod", /, **spec: Any) -> dict[str, Any]:
    return gpupool_document(name, **spec)


def selecting(name: str, value: str, operator: str = "In") -> dict[str, Any]:
    return prod_pool(name, nodeManagerConfig={"nodeSelector": selector(value, operator)})


def selector(value: str, operator: str = "In") -> dict[str, Any]:
    requirement = {"key": "pool", "operator": operator, "values": [value]}
    return {"nodeSelectorTerms": [{"matchExpressions": [requirement]}]}


def refusal(found: dict[str, Any]) -> str:
    with pytest.raises(InputError) as caught:
        gpupool.parse(found)
    return str(caught.value)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ({"metadata": {"name": "prod"}}, ("medium", None)),
        (prod_pool(), ("medium", None)),
        (prod_pool(qosConfig={}, capacityConfig={}), ("medium", None)),
        (prod_pool(qosConfig={"defaultQoS": ""}), ("medium", None)),
        (prod_pool(qosConfig={"defaultQoS": "critical", "pricing": []}), ("critical", None)),
        (prod_pool(capacityConfig={"oversubscription": None}), ("medium", None)),
        (prod_pool(capacityConfig={"oversubscription": {}}), ("medium", DEFAULTS)),
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
    found: dict[str, Any], expected: tuple[str, Oversubscription | None]
) -> None:
    qos, ratios = expected

    assert gpupool.parse(found) == GpuPool(name="prod", qos=qos, oversubscription=ratios)


def test_all_invalid_values_are_reported_at_once() -> None:
    text = refusal(
        prod_pool(
            qosConfig={"defaultQoS": "gold"},
            capacityConfig={
                "oversubscription": {
                    "tflopsOversellRatio": 99,
                    "vramExpandToHostMem": True,
                    "vramExpandToHostDisk": "50",
                }
            },
        )
    )

    assert text == (
        "GPUPool prod: "
        "spec.qosConfig.defaultQoS: found 'gold', expected one of low, medium, high, critical; "
        "spec.capacityConfig.oversubscription.tflopsOversellRatio: "
        "found 99, expected a whole number 100 to 100000; "
        "spec.capacityConfig.oversubscription.vramExpandToHostMem: "
        "found True, expected a whole number 0 to 100; "
        "spec.capacityConfig.oversubscription.vramExpandToHostDisk: "
        "found '50', expected a whole number 0 to 100"
    )


@pytest.mark.parametrize(
    ("found", "text"),
    [
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
def test_value_of_another_type_is_reported(found: dict[str, Any], text: str) -> None:
    assert text in refusal(found)


def test_names_that_are_too_long_together_are_refused() -> None:
    found = GpuPool(name="p" * 200, qos="high", oversubscription=None)

    assert found.node("n" * 52).pool
    with pytest.raises(InputError, match="254 bytes with the node's name, expected at most 253"):
        found.node("n" * 53)


def test_pool_is_found_by_its_name() -> None:
    assert gpupool.named([prod_pool("a"), prod_pool("b")], "b") == prod_pool("b")
    with pytest.raises(InputError, match="GPUPool c: found none of this name"):
        gpupool.named([prod_pool("a"), prod_pool("b")], "c")


def test_pool_that_selects_the_node_is_chosen() -> None:
    prod = selecting("a", "prod")

    assert gpupool.choose([prod_pool("none"), selecting("b", "test"), prod], NODE) == prod


def test_no_pool_and_two_pools_are_refused() -> None:
    with pytest.raises(InputError, match=r"node node-01: no GPUPool selects it, expected one$"):
        gpupool.choose([selecting("b", "test")], NODE)
    with pytest.raises(InputError, match="node node-01: a, b select it, expected one GPUPool"):
        gpupool.choose([selecting("b", "prod"), selecting("a", "prod")], NODE)


def test_malformed_selector_is_reported_only_if_no_other_pool_selects_the_node() -> None:
    prod, broken = selecting("a", "prod"), selecting("b", "x", "Near")

    assert gpupool.choose([broken, prod], NODE) == prod
    with pytest.raises(InputError, match=r"no GPUPool selects it.*; GPUPool b: .*'Near'"):
        gpupool.choose([broken], NODE)


def test_values_of_pools_that_do_not_select_the_node_do_not_matter() -> None:
    prod = selecting("a", "prod")

    assert gpupool.choose([prod_pool("b", qosConfig=7, nodeManagerConfig={}), prod], NODE) == prod


@pytest.mark.parametrize(
    ("by_vendor", "selected"),
    [
        ({"NVIDIA": selector("prod")}, True),
        ({"AMD": selector("test"), "NVIDIA": selector("prod")}, True),
        ({"AMD": selector("x", "Near"), "NVIDIA": selector("prod")}, True),
        ({"NVIDIA": selector("test")}, False),
        ({"NVIDIA": None}, False),
        ({}, True),
    ],
)
def test_selectors_by_vendor_replace_the_common_selector(
    by_vendor: dict[str, Any],
    selected: bool,
) -> None:
    config = {"nodeSelector": selector("prod"), "multiVendorNodeSelector": by_vendor}
    found = prod_pool(nodeManagerConfig=config)

    if selected:
        assert gpupool.choose([found], NODE) == found
    else:
        with pytest.raises(InputError, match="no GPUPool selects it"):
            gpupool.choose([found], NODE)

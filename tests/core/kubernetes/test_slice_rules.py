"""The API server's rules for ResourceSlices; each verdict was observed on a 1.36 API server."""

from typing import Any, Final

import pytest

from tensorfusion_dra.core.kubernetes import slice_rules
from tests.core.devices.slice_documents import (
    counters,
    device_with_policy,
    plain_device,
    slice_spec,
    spec_with_pool,
    taint,
    term,
)

Json = dict[str, Any]

SEMVER: Final = "must be a string compatible with semver.org spec 2.0.0"


def test_published_device_and_slice_are_valid() -> None:
    shared = device_with_policy("40Gi", default="40Gi", validRange={"min": "1Mi", "step": "1Mi"})

    assert slice_rules.device_violations(shared) == ()
    assert slice_rules.slice_violations(slice_spec(devices=[shared])) == ()


def test_violation_gives_field_found_and_expected() -> None:
    bad = plain_device("GPU-0", attributes={"driver": {"version": "535.104.05"}})

    label = 'name: Invalid value: "GPU-0": must be a lowercase RFC 1123 label'
    version = f'attributes[driver].version: Invalid value: "535.104.05": {SEMVER}'
    found = slice_rules.device_violations(bad)
    assert found[0].startswith(label)
    assert found[1:] == (version,)
    assert slice_rules.slice_violations(slice_spec(devices=[plain_device(), bad]))[1] == (
        f"spec.devices[1].{version}"
    )


@pytest.mark.parametrize(
    "fields",
    [
        {"driver": "D.x"},
        {"driver": "a" * 63},
        {"nodeName": None, "allNodes": True},
        {"nodeName": None, "nodeSelector": term(matchExpressions=[])},
        {
            "nodeName": None,
            "nodeSelector": term(
                matchFields=[{"key": "metadata.name", "operator": "In", "values": ["node-a"]}]
            ),
        },
        {
            "nodeName": None,
            "nodeSelector": term(
                matchExpressions=[
                    {"key": "a", "operator": "Gt", "values": ["5"]},
                    {"key": "b.c/d", "operator": "NotIn", "values": ["x", ""]},
                    {"key": "e", "operator": "DoesNotExist"},
                ]
            ),
        },
        {"devices": []},
        {"devices": None},
        {"devices": None, "sharedCounters": [{"name": "memory", "counters": counters(32)}]},
        {"devices": [plain_device(f"gpu-{index}") for index in range(128)]},
        {"devices": [plain_device(f"gpu-{index}", taints=[taint()]) for index in range(64)]},
    ],
)
def test_valid_slice(fields: Json) -> None:
    assert slice_rules.slice_violations(slice_spec(**fields)) == ()


@pytest.mark.parametrize(
    ("broken", "violation"),
    [
        (slice_spec(driver=""), "spec.driver: Required value"),
        (slice_spec(driver=None), "spec.driver: Required value"),
        (slice_spec(driver="a" * 64), "spec.driver: Too long: may not be more than 63 bytes"),
        (
            slice_spec(driver="a_b"),
            'spec.driver: Invalid value: "a_b": must be an RFC 1123 subdomain',
        ),
        (slice_spec(driver=5), "spec.driver: Invalid value: 5: expected string"),
        (slice_spec(pool=None), "spec.pool.name: Required value"),
        (slice_spec(pool=[]), "spec.pool: Invalid value: []: expected an object"),
        (spec_with_pool(name="a//b"), 'spec.pool.name: Invalid value: "": must be'),
        (spec_with_pool(name="Pool"), 'spec.pool.name: Invalid value: "Pool": must be'),
        (
            spec_with_pool(name="a" * 254),
            "spec.pool.name: Too long: may not be more than 253 bytes",
        ),
        (
            spec_with_pool(generation=-1),
            "spec.pool.generation: Invalid value: -1: must be greater than or",
        ),
        (
            spec_with_pool(resourceSliceCount=0),
            "spec.pool.resourceSliceCount: Invalid value: 0: must be",
        ),
        (spec_with_pool(resourceSliceCount="1"), "spec.pool.resourceSliceCount: Invalid value"),
        (
            slice_spec(nodeName=None),
            "spec: Required value: exactly one of `nodeName`, `nodeSelector`",
        ),
        (slice_spec(nodeName=""), 'spec.nodeName: Invalid value: "": must be either unset or set'),
        (slice_spec(nodeName="Node"), 'spec.nodeName: Invalid value: "Node": must be a lowercase'),
        (slice_spec(allNodes=True), 'spec: Invalid value: "{`nodeName`, `allNodes`}": exactly one'),
        (
            slice_spec(allNodes=False),
            "spec.allNodes: Invalid value: false: must be either unset or",
        ),
        (
            slice_spec(nodeName=None, nodeSelector={"nodeSelectorTerms": [{}, {}]}),
            "spec.nodeSelector.nodeSelectorTerms: Invalid value: [{}, {}]: must have exactly one",
        ),
        (
            slice_spec(nodeName=None, nodeSelector={}),
            "spec.nodeSelector.nodeSelectorTerms: Required value: must have at least one",
        ),
        (
            slice_spec(nodeName=None, nodeSelector=term(matchFields=[{"key": "metadata.uid"}])),
            "spec.nodeSelector.nodeSelectorTerms[0].matchFields[0].operator: Invalid value",
        ),
        (
            slice_spec(
                nodeName=None,
                nodeSelector=term(matchExpressions=[{"key": "a", "operator": "In"}]),
            ),
            "spec.nodeSelector.nodeSelectorTerms[0].matchExpressions[0].values: Required value",
        ),
        (
            slice_spec(sharedCounters=[]),
            'spec: Invalid value: "": only one of `sharedCounters` or `devices` is allowed',
        ),
        (
            slice_spec(devices=[plain_device(f"gpu-{index}") for index in range(129)]),
            "spec.devices: Too many: 129: must have at most 128 items",
        ),
        (
            slice_spec(
                devices=[plain_device("gpu", taints=[taint()])]
                + [plain_device(f"g{i}") for i in range(64)]
            ),
            "spec.devices: Too many: 65: must have at most 64 items",
        ),
        (
            slice_spec(
                devices=[
                    plain_device(f"gpu-{i}", attributes={"a": {"ints": [1]}}) for i in range(65)
                ]
            ),
            "spec.devices: Too many: 65: must have at most 64 items",
        ),
        (
            slice_spec(devices=[plain_device(), plain_device()]),
            'spec.devices[1]: Duplicate value: "gpu-0"',
        ),
        (slice_spec(devices={}), "spec.devices: Invalid value: {}: expected a list"),
        (slice_spec(devices=["gpu"]), 'spec.devices[0]: Invalid value: "gpu": expected an object'),
        (
            slice_spec(devices=None, sharedCounters=[{"name": "m", "counters": counters(33)}]),
            "spec.sharedCounters[0].counters: Too many: 33: must have at most 32 items",
        ),
        (
            slice_spec(devices=None, sharedCounters=[{"name": "m"}]),
            "spec.sharedCounters[0].counters: Required value",
        ),
        (
            slice_spec(devices=None, sharedCounters=[{"name": "m", "counters": counters()}] * 2),
            'spec.sharedCounters[1]: Duplicate value: "m"',
        ),
        (
            slice_spec(devices=None, sharedCounters=[{"counters": counters()}]),
            "spec.sharedCounters[0].name: Required value",
        ),
        (
            slice_spec(
                devices=None,
                sharedCounters=[{"name": f"m{i}", "counters": counters()} for i in range(9)],
            ),
            "spec.sharedCounters: Too many: 9: must have at most 8 items",
        ),
    ],
)
def test_malformed_slice_is_refused(broken: Json, violation: str) -> None:
    found = slice_rules.slice_violations(broken)

    assert any(text.startswith(violation) for text in found), found


@pytest.mark.parametrize(
    ("fields", "violation"),
    [
        ({"nodeName": "node-a"}, None),
        ({"allNodes": True}, None),
        ({"nodeSelector": term()}, None),
        ({}, ": Required value: exactly one of `nodeName`, `nodeSelector`, or `allNodes`"),
        ({"nodeName": "a", "allNodes": True}, ': Invalid value: "{`nodeName`, `allNodes`}"'),
        ({"nodeName": ""}, '.nodeName: Invalid value: "": must not be empty'),
        ({"allNodes": False}, ".allNodes: Invalid value: false"),
        ({"nodeSelector": {}}, ".nodeSelector.nodeSelectorTerms: Required value"),
        ({"nodeName": "Node"}, '.nodeName: Invalid value: "Node"'),
    ],
)
def test_devices_select_nodes_with_per_device_node_selection(
    fields: Json, violation: str | None
) -> None:
    found = slice_rules.slice_violations(
        slice_spec(nodeName=None, perDeviceNodeSelection=True, devices=[plain_device(**fields)])
    )

    if violation is None:
        assert found == ()
    else:
        assert found[0].startswith(f"spec.devices[0]{violation}")


def test_devices_must_not_select_nodes_without_per_device_node_selection() -> None:
    (found,) = slice_rules.slice_violations(slice_spec(devices=[plain_device(nodeName="node-a")]))

    assert "can only be set if `perDeviceNodeSelection` is set to true" in found

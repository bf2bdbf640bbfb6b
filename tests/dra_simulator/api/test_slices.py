"""ResourceSlices: validation as observed on a 1.36 API server, immutability, feature gates."""

from typing import Final

import pytest

from dra_simulator.api import object_rules
from dra_simulator.api.gates import DEFAULT_GATES
from tests.core.devices.slice_documents import (
    counters,
    device_with_policy,
    plain_device,
    slice_spec,
    spec_with_pool,
    taint,
    term,
)
from tests.dra_simulator.api.client import SLICES, Client, Json, served
from tests.support.builders.documents import device_document, slice_document


def test_one_bad_device_makes_the_whole_slice_invalid(api: Client) -> None:
    bad = device_document("gpu-1", attributes={"driver_version": {"version": "535.104.05"}})

    reply = api.post(SLICES, slice_document(devices=[device_document(), bad]))

    assert (reply.code, reply.json["reason"], reply.message) == (
        422,
        "Invalid",
        'ResourceSlice.resource.k8s.io "slice-a" is invalid:'
        " spec.devices[1].attributes[driver_version].version: Invalid value:"
        ' "535.104.05": must be a string compatible with semver.org spec 2.0.0',
    )


def test_several_errors_are_listed(api: Client) -> None:
    reply = api.post(SLICES, slice_document(driver="", nodeName=None))

    assert reply.causes == [
        ("spec.driver", "FieldValueRequired"),
        ("spec", "FieldValueRequired"),
    ]
    assert (
        "is invalid: [spec.driver: Required value, spec: Required value: exactly" in reply.message
    )


@pytest.mark.parametrize(
    ("path", "spec"),
    [
        ("spec.driver", {"driver": "other.example.com"}),
        ("spec.nodeName", {"nodeName": "node-b"}),
        ("spec.nodeName", {"nodeName": None, "allNodes": True}),
        ("spec.pool.name", {"pool": {"name": "p", "generation": 1, "resourceSliceCount": 1}}),
    ],
)
def test_driver_node_and_pool_are_immutable(api: Client, path: str, spec: Json) -> None:
    api.post(SLICES, slice_document())

    reply = api.put(f"{SLICES}/slice-a", slice_document(**spec))

    assert reply.causes == [(path, "FieldValueInvalid")]
    assert "field is immutable" in reply.message


def test_a_taint_gets_the_time_at_which_it_was_added(api: Client) -> None:
    device = device_document(taints=[{"key": "example.com/unhealthy", "effect": "NoExecute"}])

    made = api.post(SLICES, slice_document(devices=[device])).json

    assert made["spec"]["devices"][0]["taints"][0]["timeAdded"].endswith("Z")


def test_list_attributes_are_dropped_by_default_and_then_lack_a_value(api: Client) -> None:
    listed = device_document(attributes={"links": {"strings": ["a", "b"]}})

    reply = api.post(SLICES, slice_document(devices=[listed]))

    assert reply.causes == [("spec.devices[0].attributes[links]", "FieldValueInvalid")]


@pytest.mark.parametrize(
    ("gate", "device", "dropped"),
    [
        ("DRAConsumableCapacity", {}, {"allowMultipleAllocations"}),
        ("DRADeviceTaints", {"taints": [{"key": "a", "effect": "NoSchedule"}]}, {"taints"}),
        (
            "DRAPartitionableDevices",
            {"consumesCounters": [{"counterSet": "m", "counters": {"b": {"value": "1"}}}]},
            {"consumesCounters"},
        ),
        (
            "DRAResourceClaimDeviceStatus",
            {"bindsToNode": True, "bindingConditions": ["a"], "bindingFailureConditions": ["b"]},
            {"bindsToNode", "bindingConditions", "bindingFailureConditions"},
        ),
    ],
)
def test_fields_of_disabled_gates_are_dropped_silently(
    gate: str, device: Json, dropped: set[str]
) -> None:
    wanted = device_document(**device)
    with served(gates=DEFAULT_GATES - {gate}) as api:
        reply = api.post(f"{SLICES}?fieldValidation=Strict", slice_document(devices=[wanted]))

    (stored,) = reply.json["spec"]["devices"]
    assert (wanted.keys() - stored.keys(), reply.warnings) == (dropped, [])
    assert ("requestPolicy" in str(stored)) == (gate != "DRAConsumableCapacity")


TOO_MANY_VALUES: Final = "spec.devices[0]: Invalid value: 49: the total number of attribute values"
PER_DEVICE: Final = "spec.devices[0]: Invalid value: null: `nodeName`"
VALUES: Final[Json] = {"a": {"ints": [1] * 24}, "b": {"strings": ["x"] * 23}, "c": {"int": 1}}
"""As many values as a device may have."""


WITHIN_THE_LIMITS: Final[list[Json]] = [
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
]


def with_device(**fields: object) -> Json:
    return slice_spec(devices=[plain_device("gpu-0", **fields)])


@pytest.mark.parametrize(
    ("spec", "violation"),
    [
        *((slice_spec(**fields), "") for fields in WITHIN_THE_LIMITS),
        (slice_spec(driver=""), "spec.driver: Required value"),
        (slice_spec(driver=None), "spec.driver: Required value"),
        (slice_spec(driver="a" * 64), "spec.driver: Too long: may not be more than 63 bytes"),
        (
            slice_spec(driver="a_b"),
            'spec.driver: Invalid value: "a_b": must be an RFC 1123 subdomain',
        ),
        (slice_spec(pool=None), "spec.pool.name: Required value"),
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
        (
            slice_spec(nodeName=None),
            "spec: Required value: exactly one of `nodeName`, `nodeSelector`",
        ),
        (
            slice_spec(nodeName=""),
            'spec.nodeName: Invalid value: "": must be unset or select nodes',
        ),
        (slice_spec(nodeName="Node"), 'spec.nodeName: Invalid value: "Node": must be a lowercase'),
        (slice_spec(allNodes=True), 'spec: Invalid value: "{`nodeName`, `allNodes`}": exactly one'),
        (
            slice_spec(allNodes=False),
            "spec.allNodes: Invalid value: false: must be unset or select nodes",
        ),
        (
            slice_spec(nodeName=None, nodeSelector={"nodeSelectorTerms": [{}, {}]}),
            "spec.nodeSelector.nodeSelectorTerms: Invalid value: [{}, {}]: must have exactly one",
        ),
        (
            slice_spec(nodeName=None, nodeSelector={}),
            "spec.nodeSelector.nodeSelectorTerms: Required value",
        ),
        (
            slice_spec(nodeName=None, nodeSelector=term(matchFields=[{"key": "metadata.uid"}])),
            "spec.nodeSelector.nodeSelectorTerms[0].matchFields[0].operator: Unsupported value",
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
        (with_device(nodeName="node-a"), PER_DEVICE),
        *(
            (
                slice_spec(
                    nodeName=None, perDeviceNodeSelection=True, devices=[plain_device(**fields)]
                ),
                violation and f"spec.devices[0]{violation}",
            )
            for fields, violation in (
                ({"nodeName": "node-a"}, ""),
                ({"allNodes": True}, ""),
                ({"nodeSelector": term()}, ""),
                ({}, ": Required value: exactly one of `nodeName`, `nodeSelector`, `allNodes`"),
                (
                    {"nodeName": "a", "allNodes": True},
                    ': Invalid value: "{`nodeName`, `allNodes`}"',
                ),
                ({"nodeName": ""}, '.nodeName: Invalid value: "": must be unset or select nodes'),
                ({"allNodes": False}, ".allNodes: Invalid value: false"),
                ({"nodeSelector": {}}, ".nodeSelector.nodeSelectorTerms: Required value"),
                ({"nodeName": "Node"}, '.nodeName: Invalid value: "Node"'),
            )
        ),
        *(
            (with_device(attributes={"a": value}), violation and f"spec.devices[0].{violation}")
            for value, violation in (
                ({"strings": ["a", "b"]}, ""),
                ({"int": 1, "bool": None}, ""),
                ({}, 'attributes[a]: Invalid value: "": exactly one value must be specified'),
                ({"int": 1, "bool": True}, "attributes[a]: Invalid value"),
                ({"strings": []}, "attributes[a].strings: Invalid value: []: must not be empty"),
                ({"versions": ["1.0.0", "1"]}, "attributes[a].versions[1]: Invalid value"),
            )
        ),
        (with_device(attributes=VALUES), ""),
        (with_device(attributes={**VALUES, "d": {"bool": True}}), TOO_MANY_VALUES),
        *(
            (
                with_device(consumesCounters=consumed),
                violation and f"spec.devices[0].consumesCounters{violation}",
            )
            for consumed, violation in (
                ([{"counterSet": "a", "counters": counters(32)}], ""),
                ([{"counterSet": "a", "counters": counters(33)}], "[0].counters: Too many: 33"),
                ([{"counterSet": "a"}], "[0].counters: Required value"),
                ([{"counters": counters()}], "[0].counterSet: Required value"),
                ([{"counterSet": "A", "counters": counters()}], "[0].counterSet: Invalid value"),
                ([{"counterSet": "a", "counters": counters()}] * 2, '[1]: Duplicate value: "a"'),
                (
                    [{"counterSet": name, "counters": counters()} for name in "abc"],
                    ": Too many: 3: must have at most 2 items",
                ),
                (
                    [{"counterSet": "a", "counters": {"C": {"value": "1"}}}],
                    "[0].counters: Invalid value",
                ),
            )
        ),
        *(
            (
                with_device(bindingConditions=conditions, bindingFailureConditions=failures),
                violation and f"spec.devices[0].{violation}",
            )
            for conditions, failures, violation in (
                (["a"], ["b"], ""),
                ([f"a{index}" for index in range(4)], [f"b{index}" for index in range(4)], ""),
                ([], [], ""),
                (["a", "a"], ["b"], 'bindingConditions[1]: Duplicate value: "a"'),
                (["a b"], ["b"], 'bindingConditions[0]: Invalid value: "a b"'),
                ([f"a{index}" for index in range(5)], ["b"], "bindingConditions: Too many: 5"),
            )
        ),
        *(
            (
                slice_spec(devices=[device_with_policy(**policy)]),
                violation and f"spec.devices[0].capacity[vram].requestPolicy{violation}",
            )
            for policy, violation in (
                ({"default": "2", "validValues": ["1", "2"]}, ""),
                ({"default": "1", "validValues": [str(value) for value in range(1, 11)]}, ""),
                ({"default": "1", "validValues": []}, ""),
                (
                    {"default": "1", "validValues": ["1"], "validRange": {"min": "1"}},
                    ": Forbidden: exactly one policy can be specified",
                ),
                ({"validValues": ["1"]}, ".default: Required value: required when validValues is"),
                (
                    {"default": "3", "validValues": ["1", "2"]},
                    '.validValues: Invalid value: "3": default value is not valid',
                ),
                (
                    {"default": "2", "validValues": ["2", "1"]},
                    '.validValues[1]: Invalid value: "1": values must be sorted in ascending order',
                ),
                (
                    {"default": "1500m", "validValues": ["1.1", "1.5", "1500m"]},
                    '.validValues[2]: Duplicate value: "1.5"',
                ),
                (
                    {"default": "200", "validValues": ["200"]},
                    '.validValues[0]: Invalid value: "200":'
                    " option is larger than capacity value: 100",
                ),
                (
                    {"default": "1", "validValues": [str(value) for value in range(11)]},
                    ".validValues: Too many: 11: must have at most 10 items",
                ),
            )
        ),
    ],
)
def test_slice_is_accepted_or_refused_with_field_and_reason(spec: Json, violation: str) -> None:
    found = object_rules.violations(spec)

    assert bool(found) is bool(violation)
    assert not found or any(text.startswith(violation) for text in found), found


TWO_TERMS: Final[Json] = {"nodeSelectorTerms": [{"matchExpressions": []}] * 2}
LONG: Final = f"1.0.{10**18}"


@pytest.mark.parametrize(
    ("fields", "spec", "violation"),
    [
        (
            {"nodeSelector": TWO_TERMS},
            {"nodeName": None, "perDeviceNodeSelection": True},
            ".nodeSelector.nodeSelectorTerms: ",
        ),
        ({"attributes": {"a": {"version": LONG}}}, {}, ".attributes[a].version: "),
        ({"attributes": {"a": {"versions": [LONG]}}}, {}, ".attributes[a].versions[0]: "),
        (
            device_with_policy(default="1500m", validRange={"min": "0", "step": "1"}),
            {},
            ".capacity[vram].requestPolicy.validRange.step: ",
        ),
    ],
)
def test_devices_are_checked_more_strictly_from_1_38_on(
    fields: Json, spec: Json, violation: str
) -> None:
    document = {**slice_spec(devices=[{**plain_device(), **fields}]), **spec}

    assert object_rules.violations(document, 37) == ()
    (found,) = object_rules.violations(document, 38)
    assert found.startswith(f"spec.devices[0]{violation}")


@pytest.mark.parametrize("policy", [{"validValues": ["1"]}, {"validRange": {"min": "1"}}])
@pytest.mark.parametrize("fields", [{}, {"value": None}])
def test_capacity_without_a_value_has_nothing(policy: Json, fields: Json) -> None:
    device = device_with_policy(default="1", **policy)
    del device["capacity"]["vram"]["value"]
    device["capacity"]["vram"] |= fields

    found = object_rules.violations(slice_spec(devices=[device]))

    assert any("larger than capacity value: 0" in text for text in found)

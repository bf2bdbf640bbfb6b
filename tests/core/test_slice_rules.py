"""The API server's rules for ResourceSlices; each verdict was seen on a 1.36 API server."""

from collections.abc import Mapping
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorfusion_dra.core import slice_rules

Json = dict[str, Any]

SEMVER: Final = "must be a string compatible with semver.org spec 2.0.0"


def device(name: str = "gpu-0", **fields: object) -> Json:
    return {
        "name": name,
        "allowMultipleAllocations": True,
        "attributes": {"model": {"string": "A100"}},
        "capacity": {"vram": {"value": "40Gi"}},
        **fields,
    }


def spec(**fields: object) -> Json:
    return {
        "driver": "tensor-fusion.ai.dra-driver",
        "pool": {"name": "pool-a/node-a", "generation": 1, "resourceSliceCount": 1},
        "nodeName": "node-a",
        "devices": [device()],
        **fields,
    }


def pool(**fields: object) -> Json:
    return spec(pool={"name": "p", "generation": 0, "resourceSliceCount": 1, **fields})


def with_policy(value: str = "100", **policy: object) -> Json:
    return device(capacity={"vram": {"value": value, "requestPolicy": policy}})


def with_range(default: str = "10", **valid_range: str) -> Json:
    return with_policy(default=default, validRange=valid_range)


def attributes(count: int) -> Json:
    return {f"a{index}": {"int": index} for index in range(count)}


def counters(count: int = 1) -> Json:
    return {f"c{index}": {"value": "1"} for index in range(count)}


def taint(**fields: object) -> Json:
    return {"key": "example.com/unhealthy", "effect": "NoSchedule", **fields}


def term(**fields: object) -> Json:
    return {"nodeSelectorTerms": [fields]}


def test_a_usual_device_and_slice_break_no_rule() -> None:
    shared = with_policy("40Gi", default="40Gi", validRange={"min": "1Mi", "step": "1Mi"})

    assert slice_rules.device_violations(shared) == ()
    assert slice_rules.slice_violations(spec(devices=[shared])) == ()


def test_a_violation_says_field_what_was_found_and_what_was_expected() -> None:
    bad = device("GPU-0", attributes={"driver": {"version": "535.104.05"}})

    label = 'name: Invalid value: "GPU-0": must be a lowercase RFC 1123 label'
    version = f'attributes[driver].version: Invalid value: "535.104.05": {SEMVER}'
    found = slice_rules.device_violations(bad)
    assert found[0].startswith(label)
    assert found[1:] == (version,)
    assert slice_rules.slice_violations(spec(devices=[device(), bad]))[1] == (
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
        {"devices": [device(f"gpu-{index}") for index in range(128)]},
        {"devices": [device(f"gpu-{index}", taints=[taint()]) for index in range(64)]},
    ],
)
def test_a_slice_within_the_limits_breaks_no_rule(fields: Json) -> None:
    assert slice_rules.slice_violations(spec(**fields)) == ()


@pytest.mark.parametrize(
    ("broken", "violation"),
    [
        (spec(driver=""), "spec.driver: Required value"),
        (spec(driver=None), "spec.driver: Required value"),
        (spec(driver="a" * 64), "spec.driver: Too long: may not be more than 63 bytes"),
        (spec(driver="a_b"), 'spec.driver: Invalid value: "a_b": must be an RFC 1123 subdomain'),
        (spec(driver=5), "spec.driver: Invalid value: 5: expected string"),
        (spec(pool=None), "spec.pool.name: Required value"),
        (spec(pool=[]), "spec.pool: Invalid value: []: expected an object"),
        (pool(name="a//b"), 'spec.pool.name: Invalid value: "": must be'),
        (pool(name="Pool"), 'spec.pool.name: Invalid value: "Pool": must be'),
        (pool(name="a" * 254), "spec.pool.name: Too long: may not be more than 253 bytes"),
        (pool(generation=-1), "spec.pool.generation: Invalid value: -1: must be greater than or"),
        (pool(resourceSliceCount=0), "spec.pool.resourceSliceCount: Invalid value: 0: must be"),
        (pool(resourceSliceCount="1"), "spec.pool.resourceSliceCount: Invalid value"),
        (spec(nodeName=None), "spec: Required value: exactly one of `nodeName`, `nodeSelector`"),
        (spec(nodeName=""), 'spec.nodeName: Invalid value: "": must be either unset or set'),
        (spec(nodeName="Node"), 'spec.nodeName: Invalid value: "Node": must be a lowercase'),
        (spec(allNodes=True), 'spec: Invalid value: "{`nodeName`, `allNodes`}": exactly one'),
        (spec(allNodes=False), "spec.allNodes: Invalid value: false: must be either unset or"),
        (
            spec(nodeName=None, nodeSelector={"nodeSelectorTerms": [{}, {}]}),
            "spec.nodeSelector.nodeSelectorTerms: Invalid value: [{}, {}]: must have exactly one",
        ),
        (
            spec(nodeName=None, nodeSelector={}),
            "spec.nodeSelector.nodeSelectorTerms: Required value: must have at least one",
        ),
        (
            spec(nodeName=None, nodeSelector=term(matchFields=[{"key": "metadata.uid"}])),
            "spec.nodeSelector.nodeSelectorTerms[0].matchFields[0].operator: Invalid value",
        ),
        (
            spec(
                nodeName=None,
                nodeSelector=term(matchExpressions=[{"key": "a", "operator": "In"}]),
            ),
            "spec.nodeSelector.nodeSelectorTerms[0].matchExpressions[0].values: Required value",
        ),
        (
            spec(sharedCounters=[]),
            'spec: Invalid value: "": only one of `sharedCounters` or `devices` is allowed',
        ),
        (
            spec(devices=[device(f"gpu-{index}") for index in range(129)]),
            "spec.devices: Too many: 129: must have at most 128 items",
        ),
        (
            spec(devices=[device("gpu", taints=[taint()])] + [device(f"g{i}") for i in range(64)]),
            "spec.devices: Too many: 65: must have at most 64 items",
        ),
        (
            spec(devices=[device(f"gpu-{i}", attributes={"a": {"ints": [1]}}) for i in range(65)]),
            "spec.devices: Too many: 65: must have at most 64 items",
        ),
        (
            spec(devices=[device(), device()]),
            'spec.devices[1]: Duplicate value: "gpu-0"',
        ),
        (spec(devices={}), "spec.devices: Invalid value: {}: expected a list"),
        (spec(devices=["gpu"]), 'spec.devices[0]: Invalid value: "gpu": expected an object'),
        (
            spec(devices=None, sharedCounters=[{"name": "m", "counters": counters(33)}]),
            "spec.sharedCounters[0].counters: Too many: 33: must have at most 32 items",
        ),
        (
            spec(devices=None, sharedCounters=[{"name": "m"}]),
            "spec.sharedCounters[0].counters: Required value",
        ),
        (
            spec(devices=None, sharedCounters=[{"name": "m", "counters": counters()}] * 2),
            'spec.sharedCounters[1]: Duplicate value: "m"',
        ),
        (
            spec(devices=None, sharedCounters=[{"counters": counters()}]),
            "spec.sharedCounters[0].name: Required value",
        ),
        (
            spec(
                devices=None,
                sharedCounters=[{"name": f"m{i}", "counters": counters()} for i in range(9)],
            ),
            "spec.sharedCounters: Too many: 9: must have at most 8 items",
        ),
    ],
)
def test_a_slice_that_breaks_a_rule(broken: Json, violation: str) -> None:
    found = slice_rules.slice_violations(broken)

    assert any(text.startswith(violation) for text in found), found


@pytest.mark.parametrize("name", ["a", "0", "a" * 63, "gpu-8f3a"])
def test_a_device_name_is_a_label(name: str) -> None:
    assert slice_rules.device_violations(device(name)) == ()


@pytest.mark.parametrize("name", ["", "GPU", "a" * 64, "-a", "a-", "a.b", "a_b", "é", "a\n"])
def test_another_device_name_is_refused(name: str) -> None:
    (found,) = slice_rules.device_violations(device(name))

    assert found.startswith("name: Invalid value")


@pytest.mark.parametrize(
    "key", ["model", "_x", "A1", "a" * 32, "example.com/model", "A.b/c", "a" * 63 + "/b"]
)
def test_a_key_is_an_identifier_and_may_have_a_domain(key: str) -> None:
    found = device(attributes={key: {"bool": True}}, capacity={key: {"value": "1"}})

    assert slice_rules.device_violations(found) == ()


@pytest.mark.parametrize(
    "key", ["", "1a", "a-b", "a" * 33, "/a", "a/", "a" * 64 + "/b", "a_b/c", "é", "a/b/c", "a\n"]
)
def test_another_key_is_refused(key: str) -> None:
    for field, value in (("attributes", {"int": 1}), ("capacity", {"value": "1"})):
        found = slice_rules.device_violations(device(**{field: {key: value}}))

        assert found
        assert all(text.startswith(f"{field}: ") for text in found)


@pytest.mark.parametrize(
    "value",
    [
        {"int": 0},
        {"int": 2**63 - 1},
        {"int": -(2**63)},
        {"bool": False},
        {"string": ""},
        {"string": "a" * 64},
        {"string": "é" * 32},
        {"version": "0.0.0"},
        {"version": "1.2.3-rc.1+build.01"},
        {"version": "550.54.15"},
        {"strings": ["a", "b"]},
        {"int": 1, "bool": None},
    ],
)
def test_an_attribute_has_one_value_of_its_type(value: Json) -> None:
    assert slice_rules.device_violations(device(attributes={"a": value})) == ()


@pytest.mark.parametrize(
    ("value", "violation"),
    [
        ({}, 'attributes[a]: Invalid value: "": exactly one value must be specified'),
        ({"stringValue": "x"}, "attributes[a]: Invalid value"),
        ({"int": 1, "bool": True}, "attributes[a]: Invalid value"),
        ({"int": 2**63}, "attributes[a].int: Invalid value"),
        ({"int": True}, "attributes[a].int: Invalid value: true: expected an integer"),
        ({"int": 1.5}, "attributes[a].int: Invalid value: 1.5: expected an integer"),
        ({"bool": 1}, "attributes[a].bool: Invalid value: 1: expected a boolean"),
        ({"string": 1}, "attributes[a].string: Invalid value: 1: expected a string"),
        ({"string": "a" * 65}, "attributes[a].string: Too long: may not be more than 64 bytes"),
        ({"string": "é" * 33}, "attributes[a].string: Too long: may not be more than 64 bytes"),
        ({"version": "v1.2.3"}, f'attributes[a].version: Invalid value: "v1.2.3": {SEMVER}'),
        ({"version": "12.4"}, "attributes[a].version: Invalid value"),
        ({"version": "535.104.05"}, "attributes[a].version: Invalid value"),
        ({"version": "1.2.3-01"}, "attributes[a].version: Invalid value"),
        ({"version": "1.2.3\n"}, "attributes[a].version: Invalid value"),
        ({"version": "1.2.3-" + "a" * 60}, "attributes[a].version: Too long"),
        ({"strings": []}, "attributes[a].strings: Invalid value: []: must not be empty"),
        ({"versions": ["1.0.0", "1"]}, "attributes[a].versions[1]: Invalid value"),
        ({"strings": "a"}, 'attributes[a].strings: Invalid value: "a": expected a list'),
        ("A100", 'attributes[a]: Invalid value: "A100": expected an object'),
    ],
)
def test_another_attribute_is_refused(value: object, violation: str) -> None:
    (found,) = slice_rules.device_violations(device(attributes={"a": value}))

    assert found.startswith(violation)


def test_attributes_and_capacities_are_32_together() -> None:
    fits = device(attributes=attributes(31))
    one_more = device(attributes=attributes(32))

    assert slice_rules.device_violations(fits) == ()
    assert str(slice_rules.device_violations(one_more)) == (
        "('Invalid value: 33: the total number of attributes and capacities must not exceed 32',)"
    )


def test_the_values_of_attributes_are_48_together() -> None:
    lists = {"a": {"ints": [1] * 24}, "b": {"strings": ["x"] * 23}, "c": {"int": 1}}

    fits = device(attributes=lists)
    one_more = device(attributes={**lists, "d": {"bool": True}})

    assert slice_rules.device_violations(fits) == ()
    assert "must not exceed 48" in slice_rules.device_violations(one_more)[0]


@pytest.mark.parametrize("value", ["0", "-1", "0.5", "1e3", "40Gi", 5])
def test_a_capacity_is_any_quantity(value: object) -> None:
    assert slice_rules.device_violations(device(capacity={"vram": {"value": value}})) == ()


@pytest.mark.parametrize("value", ["", "1 Gi", "abc", True, [], "1K"])
def test_a_capacity_that_is_no_quantity_is_refused(value: object) -> None:
    (found,) = slice_rules.device_violations(device(capacity={"vram": {"value": value}}))

    assert found.startswith("capacity[vram].value: Invalid value")


def test_a_capacity_without_value_is_zero() -> None:
    assert slice_rules.device_violations(device(capacity={"vram": {}})) == ()


@pytest.mark.parametrize("multiple", [None, False])
def test_a_policy_needs_multiple_allocations(multiple: bool | None) -> None:
    found = {**with_policy(default="1"), "allowMultipleAllocations": multiple}

    assert slice_rules.device_violations(found) == (
        "capacity[vram].requestPolicy: Forbidden: allowMultipleAllocations must be true",
    )


@pytest.mark.parametrize(
    "fine",
    [
        with_policy(),
        with_policy(default="-5"),
        with_policy(default="1000"),
        with_policy(default="2", validValues=["1", "2"]),
        with_policy(default="1", validValues=[str(value) for value in range(1, 11)]),
        with_policy(default="100", validValues=["100"]),
        with_policy(default="1", validValues=[]),
        with_range(min="1"),
        with_range(min="10", max="10"),
        with_range(min="-5", step="5"),
        with_range(min="0", step="5", max="20"),
        with_range(min="0", step="-1"),
        with_range("0.5", min="0.4"),
        # Fractions are rounded up first: 0.5 to 1, and then (10 - 1) is a multiple of 1.
        with_range(min="0.5", step="1"),
        with_range(min="0", step="0.5"),
        with_policy("1Gi", default="1Gi", validRange={"min": "1Mi", "step": "1Mi"}),
    ],
)
def test_a_policy_within_its_capacity_breaks_no_rule(fine: Json) -> None:
    assert slice_rules.device_violations(fine) == ()


@pytest.mark.parametrize(
    ("broken", "violation"),
    [
        (
            with_policy(default="1", validValues=["1"], validRange={"min": "1"}),
            ": Forbidden: exactly one policy can be specified",
        ),
        (with_policy(validValues=["1"]), ".default: Required value: required when validValues is"),
        (
            with_policy(validRange={"min": "1"}),
            ".default: Required value: required when validRange",
        ),
        (with_policy(default="1", validRange={}), ".validRange.min: Required value"),
        (
            with_policy(default="3", validValues=["1", "2"]),
            '.validValues: Invalid value: "3": default value is not valid',
        ),
        (
            with_policy(default="2", validValues=["2", "1"]),
            '.validValues[1]: Invalid value: "1": values must be sorted in ascending order',
        ),
        (with_policy(default="2", validValues=["2", "2"]), '.validValues[1]: Duplicate value: "2"'),
        # Duplicates are found by whole numbers, fractions rounded up.
        (
            with_policy(default="1500m", validValues=["1.1", "1.5"]),
            '.validValues[1]: Duplicate value: "2"',
        ),
        (
            with_policy(default="200", validValues=["200"]),
            '.validValues[0]: Invalid value: "200": option is larger than capacity value: 100',
        ),
        (
            with_policy(default="1", validValues=[str(value) for value in range(11)]),
            ".validValues: Too many: 11: must have at most 10 items",
        ),
        (with_policy(default="x"), '.default: Invalid value: "x": found'),
        (with_policy(default="1", validRange={"min": "x"}), ".validRange.min: Invalid value"),
        (with_policy(default="1", validValues=["x"]), ".validValues[0]: Invalid value"),
        (with_policy(default="1", validValues="1"), ".validValues: Invalid value"),
        (with_policy(default="1", validRange="1"), ".validRange: Invalid value"),
        (with_range(min="101"), '.validRange.min: Invalid value: "101": min is larger than'),
        (with_range(min="20"), '.validRange.min: Invalid value: "10": default is less than min'),
        (with_range(min="1", max="0"), '.validRange.max: Invalid value: "1": min is larger than'),
        (with_range(min="1", max="200"), '.validRange.max: Invalid value: "200": max is larger'),
        (with_range(min="1", max="5"), '.validRange.max: Invalid value: "10": default is more'),
        (with_range(min="1", step="100"), '.validRange.step: Invalid value: "100": one step 101'),
        (
            with_range(min="0", step="3"),
            '.validRange.step: Invalid value: "10": value is not a multiple of a given step (3)',
        ),
        (
            with_range(min="0", step="5", max="21"),
            '.validRange.step: Invalid value: "21": value is not a multiple of a given step (5)',
        ),
        (with_range(min="1", step="0"), '.validRange.step: Invalid value: "0": must not be zero'),
        (
            with_policy("1G", default="1G", validRange={"min": "1Mi", "step": "1Mi"}),
            '.validRange.step: Invalid value: "1G": value is not a multiple of a given step (1Mi)',
        ),
    ],
)
def test_a_policy_that_breaks_a_rule(broken: Json, violation: str) -> None:
    found = slice_rules.device_violations(broken)

    expected = f"capacity[vram].requestPolicy{violation}"
    assert any(text.startswith(expected) for text in found), found


@given(
    least=st.integers(0, 50), step=st.integers(1, 50), steps=st.integers(0, 50), off=st.integers(0)
)
def test_a_default_is_a_whole_number_of_steps_above_the_least(
    least: int, step: int, steps: int, off: int
) -> None:
    default = least + step * steps + off % step
    found = with_policy(
        "10000", default=str(default), validRange={"min": str(least), "step": str(step)}
    )

    assert bool(slice_rules.device_violations(found)) is (off % step != 0)


@pytest.mark.parametrize(
    "taints",
    [
        [taint()] * 16,
        [taint(value="x", effect="NoExecute", timeAdded="2026-01-01T00:00:00Z")],
        [taint(effect="None", value="")],
    ],
)
def test_taints_within_the_limits_break_no_rule(taints: list[Json]) -> None:
    assert slice_rules.device_violations(device(taints=taints)) == ()


@pytest.mark.parametrize(
    ("taints", "violation"),
    [
        ([taint()] * 17, "taints: Too many: 17: must have at most 16 items"),
        ([taint(key="")], "taints[0].key: Invalid value"),
        ([taint(key="a b")], "taints[0].key: Invalid value"),
        ([taint(key="A.b/c")], "taints[0].key: Invalid value"),
        ([taint(value="x y")], "taints[0].value: Invalid value"),
        ([taint(value="x" * 64)], "taints[0].value: Invalid value"),
        ([taint(effect="")], "taints[0].effect: Required value"),
        (
            [taint(effect="Never")],
            'taints[0].effect: Unsupported value: "Never": supported values: "NoExecute",'
            ' "NoSchedule", "None"',
        ),
        (["x"], 'taints[0]: Invalid value: "x": expected an object'),
        ({}, "taints: Invalid value: {}: expected a list"),
    ],
)
def test_taints_that_break_a_rule(taints: object, violation: str) -> None:
    (found,) = slice_rules.device_violations(device(taints=taints))

    assert found.startswith(violation)


@pytest.mark.parametrize(
    ("consumed", "violation"),
    [
        ([{"counterSet": "a", "counters": counters(32)}], None),
        ([{"counterSet": "a", "counters": counters(33)}], "[0].counters: Too many: 33"),
        ([{"counterSet": "a"}], "[0].counters: Required value"),
        ([{"counters": counters()}], "[0].counterSet: Required value"),
        ([{"counterSet": "A", "counters": counters()}], "[0].counterSet: Invalid value"),
        ([{"counterSet": "a", "counters": counters()}] * 2, '[1]: Duplicate value: "a"'),
        (
            [{"counterSet": name, "counters": counters()} for name in "abc"],
            ": Too many: 3: must have at most 2 items",
        ),
        ([{"counterSet": "a", "counters": {"c": {"value": "x"}}}], "[0].counters[c].value: Inv"),
        ([{"counterSet": "a", "counters": {"C": {"value": "1"}}}], "[0].counters: Invalid value"),
        ([{"counterSet": "a", "counters": [1]}], "[0].counters: Invalid value: [1]: expected an"),
        ([1], "[0]: Invalid value: 1: expected an object"),
    ],
)
def test_consumed_counters(consumed: object, violation: str | None) -> None:
    found = slice_rules.device_violations(device(consumesCounters=consumed))

    if violation is None:
        assert found == ()
    else:
        assert found[0].startswith(f"consumesCounters{violation}")


@pytest.mark.parametrize(
    ("conditions", "failures", "violation"),
    [
        (["a"], ["b"], None),
        ([f"a{index}" for index in range(4)], [f"b{index}" for index in range(4)], None),
        ([], [], None),
        (["a"], None, "bindingFailureConditions: Invalid value: []: bindingFailureConditions are"),
        (None, ["a"], "bindingConditions: Invalid value: []: bindingConditions are required"),
        (["a"], ["a"], 'bindingFailureConditions[0]: Invalid value: "a": bindingFailureCondition'),
        (["a", "a"], ["b"], 'bindingConditions[1]: Duplicate value: "a"'),
        (["a b"], ["b"], 'bindingConditions[0]: Invalid value: "a b"'),
        ([f"a{index}" for index in range(5)], ["b"], "bindingConditions: Too many: 5"),
    ],
)
def test_binding_conditions(
    conditions: list[str] | None, failures: list[str] | None, violation: str | None
) -> None:
    found = slice_rules.device_violations(
        device(bindingConditions=conditions, bindingFailureConditions=failures)
    )

    if violation is None:
        assert found == ()
    else:
        assert found[0].startswith(violation)


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
def test_devices_name_nodes_where_the_slice_leaves_it_to_them(
    fields: Json, violation: str | None
) -> None:
    found = slice_rules.slice_violations(
        spec(nodeName=None, perDeviceNodeSelection=True, devices=[device(**fields)])
    )

    if violation is None:
        assert found == ()
    else:
        assert found[0].startswith(f"spec.devices[0]{violation}")


def test_devices_name_no_nodes_otherwise() -> None:
    (found,) = slice_rules.slice_violations(spec(devices=[device(nodeName="node-a")]))

    assert "can only be set if `perDeviceNodeSelection` is set to true" in found


JSON: Final = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=6,
)
FIELDS: Final = (
    "name attributes capacity taints consumesCounters allowMultipleAllocations bindsToNode"
    " bindingConditions bindingFailureConditions nodeName nodeSelector allNodes"
).split()


@given(st.dictionaries(st.sampled_from(FIELDS), JSON), st.booleans())
def test_any_json_gets_a_verdict(fields: Mapping[str, object], per_device: bool) -> None:  # noqa: FBT001
    shared = {"allowMultipleAllocations": True, "capacity": {"a": {"requestPolicy": fields}}}
    whole = {**spec(devices=[fields, shared]), "perDeviceNodeSelection": per_device}

    for found in (slice_rules.device_violations(fields), slice_rules.slice_violations(whole)):
        assert all(": " in text for text in found)


@given(JSON)
def test_any_node_selector_gets_a_verdict(selector: object) -> None:
    found = slice_rules.slice_violations(spec(nodeName=None, nodeSelector=selector))

    assert isinstance(found, tuple)

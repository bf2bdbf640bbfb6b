"""The API server's rules for one device; each verdict was observed on a 1.36 API server."""

from typing import Any, Final

import pytest

from tensorfusion_dra.core.kubernetes import slice_rules
from tests.core.devices.slice_documents import counters, int_attributes, plain_device, taint

Json = dict[str, Any]

SEMVER: Final = "must be a string compatible with semver.org spec 2.0.0"


@pytest.mark.parametrize("name", ["a", "0", "a" * 63, "gpu-8f3a"])
def test_valid_device_name(name: str) -> None:
    assert slice_rules.device_violations(plain_device(name)) == ()


@pytest.mark.parametrize("name", ["", "GPU", "a" * 64, "-a", "a-", "a.b", "a_b", "é", "a\n"])
def test_device_name_that_is_no_label_is_refused(name: str) -> None:
    (found,) = slice_rules.device_violations(plain_device(name))

    assert found.startswith("name: Invalid value")


@pytest.mark.parametrize(
    "key", ["model", "_x", "A1", "a" * 32, "example.com/model", "A.b/c", "a" * 63 + "/b"]
)
def test_key_is_an_identifier_with_an_optional_domain(key: str) -> None:
    found = plain_device(attributes={key: {"bool": True}}, capacity={key: {"value": "1"}})

    assert slice_rules.device_violations(found) == ()


@pytest.mark.parametrize(
    "key", ["", "1a", "a-b", "a" * 33, "/a", "a/", "a" * 64 + "/b", "a_b/c", "é", "a/b/c", "a\n"]
)
def test_malformed_key_is_refused(key: str) -> None:
    for field, value in (("attributes", {"int": 1}), ("capacity", {"value": "1"})):
        entry: Json = {field: {key: value}}
        found = slice_rules.device_violations(plain_device(**entry))

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
def test_attribute_with_one_value_of_its_type_is_valid(value: Json) -> None:
    assert slice_rules.device_violations(plain_device(attributes={"a": value})) == ()


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
def test_malformed_attribute_is_refused(value: object, violation: str) -> None:
    (found,) = slice_rules.device_violations(plain_device(attributes={"a": value}))

    assert found.startswith(violation)


def test_at_most_32_attributes_and_capacities_together() -> None:
    fits = plain_device(attributes=int_attributes(31))
    one_more = plain_device(attributes=int_attributes(32))

    assert slice_rules.device_violations(fits) == ()
    assert str(slice_rules.device_violations(one_more)) == (
        "('Invalid value: 33: the total number of attributes and capacities must not exceed 32',)"
    )


def test_at_most_48_attribute_values_together() -> None:
    lists: Json = {"a": {"ints": [1] * 24}, "b": {"strings": ["x"] * 23}, "c": {"int": 1}}

    fits = plain_device(attributes=lists)
    one_more = plain_device(attributes={**lists, "d": {"bool": True}})

    assert slice_rules.device_violations(fits) == ()
    assert "must not exceed 48" in slice_rules.device_violations(one_more)[0]


@pytest.mark.parametrize(
    "taints",
    [
        [taint()] * 16,
        [taint(value="x", effect="NoExecute", timeAdded="2026-01-01T00:00:00Z")],
        [taint(effect="None", value="")],
    ],
)
def test_valid_taints(taints: list[Json]) -> None:
    assert slice_rules.device_violations(plain_device(taints=taints)) == ()


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
def test_malformed_taints_are_refused(taints: object, violation: str) -> None:
    (found,) = slice_rules.device_violations(plain_device(taints=taints))

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
    found = slice_rules.device_violations(plain_device(consumesCounters=consumed))

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
        plain_device(bindingConditions=conditions, bindingFailureConditions=failures)
    )

    if violation is None:
        assert found == ()
    else:
        assert found[0].startswith(violation)

"""ResourceSlices: validation, immutability, feature gates."""

import pytest

from dra_simulator.api.gates import DEFAULT_GATES
from dra_simulator.apiserver import ApiServer
from tests.dra_simulator.api.client import SLICES, Client, Json
from tests.support.builders.documents import device_document, slice_document


def test_one_bad_device_makes_the_whole_slice_invalid(api: Client) -> None:
    bad = device_document("gpu-1", attributes={"driver_version": {"version": "535.104.05"}})

    reply = api.post(SLICES, slice_document(devices=[device_document(), bad]))

    assert (reply.code, reply.json["reason"]) == (422, "Invalid")
    assert reply.message == (
        'ResourceSlice.resource.k8s.io "slice-a" is invalid:'
        " spec.devices[1].attributes[driver_version].version: Invalid value:"
        ' "535.104.05": must be a string compatible with semver.org spec 2.0.0'
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
    taint = {"key": "example.com/unhealthy", "effect": "NoExecute"}

    made = api.post(SLICES, slice_document(devices=[device_document(taints=[taint])]))

    assert made.json["spec"]["devices"][0]["taints"][0]["timeAdded"].endswith("Z")


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
    wanted = slice_document(devices=[device_document(**device)])
    with ApiServer(gates=DEFAULT_GATES - {gate}) as server:
        api = Client(server.url)
        reply = api.post(f"{SLICES}?fieldValidation=Strict", wanted)
        api.close()

    stored = reply.json["spec"]["devices"][0]
    assert (reply.code, "warning" in reply.headers) == (201, False)
    assert dropped <= wanted["spec"]["devices"][0].keys()
    assert stored.keys().isdisjoint(dropped)
    assert ("requestPolicy" in str(stored)) == (
        "requestPolicy" in str(wanted) and gate != "DRAConsumableCapacity"
    )

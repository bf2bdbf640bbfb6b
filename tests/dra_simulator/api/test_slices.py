"""ResourceSlices: validation, immutability, feature gates."""

from collections.abc import Iterator

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


def test_devices_and_counters_cannot_be_in_one_slice_even_if_empty(api: Client) -> None:
    counters = [{"name": "memory", "counters": {"bytes": {"value": "1"}}}]

    both = api.post(SLICES, slice_document(devices=[], sharedCounters=counters))
    one = api.post(SLICES, slice_document(devices=None, sharedCounters=counters))

    assert both.causes == [("spec", "FieldValueInvalid")]
    assert one.code == 201


@pytest.fixture
def without(request: pytest.FixtureRequest) -> Iterator[Client]:
    """Client of a server on which the parameter's gates are disabled."""
    with ApiServer(gates=DEFAULT_GATES - request.param) as server:
        client = Client(server.url)
        yield client
        client.close()


@pytest.mark.parametrize("without", [{"DRAConsumableCapacity"}], indirect=True)
def test_without_its_gate_consumable_capacity_is_dropped_silently(without: Client) -> None:
    reply = without.post(f"{SLICES}?fieldValidation=Strict", slice_document())

    assert reply.code == 201
    assert "warning" not in reply.headers
    stored = reply.json["spec"]["devices"][0]
    assert "allowMultipleAllocations" not in stored
    assert stored["capacity"] == {"vram": {"value": "40Gi"}}


@pytest.mark.parametrize("without", [{"DRADeviceTaints"}], indirect=True)
def test_without_its_gate_taints_are_dropped(without: Client) -> None:
    taints = [{"key": "a", "effect": "NoSchedule"}]

    made = without.post(SLICES, slice_document(devices=[device_document(taints=taints)]))

    assert "taints" not in made.json["spec"]["devices"][0]


@pytest.mark.parametrize("without", [{"DRAPartitionableDevices"}], indirect=True)
def test_without_its_gate_partitions_are_dropped(without: Client) -> None:
    consumed = [{"counterSet": "memory", "counters": {"bytes": {"value": "1"}}}]

    made = without.post(
        SLICES,
        slice_document(
            perDeviceNodeSelection=True, devices=[device_document(consumesCounters=consumed)]
        ),
    )

    assert "consumesCounters" not in made.json["spec"]["devices"][0]
    assert "perDeviceNodeSelection" not in made.json["spec"]


@pytest.mark.parametrize("without", [{"DRAResourceClaimDeviceStatus"}], indirect=True)
def test_binding_conditions_need_the_gate_of_the_status_as_well(without: Client) -> None:
    conditions: Json = {"bindingConditions": ["a"], "bindingFailureConditions": ["b"]}

    made = without.post(
        SLICES, slice_document(devices=[device_document(bindsToNode=True, **conditions)])
    )

    assert not {"bindsToNode", *conditions} & set(made.json["spec"]["devices"][0])


def test_list_attributes_are_dropped_by_default_and_then_lack_a_value(api: Client) -> None:
    listed = device_document(attributes={"links": {"strings": ["a", "b"]}})

    reply = api.post(SLICES, slice_document(devices=[listed]))

    assert reply.causes == [("spec.devices[0].attributes[links]", "FieldValueInvalid")]


def test_list_attributes_are_kept_with_their_gate() -> None:
    listed = device_document(attributes={"links": {"strings": ["a", "b"]}})
    with ApiServer(gates={*DEFAULT_GATES, "DRAListTypeAttributes"}) as server:
        api = Client(server.url)

        reply = api.post(SLICES, slice_document(devices=[listed]))
        api.close()

    assert reply.json["spec"]["devices"][0]["attributes"] == {"links": {"strings": ["a", "b"]}}

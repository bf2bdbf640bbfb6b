"""Status of a claim: its allocation, its consumers, the status of its devices."""

import pytest

from dra_simulator.api.gates import DEFAULT_GATES
from dra_simulator.apiserver import ApiServer
from tests.dra_simulator.api.client import CLAIMS, Client, Json, Reply
from tests.support.builders.documents import (
    SHARE,
    allocation_document,
    claim_document,
    condition,
    device_status,
    request_document,
    result_document,
)

STATUS = f"{CLAIMS}/claim-a/status"
CONFIG = {"source": "FromClass", "opaque": {"driver": "d", "parameters": {}}}
USER = {"resource": "pods", "name": "pod-a", "uid": "u"}


def write(api: Client, **status: object) -> Reply:
    """Write the status of a new claim with two requests, one of which has alternatives."""
    alternatives = [{"name": "big", "deviceClassName": "tensor-fusion.ai"}]
    requests = [request_document(), {"name": "any", "firstAvailable": alternatives}]
    api.post(CLAIMS, claim_document(requests=requests))
    return api.patch(STATUS, {"status": status})


def test_an_allocation_is_stored_with_canonical_amounts(api: Client) -> None:
    stored = write(api, allocation=allocation_document(), reservedFor=[USER]).json["status"]

    assert stored["allocation"]["devices"]["results"][0]["consumedCapacity"] == {"vram": "1Gi"}
    assert stored["reservedFor"] == [USER]


@pytest.mark.parametrize(
    "results",
    [
        [result_document(device=f"gpu-{index}") for index in range(32)],
        [result_document(request="any/big")],
        [result_document(request="any", shareID=None, consumedCapacity=None)],
        [result_document(bindingConditions=["a"], bindingFailureConditions=["b"])],
        [result_document(consumedCapacity={"vram": "-1"})],
    ],
)
def test_an_allocation_within_the_limits_is_accepted(api: Client, results: list[Json]) -> None:
    assert write(api, allocation=allocation_document(*results)).code == 200


@pytest.mark.parametrize(
    ("fields", "cause"),
    [
        ({"request": "other"}, ("request", "Invalid")),
        ({"request": "any/small"}, ("request", "Invalid")),
        ({"driver": ""}, ("driver", "Required")),
        ({"pool": "Pool"}, ("pool", "Invalid")),
        ({"device": ""}, ("device", "Invalid")),
        ({"shareID": "share"}, ("shareID", "Invalid")),
        ({"shareID": SHARE.replace("1", "A")}, ("shareID", "Invalid")),
        ({"adminAccess": True}, ("adminAccess", "Forbidden")),
    ],
)
def test_a_result_that_breaks_a_rule_is_refused(
    api: Client, fields: Json, cause: tuple[str, str]
) -> None:
    reply = write(api, allocation=allocation_document(result_document(**fields)))

    path = f"status.allocation.devices.results[0].{cause[0]}"
    assert reply.causes == [(path, f"FieldValue{cause[1]}")]


@pytest.mark.parametrize(
    ("status", "cause"),
    [
        (
            {"allocation": allocation_document(*[result_document()] * 33)},
            ("allocation.devices.results", "TooMany"),
        ),
        (
            {"allocation": allocation_document(config=[CONFIG] * 65)},
            ("allocation.devices.config", "TooMany"),
        ),
        (
            {"allocation": allocation_document(config=[{**CONFIG, "source": "FromPod"}])},
            ("allocation.devices.config[0].source", "NotSupported"),
        ),
        (
            {"allocation": {**allocation_document(), "nodeSelector": {}}},
            ("allocation.nodeSelector.nodeSelectorTerms", "Required"),
        ),
        ({"reservedFor": [USER]}, ("reservedFor", "Forbidden")),
        (
            {
                "allocation": allocation_document(),
                "reservedFor": [{**USER, "uid": f"u{index}"} for index in range(257)],
            },
            ("reservedFor", "TooMany"),
        ),
        (
            {"allocation": allocation_document(), "reservedFor": [USER, USER]},
            ("reservedFor[1]", "Duplicate"),
        ),
        (
            {"allocation": allocation_document(), "reservedFor": [{**USER, "name": ""}]},
            ("reservedFor[0].name", "Required"),
        ),
        ({"devices": [device_status()]}, ("devices[0]", "Invalid")),
    ],
)
def test_a_status_that_breaks_a_rule_is_refused(
    api: Client, status: Json, cause: tuple[str, str]
) -> None:
    reply = write(api, **status)

    assert reply.causes == [(f"status.{cause[0]}", f"FieldValue{cause[1]}")]


def test_an_allocation_can_be_removed_but_not_changed(api: Client) -> None:
    write(api, allocation=allocation_document())

    changed = api.patch(
        STATUS, {"status": {"allocation": allocation_document(result_document(device="gpu-1"))}}
    )
    stamped = {"allocation": {"allocationTimestamp": "2026-01-01T00:00:00Z"}}
    completed = api.patch(STATUS, {"status": stamped})
    same = api.patch(STATUS, {"status": {"allocation": allocation_document()}})
    gone = api.patch(STATUS, {"status": {"allocation": None}})
    other = api.patch(
        STATUS, {"status": {"allocation": allocation_document(result_document(device="gpu-1"))}}
    )

    assert changed.causes == completed.causes == [("status.allocation", "FieldValueInvalid")]
    assert same.code == gone.code == other.code == 200
    assert gone.json["status"] == {}


def test_a_write_to_the_status_changes_nothing_else(api: Client) -> None:
    write(api)
    body = claim_document(requests=[])
    body["metadata"]["labels"] = {"a": "b"}

    reply = api.put(STATUS, {**body, "status": {"allocation": allocation_document()}})

    assert reply.code == 200
    assert "labels" not in reply.json["metadata"]
    assert len(reply.json["spec"]["devices"]["requests"]) == 2


def test_a_claim_in_deletion_gets_no_new_consumers(api: Client) -> None:
    write(api, allocation=allocation_document(), reservedFor=[USER])
    api.patch(f"{CLAIMS}/claim-a", {"metadata": {"finalizers": ["example.com/held"]}})
    api.delete(f"{CLAIMS}/claim-a")

    more = api.patch(STATUS, {"status": {"reservedFor": [USER, {**USER, "uid": "v"}]}})
    fewer = api.patch(STATUS, {"status": {"reservedFor": []}})

    assert more.causes == [("status.reservedFor", "FieldValueForbidden")]
    assert fewer.code == 200


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"conditions": [condition(type=f"C{index}") for index in range(8)]},
        {"data": {"a": [1, None]}},
        {"networkData": {"interfaceName": "e", "ips": ["10.0.0.1/24", "fd00::1/64"]}},
    ],
)
def test_the_status_of_an_allocated_device_is_accepted(api: Client, fields: Json) -> None:
    reply = write(api, allocation=allocation_document(), devices=[device_status(**fields)])

    assert reply.code == 200
    expected = {"conditions": None, **device_status(**fields)}
    assert reply.json["status"]["devices"] == [expected]


@pytest.mark.parametrize(
    ("fields", "cause"),
    [
        ({"device": "gpu-9"}, ("", "Invalid")),
        ({"shareID": None}, ("", "Invalid")),
        (
            {"conditions": [condition(type=f"C{index}") for index in range(9)]},
            (".conditions", "TooMany"),
        ),
        ({"conditions": [condition(), condition()]}, (".conditions[1].type", "Duplicate")),
        ({"conditions": [condition(status="Yes")]}, (".conditions[0].status", "NotSupported")),
        ({"conditions": [condition(reason="")]}, (".conditions[0].reason", "Required")),
        ({"conditions": [condition(reason="not one")]}, (".conditions[0].reason", "Invalid")),
        ({"conditions": [condition(reason="R" * 1025)]}, (".conditions[0].reason", "TooLong")),
        ({"conditions": [condition(message="m" * 32769)]}, (".conditions[0].message", "TooLong")),
        (
            {"conditions": [condition(lastTransitionTime=None)]},
            (".conditions[0].lastTransitionTime", "Required"),
        ),
        (
            {"conditions": [condition(observedGeneration=-1)]},
            (".conditions[0].observedGeneration", "Invalid"),
        ),
        ({"data": [1]}, (".data", "Invalid")),
        ({"data": {"a": "x" * 10_240}}, (".data", "TooLong")),
        ({"networkData": {"ips": ["10.0.0.1"]}}, (".networkData.ips[0]", "Invalid")),
        ({"networkData": {"ips": ["FD00::1/64"]}}, (".networkData.ips[0]", "Invalid")),
        (
            {"networkData": {"ips": [f"10.0.0.{index}/24" for index in range(17)]}},
            (".networkData.ips", "TooMany"),
        ),
        (
            {"networkData": {"interfaceName": "x" * 257}},
            (".networkData.interfaceName", "TooLong"),
        ),
    ],
)
def test_the_status_of_a_device_that_breaks_a_rule_is_refused(
    api: Client, fields: Json, cause: tuple[str, str]
) -> None:
    reply = write(api, allocation=allocation_document(), devices=[device_status(**fields)])

    assert reply.causes == [(f"status.devices[0]{cause[0]}", f"FieldValue{cause[1]}")]


def test_status_fields_of_disabled_gates_are_dropped() -> None:
    closed = {"DRAConsumableCapacity", "DRAResourceClaimDeviceStatus"}
    with ApiServer(gates=DEFAULT_GATES - closed) as server:
        api = Client(server.url)
        stored = write(api, allocation=allocation_document(), devices=[device_status()]).json[
            "status"
        ]
        api.close()

    assert set(stored) == {"allocation"}
    assert not {"shareID", "consumedCapacity"} & set(stored["allocation"]["devices"]["results"][0])

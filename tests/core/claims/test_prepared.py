"""Record of a prepared claim: its JSON, its access to cards, and its claim at the API server."""

import json
from dataclasses import replace
from typing import Any

import pytest

from tensorfusion_dra.core.claims import prepared
from tensorfusion_dra.core.claims.claim import AllocatedClaim, ClaimRef, PodRef
from tensorfusion_dra.core.claims.prepared import (
    CardAccess,
    DeviceMetadata,
    Mount,
    PreparedClaim,
    SharedAccess,
)
from tensorfusion_dra.core.devices.gpu import Isolation, Qos
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.core.kubernetes import quantity
from tensorfusion_dra.core.kubernetes.quantity import GIB
from tests.support.builders.allocations import allocation, exclusive_allocation, share_id
from tests.support.builders.claims import allocated_claim, claim_admission, claim_record
from tests.support.builders.gpus import gpu, gpus
from tests.support.builders.nodes import COMMON_NODES, node_facts

NODE = node_facts(*gpus(3))
GPU_0, GPU_1, GPU_2 = NODE.devices
RECORD = claim_record(
    "a",
    allocation(GPU_0, 1, tflops="71.2", request="main"),
    exclusive_allocation(GPU_1, request="whole"),
    exclusive_allocation(GPU_2, request="watch", admin_access=True),
    on=NODE,
)
MOUNT = Mount(host_path="/opt/lib/libcuda.so.1", container_path="/usr/lib/libcuda.so.1")


def test_everything_about_a_claim_survives_a_record() -> None:
    first = replace(
        RECORD.shares[0],
        toolkit_device="nvidia.com/gpu=0",
        isolation=Isolation.HARD,
        qos=Qos.CRITICAL,
        wanted_vram_bytes=2**53 + 1,
        granted=RECORD.shares[0].limit,
    )
    record = replace(
        RECORD,
        shares=(first, *RECORD.shares[1:]),
        sequence=7,
        pods=(PodRef(namespace="default", name="b", uid="uid-of-b"),),
        driver_mounts=(MOUNT, replace(MOUNT, read_only=False)),
        metadata=DeviceMetadata(attributes={GPU_0: {"a": {"int": 1}}}, pod_claim_name="my-gpu"),
    )

    assert PreparedClaim.from_json(json.loads(json.dumps(record.as_json()))) == record


@pytest.mark.parametrize(
    "field", ["namespace", "name", "uid", "shares", "sequence", "pods", "commonNodes", "enforcer"]
)
def test_record_without_one_of_its_fields_is_refused(field: str) -> None:
    kept = {name: value for name, value in RECORD.as_json().items() if name != field}

    with pytest.raises(KeyError, match=field):
        PreparedClaim.from_json(kept)


@pytest.mark.parametrize(
    ("consumed", "vram_bytes"),
    [
        ({}, 0),
        ({"tflops": "1", "vram": "8Gi"}, 8 * GIB),
        ({"tflops": "0", "vram": "0", "virtual_tflops": "1", "virtual_vram": "9Gi"}, 9 * GIB),
    ],
    ids=["admin access", "physical", "virtual"],
)
def test_memory_request_is_the_virtual_amount_if_the_pool_oversubscribes(
    consumed: dict[str, str], vram_bytes: int
) -> None:
    amounts = {name: quantity.parse(text) for name, text in consumed.items()}

    assert replace(RECORD.shares[0], consumed=amounts).reserved.vram_bytes == vram_bytes


TWO_DEVICES = claim_record(
    "a", allocation(GPU_0, 1), exclusive_allocation(GPU_1, request="whole"), on=NODE
)
POD_A, POD_B, POD_C = (PodRef(namespace="default", name=n, uid=f"uid-{n}") for n in "abc")


def confirmed_result(
    device: str, number: int | None, driver: str = "tensor-fusion.ai.dra-driver"
) -> Any:
    found = {"request": "gpu", "driver": driver, "pool": "default/node-01", "device": device}
    return found if number is None else {**found, "shareID": share_id(number)}


def fetched_claim(*results: Any, uid: str = "uid-a") -> dict[str, Any]:
    return {
        "metadata": {"namespace": "default", "name": "a", "uid": uid},
        "status": {"allocation": {"devices": {"results": list(results)}}},
    }


WHOLE_ANSWER = fetched_claim(
    confirmed_result(GPU_0, 1),
    confirmed_result(GPU_1, None),
    confirmed_result("nic-0", None, driver="other"),
)


@pytest.mark.parametrize(
    ("recorded", "answer", "why"),
    [
        (TWO_DEVICES, WHOLE_ANSWER, ""),
        (TWO_DEVICES.ref, WHOLE_ANSWER, ""),
        (replace(TWO_DEVICES.ref, uid="uid-b"), WHOLE_ANSWER, "replaced by UID uid-a"),
        # Without a record, any device of this driver counts.
        (TWO_DEVICES.ref, fetched_claim(confirmed_result(GPU_0, 7)), ""),
        # Allocated on this node again: a container may run with the recorded share until the
        # kubelet calls again.
        (TWO_DEVICES, fetched_claim(confirmed_result(GPU_0, 1)), ""),
        (
            TWO_DEVICES,
            fetched_claim(confirmed_result(GPU_0, 2), confirmed_result(GPU_1, None)),
            "",
        ),
        (
            TWO_DEVICES,
            fetched_claim({**confirmed_result(GPU_1, 3), "pool": "renamed/node-01"}),
            "",
        ),
        (TWO_DEVICES, {**WHOLE_ANSWER, "metadata": {"uid": "uid-b"}}, "replaced by UID uid-b"),
        (TWO_DEVICES, {"metadata": {"uid": "uid-a"}}, "not allocated"),
        (TWO_DEVICES, {"metadata": {"uid": "uid-a"}, "status": {}}, "not allocated"),
        (
            TWO_DEVICES,
            fetched_claim(confirmed_result("nic-0", None, driver="other")),
            "allocated without a device of this driver",
        ),
        (
            TWO_DEVICES,
            fetched_claim({**confirmed_result(GPU_0, 2), "pool": "default/node-02"}),
            "allocated from default/node-02, not on this node",
        ),
    ],
)
def test_claim_without_a_device_of_this_node_is_gone(
    recorded: PreparedClaim | ClaimRef, answer: dict[str, Any], why: str
) -> None:
    assert prepared.reason_gone(recorded, answer) == why


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ({"metadata": {"uid": "uid-a"}, "status": "allocated"}, "a malformed ResourceClaim"),
        (
            {"metadata": {"uid": "uid-a"}, "status": {"allocation": {"devices": ["gpu-0"]}}},
            "a malformed ResourceClaim",
        ),
        (fetched_claim(1), "a malformed ResourceClaim"),
        ({"metadata": "a"}, "a malformed ResourceClaim"),
        ({}, ".* without a UID"),
        ({"metadata": None}, ".* without a UID"),
        ({"metadata": {"uid": 7}}, ".* without a UID"),
    ],
)
def test_malformed_claim_is_an_error(answer: dict[str, Any], text: str) -> None:
    with pytest.raises(RetryableError, match=f"found {text}"):
        prepared.reason_gone(TWO_DEVICES, answer)


ONE_SHARE = allocated_claim("a", allocation(GPU_0, 1), pods=(POD_A,))
WHOLE_CARD = allocated_claim("a", exclusive_allocation(GPU_0), pods=(POD_A, POD_B))


@pytest.mark.parametrize(
    ("recorded", "changes", "describes"),
    [
        (ONE_SHARE, {}, True),
        (ONE_SHARE, {"pods": (POD_B,)}, True),
        (WHOLE_CARD, {"pods": (POD_B,)}, True),
        (replace(WHOLE_CARD, pods=()), {}, True),
        (ONE_SHARE, {"allocations": (allocation(GPU_0, 2),)}, False),
        (ONE_SHARE, {"allocations": (allocation(GPU_1, 1),)}, False),
        (ONE_SHARE, {"allocations": (allocation(GPU_0, 1, request="b"),)}, False),
        (ONE_SHARE, {"allocations": (allocation(GPU_0, 1), allocation(GPU_1, 3))}, False),
        (WHOLE_CARD, {"pods": (POD_C,)}, False),
        (replace(WHOLE_CARD, pods=()), {"pods": (POD_A, POD_B)}, False),
    ],
)
def test_record_describes_the_same_shares_and_a_whole_cards_pods(
    recorded: AllocatedClaim, changes: dict[str, Any], *, describes: bool
) -> None:
    record = claim_admission(recorded, on=NODE)

    assert prepared.describes(record, replace(recorded, **changes)) is describes


def test_reboot_changes_only_the_access() -> None:
    today = prepared.refreshed(
        RECORD,
        {
            GPU_0: CardAccess(device_nodes=("/dev/nvidia7",)),
            GPU_1: CardAccess(device_nodes=("/dev/nvidia6",), toolkit_device="nvidia.com/gpu=6"),
        },
        SharedAccess(device_nodes=("/dev/nvidiactl",), driver_mounts=(MOUNT,)),
        boot_id="boot-2",
    )

    assert [(item.device_nodes, item.toolkit_device) for item in today.shares] == [
        (("/dev/nvidia7",), None),
        (("/dev/nvidia6",), "nvidia.com/gpu=6"),
        (("/dev/nvidia2",), None),
    ]
    assert (today.common_nodes, today.driver_mounts) == (("/dev/nvidiactl",), (MOUNT,))
    assert prepared.refreshed(today, NODE.access, NODE.shared_access, boot_id="") == RECORD


def test_boot_id_is_set_only_if_every_share_is_refreshed() -> None:
    whole = prepared.refreshed(RECORD, NODE.access, NODE.shared_access, boot_id="boot-2")
    access = {name: card for name, card in NODE.access.items() if name != GPU_1}
    part = prepared.refreshed(whole, access, NODE.shared_access, boot_id="boot-3")

    assert whole.boot_id == part.boot_id == "boot-2"


def test_claim_on_simulated_cards_gets_no_host_access() -> None:
    simulated = node_facts(gpu(minor=None))
    record = claim_record("a", allocation(GPU_0, 1), on=simulated)
    shared = SharedAccess(device_nodes=COMMON_NODES, driver_mounts=(MOUNT,))

    today = prepared.refreshed(record, {GPU_0: CardAccess()}, shared, boot_id="")

    assert today == record
    assert (today.common_nodes, today.driver_mounts) == ((), ())

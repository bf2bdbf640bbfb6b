"""Allocated claims as they are read from the API server, and the records of prepared ones."""

import json
from dataclasses import replace
from typing import Any

import pytest

from tensorfusion_dra.core.claims import claim as claim_rules
from tensorfusion_dra.core.claims import prepared
from tensorfusion_dra.core.claims.claim import (
    AllocatedClaim,
    Allocation,
    ClaimRef,
    OpaqueConfig,
    PodRef,
)
from tensorfusion_dra.core.claims.prepared import (
    UNDIVIDED,
    CardAccess,
    DeviceMetadata,
    Mount,
    PreparedClaim,
    PreparedShare,
    SharedAccess,
)
from tensorfusion_dra.core.devices.gpu import Isolation, Qos
from tensorfusion_dra.core.errors import ClaimError, RetryableError
from tensorfusion_dra.core.kubernetes import quantity
from tensorfusion_dra.core.kubernetes.quantity import GIB
from tests.support.builders.allocations import allocation, exclusive_allocation, share_id
from tests.support.builders.claims import allocated_claim, claim_admission, claim_record
from tests.support.builders.gpus import gpu, gpus
from tests.support.builders.nodes import COMMON_NODES, node_facts
from tests.support.builders.stored_claims import allocation_result, stored_claim

REF = ClaimRef(namespace="default", name="a", uid="0a0b0c0d-0000-4000-8000-000000000001")
DEVICE = "gpu-8f3a"
POOL = "default/node-01"


def full_result(**changes: Any) -> dict[str, Any]:
    """Return a result for 100 TFLOPS and 16Gi; a change to None removes the field."""
    given = {**allocation_result(DEVICE, tflops="100", vram="16Gi"), **changes}
    return {name: value for name, value in given.items() if value is not None}


def stored_claim_a(*results: dict[str, Any], **allocated: Any) -> dict[str, Any]:
    """Return the claim with these results, or else one; further fields are of its devices."""
    claim = stored_claim("a", *(results or [full_result()]), uid=REF.uid)
    claim["status"]["allocation"]["devices"] |= allocated
    return claim


def read_allocations(*results: dict[str, Any]) -> tuple[Allocation, ...]:
    return claim_rules.allocated(REF, stored_claim_a(*results)).allocations


NOT_ALLOCATED: list[Any] = [
    *(None, {}, {"allocation": None}, {"allocation": {}}, {"reservedFor": []})
]
WHOLE = {"shareID": None, "consumedCapacity": None}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"shareID": share_id(1)},
            Allocation(
                request="gpu",
                pool=POOL,
                device=DEVICE,
                share_id=share_id(1),
                consumed={"tflops": quantity.parse("100"), "vram": quantity.parse("16Gi")},
            ),
        ),
        (WHOLE, Allocation(request="gpu", pool=POOL, device=DEVICE, share_id=None, consumed={})),
        (
            {**WHOLE, "adminAccess": True},
            Allocation(
                request="gpu",
                pool=POOL,
                device=DEVICE,
                share_id=None,
                consumed={},
                admin_access=True,
            ),
        ),
        # A choice of a prioritized list.
        (
            {**WHOLE, "request": "gpu/small-one"},
            Allocation(
                request="gpu",
                subrequest="small-one",
                pool=POOL,
                device=DEVICE,
                share_id=None,
                consumed={},
            ),
        ),
    ],
)
def test_allocation_of_every_kind_is_read(changes: dict[str, Any], expected: Allocation) -> None:
    assert read_allocations(full_result(**changes)) == (expected,)


def test_only_configs_of_this_driver_are_read_in_their_order() -> None:
    ours = {"driver": "tensor-fusion.ai.dra-driver", "parameters": {"kind": "GpuShare"}}
    claim = stored_claim_a(
        config=[
            {"source": "FromClass", "opaque": ours},
            {"source": "FromClaim", "opaque": {**ours, "driver": "nic.example.com"}},
            {"source": "FromClaim", "requests": ["gpu", "b/c"], "opaque": ours},
            {"source": "FromClaim"},
        ]
    )

    assert claim_rules.allocated(REF, claim).configs == (
        OpaqueConfig(trusted=True, requests=(), parameters={"kind": "GpuShare"}),
        OpaqueConfig(trusted=False, requests=("gpu", "b/c"), parameters={"kind": "GpuShare"}),
    )


@pytest.mark.parametrize("source", ["FromClaim", "fromclass", "", None, "FromElsewhere"])
def test_only_configs_from_a_class_are_trusted(source: str | None) -> None:
    opaque = {"driver": "tensor-fusion.ai.dra-driver"}
    claim = stored_claim_a(config=[{"source": source, "opaque": opaque}])

    assert claim_rules.allocated(REF, claim).configs == (
        OpaqueConfig(trusted=False, requests=(), parameters=None),
    )


def test_pods_annotations_and_other_consumers_are_read() -> None:
    claim = stored_claim_a()
    claim["metadata"]["annotations"] = {"tensor-fusion.ai/qos": "high"}
    claim["status"]["reservedFor"] += [
        {"apiGroup": "example.com", "resource": "jobs", "name": "j", "uid": "uid-of-j"},
        {"apiGroup": "example.com", "resource": "pods", "name": "p", "uid": "uid-of-p"},
        {"resource": "pods", "name": "b", "uid": "uid-of-b"},
    ]

    found = claim_rules.allocated(REF, claim)

    assert found.annotations == {"tensor-fusion.ai/qos": "high"}
    assert found.pods == (
        PodRef(namespace="default", name="a", uid="uid-of-a"),
        PodRef(namespace="default", name="b", uid="uid-of-b"),
    )
    assert found.group == "jobs/j, pods/p"


@pytest.mark.parametrize("nothing", [None, [], {}])
def test_empty_fields_mean_no_configs_pods_and_annotations(nothing: object) -> None:
    claim = stored_claim_a(config=nothing)
    claim["metadata"]["annotations"] = claim["status"]["reservedFor"] = nothing

    found = claim_rules.allocated(REF, claim)

    assert (found.configs, found.pods, found.annotations) == ((), (), {})


def test_results_keep_their_order_and_other_drivers_are_skipped() -> None:
    nic = {"driver": "nic.example.com", "consumedCapacity": {"bandwidth": "nonsense"}}
    results = (full_result(request="b"), full_result(**nic), full_result(request="a"))

    assert [allocation.request for allocation in read_allocations(*results)] == ["b", "a"]


@pytest.mark.parametrize("results", [None, [], [full_result(driver="nic.example.com")]])
def test_claim_without_our_devices_has_no_allocations(results: object) -> None:
    assert claim_rules.allocated(REF, stored_claim_a(results=results)).allocations == ()


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"metadata": {"uid": "another-uid"}}, f"found UID another-uid, expected {REF.uid}"),
        *(({"status": status}, "found no allocation, expected one") for status in NOT_ALLOCATED),
    ],
)
def test_replaced_claim_and_one_that_is_not_allocated_are_refused(
    changes: dict[str, Any], text: str
) -> None:
    with pytest.raises(ClaimError, match=f"claim default/a: {text}"):
        claim_rules.allocated(REF, {**stored_claim_a(), **changes})


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        *(
            (
                {"consumedCapacity": {"tflops": "1", "vram": amount}},
                f"{DEVICE}: vram: found -.*, expected 0 or more",
            )
            for amount in ("-1", "-1Mi", "-0.000000001", "-9999999999999Ei")
        ),
        *(
            ({"consumedCapacity": {"tflops": amount}}, f"{DEVICE}: tflops: found .*, expected ")
            for amount in ("", "NaN", "inf", "1_000", "16 Gi", "all", "1e999999999", None)
        ),
        *(
            ({field: value}, f"{field}: found .*, expected a name")
            for field in ("request", "pool", "device")
            for value in (None, 7, ["gpu"])
        ),
    ],
)
def test_result_with_a_malformed_amount_or_name_is_refused(
    changes: dict[str, Any], text: str
) -> None:
    with pytest.raises(ClaimError, match=f"claim default/a: {text}"):
        read_allocations(full_result(**changes))


@pytest.mark.parametrize(
    "uid",
    [
        "",
        ".",
        "..",
        "../../etc/passwd",
        "a/b",
        "a\\b",
        "a\0b",
        "a b",
        "a\n",
        "a.json",
        "-a",
        "a-",
        "a" * 64,
        "é",
        "\u0661",
        "a=b",
        "/" * 1_000_000,
    ],
    ids=lambda uid: ascii(uid[:20]),
)
def test_uid_that_is_unsafe_in_a_file_name_is_refused(uid: str) -> None:
    with pytest.raises(ClaimError, match=r"claim default/a: UID .{,200}, expected letters"):
        claim_rules.check_ref(replace(REF, uid=uid))


@pytest.mark.parametrize("uid", [REF.uid, "a", "A1", "a" * 63, "0" * 32])
def test_uid_of_letters_digits_and_hyphens_is_accepted(uid: str) -> None:
    claim_rules.check_ref(replace(REF, uid=uid))


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
    others = (replace(each, limit=each.limit and UNDIVIDED) for each in RECORD.shares[1:])
    record = replace(
        RECORD,
        shares=(first, *others),
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
    kept = {**RECORD.shares[0].as_json(), "consumed": consumed}

    assert PreparedShare.from_json(kept).reserved.vram_bytes == vram_bytes


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

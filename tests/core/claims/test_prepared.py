"""Record of a prepared claim: its JSON in the ledger, and the amounts that follow from it."""

import json
from dataclasses import replace

import pytest
from hypothesis import strategies as st

from tensorfusion_dra.core.claims.claim import PodRef
from tensorfusion_dra.core.claims.prepared import Mount, PreparedClaim
from tensorfusion_dra.core.devices.sharing import Isolation, Qos
from tensorfusion_dra.core.kubernetes import quantity
from tensorfusion_dra.core.kubernetes.quantity import GIB
from tests.support.builders.allocations import allocation, exclusive_allocation
from tests.support.builders.claims import claim_record
from tests.support.builders.gpus import gpus
from tests.support.builders.nodes import node_facts
from tests.support.builders.policies import share_policy

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


def reread(record: PreparedClaim) -> PreparedClaim:
    return PreparedClaim.from_json(json.loads(json.dumps(record.as_json())))


def test_pods_mounts_and_policy_survive_the_ledger() -> None:
    first = replace(
        RECORD.shares[0],
        toolkit_device="nvidia.com/gpu=0",
        isolation=Isolation.HARD,
        qos=Qos.CRITICAL,
        wanted_vram_bytes=2**53 + 1,
    )
    record = replace(
        RECORD,
        shares=(first, *RECORD.shares[1:]),
        sequence=7,
        pods=(PodRef(namespace="default", name="b", uid="uid-of-b"),),
        driver_mounts=(MOUNT, replace(MOUNT, read_only=False)),
    )

    assert reread(record) == record


amounts = st.tuples(st.integers(0, 312 * 10**9), st.integers(0, 10**12))


@pytest.mark.parametrize(
    "field", ["namespace", "name", "uid", "shares", "sequence", "pods", "commonNodes", "enforcer"]
)
def test_record_without_one_of_its_fields_is_refused(field: str) -> None:
    kept = RECORD.as_json()
    del kept[field]

    with pytest.raises(KeyError, match=field):
        PreparedClaim.from_json(kept)


def test_share_is_clamped_if_its_limit_is_below_the_wanted_one() -> None:
    (kept,) = claim_record(
        "a", allocation(GPU_0, 1, vram="8Gi"), on=NODE, policy=share_policy(vram="16Gi")
    ).shares
    assert kept.limit is not None

    smaller = replace(kept, limit=replace(kept.limit, vram_bytes=16 * GIB - 1))

    assert not kept.clamped
    assert smaller.clamped
    assert not replace(smaller, limit=None).clamped


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

    assert replace(RECORD.shares[0], consumed=amounts).vram_request_bytes == vram_bytes

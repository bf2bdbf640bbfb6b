"""Access of a container to its cards, and its changes at a reboot."""

from tensorfusion_dra.core.claims import access
from tensorfusion_dra.core.claims.access import CardAccess, SharedAccess
from tensorfusion_dra.core.claims.prepared import Mount
from tests.support.builders.allocations import allocation, exclusive_allocation
from tests.support.builders.claims import claim_record
from tests.support.builders.devices import published_devices
from tests.support.builders.gpus import gpu, gpus
from tests.support.builders.nodes import COMMON_NODES, node_facts

NODE = node_facts(*gpus(3))
GPU_0, GPU_1, GPU_2 = NODE.devices
RECORD = claim_record(
    "a",
    allocation(GPU_0, 1, request="main"),
    exclusive_allocation(GPU_1, request="whole"),
    exclusive_allocation(GPU_2, request="watch", admin_access=True),
    on=NODE,
)
MOUNT = Mount(host_path="/opt/lib/libcuda.so.1", container_path="/usr/lib/libcuda.so.1")


def test_reboot_changes_only_the_access() -> None:
    today = access.refreshed(
        RECORD,
        {
            GPU_0: CardAccess(device_nodes=("/dev/nvidia7",)),
            GPU_1: CardAccess(device_nodes=("/dev/nvidia6",), toolkit_device="nvidia.com/gpu=6"),
        },
        SharedAccess(device_nodes=("/dev/nvidiactl",), driver_mounts=(MOUNT,)),
        boot_id="boot-2",
    )

    assert [item.device_nodes for item in today.shares] == [
        ("/dev/nvidia7",),
        ("/dev/nvidia6",),
        ("/dev/nvidia2",),
    ]
    assert [item.toolkit_device for item in today.shares] == [None, "nvidia.com/gpu=6", None]
    assert today.common_nodes == ("/dev/nvidiactl",)
    assert today.driver_mounts == (MOUNT,)
    assert access.refreshed(today, NODE.access, NODE.shared_access, boot_id="") == RECORD


def test_boot_id_is_set_only_if_every_share_is_refreshed() -> None:
    whole = access.refreshed(RECORD, NODE.access, NODE.shared_access, boot_id="boot-2")
    part = {name: card for name, card in NODE.access.items() if name != GPU_1}

    assert whole.boot_id == "boot-2"
    assert access.refreshed(whole, part, NODE.shared_access, boot_id="boot-3").boot_id == "boot-2"


def test_claim_on_simulated_cards_gets_no_host_access() -> None:
    simulated = gpu(minor=None)
    (device,) = published_devices(simulated)
    record = claim_record("a", allocation(device.name, 1), on=node_facts(simulated))
    shared = SharedAccess(device_nodes=COMMON_NODES, driver_mounts=(MOUNT,))

    today = access.refreshed(record, {device.name: CardAccess()}, shared, boot_id="")

    assert today == record
    assert (today.common_nodes, today.driver_mounts) == ((), ())

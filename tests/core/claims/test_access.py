"""How a container gets at its cards, and what a reboot changes of that."""

from dataclasses import replace

from tensorfusion_dra.core.claims import access
from tensorfusion_dra.core.claims.access import CardAccess, SharedAccess
from tensorfusion_dra.core.claims.mounts import Mount
from tests.support.claims import COMMON_NODES, exclusive, node_offer, prepared, share
from tests.support.gpus import cards, gpu, published

NODE = node_offer(*cards(3))
GPU_0, GPU_1, GPU_2 = NODE.devices
RECORD = prepared(
    "a",
    share(GPU_0, 1, request="main"),
    exclusive(GPU_1, request="whole"),
    exclusive(GPU_2, request="watch", admin_access=True),
    on=NODE,
)
MOUNT = Mount(host_path="/opt/lib/libcuda.so.1", container_path="/usr/lib/libcuda.so.1")


def test_after_a_reboot_the_access_is_todays_and_all_else_stays() -> None:
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


def test_the_boot_is_todays_only_if_every_share_has_todays_access() -> None:
    whole = access.refreshed(RECORD, NODE.access, NODE.shared_access, boot_id="boot-2")
    part = {name: card for name, card in NODE.access.items() if name != GPU_1}

    assert whole.boot_id == "boot-2"
    assert access.refreshed(whole, part, NODE.shared_access, boot_id="boot-3").boot_id == "boot-2"


def test_the_same_access_gives_the_same_record() -> None:
    assert access.refreshed(RECORD, NODE.access, NODE.shared_access, boot_id="") == RECORD


def test_a_toolkit_device_that_is_gone_is_no_longer_named() -> None:
    before = replace(RECORD, shares=(replace(RECORD.shares[0], toolkit_device="nvidia.com/gpu=0"),))

    (today,) = access.refreshed(before, NODE.access, NODE.shared_access, boot_id="").shares

    assert today.toolkit_device is None


def test_a_claim_on_simulated_cards_takes_nothing_of_the_host() -> None:
    simulated = gpu(minor=None)
    (device,) = published(simulated)
    record = prepared("a", share(device.name, 1), on=node_offer(simulated))
    shared = SharedAccess(device_nodes=COMMON_NODES, driver_mounts=(MOUNT,))

    today = access.refreshed(record, {device.name: CardAccess()}, shared, boot_id="")

    assert today == record
    assert (today.common_nodes, today.driver_mounts) == ((), ())

"""Which cards something else gives to containers as well."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tensorfusion_dra.core.devices import other_users
from tensorfusion_dra.core.devices.other_users import Allocations, OtherUser
from tests.support.builders.gpus import gpu

CARD = gpu(pci_bus_id="0000:18:00.0")
UUID = CARD.uuid
NOW = datetime(2026, 3, 1, tzinfo=UTC)
NVIDIA_SLICE = {
    "spec": {
        "driver": "gpu.nvidia.com",
        "pool": {"name": "node-01"},
        "devices": [{"name": "gpu-0", "attributes": {"uuid": {"string": UUID}}}],
    }
}
BY_PCI_ADDRESS = {
    "spec": {
        "driver": "other.example.com",
        "pool": {"name": "p"},
        "devices": [
            {
                "name": "a",
                "attributes": {"resource.kubernetes.io/pciBusID": {"string": "0000:18:00.0"}},
            }
        ],
    }
}
PLUGIN, OTHER_CARD = ("nvidia.com/gpu", UUID), ("nvidia.com/gpu", "GPU-other")


@pytest.mark.parametrize(
    ("offered", "held", "claims", "slices", "user"),
    [
        ([], [], [], [{"spec": {"driver": "empty.example.com", "pool": {"name": "p"}}}], None),
        ([OTHER_CARD], [OTHER_CARD], [], [], None),
        ([PLUGIN], [], [], [], ("nvidia-device-plugin", False)),
        ([PLUGIN], [PLUGIN], [], [], ("nvidia-device-plugin", True)),
        ([], [PLUGIN], [], [], ("nvidia-device-plugin", True)),
        ([], [("nvidia.com/gpu.shared", f"{UUID}::3")], [], [], ("nvidia-device-plugin", True)),
        ([("volcano.sh/vgpu-number", f"{UUID}-0")], [], [], [], ("volcano.sh", False)),
        ([], [], [], [NVIDIA_SLICE], ("gpu.nvidia.com", False)),
        ([], [], [], [BY_PCI_ADDRESS], ("other.example.com", False)),
        (
            [],
            [],
            [("gpu.nvidia.com", "node-01", "gpu-0")],
            [NVIDIA_SLICE],
            ("gpu.nvidia.com", True),
        ),
        (
            [],
            [],
            [("gpu.nvidia.com", "node-01", "gpu-1")],
            [NVIDIA_SLICE],
            ("gpu.nvidia.com", False),
        ),
        ([], [], [("tensor-fusion.ai.dra-driver", "default/node-01", UUID)], [], None),
        ([], [PLUGIN], [], [NVIDIA_SLICE], ("nvidia-device-plugin", True)),
    ],
)
def test_a_card_is_named_by_uuid_or_pci_address_and_held_while_a_container_has_it(
    offered: list[tuple[str, str]],
    held: list[tuple[str, str]],
    claims: list[tuple[str, str, str]],
    slices: list[dict[str, Any]],
    user: tuple[str, bool] | None,
) -> None:
    allocations = Allocations(
        offered=frozenset(offered), held=frozenset(held), claims=frozenset(claims)
    )

    found = other_users.of_cards([CARD, gpu(1)], allocations, slices, before={}, now=NOW)

    expected = {UUID: OtherUser(name=user[0], holds=user[1], since=NOW)} if user else {}
    assert found == expected


def test_the_same_other_user_is_there_since_it_came() -> None:
    plugin = Allocations(offered=frozenset({("nvidia.com/gpu", UUID)}))
    first = other_users.of_cards([CARD], plugin, [], before={}, now=NOW)
    later = NOW + timedelta(hours=1)

    same = other_users.of_cards([CARD], plugin, [], before=first, now=later)
    another = other_users.of_cards([CARD], Allocations(), [NVIDIA_SLICE], before=same, now=later)

    assert (same[UUID].since, another[UUID].since) == (NOW, later)

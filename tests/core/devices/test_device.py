"""Device that is published for a card: the guide's attributes, within the API's limits; taints."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_simulator.api import object_rules
from tensorfusion_dra.core import names
from tensorfusion_dra.core.devices import device as device_facts
from tensorfusion_dra.core.devices import other_users
from tensorfusion_dra.core.devices.capacity import Oversubscription
from tensorfusion_dra.core.devices.device import Enforcement, Node, Version
from tensorfusion_dra.core.devices.gpu import Gpu, HostResources, LeftOut
from tensorfusion_dra.core.devices.health import HealthProblem, ProblemKind, Unhealthy
from tensorfusion_dra.core.devices.other_users import KubeletDevices, OtherUser
from tests.core.devices.slice_documents import slice_spec
from tests.support.builders.devices import NODE, published_devices
from tests.support.builders.gpus import gpu, gpus


def test_card_with_unknown_facts_has_every_attribute_except_its_location() -> None:
    (known,), (unknown,) = (
        published_devices(gpu()),
        published_devices(
            gpu(
                model="",
                product_name="",
                architecture="",
                compute_capability=(0, 0),
                driver_version="",
                pci_bus_id=None,
                pcie_root=None,
                numa_node=None,
            )
        ),
    )

    missing = known.attributes.keys() - unknown.attributes.keys()
    assert missing == {names.ATTR_PCI_BUS_ID, names.ATTR_PCIE_ROOT, names.ATTR_NUMA_NODE}


POOL = replace(
    NODE,
    oversubscription=Oversubscription(
        tflops_percent=150, host_memory_percent=0, host_disk_percent=0
    ),
)


def test_an_oversubscribed_device_has_every_capacity() -> None:
    (device,) = published_devices(gpu(), node=POOL)

    assert set(device.capacity) == names.CAPACITIES


def test_devices_have_the_names_and_attributes_that_users_select() -> None:
    card = gpu(uuid="GPU-8F3A1B2C-0000-4000-8000-00000000ABCD")
    others = gpus(8)[1:]
    lost = (LeftOut(subject="GPU-9", reason="lost"),)

    device, *_ = published_devices(card, *others, left_out=lost)

    assert device.name == "gpu-8f3a1b2c-0000-4000-8000-00000000abcd"
    assert (
        device.attributes_as_api().items()
        >= {
            "uuid": {"string": card.uuid},
            "model": {"string": "A100"},
            "pool_name": {"string": "default"},
            "node_name": {"string": "node-01"},
            "qos": {"string": "medium"},
            "phase": {"string": "Running"},
            "used_by": {"string": ""},
            "cuda_compute_capability": {"version": "8.0.0"},
            "driver_version": {"version": "550.54.15"},
            "resource.kubernetes.io/pciBusID": {"string": "0000:01:00.0"},
            "resource.kubernetes.io/numaNode": {"int": 0},
            # Totals count the cards of the node.
            "node_total_tflops": {"string": "2496"},
            "node_total_vram": {"string": "640Gi"},
            "node_total_gpus": {"int": 9},
            "node_managed_gpus": {"int": 8},
        }.items()
    )


@pytest.mark.parametrize(
    ("milli_tflops", "total"),
    [(125_000, "1000"), (71_200, "569.6"), (1, "0.008"), (250_000_000, "2000000"), (10_000, "80")],
)
def test_total_compute_is_a_plain_decimal_which_cel_reads_as_a_double(
    milli_tflops: int, total: str
) -> None:
    device, *_ = published_devices(*(replace(card, milli_tflops=milli_tflops) for card in gpus(8)))

    totals = {"node_total_tflops": total, "node_virtual_tflops": total}
    assert device.attributes.items() >= totals.items()


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("550.54.15", "550.54.15"),
        ("535.104.05", "535.104.5"),
        ("12.4", "12.4.0"),
        ("580", "580.0.0"),
        ("v1.2.3-rc1", "1.2.3"),
        ("1.2.3.4", "1.2.3"),
        ("", "0.0.0"),
        ("unknown", "0.0.0"),
        ("00.00.00", "0.0.0"),
        ("\u0663.\u0661", "0.0.0"),
    ],
)
def test_version_text_of_a_driver_becomes_a_semantic_version(text: str, version: str) -> None:
    assert device_facts.semantic_version(text) == Version(version)


def test_long_text_is_cut_between_characters_at_64_bytes() -> None:
    texts: Any = {"product_name": "é" * 40, "architecture": "x" * 65, "model": "é" * 31 + "xyz"}

    (device,) = published_devices(gpu(**texts))

    expected = {"product_name": "é" * 32, "architecture": "x" * 64, "model": "é" * 31 + "xy"}
    assert device.attributes.items() >= expected.items()


SINCE = datetime(2026, 3, 1, tzinfo=UTC)
GIVEN_UP = Enforcement(given_up_since=SINCE)


def unhealthy(kind: ProblemKind = ProblemKind.XID) -> Unhealthy:
    problem = HealthProblem(kind=kind, reason="xid-79", text="XID 79: GPU has fallen off the bus")
    return Unhealthy(worst=problem, since=SINCE)


RATIOS = st.builds(
    Oversubscription,
    tflops_percent=st.integers(1, 100_000),
    host_memory_percent=st.integers(0, 100),
    host_disk_percent=st.integers(0, 100),
)
CARDS = st.builds(
    gpu,
    product_name=st.text(),
    model=st.text(),
    architecture=st.text(),
    driver_version=st.text(),
    compute_capability=st.tuples(st.integers(0, 999), st.integers(0, 999)),
    milli_tflops=st.integers(1, 10**9),
    vram_bytes=st.integers(2 * 2**20, 2**50),
    numa_node=st.none() | st.integers(0, 2**31),
)
NODES = st.builds(
    Node,
    name=st.text(),
    gpupool=st.text(),
    qos=st.just("high"),
    oversubscription=RATIOS | st.none(),
)
USERS = st.sampled_from(
    ["nvidia.com/gpu", "aliyun.com/gpu-mem", f"{'a' * 63}.{'b-' * 60}c/gpu", "gpu"]
)


@given(
    card=CARDS,
    node=NODES,
    host_bytes=st.integers(0, 2**50),
    resource=USERS,
    kind=st.sampled_from(ProblemKind),
    enforcer=st.sampled_from(["none", "hami-core", "a" * 63]),
)
def test_api_accepts_the_drivers_own_device_whatever_is_read(
    *, card: Gpu, node: Node, host_bytes: int, resource: str, kind: ProblemKind, enforcer: str
) -> None:
    """So nothing is checked when it is published."""
    held = KubeletDevices(held=frozenset({(resource, card.uuid)}))
    (device,) = published_devices(
        card,
        node=node,
        host=HostResources(memory_bytes=host_bytes, disk_bytes=host_bytes),
        enforcement=Enforcement(enforcer=enforcer, is_awaited=True, given_up_since=SINCE),
        users=other_users.of_cards([card], held, [], before={}, now=SINCE),
        unhealthy={card.uuid.lower(): unhealthy(kind)},
    )

    assert len(device.taints) == 3
    assert list(object_rules.violations(slice_spec(devices=[device.as_api()]))) == []


@pytest.mark.parametrize(
    ("enforcement", "expected"),
    [
        (
            Enforcement(is_awaited=True),
            {
                "bindingConditions": ["tensor-fusion.ai/enforcer-ready"],
                "bindingFailureConditions": ["tensor-fusion.ai/enforcer-missing"],
            },
        ),
        (
            GIVEN_UP,
            {
                "taints": [
                    {
                        "key": "tensor-fusion.ai/enforcer-missing",
                        "value": "none",
                        "effect": "NoSchedule",
                        "timeAdded": "2026-03-01T00:00:00Z",
                    }
                ]
            },
        ),
    ],
)
def test_awaited_enforcer_is_a_binding_condition_and_a_missing_one_a_taint(
    enforcement: Enforcement, expected: dict[str, Any]
) -> None:
    (plain,) = published_devices(gpu())
    (device,) = published_devices(gpu(), enforcement=enforcement)

    listed = device.as_api()
    assert {key: found for key, found in listed.items() if key not in plain.as_api()} == expected
    assert list(object_rules.violations(slice_spec(devices=[listed]))) == []


@pytest.mark.parametrize(
    ("kind", "effect", "effects"),
    [
        (ProblemKind.XID, "NoExecute", ["NoExecute", "NoSchedule", "NoSchedule"]),
        (ProblemKind.XID, "", ["NoSchedule", "NoSchedule"]),
        (ProblemKind.REPLACED, "", ["NoExecute", "NoSchedule", "NoSchedule"]),
    ],
)
def test_each_reason_to_keep_claims_away_is_a_taint_of_its_own(
    kind: ProblemKind, effect: str, effects: list[str]
) -> None:
    (device,) = published_devices(
        gpu(),
        enforcement=GIVEN_UP,
        users={gpu().uuid: OtherUser(name="nvidia-device-plugin", holds=True, since=SINCE)},
        unhealthy={gpu().uuid.lower(): unhealthy(kind)},
        unhealthy_effect=effect,
    )

    keys = [names.TAINT_UNHEALTHY, names.TAINT_USED_BY, names.TAINT_ENFORCER_MISSING]
    assert [(each.key, each.effect) for each in device.taints] == [
        *zip(keys[-len(effects) :], effects, strict=True)
    ]
    assert device.attributes["used_by"] == "nvidia-device-plugin"
    assert list(object_rules.violations(slice_spec(devices=[device.as_api()]))) == []


def test_attributes_keep_their_types() -> None:
    (device,) = published_devices(gpu())
    values: Any = {"rack": "r7", "slot": 3, "nvlink": True, "firmware": Version("1.2.3")}

    assert replace(device, attributes=values).attributes_as_api() == {
        "rack": {"string": "r7"},
        "slot": {"int": 3},
        "nvlink": {"bool": True},
        "firmware": {"version": "1.2.3"},
    }


@pytest.mark.parametrize("effect", ["NoSchedule", "NoExecute", ""])
def test_unhealthy_device_has_taint_and_phase_and_is_valid(effect: str) -> None:
    (healthy,) = published_devices(gpu())
    since = datetime(2026, 3, 1, 13, 30, 15, 999_999, tzinfo=timezone(timedelta(hours=1)))

    (device,) = published_devices(
        gpu(),
        unhealthy={gpu().uuid.lower(): replace(unhealthy(), since=since)},
        unhealthy_effect=effect,
    )
    listed: Any = device.as_api()

    expected = {
        "key": "tensor-fusion.ai/unhealthy",
        "value": "xid-79",
        "effect": effect,
        "timeAdded": "2026-03-01T12:30:15Z",
    }
    assert listed.get("taints") == ([expected] if effect else None)
    assert listed["attributes"]["phase"] == {"string": "Unknown"}
    assert device.capacity == healthy.capacity
    assert list(object_rules.device_errors("", listed)) == []


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
        ([(f"{'a' * 62}.{'b' * 63}/gpu", UUID)], [], [], [], ("a" * 62, False)),
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
    allocations = KubeletDevices(
        offered=frozenset(offered), held=frozenset(held), claims=frozenset(claims)
    )

    found = other_users.of_cards([CARD, gpu(1)], allocations, slices, before={}, now=NOW)

    expected = {UUID: OtherUser(name=user[0], holds=user[1], since=NOW)} if user else {}
    assert found == expected


def test_the_same_other_user_is_there_since_it_came() -> None:
    plugin = KubeletDevices(offered=frozenset({("nvidia.com/gpu", UUID)}))
    first = other_users.of_cards([CARD], plugin, [], before={}, now=NOW)
    later = NOW + timedelta(hours=1)

    same = other_users.of_cards([CARD], plugin, [], before=first, now=later)
    another = other_users.of_cards([CARD], KubeletDevices(), [NVIDIA_SLICE], before=same, now=later)

    assert (same[UUID].since, another[UUID].since) == (NOW, later)

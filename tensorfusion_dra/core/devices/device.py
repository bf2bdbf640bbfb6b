"""Devices that this node publishes: one for each card, or for each partition of a card.

The limits of a partition are kept by the card itself. So it has its own enforcer, whatever the node
has, and is allocated exclusively. A taint keeps claims away that do not ask for partitions.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Final

from tensorfusion_dra.core import names
from tensorfusion_dra.core.devices import capacity
from tensorfusion_dra.core.devices.capacity import Capacity, Oversubscription, Virtual
from tensorfusion_dra.core.devices.gpu import (
    Gpu,
    HostResources,
    Inventory,
    Isolation,
    device_name,
)
from tensorfusion_dra.core.devices.health import ProblemKind, Unhealthy
from tensorfusion_dra.core.devices.other_users import OtherUser
from tensorfusion_dra.core.kubernetes import device_rules, quantity
from tensorfusion_dra.core.kubernetes.quantity import Quantity

MIG: Final = "mig"
"""Name of the enforcer of partitions."""
_ALWAYS: Final = datetime.fromtimestamp(0, UTC)
"""Start of the taint of partitions, which always have it."""
NO_SCHEDULE: Final = "NoSchedule"
"""Effect of a taint: keeps new claims away, and leaves those that there are."""


@dataclass(frozen=True, slots=True)
class Version:
    """A semantic version attribute (``{"version": ...}`` and not ``{"string": ...}``)."""

    text: str


AttributeValue = str | int | bool | Version


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """The node of this process.

    Attributes:
        gpupool: GPUPool of the node, as users name it in ``gpupool``.
        qos: Level of service that users select with ``qos``: low, medium, high or critical.
        oversubscription: The pool's ratios; None if it does not oversubscribe.
        isolation: The pool's isolation for shares that set none; None leaves it to the settings.
    """

    name: str
    gpupool: str
    qos: str
    oversubscription: Oversubscription | None = None
    isolation: Isolation | None = None

    @property
    def pool(self) -> str:
        """Name of the resource pool.

        It contains the node's name because generations count per pool name: two nodes with the
        same pool name would make each other's slices obsolete.
        """
        return f"{self.gpupool}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Enforcement:
    """Enforcement of limits on this node now, as its devices show it.

    Attributes:
        enforcer: Its name; ``none`` if there is none.
        compute: True if all processes of a claim together are kept within its compute limits.
        memory: The same for its memory limits.
        is_awaited: True while pods wait at the scheduler for a missing enforcer.
        given_up_since: Time since when it has been missing, once it is no longer awaited.
    """

    enforcer: str = "none"
    compute: bool = False
    memory: bool = False
    is_awaited: bool = False
    given_up_since: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The cards of the node at one moment, all of them together.

    Attributes:
        inventory: The cards, what is left out, and what the NVIDIA driver requests for them.
        node: None for health sources, which are also called before the node's pool is known.
        host: Sizes of the host by which the pool extends the cards' memory.
    """

    inventory: Inventory
    node: Node | None = None
    host: HostResources = field(default_factory=HostResources)

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """Return the cards, in NVML's order."""
        return self.inventory.gpus


@dataclass(frozen=True, slots=True, kw_only=True)
class Taint:
    """A device taint; keeps away claims that do not tolerate it.

    Attributes:
        effect: NoSchedule or NoExecute.
        since: Start of the taint, from which a toleration may count; timezone-aware.
    """

    key: str
    value: str
    effect: str
    since: datetime

    def as_api(self) -> dict[str, object]:
        """Return the DeviceTaint of resource.k8s.io/v1."""
        return {
            "key": self.key,
            "value": self.value,
            "effect": self.effect,
            # metav1.Time has no fractions of a second.
            "timeAdded": f"{self.since.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}",
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One card or partition as a slice lists it.

    Attributes:
        taints: Each keeps away the claims that do not tolerate it, whichever others they tolerate.
        awaits_enforcer: True if the scheduler binds pods only once the enforcer is there.
    """

    name: str
    gpu: Gpu
    attributes: Mapping[str, AttributeValue]
    capacity: Mapping[str, Capacity]
    taints: tuple[Taint, ...] = ()
    awaits_enforcer: bool = False

    @property
    def own_enforcer(self) -> str:
        """Name of the enforcer that comes with the device; "" if the node's enforcer limits it."""
        return MIG if self.gpu.partition else ""

    def as_api(self) -> dict[str, object]:
        """Return the Device of resource.k8s.io/v1.

        An exclusive device has capacities without a request policy, which the API refuses there.
        """
        listed: dict[str, object] = {
            "name": self.name,
            "attributes": self.attributes_as_api(),
            "capacity": {
                key: {"value": str(each.value)} if self.own_enforcer else each.as_api()
                for key, each in self.capacity.items()
            },
        }
        if not self.own_enforcer:
            listed["allowMultipleAllocations"] = True
        if self.taints:
            listed["taints"] = [taint.as_api() for taint in self.taints]
        if self.awaits_enforcer:
            listed["bindingConditions"] = [names.BINDING_READY]
            listed["bindingFailureConditions"] = [names.BINDING_FAILED]
        return listed

    def attributes_as_api(self) -> dict[str, dict[str, object]]:
        """Return the attributes as DeviceAttributes of resource.k8s.io/v1, by name."""
        return {key: attribute_as_api(value) for key, value in self.attributes.items()}


def build_devices(
    reading: Reading,
    enforcement: Enforcement = Enforcement(),
    *,
    users: Mapping[str, OtherUser] = MappingProxyType({}),
    shared: Mapping[str, bool] = MappingProxyType({}),
    unhealthy: Mapping[str, Unhealthy] = MappingProxyType({}),
    unhealthy_effect: str = NO_SCHEDULE,
    cordoned: Mapping[str, Taint] = MappingProxyType({}),
) -> tuple[Device, ...]:
    """Return the device of each card, with all that the driver itself publishes of it.

    Partitions come last, the smallest first: the scheduler takes the first one that suffices.

    Args:
        reading: The cards and their node.
        enforcement: What keeps limits on the node.
        users: Device plugins and other DRA drivers that give cards away, by GPU UUID.
        shared: Whether the shares of a card consume virtual amounts, by GPU UUID; absent cards have
            no shares.
        unhealthy: Unhealthy cards, by device name.
        unhealthy_effect: Effect of an unhealthy device's taint; "" for no taint.
        cordoned: Taints of devices that an administrator took out of service, by device name.
    """
    inventory, node = reading.inventory, reading.node
    assert node is not None  # only health sources are asked without one
    ratios = node.oversubscription
    virtual = capacity.virtual_totals(inventory.gpus, ratios or capacity.NO_MORE, reading.host)
    tflops = sum(Quantity.milli(gpu.milli_tflops).nano for gpu in inventory.gpus)
    vram = sum(map(capacity.usable_vram_bytes, inventory.gpus))
    virtual_tflops = sum(total.tflops.nano for total in virtual.values())
    virtual_vram = sum(total.vram_bytes for total in virtual.values())
    managed = {gpu.card_uuid for gpu in inventory.gpus}
    of_node: Mapping[str, AttributeValue] = {
        names.ATTR_POOL_NAME: shortened(node.gpupool),
        names.ATTR_POD_NAMESPACE: "",  # cards belong to no namespace
        names.ATTR_NODE_NAME: shortened(node.name),
        names.ATTR_QOS: node.qos,
        names.ATTR_NODE_TOTAL_TFLOPS: _plain(tflops),
        names.ATTR_NODE_TOTAL_VRAM: str(Quantity.of_bytes(vram)),
        names.ATTR_NODE_TOTAL_GPUS: len(managed | {each.subject for each in inventory.left_out}),
        names.ATTR_NODE_MANAGED_GPUS: len(managed),
        names.ATTR_NODE_VIRTUAL_TFLOPS: _plain(virtual_tflops),
        names.ATTR_NODE_VIRTUAL_VRAM: str(Quantity.of_bytes(virtual_vram)),
    }
    return tuple(
        build_device(
            gpu,
            of_node,
            virtual[gpu.uuid]
            if not gpu.partition and shared.get(gpu.uuid, ratios is not None)
            else None,
            enforcement=enforcement,
            user=users.get(gpu.uuid),
            unhealthy=unhealthy.get(device_name(gpu.uuid)),
            unhealthy_effect=unhealthy_effect,
            cordoned=cordoned.get(device_name(gpu.uuid)),
        )
        for gpu in sorted(inventory.gpus, key=lambda gpu: gpu.vram_bytes if gpu.partition else 0)
    )


def build_device(
    gpu: Gpu,
    of_node: Mapping[str, AttributeValue],
    virtual: Virtual | None,
    *,
    enforcement: Enforcement = Enforcement(),
    user: OtherUser | None = None,
    unhealthy: Unhealthy | None = None,
    unhealthy_effect: str = NO_SCHEDULE,
    cordoned: Taint | None = None,
) -> Device:
    """Return the device of one card.

    The phase and `used_by` show what the taints show, because an API server without DRADeviceTaints
    drops these, and a selector on Running devices expects healthy ones.

    Args:
        of_node: The attributes that all cards of the node have in common.
        virtual: The card's virtual totals; None if it is shared by its physical amounts.
        enforcement: What keeps limits on the node. Ignored for a partition.
        user: The device plugin or other DRA driver that gives the card away; None if none does.
        unhealthy: None for a healthy card.
        unhealthy_effect: Effect of the taint of an unhealthy one; "" for no taint. While the NVIDIA
            driver is being replaced, it is NoExecute in any case.
        cordoned: Taint of a card that an administrator took out of service; None for the others.
    """
    if gpu.partition:
        enforcement = Enforcement(enforcer=MIG, compute=True, memory=True)
    attributes: dict[str, AttributeValue] = {
        **of_node,
        names.ATTR_PHASE: names.PHASE_UNKNOWN if unhealthy else names.PHASE_RUNNING,
        names.ATTR_USED_BY: user.name if user else "",
        names.ATTR_MODEL: shortened(gpu.model),
        names.ATTR_UUID: shortened(gpu.uuid),
        names.ATTR_PRODUCT_NAME: shortened(gpu.product_name),
        names.ATTR_ARCHITECTURE: shortened(gpu.architecture),
        names.ATTR_COMPUTE_CAPABILITY: Version("{}.{}.0".format(*gpu.compute_capability)),
        names.ATTR_DRIVER_VERSION: semantic_version(gpu.driver_version),
        names.ATTR_ENFORCER: shortened(enforcement.enforcer),
        names.ATTR_ENFORCES_COMPUTE: enforcement.compute,
        names.ATTR_ENFORCES_MEMORY: enforcement.memory,
        names.ATTR_PARTITION: shortened(gpu.partition),
        names.ATTR_PARENT_UUID: shortened(gpu.parent_uuid),
    }
    for name, place in (
        (names.ATTR_PCI_BUS_ID, gpu.pci_bus_id),
        (names.ATTR_PCIE_ROOT, gpu.pcie_root),
        (names.ATTR_NUMA_NODE, gpu.numa_node),
    ):
        if place is not None:
            attributes[name] = place
    # The worst one first: it is what `why` shows of a claim that tolerates none.
    taints: list[Taint] = []

    def taint(key: str, value: str, since: datetime, effect: str = NO_SCHEDULE) -> None:
        taints.append(Taint(key=key, value=value, effect=effect, since=since))

    if unhealthy is not None and unhealthy.worst.kind is ProblemKind.REPLACED:
        unhealthy_effect = "NoExecute"
    if unhealthy is not None and unhealthy_effect:
        taint(names.TAINT_UNHEALTHY, unhealthy.worst.reason, unhealthy.since, unhealthy_effect)
    if user is not None:
        taint(names.TAINT_USED_BY, user.name, user.since)
    if enforcement.given_up_since is not None:
        taint(names.TAINT_ENFORCER_MISSING, enforcement.enforcer, enforcement.given_up_since)
    if gpu.partition:
        taint(names.TAINT_PARTITION, MIG, _ALWAYS)
    return Device(
        name=device_name(gpu.uuid),
        gpu=gpu,
        attributes=attributes,
        capacity=capacity.of_card(gpu, virtual),
        taints=(*taints, cordoned) if cordoned else tuple(taints),
        awaits_enforcer=enforcement.is_awaited,
    )


def node_name(pool: str) -> str:
    """Return the node's name from a resource pool's name, see Node.pool."""
    return pool.rpartition("/")[2]


def gpupools(slices: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    """Return the GPUPools that these slices publish, by the names of their resource pools."""
    pools = (str(item["spec"]["pool"]["name"]) for item in slices)
    return frozenset(pool.rpartition("/")[0] for pool in pools)


def semantic_version(text: str) -> Version:
    """Return the semantic version of a driver's version text; 0.0.0 if the text has no number.

    Leading zeros are dropped because the API refuses them: 535.104.05 becomes 535.104.5.
    """
    found = [int(number) for number in re.findall(r"[0-9]{1,9}", text)]
    major, minor, patch = [*found, 0, 0, 0][:3]
    return Version(f"{major}.{minor}.{patch}")


def shortened(text: str) -> str:
    """Return the text cut to the API's limit; a longer value would make the device invalid."""
    return text.encode(errors="replace")[: device_rules.MAX_TEXT_BYTES].decode(errors="ignore")


def _plain(nano: int) -> str:
    """Return billionths as a plain decimal, such as 569.6.

    A selector may read it with CEL's double() as well as with quantity(), and double() does not
    know suffixes.
    """
    whole, billionths = divmod(nano, quantity.NANO)
    return f"{whole}.{billionths:09}".rstrip("0").rstrip(".")


def attribute_as_api(value: object) -> dict[str, object]:
    """Return an attribute's value as the API has it, checked or not."""
    match value:
        case Version(text):
            return {"version": text}
        case bool():
            return {"bool": value}
        case int():
            return {"int": value}
        case _:
            return {"string": value}

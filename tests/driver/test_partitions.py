"""Partitions of cards in MIG mode on a node: who gets one, what containers get, who loses one."""

import json
import os
import shutil
import stat
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from dra_simulator import runtime
from dra_simulator.runtime import Mount
from stand_ins.bundle import Runc
from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims import cdi, resize
from tensorfusion_dra.core.claims import claim as claim_rules
from tensorfusion_dra.core.claims import enforcer as enforcer_rules
from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.claims.prepared import Limit, PreparedClaim
from tensorfusion_dra.core.claims.verdicts import State
from tensorfusion_dra.core.devices import cordon, health
from tensorfusion_dra.core.devices.gpu import Gpu, Inventory, Isolation, LostCard
from tensorfusion_dra.core.devices.health import CardEvent, EventKind, KnownCards
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.core.kubernetes.device_rules import GATE_DEVICE_TAINTS
from tensorfusion_dra.discovery.host import HostDeviceNodes
from tensorfusion_dra.driver import card_health
from tensorfusion_dra.driver.card_health import CardHealthTracker
from tensorfusion_dra.driver.publish import CatalogBuilder, Publisher
from tests.support.builders.devices import NODE
from tests.support.builders.gpus import gpu, partition
from tests.support.logs import capture_logs
from tests.support.ports import (
    EventsInMemory,
    FixedDiscovery,
    LeaseInMemory,
    OneNode,
    SlicesInMemory,
)
from tests.support.prepared_node import Setup, put_claim, share_result

CARD, MIG = gpu(0), [partition(number, card=1) for number in range(2)]
FIRST, SECOND = (each.uuid.lower() for each in MIG)
SIZE = 9728 * 2**20
SLICE = "tensor-fusion-resource-slice-node-01"


class Published:
    """A publisher of a shared card and of two partitions."""

    def __init__(self, slices: SlicesInMemory, *cards: Gpu) -> None:
        self.slices = slices
        found = Inventory(gpus=cards or (CARD, *MIG))
        self.cards = CatalogBuilder(FixedDiscovery(found), NODE)
        self.publisher = Publisher(
            self.cards.catalog, slices, OneNode(), EventsInMemory(), lease=LeaseInMemory()
        )

    def publish(self) -> None:
        self.cards.refresh()
        self.publisher.publish()


@pytest.fixture
def node(setup: Setup) -> Setup:
    """A node with a shared card, and with another one that is divided in two."""
    setup.use_cards(CARD, *MIG)
    return setup


def exclusive(device: str, **more: Any) -> Any:
    """Return the scheduler's result for a device that is not shared."""
    found = share_result(device, **more)
    return {
        key: value for key, value in found.items() if key not in ("shareID", "consumedCapacity")
    }


def put_partition_claim(node: Setup, name: str, *results: Any, **parameters: Any) -> ClaimRef:
    """Store an allocated claim whose class says `partitioned`, as the chart's does."""
    ref = put_claim(node, name, *(results or [exclusive(FIRST)]))
    share = {"apiVersion": "tensor-fusion.ai/v1alpha1", "kind": "GpuShare"}
    of_class = {**share, "isolation": "partitioned", "overridable": False, **parameters}
    node.claims.stored[str(ref)]["status"]["allocation"]["devices"]["config"] = [
        {"source": "FromClass", "opaque": {"driver": names.DRIVER, "parameters": of_class}}
    ]
    return ref


@pytest.mark.parametrize("size", ["4Gi", "9728Mi", "16Gi"])
def test_resize_of_a_partition_is_refused(node: Setup, size: str) -> None:
    ref = put_partition_claim(node, "a")
    record = node.prepared(ref)
    node.annotate(ref, vram_limit=size)
    catalog = node.catalog.current()
    assert catalog is not None
    stored = claim_rules.allocated(ref, node.claims.stored[str(ref)])

    changed, found = resize.of_claim(record, stored, node.rules, catalog.by_name())

    assert changed == record
    reason, text = found.outcome(changed.shares[0])
    assert reason == resize.REFUSED
    assert text.startswith("vram: a partition's limits are kept by hardware; ")


def edits_of(node: Setup, ref: ClaimRef) -> dict[str, Any]:
    return {each["name"]: each["containerEdits"] for each in node.spec_of(ref)["devices"]}


def test_container_gets_its_partition_alone_and_the_limits_are_the_partitions(node: Setup) -> None:
    ref = put_partition_claim(node, "a")
    node.annotate(ref, vram_limit="1Gi", tflops_limit="1")  # less than any partition

    (share,) = node.prepared(ref).shares

    assert node.prepared(ref).enforcer == "mig"
    assert (share.exclusive, share.isolation) == (True, Isolation.PARTITIONED)
    assert share.limit == Limit(sm_percent=100, vram_bytes=SIZE)
    edits = edits_of(node, ref)
    of_card, of_limits = edits[f"{ref.uid}-gpu-{FIRST}"], edits[f"{ref.uid}-gpu:limits"]
    assert [each["path"] for each in of_card["deviceNodes"]] == [
        "/dev/nvidia1",
        "/dev/nvidia-caps/nvidia-cap66",
        "/dev/nvidia-caps/nvidia-cap67",
    ]
    assert of_limits == {"env": ["TF_ISOLATION_MODE=partitioned"]}
    # The legacy runtime would add what its variable names to what the spec adds.
    assert "NVIDIA_VISIBLE_DEVICES=void" in node.spec_of(ref)["containerEdits"]["env"]


def has_runc() -> bool:
    return os.geteuid() == 0 and shutil.which("runc") is not None


@pytest.mark.process
@pytest.mark.skipif(not has_runc(), reason="needs root and runc")
def test_container_of_runc_may_open_the_nodes_of_its_partition_and_has_no_others(
    node: Setup, tmp_path: Path
) -> None:
    """Nodes of a number that no driver has show in their error whether a container may open them.

    Major number 60 is for local use (Documentation/admin-guide/devices.txt of Linux).
    """
    dev, folder = tmp_path / "host/dev", tmp_path / "host/cdi"
    (dev / "nvidia-caps").mkdir(parents=True)
    for minor, name in enumerate(
        ("nvidia1", *(f"nvidia-caps/nvidia-cap{n}" for n in (66, 67, 75)))
    ):
        os.mknod(dev / name, 0o666 | stat.S_IFCHR, os.makedev(60, minor))
    record = node.prepared(put_partition_claim(node, "a"))
    paths = HostDeviceNodes(folder=dev).of_card(1, (66, 67))
    record = replace(record, shares=(replace(record.shares[0], device_nodes=paths),))
    folder.mkdir()
    spec = cdi.spec(record, node.enforcers["mig"])
    (folder / "spec.json").write_text(json.dumps({**spec, "containerEdits": {}}))
    (ids,) = cdi.ids_by_share(record)
    container = runtime.container([each for each in ids if names.CDI_KIND in each], [folder])

    script = """
    for node in /dev/nvidia* /dev/nvidia-caps/*; do
        [ -c $node ] && echo "{\\"$node\\": \\"$( (: < $node) 2>&1)\\"}"
    done
    exit 0"""
    root = tmp_path / "root"
    root.mkdir()
    for each in ("bin", "lib", "lib64"):
        (root / each).symlink_to(f"usr/{each}")
    container = replace(
        container, mounts=(Mount(host_path="/usr", container_path="/usr", options=("ro", "rbind")),)
    )
    ended = Runc(tmp_path / "bundles", root, tmp_path / "cards").run(container, "sh", "-c", script)

    found = {path: error for each in ended.printed for path, error in each.items()}
    paths_inside = ["/dev/nvidia1", *(f"/dev/nvidia-caps/nvidia-cap{n}" for n in (66, 67))]
    assert (ended.code, sorted(found)) == (0, sorted(paths_inside)), ended.errors
    assert all("No such device or address" in error for error in found.values()), found


@pytest.mark.parametrize("minors", [MIG[0].capability_minors, ()])
def test_toolkit_adds_the_partition_that_its_spec_has(node: Setup, minors: tuple[int, ...]) -> None:
    node.use_cards(replace(MIG[0], capability_minors=minors))
    node.driver_files.by_toolkit.add(MIG[0].uuid)

    ref = put_partition_claim(node, "a")
    record = node.prepared(ref)

    assert record.shares[0].toolkit_device == f"nvidia.com/gpu={MIG[0].uuid}"
    assert record.driver_mounts == ()


@pytest.mark.parametrize(
    ("device", "annotations", "error"),
    [
        (
            FIRST,
            {},
            "found partition 1g.10gb in isolation soft, expected isolation partitioned (class ",
        ),
        (FIRST, {"isolation": "shared"}, "found partition 1g.10gb in isolation shared"),
        (CARD.uuid.lower(), {"isolation": "partitioned"}, "found no partition in isolation part"),
    ],
)
def test_device_of_another_kind_than_asked_for_is_refused(
    node: Setup, device: str, annotations: dict[str, str], error: str
) -> None:
    """A claim that tolerates every taint gets any device from the scheduler."""
    ref = put_claim(node, "a", exclusive(device))
    node.annotate(ref, **annotations)

    assert error in node.refused(ref)
    assert node.record(ref) is None


def test_claim_with_both_kinds_is_refused(node: Setup) -> None:
    both = exclusive(FIRST), share_result(CARD.uuid.lower(), request="card")

    assert "found partitions and other GPUs, expected one kind" in node.refused(
        put_partition_claim(node, "a", *both)
    )


def test_claim_for_a_partition_may_observe_a_card(node: Setup) -> None:
    watching = {**exclusive(CARD.uuid.lower(), request="watch"), "adminAccess": True}

    record = node.prepared(put_partition_claim(node, "a", exclusive(FIRST), watching))

    assert record.enforcer == "mig"


def test_second_claim_for_a_partition_is_refused_and_others_are_not(node: Setup) -> None:
    first = node.prepared(put_partition_claim(node, "a"))

    assert "expected no other claim beside an exclusive" in node.refused(
        put_partition_claim(node, "b")
    )
    beside = node.prepared(put_partition_claim(node, "c", exclusive(SECOND)))
    shared = node.prepared(put_claim(node, "d", share_result(CARD.uuid.lower())))
    assert {first.enforcer, beside.enforcer} == {"mig"}
    assert shared.enforcer == "tensor-fusion"


def test_partition_is_prepared_where_the_nodes_enforcer_is_missing(node: Setup) -> None:
    node.host_files.absent.add("/run/tensor-fusion/shm")
    node.use(enforcer=node.enforcers["hami-core"])
    node.host_files.absent.add("/libvgpu.so.1")

    assert node.prepared(put_partition_claim(node, "a")).enforcer == "mig"


def test_pods_of_a_group_keep_the_partitions_limits(node: Setup) -> None:
    ref = put_partition_claim(node, "a")
    group = {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "g", "uid": "g"}
    node.claims.stored[str(ref)]["status"]["reservedFor"] = [group]

    (share,) = node.prepared(ref).shares

    assert share.limit == Limit(sm_percent=100, vram_bytes=SIZE)


def test_partition_without_numbers_of_its_nodes_waits(node: Setup) -> None:
    node.use_cards(replace(MIG[0], capability_minors=(66,)))

    assert "found no device nodes for its instances" in node.refused(put_partition_claim(node, "a"))


def verdict(node: Setup, record: PreparedClaim) -> tuple[State, str]:
    (found,) = enforcer_rules.judged(record, node.enforcers["mig"], [], is_new=False)
    return found.state, found.reason


def test_limit_is_read_back_from_what_nvml_says(node: Setup) -> None:
    record = node.prepared(put_partition_claim(node, "a"))

    states = [verdict(node, record)]
    for cards in ([replace(MIG[0], vram_bytes=SIZE - 2**20)], [MIG[1]], []):
        node.discovery.inventory = Inventory(gpus=tuple(cards))
        states.append(verdict(node, record))

    assert states == [
        (State.ENFORCED, "LimitInHardware"),
        (State.NOT_ENFORCED, "LimitsDiffer"),
        (State.NOT_ENFORCED, "DeviceMissing"),
        (State.UNKNOWN, "SignsUnreadable"),
    ]


@pytest.mark.parametrize("is_dropped", [False, True])
def test_partitions_are_published_with_their_taint_or_not_at_all(is_dropped: bool) -> None:
    gates = frozenset({GATE_DEVICE_TAINTS}) if is_dropped else frozenset[str]()
    node = Published(SlicesInMemory(gates_off=gates))

    with capture_logs() as logs:
        node.publish()
        node.publish()

    devices = node.slices.items[SLICE]["spec"]["devices"]
    found = {each["name"]: each.get("taints") for each in devices}
    taint = {"key": "tensor-fusion.ai/partition", "value": "mig", "effect": "NoSchedule"}
    of_partitions = [{**taint, "timeAdded": "1970-01-01T00:00:00Z"}]
    partitions = {} if is_dropped else dict.fromkeys((FIRST, SECOND), of_partitions)
    assert found == {CARD.uuid.lower(): None, **partitions}
    left_out = [each for each in logs if each["event"] == "partitions_not_published"]
    assert len(left_out) == is_dropped
    assert node.slices.writes == [f"create {SLICE}"]


@pytest.mark.parametrize("are_stored", [False, True])
def test_refused_dry_run_delays_new_partitions_alone(are_stored: bool) -> None:
    slices = SlicesInMemory(refuses_trials=not are_stored)
    before, node = Published(slices), Published(slices)
    if are_stored:
        before.publish()
        slices.refuses_trials = True

    with pytest.raises(RetryableError, match="does not support dry run"):
        node.publish()

    partitions = {FIRST, SECOND} if are_stored else set[str]()
    found = {each["name"] for each in slices.items[SLICE]["spec"]["devices"]}
    assert found == {CARD.uuid.lower(), *partitions}
    slices.refuses_trials = False
    node.publish()
    assert len(slices.items[SLICE]["spec"]["devices"]) == 3


def test_partitions_are_listed_after_cards_and_small_ones_first() -> None:
    large = partition(5, card=1, vram_bytes=4 * SIZE)
    node = Published(SlicesInMemory(), large, *MIG, CARD)

    node.publish()

    devices = node.slices.items[SLICE]["spec"]["devices"]
    names_of_devices = [each["name"] for each in devices]
    assert names_of_devices == [CARD.uuid.lower(), FIRST, SECOND, large.uuid.lower()]
    # Of two cards, one is divided in three.
    assert {each["attributes"]["node_managed_gpus"]["int"] for each in devices} == {2}


def test_partition_is_cordoned_by_its_own_name() -> None:
    node = Published(SlicesInMemory())
    taint = cordon.taint("alice", "fan", evicts=False, since=datetime(2026, 3, 1, tzinfo=UTC))
    node.cards.set_cordoned(cordon.of_node({names.CORDON_PREFIX + FIRST: cordon.annotation(taint)}))

    node.publish()

    found = {
        each["name"]: [one["key"] for one in each.get("taints", ())]
        for each in node.slices.items[SLICE]["spec"]["devices"]
    }
    assert sorted(found.pop(FIRST)) == [names.TAINT_CORDONED, names.TAINT_PARTITION]
    assert found == {CARD.uuid.lower(): [], SECOND: [names.TAINT_PARTITION]}
    node.cards.set_cordoned({})  # at once, before the next reading
    catalog = node.cards.catalog.current()
    assert catalog is not None
    assert names.TAINT_CORDONED not in {t.key for each in catalog.devices for t in each.taints}


def test_another_server_is_asked_again_whether_it_keeps_taints() -> None:
    node = Published(SlicesInMemory(gates_off=frozenset({GATE_DEVICE_TAINTS})))
    node.publish()

    node.slices.gates_off = frozenset()
    node.publisher.server_returned()
    node.publish()

    assert len(node.slices.items[SLICE]["spec"]["devices"]) == 3

    node.slices.gates_off = frozenset({GATE_DEVICE_TAINTS})
    node.publisher.server_returned()
    node.publish()

    (only,) = node.slices.items[SLICE]["spec"]["devices"]
    assert only["name"] == CARD.uuid.lower()


class Cards:
    """The catalog of a node whose partitions change while some have claims."""

    def __init__(self, *cards: Gpu) -> None:
        self.claimed: list[PreparedClaim] = []
        self.discovery = FixedDiscovery(Inventory(gpus=cards))
        self.builder = CatalogBuilder(
            self.discovery, NODE, tracker=CardHealthTracker(claims=lambda: self.claimed)
        )
        self.builder.refresh()

    def found(self, *cards: Gpu, **inventory: Any) -> dict[str, str]:
        """Read these cards; return the reason of each published device's health, "" if healthy."""
        self.discovery.inventory = Inventory(gpus=cards, **inventory)
        self.builder.refresh()
        return self.published()

    def published(self) -> dict[str, str]:
        catalog = self.builder.catalog.current()
        assert catalog is not None
        return {
            each.name: catalog.unhealthy[each.name].worst.text
            if each.name in catalog.unhealthy
            else ""
            for each in catalog.devices
        }

    def unhealthy(self) -> set[str]:
        return set(self.builder.catalog.unhealthy())


@pytest.fixture
def cards(node: Setup) -> Cards:
    """A card's two partitions, of which the first has a claim."""
    made = Cards(*MIG)
    made.claimed.append(node.prepared(put_partition_claim(node, "a")))
    return made


def test_partitions_that_are_gone_stay_while_they_are_held_and_are_named(cards: Cards) -> None:
    other = partition(5, card=1)

    changed = cards.found(other)

    text = f"the partition 1g.10gb is gone from GPU {MIG[0].parent_uuid}"
    assert changed == {FIRST: text, other.uuid.lower(): ""}
    assert cards.unhealthy() == {FIRST}
    cards.claimed.clear()
    assert cards.found(other) == {other.uuid.lower(): ""}
    assert cards.unhealthy() == set()


def test_card_and_its_partitions_replace_each_other_at_once(cards: Cards) -> None:
    whole = gpu(1)
    cards.claimed.clear()

    steps = [cards.found(whole), cards.found(*MIG), cards.found(whole)]

    name = whole.uuid.lower()
    assert steps == [{name: ""}, {FIRST: "", SECOND: ""}, {name: ""}]
    assert cards.unhealthy() == set()


def test_mode_turned_off_leaves_held_partitions_and_publishes_the_card(cards: Cards) -> None:
    whole = gpu(1)

    found = cards.found(whole)

    assert found.keys() == {FIRST, whole.uuid.lower()}
    assert "is gone from GPU" in found[FIRST]


def test_card_with_claims_that_is_divided_is_tainted_and_named(node: Setup) -> None:
    cards = Cards(CARD)
    cards.claimed.append(node.prepared(put_claim(node, "d", share_result(CARD.uuid.lower()))))

    found = cards.found(partition(0, card=0))

    assert found[CARD.uuid.lower()] == "the GPU is in MIG mode by now, divided into partitions"


def test_lost_card_takes_all_its_partitions_with_it(cards: Cards) -> None:
    lost = LostCard(subject="GPU 1", uuid=gpu(1).uuid, pci_bus_id=None, text="fell off the bus")

    found = cards.found(lost=(lost,))

    assert found == {FIRST: "the GPU is lost: fell off the bus"}
    assert cards.unhealthy() == {FIRST, SECOND}


def test_partitions_of_a_card_that_was_lost_wait_and_count_as_one_card(cards: Cards) -> None:
    cards.claimed.clear()
    lost = LostCard(subject="GPU 1", uuid=gpu(1).uuid, pci_bus_id=None, text="fell off the bus")
    cards.found(CARD, lost=(lost,))

    found = cards.found(CARD, *MIG)

    catalog = cards.builder.catalog.current()
    assert found.keys() == {CARD.uuid.lower()}
    assert catalog is not None
    assert catalog.devices[0].attributes[names.ATTR_NODE_TOTAL_GPUS] == 2


@pytest.mark.parametrize(
    ("instance", "concerned"), [(None, {FIRST, SECOND}), (MIG[1].gpu_instance, {SECOND})]
)
def test_event_of_a_card_concerns_the_partition_that_it_names_or_all(
    cards: Cards, instance: int | None, concerned: set[str]
) -> None:
    uuid = MIG[0].parent_uuid
    event = CardEvent(gpu_uuid=uuid, kind=EventKind.XID, code=79, gpu_instance=instance)

    cards.builder.on_event(event)

    assert cards.unhealthy() == concerned


def test_partitions_are_remembered_over_a_restart() -> None:
    known = KnownCards(cards={each.uuid: each for each in (CARD, *MIG)})
    record = json.loads(json.dumps(health.as_json(known, boot_id="a")))

    again = health.from_json(record, boot_id="a", claimed=(), now=card_health.now())

    assert again == known

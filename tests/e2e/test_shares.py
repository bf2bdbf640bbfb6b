"""Shares of pods: they get what they request, and never more than a card has in total."""

import json
from collections.abc import Callable

import pytest

from tensorfusion_dra.core import names
from tensorfusion_dra.core.kubernetes import quantity
from tensorfusion_dra.core.kubernetes.quantity import GIB, MIB
from tests.e2e.cluster import Cluster, Json
from tests.e2e.drivers import Driver
from tests.e2e.tenants import Tenants, capacity_request

Slices = Callable[[], list[Json]]

QUARTER = {"tflops": "78", "vram": "16Gi"}


def total(slices: Slices, capacity: str) -> list[int]:
    """Return a capacity of each of the node's devices, in billionths of its unit."""
    return [
        quantity.parse(device["capacity"][capacity]["value"]).nano
        for item in slices()
        for device in item["spec"]["devices"]
    ]


def virtual_tflops(slices: Slices) -> list[int]:
    """Return total() of oversubscribed compute; empty unless every device has it."""
    try:
        return total(slices, "virtual_tflops")
    except KeyError:
        return []


def test_container_has_its_limits_in_its_environment(tenants: Tenants, slices: Slices) -> None:
    env = tenants.run("a", QUARTER)

    (result,) = tenants.results("a")
    (tflops,) = set(total(slices, "tflops"))
    percent = -(-100 * quantity.parse("78").nano // tflops)
    assert env[names.ENV_SM_PERCENT_LIMIT] == str(percent)
    assert env[names.ENV_MEMORY_LIMIT] == str(16 * GIB // MIB)
    assert env[names.ENV_NVIDIA_VISIBLE_DEVICES] == "void"
    limits = json.loads(env[names.ENV_MEM_LIMIT_BY_UUID])
    assert {uuid.lower(): amount for uuid, amount in limits.items()} == {result["device"]: 16 * GIB}
    assert quantity.parse(result["consumedCapacity"]["vram"]).nano == 16 * GIB * 10**9


def test_fractional_amounts_are_not_rounded(tenants: Tenants) -> None:
    env = tenants.run("a", {"tflops": "71.2", "vram": "1500Mi"})

    (result,) = tenants.results("a")
    assert quantity.parse(result["consumedCapacity"]["tflops"]) == quantity.parse("71.2")
    assert env[names.ENV_MEMORY_LIMIT] == "1500"


@pytest.mark.usefixtures("idle_node")
def test_cards_can_be_filled_to_the_last_unit_and_not_beyond(
    tenants: Tenants, slices: Slices
) -> None:
    cards = total(slices, "tflops")
    thirds = {"tflops": f"{cards[0] // 3}n", "vram": "1Gi"}
    for number in range(3 * len(cards)):
        tenants.template(f"third-{number}", capacity_request("gpu", thirds))
        tenants.pod(f"third-{number}", template=f"third-{number}")
    for number in range(3 * len(cards)):
        tenants.wait_until_running(f"third-{number}")

    tenants.template("more", capacity_request("gpu", {"tflops": "1", "vram": "1Mi"}))
    tenants.pod("more", template="more")
    tenants.wait_until_unschedulable("more")
    taken: dict[str, int] = {}
    for number in range(3 * len(cards)):
        (result,) = tenants.results(f"third-{number}")
        amount = quantity.parse(result["consumedCapacity"]["tflops"]).nano
        taken[result["device"]] = taken.get(result["device"], 0) + amount

    assert all(amount <= cards[0] for amount in taken.values())
    assert len(taken) == len(cards)
    tenants.delete("third-0")
    tenants.wait_until_running("more")


@pytest.mark.usefixtures("idle_node")
def test_oversell_ratio_150_allocates_half_as_much_again_and_no_more(
    tenants: Tenants, driver: Driver, slices: Slices, cluster: Cluster
) -> None:
    physical = total(slices, "tflops")
    with driver.configured({"tflops-oversell-ratio": "150"}):
        cluster.until("virtual capacity", lambda: virtual_tflops(slices), seconds=60)
        virtual = virtual_tflops(slices)
        third = {"virtual_tflops": f"{virtual[0] // 3}n", "virtual_vram": "1Gi"}
        tenants.template("third", capacity_request("gpu", third))
        pods = [f"third-{number}" for number in range(3 * len(virtual))]
        for name in pods:
            tenants.pod(name, template="third")
        for name in pods:
            tenants.wait_until_running(name)

        tenants.template(
            "more", capacity_request("gpu", {"virtual_tflops": "1", "virtual_vram": "1Mi"})
        )
        tenants.pod("more", template="more")
        tenants.wait_until_unschedulable("more")
        # A card that tenants share cannot be allocated exclusively.
        tenants.template("exclusive", capacity_request("gpu", {"tflops": "1", "vram": "1Gi"}))
        tenants.pod("exclusive", template="exclusive")
        tenants.wait_until_unschedulable("exclusive")
        taken: dict[str, int] = {}
        for name in pods:
            (result,) = tenants.results(name)
            amount = quantity.parse(result["consumedCapacity"]["virtual_tflops"]).nano
            taken[result["device"]] = taken.get(result["device"], 0) + amount
        tenants.delete("more", "exclusive", *pods)

    assert virtual == [amount * 3 // 2 for amount in physical]
    assert all(virtual[0] - 3 < amount <= virtual[0] for amount in taken.values()), (
        "only the remainder of the division by three may be left"
    )
    assert len(taken) == len(virtual)


@pytest.mark.usefixtures("idle_node")
def test_request_without_amounts_gets_a_whole_card(tenants: Tenants, slices: Slices) -> None:
    cards = len(total(slices, "vram"))
    for number in range(cards):
        tenants.template(f"whole-{number}", capacity_request("gpu", {}))
        tenants.pod(f"whole-{number}", template=f"whole-{number}")
    devices = set()
    for number in range(cards):
        tenants.wait_until_running(f"whole-{number}")
        devices |= {result["device"] for result in tenants.results(f"whole-{number}")}

    tenants.template("part", capacity_request("gpu", {"tflops": "1", "vram": "1Gi"}))
    tenants.pod("part", template="part")

    assert tenants.wait_until_unschedulable("part")
    assert len(devices) == cards


def test_two_shares_of_one_pod_keep_their_own_limits(tenants: Tenants) -> None:
    tenants.template(
        "two",
        capacity_request("small", {"tflops": "10", "vram": "1Gi"}),
        capacity_request("large", {"tflops": "20", "vram": "2Gi"}),
    )
    tenants.pod("two", template="two", containers=("small", "large", None))
    tenants.wait_until_running("two")

    small, large, both = (tenants.env("two", index) for index in range(3))

    assert small[names.ENV_MEMORY_LIMIT] == "1024"
    assert large[names.ENV_MEMORY_LIMIT] == "2048"
    shares = [name for name in both if name.startswith(names.ENV_SHARE_PREFIX)]
    assert len(shares) == 2


@pytest.mark.usefixtures("idle_node")
def test_several_gpus_of_a_pod_are_different_cards(tenants: Tenants, slices: Slices) -> None:
    cards = len(total(slices, "vram"))
    assert cards > 1, "the node has one card: choose another with --node"
    distinct = {"distinctAttribute": f"{names.DRIVER}/{names.ATTR_UUID}"}
    requests = [capacity_request(f"gpu-{number}", QUARTER) for number in range(cards)]
    tenants.template("many", *requests, constraints=[distinct])
    tenants.pod("many", template="many")
    tenants.wait_until_running("many")

    env = tenants.env("many")

    assert len({result["device"] for result in tenants.results("many")}) == cards
    assert len(json.loads(env[names.ENV_MEM_LIMIT_BY_UUID])) == cards


def test_claim_status_has_the_device_and_its_ready_condition(
    tenants: Tenants, cluster: Cluster
) -> None:
    tenants.run("a", QUARTER)

    (device,) = cluster.until(
        "the claim's status",
        lambda: ((tenants.claim("a") or {}).get("status") or {}).get("devices"),
        seconds=30,
    )

    (result,) = tenants.results("a")
    assert device["driver"] == names.DRIVER
    assert (device["device"], device["shareID"]) == (result["device"], result["shareID"])
    assert any(c["type"] == "Ready" and c["status"] == "True" for c in device["conditions"])

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

"""Pods get the shares they ask for, and no mix of them takes more than there is."""

import json
from collections.abc import Callable

import pytest

from tensorfusion_dra.core import names
from tensorfusion_dra.core.kubernetes import quantity
from tensorfusion_dra.core.kubernetes.quantity import GIB, MIB
from tests.e2e.cluster import Cluster, Json
from tests.e2e.drivers import Driver
from tests.e2e.tenants import Tenants, request

Slices = Callable[[], list[Json]]

QUARTER = {"tflops": "78", "vram": "16Gi"}


def total(slices: Slices, capacity: str) -> list[int]:
    """What each of the node's devices has of a capacity, in billionths."""
    return [
        quantity.parse(device["capacity"][capacity]["value"]).nano
        for item in slices()
        for device in item["spec"]["devices"]
    ]


def virtual_tflops(slices: Slices) -> list[int]:
    """As total(), for oversubscribed compute; empty unless every device has some."""
    try:
        return total(slices, "virtual_tflops")
    except KeyError:
        return []


def test_a_container_finds_its_limits_in_its_environment(tenants: Tenants, slices: Slices) -> None:
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


def test_fractions_are_neither_rounded_up_nor_lost(tenants: Tenants) -> None:
    env = tenants.run("a", {"tflops": "71.2", "vram": "1500Mi"})

    (result,) = tenants.results("a")
    assert quantity.parse(result["consumedCapacity"]["tflops"]) == quantity.parse("71.2")
    assert env[names.ENV_MEMORY_LIMIT] == "1500"


@pytest.mark.usefixtures("quiet")
def test_cards_are_filled_to_the_last_unit_and_not_beyond(tenants: Tenants, slices: Slices) -> None:
    cards = total(slices, "tflops")
    thirds = {"tflops": f"{cards[0] // 3}n", "vram": "1Gi"}
    for number in range(3 * len(cards)):
        tenants.template(f"third-{number}", request("gpu", thirds))
        tenants.pod(f"third-{number}", template=f"third-{number}")
    for number in range(3 * len(cards)):
        tenants.runs(f"third-{number}")

    tenants.template("more", request("gpu", {"tflops": "1", "vram": "1Mi"}))
    tenants.pod("more", template="more")
    tenants.waits("more")
    taken: dict[str, int] = {}
    for number in range(3 * len(cards)):
        (result,) = tenants.results(f"third-{number}")
        amount = quantity.parse(result["consumedCapacity"]["tflops"]).nano
        taken[result["device"]] = taken.get(result["device"], 0) + amount

    assert all(amount <= cards[0] for amount in taken.values())
    assert len(taken) == len(cards)
    tenants.end("third-0")
    tenants.runs("more")


@pytest.mark.usefixtures("quiet")
def test_an_oversubscribed_pool_hands_out_half_as_much_again_and_no_more(
    tenants: Tenants, driver: Driver, slices: Slices, cluster: Cluster
) -> None:
    physical = total(slices, "tflops")
    with driver.configured({"tflops-oversell-ratio": "150"}):
        cluster.until("virtual capacity", lambda: virtual_tflops(slices), seconds=60)
        virtual = virtual_tflops(slices)
        third = {"virtual_tflops": f"{virtual[0] // 3}n", "virtual_vram": "1Gi"}
        tenants.template("third", request("gpu", third))
        pods = [f"third-{number}" for number in range(3 * len(virtual))]
        for name in pods:
            tenants.pod(name, template="third")
        for name in pods:
            tenants.runs(name)

        tenants.template("more", request("gpu", {"virtual_tflops": "1", "virtual_vram": "1Mi"}))
        tenants.pod("more", template="more")
        tenants.waits("more")
        # A card that tenants divide is not given alone.
        tenants.template("alone", request("gpu", {"tflops": "1", "vram": "1Gi"}))
        tenants.pod("alone", template="alone")
        tenants.waits("alone")
        taken: dict[str, int] = {}
        for name in pods:
            (result,) = tenants.results(name)
            amount = quantity.parse(result["consumedCapacity"]["virtual_tflops"]).nano
            taken[result["device"]] = taken.get(result["device"], 0) + amount
        tenants.end("more", "alone", *pods)

    assert virtual == [amount * 3 // 2 for amount in physical]
    assert all(virtual[0] - 3 < amount <= virtual[0] for amount in taken.values()), (
        "nothing is left but what does not divide by three"
    )
    assert len(taken) == len(virtual)


@pytest.mark.usefixtures("quiet")
def test_who_names_no_amount_gets_a_card_alone(tenants: Tenants, slices: Slices) -> None:
    cards = len(total(slices, "vram"))
    for number in range(cards):
        tenants.template(f"whole-{number}", request("gpu", {}))
        tenants.pod(f"whole-{number}", template=f"whole-{number}")
    devices = set()
    for number in range(cards):
        tenants.runs(f"whole-{number}")
        devices |= {result["device"] for result in tenants.results(f"whole-{number}")}

    tenants.template("part", request("gpu", {"tflops": "1", "vram": "1Gi"}))
    tenants.pod("part", template="part")

    assert tenants.waits("part")
    assert len(devices) == cards


def test_two_shares_of_one_pod_keep_their_own_limits(tenants: Tenants) -> None:
    tenants.template(
        "two",
        request("small", {"tflops": "10", "vram": "1Gi"}),
        request("large", {"tflops": "20", "vram": "2Gi"}),
    )
    tenants.pod("two", template="two", containers=("small", "large", None))
    tenants.runs("two")

    small, large, both = (tenants.env("two", index) for index in range(3))

    assert small[names.ENV_MEMORY_LIMIT] == "1024"
    assert large[names.ENV_MEMORY_LIMIT] == "2048"
    shares = [name for name in both if name.startswith(names.ENV_SHARE_PREFIX)]
    assert len(shares) == 2


@pytest.mark.usefixtures("quiet")
def test_several_gpus_of_a_pod_are_several_cards(tenants: Tenants, slices: Slices) -> None:
    cards = len(total(slices, "vram"))
    assert cards > 1, "the node has one card: choose another with --node"
    distinct = {"distinctAttribute": f"{names.DRIVER}/{names.ATTR_UUID}"}
    requests = [request(f"gpu-{number}", QUARTER) for number in range(cards)]
    tenants.template("many", *requests, constraints=[distinct])
    tenants.pod("many", template="many")
    tenants.runs("many")

    env = tenants.env("many")

    assert len({result["device"] for result in tenants.results("many")}) == cards
    assert len(json.loads(env[names.ENV_MEM_LIMIT_BY_UUID])) == cards


def test_the_claims_status_tells_what_the_pod_got(tenants: Tenants, cluster: Cluster) -> None:
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

"""Pods across restarts of the kubelet, the driver and the node, and deletions meanwhile."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tensorfusion_dra.core import names
from tensorfusion_dra.core.kubernetes import quantity
from tests.e2e.cluster import Cluster, Json, Slices, results_of
from tests.e2e.conftest import NodeCommand
from tests.e2e.drivers import Driver
from tests.e2e.tenants import SMALL, Tenants, capacity_request

RECOVERY_SECONDS = 180.0


@pytest.mark.node_command
def test_kubelet_restart_disturbs_no_pod_and_slices_come_back(
    tenants: Tenants, slices: Slices, node_command: NodeCommand, cluster: Cluster
) -> None:
    tenants.run("before", SMALL)
    devices = [item["spec"]["devices"] for item in slices()]
    started = _started(tenants.stored("before"))

    node_command("restart-kubelet")
    cluster.until(
        "slices as before",
        lambda: [item["spec"]["devices"] for item in slices()] == devices,
        seconds=60,
    )
    tenants.run("after", SMALL)

    assert _started(tenants.stored("before")) == started
    tenants.delete("before", "after")


@pytest.mark.node_command
def test_claim_of_pod_deleted_while_the_kubelet_is_away_is_unprepared(
    tenants: Tenants, node_command: NodeCommand, cluster: Cluster, driver: Driver
) -> None:
    tenants.run("a", SMALL)
    claim = tenants.claim("a")
    assert claim is not None

    node_command("stop-kubelet")
    try:
        cluster.delete("Pod", "a", namespace=tenants.namespace)
    finally:
        node_command("start-kubelet")

    cluster.until(
        "the pod and its claim to be gone",
        lambda: not tenants.remaining("a"),
        seconds=RECOVERY_SECONDS,
    )
    cluster.until(
        "the claim to be unprepared",
        lambda: any(
            '"claim_unprepared"' in line and claim["metadata"]["uid"] in line
            for line in driver.log().splitlines()
        ),
        seconds=60,
    )


def test_killed_driver_serves_again_and_keeps_its_claims(
    tenants: Tenants, driver: Driver, slices: Slices
) -> None:
    env = tenants.run("a", SMALL)
    before = [item["metadata"]["uid"] for item in slices()]

    driver.kill()
    tenants.run("b", SMALL)

    assert tenants.env("a") == env
    assert [item["metadata"]["uid"] for item in slices()] == before
    tenants.delete("a", "b")


@pytest.mark.usefixtures("idle_node")
@pytest.mark.parametrize("disruption", ["kill", "upgrade"])
def test_pods_come_and_go_while_the_driver_is_killed_or_upgraded(
    tenants: Tenants, driver: Driver, slices: Slices, disruption: str
) -> None:
    tenants.template("share", capacity_request("gpu", {"tflops": "30", "vram": "4Gi"}))
    wave = 0
    with ThreadPoolExecutor(1) as other:
        disrupting = other.submit(_repeat, getattr(driver, disruption), times=3)
        while not disrupting.done() or wave < 3:
            pods = [f"w{wave}-{number}" for number in range(4)]
            tenants.run_all(*pods, template="share", seconds=RECOVERY_SECONDS)
            assert _overcommitted(tenants.cluster, slices) == {}
            for name in pods:
                assert tenants.env(name)[names.ENV_MEMORY_LIMIT] == "4096"
            tenants.delete(*pods, seconds=RECOVERY_SECONDS)
            wave += 1
    disrupting.result()

    print(f"{wave} waves of 4 pods during 3 disruptions: {disruption}")


@pytest.mark.node_command
def test_new_pod_gets_a_share_after_a_reboot_of_the_node(
    tenants: Tenants, node_command: NodeCommand, cluster: Cluster, driver: Driver, slices: Slices
) -> None:
    tenants.run("a", SMALL)

    with driver.power_cut():
        node_command("reboot")
    cluster.until("slices", slices, seconds=RECOVERY_SECONDS)

    # The reboot ended its container, and restartPolicy Never starts no other.
    cluster.until(
        "the old pod to have ended",
        lambda: tenants.stored("a")["status"]["phase"] in {"Failed", "Succeeded"},
        seconds=RECOVERY_SECONDS,
    )
    tenants.run("b", SMALL)
    tenants.delete("a", "b", seconds=RECOVERY_SECONDS)


def _repeat(act: Callable[[], None], *, times: int) -> None:
    for _ in range(times):
        act()


def _started(pod: Json) -> list[str]:
    return [
        status["state"]["running"]["startedAt"] for status in pod["status"]["containerStatuses"]
    ]


def _overcommitted(cluster: Cluster, slices: Slices) -> dict[str, int]:
    """Return consumption beyond capacity by pool/device/capacity, in billionths of its unit."""
    capacity = {
        (item["spec"]["pool"]["name"], device["name"], name): quantity.parse(amount["value"]).nano
        for item in slices()
        for device in item["spec"]["devices"]
        for name, amount in device["capacity"].items()
    }
    consumed: dict[tuple[str, str, str], int] = {}
    claims = cluster.objects("ResourceClaim")
    for result in (each for claim in claims for each in results_of(claim)):
        for name, amount in (result.get("consumedCapacity") or {}).items():
            key = (result["pool"], result["device"], name)
            consumed[key] = consumed.get(key, 0) + quantity.parse(amount).nano
    return {
        "/".join(key): amount - capacity[key]
        for key, amount in consumed.items()
        if key in capacity and amount > capacity[key]
    }


@pytest.mark.usefixtures("idle_node")
def test_cards_of_force_deleted_pods_are_free_again(tenants: Tenants, slices: Slices) -> None:
    cards = sum(len(item["spec"]["devices"]) for item in slices())
    tenants.template("whole", capacity_request("gpu", {}))
    for wave in ("old", "new"):
        pods = [f"{wave}-{number}" for number in range(cards)]
        tenants.run_all(*pods, template="whole", seconds=120)
        tenants.delete(*pods, grace_seconds=0)


def test_pods_keep_running_while_the_driver_is_gone_and_end_once_it_is_back(
    tenants: Tenants, driver: Driver, slices: Slices, cluster: Cluster
) -> None:
    tenants.run("a", SMALL)

    driver.uninstall()
    try:
        cluster.until("the kubelet to remove the node's slices", lambda: not slices(), seconds=90)
        assert tenants.stored("a")["status"]["phase"] == "Running"
        cluster.delete("Pod", "a", namespace=tenants.namespace)
    finally:
        driver.start()

    cluster.until("the slices to be back", slices, seconds=60)
    cluster.until(
        "the pod and its claim to be gone", lambda: not tenants.remaining("a"), seconds=180
    )
    tenants.run("b", SMALL)

"""Pods across restarts of the kubelet, the driver and the node, and deletions meanwhile."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tensorfusion_dra.core import names
from tensorfusion_dra.core.kubernetes import quantity
from tests.e2e.cluster import Cluster, Json
from tests.e2e.conftest import NodeCommand
from tests.e2e.drivers import Driver
from tests.e2e.tenants import Tenants, capacity_request

Slices = Callable[[], list[Json]]

SMALL = {"tflops": "10", "vram": "1Gi"}
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
    with _repeated(getattr(driver, disruption), times=3) as done:
        wave = 0
        while not done.is_set() or wave < 3:
            pods = [f"w{wave}-{number}" for number in range(4)]
            for name in pods:
                tenants.pod(name, template="share")
            for name in pods:
                tenants.wait_until_running(name, seconds=RECOVERY_SECONDS)
            assert _overcommitted(tenants.cluster, slices) == {}
            for name in pods:
                assert tenants.env(name)[names.ENV_MEMORY_LIMIT] == "4096"
            tenants.delete(*pods, seconds=RECOVERY_SECONDS)
            wave += 1

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


@contextmanager
def _repeated(disruption: Callable[[], None], *, times: int) -> Iterator[threading.Event]:
    """Repeat a disruption during the block; the yielded event is set after the last one."""
    done = threading.Event()
    failed: list[BaseException] = []

    def again() -> None:
        try:
            for _ in range(times):
                disruption()
        except BaseException as error:  # noqa: BLE001 - raised in the test's own thread
            failed.append(error)
        finally:
            done.set()

    thread = threading.Thread(target=again)
    thread.start()
    try:
        yield done
    finally:
        thread.join()
        with contextlib.ExitStack() as stack:
            for error in failed:
                stack.push(_raising(error))


def _raising(error: BaseException) -> Callable[..., None]:
    def raise_it(*_: object) -> None:
        raise error

    return raise_it


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
    for result in cluster.allocated():
        for name, amount in (result.get("consumedCapacity") or {}).items():
            key = (result["pool"], result["device"], name)
            consumed[key] = consumed.get(key, 0) + quantity.parse(amount).nano
    return {
        f"{pool}/{device}/{name}": amount - capacity[pool, device, name]
        for (pool, device, name), amount in consumed.items()
        if (pool, device, name) in capacity and amount > capacity[pool, device, name]
    }


@pytest.mark.usefixtures("idle_node")
def test_cards_of_force_deleted_pods_are_free_again(tenants: Tenants, slices: Slices) -> None:
    cards = sum(len(item["spec"]["devices"]) for item in slices())
    for wave in ("old", "new"):
        pods = [f"{wave}-{number}" for number in range(cards)]
        for name in pods:
            tenants.template(name, capacity_request("gpu", {}))
            tenants.pod(name, template=name)
        for name in pods:
            tenants.wait_until_running(name, seconds=120)
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

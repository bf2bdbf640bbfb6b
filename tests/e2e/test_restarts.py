"""Running pods and starting ones outlive the kubelet, the driver and the node's boot."""

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
from tests.e2e.tenants import Tenants, request

Slices = Callable[[], list[Json]]

SMALL = {"tflops": "10", "vram": "1Gi"}
RECOVERY_SECONDS = 180.0


@pytest.mark.node_command
def test_a_kubelet_restart_disturbs_nobody_and_slices_come_back(
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
    tenants.end("before", "after")


@pytest.mark.node_command
def test_a_pod_that_is_deleted_while_the_kubelet_is_away_is_given_back(
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
        lambda: not tenants.left("a"),
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


def test_a_driver_that_is_killed_serves_again_and_knows_its_claims(
    tenants: Tenants, driver: Driver, slices: Slices
) -> None:
    env = tenants.run("a", SMALL)
    before = [item["metadata"]["uid"] for item in slices()]

    driver.kill()
    tenants.run("b", SMALL)

    assert tenants.env("a") == env
    assert [item["metadata"]["uid"] for item in slices()] == before
    tenants.end("a", "b")


def test_a_pod_that_starts_while_the_driver_is_away_runs_once_it_is_back(
    tenants: Tenants, driver: Driver
) -> None:
    tenants.template("a", request("gpu", SMALL))
    driver.uninstall()
    try:
        tenants.pod("a", template="a")
        tenants.event("a", "FailedPrepareDynamicResources")
    finally:
        driver.start()

    tenants.runs("a", seconds=RECOVERY_SECONDS)


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("trouble", ["kill", "upgrade"])
def test_pods_come_and_go_while_the_driver_is_killed_or_upgraded(
    tenants: Tenants, driver: Driver, slices: Slices, trouble: str
) -> None:
    tenants.template("share", request("gpu", {"tflops": "30", "vram": "4Gi"}))
    with _happening(getattr(driver, trouble), times=3) as over:
        wave = 0
        while not over.is_set() or wave < 3:
            pods = [f"w{wave}-{number}" for number in range(4)]
            for name in pods:
                tenants.pod(name, template="share")
            for name in pods:
                tenants.runs(name, seconds=RECOVERY_SECONDS)
            assert _overcommitted(tenants.cluster, slices) == {}
            for name in pods:
                assert tenants.env(name)[names.ENV_MEMORY_LIMIT] == "4096"
            tenants.end(*pods, seconds=RECOVERY_SECONDS)
            wave += 1

    print(f"{wave} waves of 4 pods while the driver met {trouble} 3 times")


@pytest.mark.node_command
def test_a_reboot_of_the_node_gives_pods_their_shares_again(
    tenants: Tenants, node_command: NodeCommand, cluster: Cluster, driver: Driver, slices: Slices
) -> None:
    tenants.run("a", SMALL)

    with driver.power_cut():
        node_command("reboot")
    cluster.until("slices", slices, seconds=RECOVERY_SECONDS)

    # Its container died with the node, and restartPolicy Never leaves it so.
    cluster.until(
        "the old pod to be seen as ended",
        lambda: tenants.stored("a")["status"]["phase"] in {"Failed", "Succeeded"},
        seconds=RECOVERY_SECONDS,
    )
    tenants.run("b", SMALL)
    tenants.end("a", "b", seconds=RECOVERY_SECONDS)


@contextmanager
def _happening(trouble: Callable[[], None], *, times: int) -> Iterator[threading.Event]:
    """Lets the trouble happen again and again beside the block; set once it has happened enough."""
    over = threading.Event()
    failed: list[BaseException] = []

    def again() -> None:
        try:
            for _ in range(times):
                trouble()
        except BaseException as error:  # noqa: BLE001 - told in the test's own thread
            failed.append(error)
        finally:
            over.set()

    thread = threading.Thread(target=again)
    thread.start()
    try:
        yield over
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
    """What claims hold of a device beyond what it has, in billionths of its capacity."""
    has = {
        (item["spec"]["pool"]["name"], device["name"], name): quantity.parse(amount["value"]).nano
        for item in slices()
        for device in item["spec"]["devices"]
        for name, amount in device["capacity"].items()
    }
    held: dict[tuple[str, str, str], int] = {}
    for result in cluster.allocated():
        for name, amount in (result.get("consumedCapacity") or {}).items():
            key = (result["pool"], result["device"], name)
            held[key] = held.get(key, 0) + quantity.parse(amount).nano
    return {
        f"{pool}/{device}/{name}": amount - has[pool, device, name]
        for (pool, device, name), amount in held.items()
        if (pool, device, name) in has and amount > has[pool, device, name]
    }

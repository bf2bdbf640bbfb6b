"""Force-deleted pods and an uninstalled driver leave nothing behind."""

from collections.abc import Callable

import pytest

from tests.e2e.cluster import Cluster, Json
from tests.e2e.drivers import Driver
from tests.e2e.tenants import Tenants, capacity_request

Slices = Callable[[], list[Json]]

SMALL = {"tflops": "10", "vram": "1Gi"}


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

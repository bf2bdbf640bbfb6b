"""Pods that are torn away, and a driver that is, leave nothing behind."""

from collections.abc import Callable

import pytest

from tests.e2e.cluster import Cluster, Json
from tests.e2e.drivers import Driver
from tests.e2e.tenants import Tenants, request

Slices = Callable[[], list[Json]]

SMALL = {"tflops": "10", "vram": "1Gi"}


@pytest.mark.usefixtures("quiet")
def test_pods_that_are_force_deleted_give_their_cards_back(
    tenants: Tenants, slices: Slices
) -> None:
    cards = sum(len(item["spec"]["devices"]) for item in slices())
    for wave in ("old", "new"):
        pods = [f"{wave}-{number}" for number in range(cards)]
        for name in pods:
            tenants.template(name, request("gpu", {}))
            tenants.pod(name, template=name)
        for name in pods:
            tenants.runs(name, seconds=120)
        tenants.end(*pods, grace_seconds=0)


def test_a_pod_of_the_same_name_gets_a_share_of_its_own(tenants: Tenants) -> None:
    tenants.run("a", SMALL)
    first = tenants.claim("a")

    tenants.end("a", grace_seconds=0)
    tenants.pod("a", template="a")
    tenants.runs("a", seconds=120)

    second = tenants.claim("a")
    assert first is not None
    assert second is not None
    assert first["metadata"]["uid"] != second["metadata"]["uid"]


def test_pods_run_on_while_the_driver_is_gone_and_end_once_it_is_back(
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
    cluster.until("the pod and its claim to be gone", lambda: not tenants.left("a"), seconds=180)
    tenants.run("b", SMALL)

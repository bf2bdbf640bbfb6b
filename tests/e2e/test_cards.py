"""Cards that are divided into partitions, and cards that are taken out of service."""

from collections.abc import Callable, Iterator

import pytest

from tensorfusion_dra.core import names
from tests.e2e.cluster import Cluster, Slices
from tests.e2e.conftest import Typed
from tests.e2e.drivers import Driver
from tests.e2e.tenants import SMALL, Tenants

GPUS = "1xA100-SXM4-80GB@mig=1g.10gb*7,1xT4"
PARTITIONED = {
    names.ANNOTATION_DRA_ENABLED: "true",
    names.ANNOTATION_ISOLATION: "partitioned",
    names.ANNOTATION_VRAM_REQUEST: "8Gi",
}
SHARED = {names.ANNOTATION_DRA_ENABLED: "true", names.ANNOTATION_VRAM_REQUEST: "1Gi"}


@pytest.fixture
def partitions(driver: Driver, cluster: Cluster, slices: Slices) -> Iterator[None]:
    """A card of seven partitions, and a T4 beside it."""

    def published(kinds: tuple[str, ...]) -> Callable[[], bool]:
        return lambda: (
            {device["name"][:3] for item in slices() for device in item["spec"]["devices"]}
            == {*kinds}
        )

    with driver.configured({"simulated-gpus": GPUS}):
        cluster.until("the partitions", published(("gpu", "mig")), seconds=60)
        yield
    cluster.until("the cards from before", published(("gpu",)), seconds=60)


def waits(tenants: Tenants, pod: str) -> bool:
    conditions = tenants.stored(pod)["status"].get("conditions") or []
    return any(each.get("reason") == "Unschedulable" for each in conditions)


@pytest.mark.webhook
@pytest.mark.usefixtures("idle_node", "partitions")
def test_each_pod_has_a_partition_of_its_own_and_the_eighth_waits(
    team: Tenants, cluster: Cluster, typed: Typed
) -> None:
    for number in range(8):
        team.pod(f"tenant-{number}", annotations=PARTITIONED)
    team.pod("shared", annotations=SHARED)
    team.wait_until_running("shared")

    def running() -> list[str]:
        every = [f"tenant-{number}" for number in range(8)]
        return [each for each in every if team.stored(each)["status"]["phase"] == "Running"]

    held = cluster.until(
        "7 pods to run", lambda: running() if len(running()) == 7 else None, seconds=90
    )
    (last,) = {f"tenant-{number}" for number in range(8)} - {*held}
    cluster.until("the eighth to wait", lambda: waits(team, last), seconds=30)
    got = [device for pod in held for device in team.results(pod)]
    assert len({each["device"] for each in got}) == 7
    assert {each["device"][:4] for each in got} == {"mig-"}
    assert [each["device"][:4] for each in team.results("shared")] == ["gpu-"]
    assert team.env(held[0])[names.ENV_ISOLATION_MODE] == "partitioned"
    code, said = typed("why", f"{team.namespace}/{last}")
    assert code == 1
    assert "mig-" in said
    code, said = typed("top")
    assert code == 0
    assert "1g.10gb" in said

    team.delete(held[0])

    team.wait_until_running(last, seconds=90)
    team.delete("shared", *held[1:], last)


@pytest.mark.usefixtures("idle_node")
def test_pods_stay_away_from_a_card_that_is_out_of_service_or_are_deleted(
    tenants: Tenants, cluster: Cluster, typed: Typed, slices: Slices, node_name: str
) -> None:
    cards = [device["name"] for item in slices() for device in item["spec"]["devices"]]
    tenants.run("first", SMALL)
    (share,) = tenants.results("first")
    place = f"{node_name}/{share['device']}"

    for card in cards:
        code, said = typed("cordon", f"{node_name}/{card}", "--reason", "fan makes noise")
        assert code == 0, said
    try:
        tenants.lacks_room("second", SMALL)
        code, said = typed("why", f"{tenants.namespace}/second")
        assert code == 1
        assert "fan-makes-noise_by_admin" in said
        assert "fan-makes-noise" in typed("top", "-o", "wide")[1]
        assert tenants.stored("first")["status"]["phase"] == "Running"

        code, said = typed("cordon", place, "--evict", "--reason", "burnt")
        assert code == 0, said
        cluster.until(
            "the first pod to be deleted",
            lambda: cluster.find("Pod", "first", namespace=tenants.namespace) is None,
            seconds=60,
        )
        assert tenants.stored("second")["status"]["phase"] == "Pending"
    finally:
        for card in cards:
            code, said = typed("uncordon", f"{node_name}/{card}")
            assert code == 0, said
    tenants.wait_until_running("second", seconds=90)
    assert "fan-makes-noise" not in typed("top", "-o", "wide")[1]

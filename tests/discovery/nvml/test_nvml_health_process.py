"""The real node-plugin process on the stand-in for NVML: events, lost cards, calls that hang."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tensorfusion_dra.app.simulate.cluster import SimulatedCluster
from tests.app.node_plugin.test_health_process import (
    FAST,
    NO_POLL,
    SERVICES,
    SHORT_WAIT,
    devices,
    phases,
    reasons,
    streamed,
    taints,
)
from tests.app.node_plugin.test_node_plugin_process import cluster_with, log_lines, start
from tests.discovery.nvml.nvml_machine import answers, card, uuid

pytestmark = pytest.mark.process

XID, DOUBLE_BIT_ECC, FATAL_POISON, RECOVERY_ACTION = 0x8, 0x2, 0x2000, 0x8000
GPU_0, GPU_1 = (uuid(index).lower() for index in range(2))
NOT_SUPPORTED, GPU_IS_LOST = "!3", "!15"


class Driver:
    """Answers and events of the stand-in for a running process."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "answers"
        self.events = folder / "answers.events"
        self.events.touch()

    def answers(self, *cards: Mapping[str, str], **system: str) -> None:
        fresh = self.file.with_suffix(".new")
        fresh.write_text(answers(*cards, **system), encoding="utf-8")
        fresh.replace(self.file)

    def report(self, index: int, kind: int, code: int = 0) -> None:
        with self.events.open("a", encoding="ascii") as file:
            file.write(f"{index} {kind} {code}\n")

    def opened(self) -> set[int]:
        """Return the indices of the cards that the process keeps open."""
        return {int(index) for index in self.file.with_suffix(".open").read_text().split()}


@contextmanager
def node(driver: Driver, library: Path, *flags: str, **system: str) -> Iterator[SimulatedCluster]:
    """Run a cluster whose node plugin has published two NVML cards and waits for events."""
    if not driver.file.exists():
        driver.answers(card(0), card(1), **system)
    with cluster_with() as cluster:
        cluster.plugin_flags[:] = ["--nvml-library", str(library), *FAST, *flags]
        start(cluster)
        cluster.until("both", lambda: len(devices(cluster)) == 2)
        yield cluster


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Driver:
    made = Driver(tmp_path)
    monkeypatch.setenv("STAND_IN_GPUS", str(made.file))
    return made


def await_reported(
    cluster: SimulatedCluster, driver: Driver, index: int, kind: int, code: int = 0
) -> None:
    """Report the event until it is logged, because the start of the wait is not observable."""

    def is_logged() -> bool:
        driver.report(index, kind, code)
        lines = log_lines(cluster, "card_event")
        return any((line["device"], line["code"]) == (uuid(index), code) for line in lines)

    cluster.until("logged", is_logged)


def test_xid_taints_the_device_and_reaches_both_streams_before_the_next_poll(
    driver: Driver, library: Path
) -> None:
    with node(driver, library, *NO_POLL) as cluster:
        await_reported(cluster, driver, 1, XID, 31)
        assert taints(cluster) == {}

        driver.report(0, XID, 79)
        cluster.until("tainted", lambda: bool(taints(cluster)))

        assert reasons(cluster) == {GPU_0: "xid-79"}
        for service in SERVICES:
            assert streamed(cluster, service)[GPU_0][0] == "UNHEALTHY"
            assert streamed(cluster, service)[GPU_1][0] == "HEALTHY"


def test_memory_errors_taint_their_devices(driver: Driver, library: Path) -> None:
    with node(driver, library) as cluster:
        await_reported(cluster, driver, 0, DOUBLE_BIT_ECC)
        await_reported(cluster, driver, 1, FATAL_POISON)

        both = {GPU_0: "uncorrectable-ecc", GPU_1: "fatal-poison"}
        cluster.until("tainted", lambda: reasons(cluster) == both)


def test_reported_recovery_action_is_read_at_once(driver: Driver, library: Path) -> None:
    with node(driver, library, *NO_POLL) as cluster:
        driver.answers(card(0), card(1, recovery="2"))
        await_reported(cluster, driver, 1, RECOVERY_ACTION)

        cluster.until("tainted", lambda: reasons(cluster) == {GPU_1: "node-reboot-required"})


def test_lost_card_does_not_affect_the_others(driver: Driver, library: Path) -> None:
    with node(driver, library) as cluster:
        driver.answers(card(0), card(1, handle=GPU_IS_LOST), event_wait=GPU_IS_LOST)

        cluster.until("lost", lambda: list(devices(cluster)) == [GPU_0])

        assert taints(cluster) == {}
        health = streamed(cluster, SERVICES[0])
        assert health[GPU_0][0] == "HEALTHY"
        assert health[GPU_1][0] == "UNHEALTHY"
        assert health[GPU_1][1].startswith("the GPU is lost: handle: found NVML_ERROR_GPU_IS_LOST")


def test_hanging_call_makes_all_cards_unhealthy_until_it_returns_and_delays_no_stop(
    driver: Driver, library: Path, tmp_path: Path
) -> None:
    with node(driver, library, *SHORT_WAIT) as cluster:
        go = tmp_path / "go"
        driver.answers(card(0, uuid=f"~{go} {uuid(0)}"), card(1))

        cluster.until("hung", lambda: len(taints(cluster)) == 2)

        assert set(reasons(cluster).values()) == {"nvml-hung"}
        message = streamed(cluster, SERVICES[1])[GPU_1][1]
        assert message == "the NVIDIA driver does not answer: uuid of GPU 0"
        driver.answers(card(0), card(1))
        go.touch()
        cluster.until("well", lambda: not taints(cluster))
        assert set(phases(cluster).values()) == {"Running"}

        driver.answers(card(0, uuid=f"~{tmp_path}/never {uuid(0)}"), card(1))
        cluster.until("hung again", lambda: len(taints(cluster)) == 2)
        assert cluster.stop_plugin() == 0


def test_card_without_events_is_polled_and_this_is_logged_once(
    driver: Driver, library: Path
) -> None:
    eventless = {"events": NOT_SUPPORTED}
    driver.answers(card(0, **eventless), card(1))
    with node(driver, library) as cluster:
        await_reported(cluster, driver, 1, XID, 31)
        driver.answers(card(0, **eventless, recovery="1"), card(1))

        cluster.until("tainted", lambda: bool(taints(cluster)))

        assert reasons(cluster) == {GPU_0: "gpu-reset-required"}
        (line,) = log_lines(cluster, "card_only_polled")
        assert line["device"] == uuid(0)


def test_failed_event_registration_is_retried(driver: Driver, library: Path) -> None:
    driver.answers(card(0, events="!999"), card(1, events="0"))
    with node(driver, library) as cluster:
        cluster.until("logged", lambda: bool(log_lines(cluster, "card_events_retried")))

        driver.answers(card(0), card(1))

        await_reported(cluster, driver, 0, XID, 79)
        cluster.until("tainted", lambda: reasons(cluster) == {GPU_0: "xid-79"})
        cluster.until("well", lambda: not taints(cluster))


def test_driver_without_events_is_polled(driver: Driver, eventless_library: Path) -> None:
    with node(driver, eventless_library) as cluster:
        cluster.until("logged", lambda: bool(log_lines(cluster, "card_events_unavailable")))
        driver.answers(card(0, recovery="1"), card(1))

        cluster.until("tainted", lambda: bool(taints(cluster)))
        driver.answers(card(0), card(1))
        cluster.until("well", lambda: not taints(cluster))

        assert len(log_lines(cluster, "card_events_unavailable")) == 1


def test_sick_card_is_not_kept_open(driver: Driver, library: Path) -> None:
    with node(driver, library, "--health-quiet-seconds", "60") as cluster:
        await_reported(cluster, driver, 0, XID, 79)
        cluster.until("tainted", lambda: bool(taints(cluster)))
        cluster.until("closed", lambda: driver.opened() == {1})

        await_reported(cluster, driver, 1, XID, 31)

        cluster.until("closed", lambda: driver.opened() == {1})

"""The real node-plugin process on the stand-in for NVML.

Events, lost cards, calls that hang, and a driver that is replaced.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from dra_simulator.rest import NODES
from tensorfusion_dra.app.simulate.cluster import SimulatedCluster
from tensorfusion_dra.cluster.api import USER_AGENT
from tensorfusion_dra.core.claims.claim import ClaimRef
from tests.discovery.nvml.nvml_machine import (
    answers,
    card,
    divided,
    mig_uuid,
    partition,
    provide_driver,
    uuid,
)
from tests.support.kubelet import PluginClient
from tests.support.node_plugin_process import SHARE, cluster_with, log_lines, start, stop
from tests.support.published_health import (
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

pytestmark = pytest.mark.process

XID, DOUBLE_BIT_ECC, FATAL_POISON, RECOVERY_ACTION = 0x8, 0x2, 0x2000, 0x8000
MIG_CHANGE = 0x100
GPU_0, GPU_1 = (uuid(index).lower() for index in range(2))
NOT_SUPPORTED, GPU_IS_LOST = "!3", "!15"

STATE = "nvidia.com/gpu-driver-upgrade-state"
DRIVER_NOT_LOADED = "!9"


class Driver:
    """Answers and events of the stand-in for a running process."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "answers"
        self.events = folder / "answers.events"
        self.events.touch()

    def answers(self, *cards: Mapping[str, str], **system: str) -> None:
        self.write(answers(*cards, **system))

    def write(self, text: str) -> None:
        fresh = self.file.with_suffix(".new")
        fresh.write_text(text, encoding="utf-8")
        fresh.replace(self.file)

    def report(self, index: int, kind: int, code: int = 0, *instance: int) -> None:
        with self.events.open("a", encoding="ascii") as file:
            file.write(" ".join(map(str, (index, kind, code, *instance))) + "\n")

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

        cluster.until("tainted", lambda: reasons(cluster) == {GPU_0: "xid-79"})
        for service in SERVICES:
            statuses = {
                device: status for device, (status, _) in streamed(cluster, service).items()
            }
            assert statuses == {GPU_0: "UNHEALTHY", GPU_1: "HEALTHY"}


@pytest.mark.parametrize(
    ("kind", "recovery", "reason"),
    [
        (DOUBLE_BIT_ECC, "0", "uncorrectable-ecc"),
        (FATAL_POISON, "0", "fatal-poison"),
        (RECOVERY_ACTION, "2", "node-reboot-required"),  # which is read at once
    ],
)
def test_other_events_taint_their_device_before_the_next_poll(
    driver: Driver, library: Path, kind: int, recovery: str, reason: str
) -> None:
    with node(driver, library, *NO_POLL) as cluster:
        driver.answers(card(0), card(1, recovery=recovery))
        await_reported(cluster, driver, 1, kind)

        cluster.until("tainted", lambda: reasons(cluster) == {GPU_1: reason})


def test_event_of_an_instance_taints_its_partition_and_a_change_of_instances_is_read_at_once(
    driver: Driver, library: Path
) -> None:
    driver.write(divided(1, partition(0, 7), partition(1, 8)))
    first, second, third = (mig_uuid(number).lower() for number in range(3))
    with cluster_with() as cluster:
        cluster.plugin_flags[:] = ["--nvml-library", str(library), *FAST, *NO_POLL]
        start(cluster)
        cluster.until("all", lambda: devices(cluster).keys() == {GPU_0, first, second})
        await_reported(cluster, driver, 1, XID, 31)

        driver.report(1, XID, 79, 8)
        cluster.until("tainted", lambda: reasons(cluster) == {second: "xid-79"})
        driver.write(divided(1, partition(0, 7), partition(2, 9)))
        await_reported(cluster, driver, 1, MIG_CHANGE)

        cluster.until("read", lambda: devices(cluster).keys() == {GPU_0, first, third})


def test_lost_card_does_not_affect_the_others(driver: Driver, library: Path) -> None:
    with node(driver, library) as cluster:
        driver.answers(card(0), card(1, handle=GPU_IS_LOST), event_wait=GPU_IS_LOST)

        cluster.until("lost", lambda: list(devices(cluster)) == [GPU_0])

        assert taints(cluster) == {}
        health = streamed(cluster, SERVICES[0])
        assert (health[GPU_0][0], health[GPU_1][0]) == ("HEALTHY", "UNHEALTHY")
        assert health[GPU_1][1].startswith("the GPU is lost: handle: found NVML_ERROR_GPU_IS_LOST")


def test_hanging_call_makes_all_cards_unhealthy_until_it_returns_and_delays_no_stop(
    driver: Driver, library: Path, tmp_path: Path
) -> None:
    hung = {GPU_0: "nvml-hung", GPU_1: "nvml-hung"}
    with node(driver, library, *SHORT_WAIT) as cluster:
        go = tmp_path / "go"
        driver.answers(card(0, uuid=f"~{go} {uuid(0)}"), card(1))

        cluster.until("hung", lambda: reasons(cluster) == hung)

        message = streamed(cluster, SERVICES[1])[GPU_1][1]
        assert message == "the NVIDIA driver does not answer: uuid of GPU 0"
        driver.answers(card(0), card(1))
        go.touch()
        cluster.until("well", lambda: not taints(cluster))
        assert set(phases(cluster).values()) == {"Running"}

        driver.answers(card(0, uuid=f"~{tmp_path}/never {uuid(0)}"), card(1))
        cluster.until("hung again", lambda: reasons(cluster) == hung)
        assert cluster.stop_plugin() == 0


@pytest.mark.parametrize("lacking", ["card", "driver"])
def test_card_or_driver_without_events_is_polled_and_this_is_logged_once(
    driver: Driver, library: Path, eventless_library: Path, lacking: str
) -> None:
    events = {"events": NOT_SUPPORTED} if lacking == "card" else {}
    driver.answers(card(0, **events), card(1))
    with node(driver, library if lacking == "card" else eventless_library) as cluster:
        if lacking == "card":
            await_reported(cluster, driver, 1, XID, 31)
        driver.answers(card(0, **events, recovery="1"), card(1))

        cluster.until("tainted", lambda: reasons(cluster) == {GPU_0: "gpu-reset-required"})

        driver.answers(card(0, **events), card(1))
        cluster.until("well", lambda: not taints(cluster))
        (line,) = [
            *log_lines(cluster, "card_only_polled"),
            *log_lines(cluster, "card_events_unavailable"),
        ]
        assert line.get("device") == (uuid(0) if lacking == "card" else None)


def test_failed_event_registration_is_retried(driver: Driver, library: Path) -> None:
    driver.answers(card(0, events="!999"), card(1, events="0"))
    with node(driver, library) as cluster:
        cluster.until("logged", lambda: bool(log_lines(cluster, "card_events_retried")))

        driver.answers(card(0), card(1))

        await_reported(cluster, driver, 0, XID, 79)
        cluster.until("tainted", lambda: reasons(cluster) == {GPU_0: "xid-79"})
        cluster.until("well", lambda: not taints(cluster))


def test_sick_card_is_not_kept_open(driver: Driver, library: Path) -> None:
    with node(driver, library, "--health-quiet-seconds", "60") as cluster:
        await_reported(cluster, driver, 0, XID, 79)
        cluster.until("closed", lambda: driver.opened() == {1} and bool(taints(cluster)))

        await_reported(cluster, driver, 1, XID, 31)

        cluster.until("closed", lambda: driver.opened() == {1})


class Upgrade:
    """A node during an upgrade of its driver."""

    def __init__(self, cluster: SimulatedCluster, driver: Driver) -> None:
        self.cluster = cluster
        self.control = driver.file.with_suffix(".nvidiactl")
        self.sign = cluster.folder / "tensor-fusion" / "driver-replacement"
        provide_driver(cluster.folder, cards=2)  # no runtime would make containers of it

    def label(self, state: str) -> None:
        stored = self.cluster.client.get(NODES, "node-01")
        self.cluster.client.patch(NODES, stored, {"metadata": {"labels": {STATE: state}}})

    def holds_driver(self) -> bool:
        files = Path(f"/proc/{self.cluster.plugin().pid}/fd").iterdir()
        return any(file.exists() and file.readlink() == self.control for file in files)

    def until_awaited(self, text: str) -> None:
        """Wait until the log says that this keeps the cards from being read."""
        lines = partial(log_lines, self.cluster, "gpus_awaited")
        self.cluster.until(text, lambda: any(text in line["error"] for line in lines()))

    def prepared(self, pod: str) -> ClaimRef:
        """Create a pod with a share; return its claim, which is prepared."""
        self.cluster.submit(pod, SHARE)
        self.cluster.until("prepared", lambda: bool(self.cluster.spec_files()))
        metadata = (self.cluster.claim_of(self.cluster.pod(pod)) or {})["metadata"]
        return ClaimRef(namespace="default", name=metadata["name"], uid=metadata["uid"])


def test_a_driver_is_replaced_under_running_pods(driver: Driver, library: Path) -> None:
    with node(driver, library, "--enforcer", "none", "--observe-use", "true") as cluster:
        upgrade = Upgrade(cluster, driver)
        claim = upgrade.prepared("a")
        cluster.until("watched", lambda: driver.opened() == {0, 1} and upgrade.holds_driver())

        upgrade.label("wait-for-jobs-required")
        upgrade.label("pod-deletion-required")

        cluster.until("tainted", lambda: len(taints(cluster)) == 2)
        for taint in taints(cluster).values():
            assert (taint["effect"], taint["value"]) == ("NoExecute", "driver-replacement")
        assert set(phases(cluster).values()) == {"Unknown"}
        cluster.until("let go", lambda: not upgrade.holds_driver())
        upgrade.until_awaited(f"keep the driver in use: {claim}")
        with PluginClient(
            cluster.kubelet_root / "plugins/tensor-fusion.ai.dra-driver/dra.sock"
        ) as kubelet:
            error = kubelet.prepare(claim).claims[claim.uid].error
        assert "the NVIDIA driver is being replaced" in error
        cluster.delete("a")  # as kube-controller-manager does because of the taint
        cluster.until("unprepared", lambda: not cluster.spec_files())
        upgrade.until_awaited("no claim uses it")

        upgrade.control.unlink()
        cluster.stop_plugin()
        start(cluster)
        upgrade.until_awaited("pod-deletion-required")
        assert not upgrade.control.exists()

        driver.answers(card(0), card(1), init=DRIVER_NOT_LOADED)
        upgrade.label("validation-required")
        upgrade.until_awaited("DRIVER_NOT_LOADED")
        assert (len(taints(cluster)), upgrade.sign.exists()) == (2, True)
        driver.answers(card(0), card(1), driver="575.51.03")
        cluster.until("back", lambda: not taints(cluster))

        for device in devices(cluster).values():
            assert device["attributes"]["driver_version"]["version"] == "575.51.3"
        assert not upgrade.sign.exists()
        upgrade.prepared("b")


def test_first_slices_of_a_restart_have_the_marks_of_the_node(
    driver: Driver, library: Path
) -> None:
    with node(driver, library) as cluster:
        mark = {f"cordon.tensor-fusion.ai/{GPU_0}": "fan_by_alice:NoSchedule:2026-03-01T00:00:00Z"}
        found = cluster.client.get(NODES, cluster.node_name)
        cluster.client.patch(NODES, found, {"metadata": {"annotations": mark}})
        cluster.until("tainted", lambda: "fan_by_alice" in str(cluster.slices()))
        stop(cluster)
        before = cluster.slices()
        cluster.server.requests.reset()
        start(cluster)
        cluster.until("watched", lambda: cluster.server.requests.count("watch", "nodes") > 0)

        assert cluster.slices() == before
        assert cluster.server.requests.count("update", "resourceslices") == 0


def test_without_release_driver_the_node_is_not_watched(driver: Driver, library: Path) -> None:
    with node(driver, library, "--release-driver", "false") as cluster:
        sent = {(each.verb, each.resource) for each in cluster.server.requests.asked(USER_AGENT)}

        assert ("watch", "resourceslices") in sent
        assert ("watch", "nodes") not in sent

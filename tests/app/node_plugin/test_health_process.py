"""The real node-plugin process with simulated cards that become unhealthy and recover."""

import itertools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tensorfusion_dra.app.simulate.cluster import SimulatedCluster
from tests.support.node_plugin_process import (
    cluster_with,
    condition,
    event_messages,
    log_lines,
    run_pod,
    slice_writes,
    start,
    stop,
)
from tests.support.published_health import (
    FAST,
    SERVICES,
    SHORT_WAIT,
    devices,
    phases,
    reasons,
    streamed,
    taints,
)

pytestmark = pytest.mark.process


@dataclass
class Profile:
    """Simulated cards, in a file that the node plugin reads again when it changes."""

    file: Path
    gpus: list[dict[str, Any]] = field(default_factory=lambda: [{}, {}])
    node: dict[str, Any] = field(default_factory=dict)

    def write(self) -> None:
        gpus = [{"product": "A100-SXM4-80GB", **gpu} for gpu in self.gpus]
        fresh = self.file.with_suffix(".new")
        fresh.write_text(json.dumps({"gpus": gpus, **self.node}), encoding="utf-8")
        fresh.replace(self.file)

    def make(self, index: int, **faults: Any) -> None:
        """Give one card exactly these faults."""
        self.gpus[index] = faults
        self.write()

    def make_node(self, **fields: Any) -> None:
        """Give the node exactly these fields."""
        self.node = fields
        self.write()


@contextmanager
def sick_cluster(
    folder: Path, *flags: str, **options: Any
) -> Iterator[tuple[SimulatedCluster, Profile]]:
    """Yield a cluster that has published its two cards, and their profile."""
    profile = Profile(folder / "gpus.yaml")
    profile.write()
    with cluster_with(str(profile.file), **options) as cluster:
        cluster.plugin_flags.extend([*FAST, *flags])
        start(cluster)
        yield cluster, profile


def device_of(cluster: SimulatedCluster, pod: str) -> str:
    """Return the device of a running pod."""
    claim = cluster.claim_of(cluster.pod(pod)) or {}
    return str(claim["status"]["allocation"]["devices"]["results"][0]["device"])


def ready(cluster: SimulatedCluster, pod: str) -> tuple[str, str]:
    """Return status and reason of the Ready condition of the only device in a pod's claim."""
    return condition(cluster, pod, "Ready")


def test_an_xid_and_its_time_survive_a_restart_that_writes_nothing(tmp_path: Path) -> None:
    xids = ("--health-critical-xids", "31", "--health-ignored-xids", "45,79")
    ignored = itertools.cycle((45, 79))
    rest = ("--health-taint", "NoExecute", "--health-quiet-seconds", "600")
    with sick_cluster(tmp_path, *xids, *rest) as (cluster, profile):
        first, _ = devices(cluster)
        profile.make(1, xid=79)
        cluster.until("seen", lambda: bool(log_lines(cluster, "card_event")))
        profile.make(0, xid=31)
        cluster.until("tainted", lambda: bool(taints(cluster)))
        cluster.until("event", lambda: bool(event_messages(cluster, "GPUUnhealthy")))
        assert reasons(cluster) == {first: "xid-31"}
        assert taints(cluster)[first]["effect"] == "NoExecute"
        before = cluster.slices()
        cluster.server.requests.reset()

        stop(cluster)
        start(cluster)
        cluster.until("watching", lambda: cluster.server.requests.count("watch") > 0)
        seen = len(log_lines(cluster, "card_event"))

        def is_followed() -> bool:
            profile.make(1, xid=next(ignored))  # what it reports before it is followed is no news
            return len(log_lines(cluster, "card_event")) > seen

        cluster.until("its events are followed", is_followed)
        assert cluster.slices() == before
        profile.make(1, xid=31)
        cluster.until("tainted", lambda: len(taints(cluster)) == 2)
        cluster.until("event", lambda: len(event_messages(cluster, "GPUUnhealthy")) > 1)

        assert slice_writes(cluster) == 1
        assert len(event_messages(cluster, "GPUUnhealthy")) == 2


def test_a_lost_card_with_a_claim_stays_listed_and_is_reported_everywhere(tmp_path: Path) -> None:
    with sick_cluster(tmp_path) as (cluster, profile):
        run_pod(cluster, "a")
        cluster.until("ready", lambda: ready(cluster, "a")[0] == "True")
        device = device_of(cluster, "a")
        before = devices(cluster)

        profile.make(list(before).index(device), fault="lost")
        cluster.until("tainted", lambda: bool(taints(cluster)))

        assert reasons(cluster) == {device: "lost"}
        assert devices(cluster)[device]["capacity"] == before[device]["capacity"]
        cluster.until("not ready", lambda: ready(cluster, "a")[0] == "False")
        assert ready(cluster, "a")[1] == "GPUUnhealthy"
        profile.make(list(before).index(device))
        # The claim's status and the slices are written by two threads.
        cluster.until("ready again", lambda: ready(cluster, "a")[0] == "True")
        cluster.until("untainted", lambda: taints(cluster) == {})


def test_a_hanging_nvidia_driver_delays_no_claim(tmp_path: Path) -> None:
    with sick_cluster(tmp_path, *SHORT_WAIT, "--health-taint", "none") as (cluster, profile):
        run_pod(cluster, "a")

        profile.make_node(hangs=True)
        cluster.until("hung", lambda: set(phases(cluster).values()) == {"Unknown"})
        run_pod(cluster, "b")
        cluster.delete("a")
        cluster.until("unprepared", lambda: len(cluster.spec_files()) == 1)

        (status,) = set(streamed(cluster, SERVICES[0]).values())
        assert status == ("UNHEALTHY", "the NVIDIA driver does not answer: simulated call")
        profile.make_node()
        cluster.until("well", lambda: set(phases(cluster).values()) == {"Running"})

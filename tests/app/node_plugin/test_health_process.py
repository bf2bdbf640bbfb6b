"""The real node-plugin process with simulated cards that become unhealthy and recover."""

from pathlib import Path

import pytest

from tests.app.node_plugin.health_cluster import (
    SERVICES,
    SHORT_WAIT,
    device_of,
    devices,
    phases,
    ready,
    reasons,
    sick_cluster,
    streamed,
    taints,
)
from tests.app.node_plugin.test_node_plugin_process import (
    event_messages,
    log_lines,
    run_pod,
    slice_writes,
    start,
    stop,
)

pytestmark = pytest.mark.process


def test_an_xid_and_its_time_survive_a_restart_that_writes_nothing(tmp_path: Path) -> None:
    xids = ("--health-critical-xids", "31", "--health-ignored-xids", "79")
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

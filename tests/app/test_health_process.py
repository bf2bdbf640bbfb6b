"""The real node-plugin process and its simulated cards, sick and well again without a restart."""

import time
from pathlib import Path

from tensorfusion_dra.core import names
from tensorfusion_dra.simulator.api.gates import DEFAULT_GATES
from tests.app.health_cluster import (
    SERVICES,
    SHARE,
    device_of,
    devices,
    events,
    phases,
    ready,
    reasons,
    restart,
    sick_cluster,
    streamed,
    taints,
)
from tests.app.test_node_plugin_process import log_lines, slice_writes


def test_an_xid_is_a_taint_and_unhealthy_on_both_streams_within_two_seconds(
    tmp_path: Path,
) -> None:
    with sick_cluster(tmp_path) as (cluster, profile):
        first, second = devices(cluster)
        started = time.monotonic()

        profile.make(0, xid=79)
        cluster.until("tainted", lambda: bool(taints(cluster)), seconds=15)

        assert time.monotonic() - started < 2
        (taint,) = taints(cluster).values()
        assert reasons(cluster) == {first: "xid-79"}
        assert taint["effect"] == "NoSchedule"
        assert phases(cluster) == {first: "Unknown", second: "Running"}
        for service in SERVICES:
            assert streamed(cluster, service) == {
                first: ("UNHEALTHY", "XID 79: GPU has fallen off the bus"),
                second: ("HEALTHY", ""),
            }
        cluster.until("told", lambda: bool(events(cluster, "GPUUnhealthy")), seconds=15)
        assert events(cluster, "GPUUnhealthy") == [f"{first}: XID 79: GPU has fallen off the bus"]


def test_a_card_without_further_trouble_recovers_with_two_writes_in_all(tmp_path: Path) -> None:
    with sick_cluster(tmp_path) as (cluster, profile):
        first, second = devices(cluster)
        cluster.server.requests.reset()
        started = time.monotonic()

        profile.make(0, xid=79)
        cluster.until("tainted", lambda: bool(taints(cluster)), seconds=15)
        profile.make(0)
        cluster.until("well", lambda: not taints(cluster), seconds=15)

        assert time.monotonic() - started >= 1
        assert phases(cluster) == {first: "Running", second: "Running"}
        assert slice_writes(cluster) == 2
        assert streamed(cluster, SERVICES[0])[first] == ("HEALTHY", "")
        cluster.until("told", lambda: bool(events(cluster, "GPURecovered")), seconds=15)


def test_an_applications_own_error_leaves_the_card_alone(tmp_path: Path) -> None:
    with sick_cluster(tmp_path) as (cluster, profile):
        cluster.server.requests.reset()

        profile.make(0, xid=31)
        cluster.until("seen", lambda: bool(log_lines(cluster, "card_event")), seconds=15)

        (line,) = log_lines(cluster, "card_event")
        assert (line["code"], line["counts"]) == (31, False)
        assert slice_writes(cluster) == 0
        assert {status for status, _ in streamed(cluster, SERVICES[0]).values()} == {"HEALTHY"}
        assert events(cluster, "GPUUnhealthy") == []


def test_settings_decide_otherwise_about_an_xid_and_about_the_taint(tmp_path: Path) -> None:
    flags = ("--health-critical-xids", "31", "--health-ignored-xids", "79")
    with sick_cluster(tmp_path, *flags, "--health-taint", "NoExecute") as (cluster, profile):
        first, second = devices(cluster)

        profile.make(1, xid=79)
        cluster.until("seen", lambda: bool(log_lines(cluster, "card_event")), seconds=15)
        profile.make(0, xid=31)
        cluster.until("tainted", lambda: bool(taints(cluster)), seconds=15)

        assert reasons(cluster) == {first: "xid-31"}
        assert taints(cluster)[first]["effect"] == "NoExecute"
        assert phases(cluster)[second] == "Running"


def test_a_recovery_that_the_driver_asks_for_lasts_until_it_asks_no_more(tmp_path: Path) -> None:
    with sick_cluster(tmp_path) as (cluster, profile):
        first, _ = devices(cluster)

        profile.make(0, recovery_action=1)
        cluster.until("tainted", lambda: bool(taints(cluster)), seconds=15)
        time.sleep(1.5)  # longer than the quiet time

        assert reasons(cluster) == {first: "gpu-reset-required"}
        profile.make(0)
        cluster.until("well", lambda: not taints(cluster), seconds=15)


def test_an_xid_and_when_it_was_outlast_a_restart_that_writes_nothing(tmp_path: Path) -> None:
    with sick_cluster(tmp_path, "--health-quiet-seconds", "600") as (cluster, profile):
        profile.make(0, xid=79)
        cluster.until("tainted", lambda: bool(taints(cluster)), seconds=15)
        cluster.until("told", lambda: bool(events(cluster, "GPUUnhealthy")), seconds=15)
        before = cluster.slices()
        cluster.server.requests.reset()

        restart(cluster)
        cluster.until("watching", lambda: cluster.server.requests.count("watch") > 0, seconds=15)
        time.sleep(1)

        assert cluster.slices() == before
        assert slice_writes(cluster) == 0
        assert len(events(cluster, "GPUUnhealthy")) == 1


def test_a_lost_card_stays_for_its_claim_and_says_so_everywhere(tmp_path: Path) -> None:
    with sick_cluster(tmp_path) as (cluster, profile):
        cluster.submit("a", SHARE)
        cluster.until("ready", lambda: ready(cluster, "a")[0] == "True", seconds=15)
        device = device_of(cluster, "a")
        before = devices(cluster)

        profile.make(list(before).index(device), fault="lost")
        cluster.until("tainted", lambda: bool(taints(cluster)), seconds=15)

        assert reasons(cluster) == {device: "lost"}
        assert devices(cluster)[device]["capacity"] == before[device]["capacity"]
        cluster.until("not ready", lambda: ready(cluster, "a")[0] == "False", seconds=15)
        assert ready(cluster, "a")[1] == "GPUUnhealthy"
        profile.make(list(before).index(device))
        cluster.until("ready again", lambda: ready(cluster, "a")[0] == "True", seconds=15)
        assert taints(cluster) == {}


def test_a_lost_card_is_not_handed_out_even_to_who_tolerates_it(tmp_path: Path) -> None:
    with sick_cluster(tmp_path, "--health-taint", "none") as (cluster, profile):
        for name in ("a", "b"):
            cluster.submit(name, {"tflops": "300", "vram": "16Gi"})
        cluster.until("running", lambda: len(cluster.spec_files()) == 2, seconds=15)
        device = device_of(cluster, "a")
        profile.make(list(devices(cluster)).index(device), fault="lost")
        cluster.until("unhealthy", lambda: "Unknown" in phases(cluster).values(), seconds=15)

        cluster.submit("c", {"tflops": "10", "vram": "1Gi"})
        cluster.until("refused", lambda: bool(log_lines(cluster, "claim_not_prepared")), seconds=15)

        (line, *_) = log_lines(cluster, "claim_not_prepared")
        assert f"{device}: the GPU is lost: " in line["error"]
        assert taints(cluster) == {}


def test_a_vanished_card_without_claims_disappears_and_comes_back_when_it_is_well(
    tmp_path: Path,
) -> None:
    with sick_cluster(tmp_path) as (cluster, profile):
        before = devices(cluster)
        first, second = before

        profile.make(0, fault="absent")
        cluster.until("gone", lambda: list(devices(cluster)) == [second], seconds=15)

        assert streamed(cluster, SERVICES[0]) == {
            second: ("HEALTHY", ""),
            first: ("UNHEALTHY", "the GPU is gone from the node"),
        }
        profile.make(0)
        cluster.until("back", lambda: devices(cluster) == before, seconds=15)


def test_a_vanished_card_with_a_claim_stays_explainable_also_after_a_restart(
    tmp_path: Path,
) -> None:
    with sick_cluster(tmp_path) as (cluster, profile):
        cluster.submit("a", SHARE)
        cluster.until("running", lambda: cluster.container_of("a") is not None, seconds=15)
        device = device_of(cluster, "a")
        before = devices(cluster)
        profile.make(list(before).index(device), fault="absent")
        cluster.until("tainted", lambda: bool(taints(cluster)), seconds=15)
        stored = cluster.slices()
        cluster.server.requests.reset()

        restart(cluster)
        cluster.until("watching", lambda: cluster.server.requests.count("watch") > 0, seconds=15)
        cluster.until("read", lambda: device in streamed(cluster, SERVICES[0]), seconds=15)

        assert list(devices(cluster)) == list(before)
        assert reasons(cluster) == {device: "vanished"}
        assert devices(cluster)[device]["capacity"] == before[device]["capacity"]
        assert streamed(cluster, SERVICES[1])[device][0] == "UNHEALTHY"
        assert cluster.slices() == stored
        cluster.delete("a")
        cluster.until("gone", lambda: device not in devices(cluster), seconds=15)


def test_a_driver_that_hangs_holds_up_no_claim(tmp_path: Path) -> None:
    with sick_cluster(tmp_path, "--health-taint", "none") as (cluster, profile):
        cluster.submit("a", SHARE)
        cluster.until("running", lambda: cluster.container_of("a") is not None, seconds=15)

        profile.make_node(hangs=True)
        cluster.until("hung", lambda: set(phases(cluster).values()) == {"Unknown"}, seconds=15)
        cluster.submit("b", SHARE)
        cluster.until("running", lambda: cluster.container_of("b") is not None, seconds=15)
        cluster.delete("a")
        cluster.until("unprepared", lambda: len(cluster.spec_files()) == 1, seconds=15)

        (told,) = set(streamed(cluster, SERVICES[0]).values())
        assert told == ("UNHEALTHY", "the NVIDIA driver does not answer: simulated call")
        profile.make_node()
        cluster.until("well", lambda: set(phases(cluster).values()) == {"Running"}, seconds=15)


def test_another_version_of_the_driver_is_published_without_a_restart(tmp_path: Path) -> None:
    with sick_cluster(tmp_path) as (cluster, profile):
        profile.make_node(driver_version="590.44.01")

        def versions() -> set[str]:
            every = devices(cluster).values()
            return {device["attributes"]["driver_version"]["version"] for device in every}

        cluster.until("published", lambda: versions() == {"590.44.1"}, seconds=15)
        assert taints(cluster) == {}
        assert len(log_lines(cluster, "serving")) == 1


def test_where_taints_are_dropped_the_phase_says_it_and_nothing_loops(tmp_path: Path) -> None:
    gates = DEFAULT_GATES - {"DRADeviceTaints"}
    with sick_cluster(tmp_path, "--health-quiet-seconds", "3", gates=gates) as (cluster, profile):
        first, second = devices(cluster)
        cluster.server.requests.reset()

        profile.make(0, xid=79)
        cluster.until("told", lambda: phases(cluster)[first] == "Unknown", seconds=15)
        cluster.until("said", lambda: bool(log_lines(cluster, "slice_fields_dropped")), seconds=15)
        time.sleep(1)

        (line,) = log_lines(cluster, "slice_fields_dropped")
        assert line["feature_gates"] == ["DRADeviceTaints"]
        assert taints(cluster) == {}
        assert phases(cluster)[second] == "Running"
        assert slice_writes(cluster) == 1
        cluster.until("well", lambda: phases(cluster)[first] == "Running", seconds=15)
        assert names.TAINT_UNHEALTHY not in str(cluster.slices())

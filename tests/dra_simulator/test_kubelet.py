"""The simulated kubelet: registration of plugins, pods' claims, restarts, slices and health."""

import json
import re
import socket
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace

import pytest

from dra_simulator.node.plugin import chosen_services
from dra_simulator.rest import CLAIMS, EVENTS, PODS, SLICES
from dra_simulator.runtime import Runtime
from tensorfusion_dra.kubelet.pb import dra_health_v1alpha1_pb2 as pb
from tests.dra_simulator.kubelets import FAST, NodeUnderTest, TinyPlugin
from tests.support import objects
from tests.support.objects import DRIVER, NODE, Json
from tests.support.waiting import FOREVER, awaited


def test_plugin_is_registered_while_its_socket_exists(
    node: NodeUnderTest, plugin: TinyPlugin
) -> None:
    awaited(lambda: plugin.statuses)

    plugin.withdraw()
    plugin.announce()

    awaited(lambda: plugin.statuses == [(True, ""), (True, "")])
    plugin.withdraw()
    awaited(lambda: len(node.happened("plugin_deregistered")) == 2)
    assert node.kubelet.registered == {}


@pytest.mark.parametrize(
    ("listed", "chosen"),
    [
        (["v1.DRAPlugin"], ("v1.DRAPlugin", "v1alpha1.DRAResourceHealth")),
        (
            ["v9.DRAPlugin", "v1beta1.DRAPlugin", "v1.DRAPlugin"],
            ("v1beta1.DRAPlugin", "v1alpha1.DRAResourceHealth"),
        ),
        (
            ["v1.DRAPlugin", "v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth"],
            ("v1.DRAPlugin", "v1.DRAResourceHealth"),
        ),
    ],
)
def test_first_known_services_in_the_plugins_list_are_used(
    listed: list[str], chosen: tuple[str, str]
) -> None:
    assert chosen_services("d", "e", listed) == chosen


@pytest.mark.parametrize(
    ("kind", "services", "error"),
    [
        ("DRAPlugin", [], "empty list of supported gRPC services (aka supported versions)"),
        (
            "DRAPlugin",
            ["v2.DRAPlugin", "v1.DRAResourceHealth"],
            'none of services supported by the plugin (["v2.DRAPlugin" "v1.DRAResourceHealth"])'
            ' are supported by the kubelet (["v1.DRAPlugin" "v1beta1.DRAPlugin"])',
        ),
        ("CSIPlugin", ["v1.DRAPlugin"], "no handler registered for plugin type: CSIPlugin"),
    ],
)
def test_rejected_plugin_is_notified_and_retried(
    node: NodeUnderTest, kind: str, services: list[str], error: str
) -> None:
    node.start()
    plugin = node.plugin(services=services, plugin_type=kind)
    ((is_registered, text), *_) = awaited(lambda: plugin.statuses)
    assert not is_registered
    assert re.match(f"RegisterPlugin error -- .*{re.escape(error)}", text)
    assert node.kubelet.registered == {}

    plugin.services, plugin.plugin_type = ["v1.DRAPlugin"], "DRAPlugin"

    awaited(node.connected)


def test_plugin_that_fails_the_notification_is_deregistered_and_retried(
    node: NodeUnderTest,
) -> None:
    node.start()

    plugin = node.plugin(notify_errors=1)

    awaited(lambda: plugin.statuses == [(True, ""), (True, "")])
    (failure,) = node.happened("plugin_registration_failed")
    assert "code = Internal desc = not now" in failure.facts["error"]
    assert len(node.happened("plugin_deregistered")) == 1
    assert len(node.kubelet.registered[DRIVER]) == 1


def test_socket_without_listener_is_retried(node: NodeUnderTest) -> None:
    node.start()
    plugin = node.plugin(announced=False)
    with socket.socket(socket.AF_UNIX) as leaked:
        leaked.bind(str(plugin.registration))
    failure, *_ = awaited(lambda: node.happened("plugin_registration_failed"))
    assert "code = Unavailable" in failure.facts["error"]

    plugin.registration.unlink()
    plugin.announce()

    awaited(node.connected)


def test_unresponsive_plugin_does_not_delay_registration_of_another(node: NodeUnderTest) -> None:
    node.start(timings=replace(FAST, get_info_seconds=FOREVER))
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(node.kubelet.registration_dir / "0-reg.sock"))
        silent.listen()

        node.plugin()

        awaited(node.connected)


def test_hidden_sockets_and_other_files_are_ignored_but_subfolders_are_not(
    node: NodeUnderTest,
) -> None:
    folder = node.start().registration_dir
    (folder / "gpu").mkdir()
    (folder / "file.sock").write_text("")

    node.plugin("b", registration=folder / ".hidden.sock")
    plugin = node.plugin("a", registration=folder / "gpu" / "reg.sock")

    awaited(node.connected)
    plugin.withdraw()
    awaited(lambda: node.happened("plugin_deregistered"))  # so the folder was read once more
    assert [
        (entry.event, entry.facts.get("endpoint"))
        for entry in node.kubelet.journal
        if entry.event.startswith("plugin_")
    ] == [
        ("plugin_registered", str(plugin.endpoint)),
        ("plugin_deregistered", str(plugin.endpoint)),
    ]


@pytest.mark.parametrize("leaves", ["old", "new"])
def test_newest_connected_instance_is_used(node: NodeUnderTest, leaves: str) -> None:
    node.start(timings=replace(FAST, health_retry_seconds=FOREVER))
    old = node.plugin("a")
    awaited(node.connected)
    new = node.plugin("b")
    awaited(lambda: node.connected() == [str(old.endpoint), str(new.endpoint)])

    if leaves == "old":
        old.withdraw()
    else:
        new.end()

    used, unused = (new, old) if leaves == "old" else (old, new)
    awaited(lambda: node.connected() == [str(used.endpoint)])
    node.run()
    assert ([method for method, _ in used.calls], unused.calls) == (["v1 Prepare"], [])


def test_second_instance_with_the_same_endpoint_is_rejected(
    node: NodeUnderTest, plugin: TinyPlugin
) -> None:
    second = node.plugin("b", announced=False)
    second.endpoint = plugin.endpoint
    second.announce()

    ((_, error), *_) = awaited(lambda: second.statuses)
    assert (
        f"plugin registration failed with err: endpoint {plugin.endpoint}"
        " already registered for DRA driver plugin"
    ) in error


def test_pod_runs_with_the_cdi_devices_of_its_prepared_claim(
    node: NodeUnderTest, plugin: TinyPlugin
) -> None:
    uid = node.run()

    assert plugin.calls == [("v1 Prepare", (uid,))]
    (container,) = node.kubelet.containers("default", "pod").values()
    assert (container.env, container.cdi_ids) == ({"CLAIM": uid}, (f"example.com/gpu={uid}",))
    status = node.client.get(PODS, "pod", "default")["status"]
    conditions = {entry["type"]: entry["status"] for entry in status["conditions"]}
    assert conditions["Ready"] == conditions["PodScheduled"] == "True"


def test_deleted_pod_stays_in_api_until_its_claims_are_unprepared(
    node: NodeUnderTest, plugin: TinyPlugin
) -> None:
    node.run()
    plugin.unprepare_error = "busy"

    node.delete()

    awaited(lambda: plugin.methods.count("Unprepare") > 1)
    assert (node.env(), node.phase()) == ({}, "Running")
    assert node.happened("pod_not_unprepared")[0].facts["error"] == (
        "unprepare dynamic resources: NodeUnprepareResources failed for ResourceClaim claim: busy"
    )
    plugin.unprepare_error = ""
    awaited(lambda: node.phase() == "")


def test_claim_of_two_pods_is_prepared_once_and_unprepared_once(
    node: NodeUnderTest, plugin: TinyPlugin
) -> None:
    claim = node.claim()
    node.run("a", claim=claim)
    uid = node.run("b", claim=claim)

    node.delete("a")
    awaited(lambda: node.phase("a") == "")
    assert (plugin.methods, node.env("b")) == (["Prepare"], {"CLAIM": uid})
    node.delete("b")

    awaited(lambda: node.phase("b") == "")
    assert plugin.methods == ["Prepare", "Unprepare"]


@pytest.mark.parametrize(
    ("fault", "value", "text"),
    [
        ("prepare_error", "no room", "failed for ResourceClaim claim: no room"),
        ("hides", True, "skipped 1 ResourceClaims"),
        ("extra", {"other"}, "returned result for unknown claim UID other"),
    ],
)
def test_failed_prepare_is_reported_as_event_and_retried(
    node: NodeUnderTest, plugin: TinyPlugin, fault: str, value: object, text: str
) -> None:
    setattr(plugin, fault, value)
    node.pod(claim=node.claim())
    assert awaited(node.event) == (
        "Failed to prepare dynamic resources: prepare dynamic resources: NodePrepareResources "
        f"{text}"
    )
    awaited(lambda: plugin.methods.count("Prepare") > 1)
    assert node.phase() == "Pending"

    setattr(plugin, fault, type(value)())

    awaited(lambda: node.phase() == "Running")


def test_claim_that_was_never_prepared_is_unprepared_too(
    node: NodeUnderTest, plugin: TinyPlugin
) -> None:
    plugin.prepare_error = "no room"
    node.pod(claim=node.claim())
    awaited(node.event)

    node.delete()

    awaited(lambda: node.phase() == "")
    assert plugin.methods[-1] == "Unprepare"


def test_pod_of_unregistered_driver_waits_and_can_be_deleted(node: NodeUnderTest) -> None:
    node.start()
    node.pod(claim=node.claim())
    assert awaited(node.event).endswith("DRA driver gpu.example.com is not registered")

    node.delete()

    awaited(lambda: node.phase() == "")


def test_claim_that_is_not_reserved_for_the_pod_is_not_prepared(
    node: NodeUnderTest, plugin: TinyPlugin
) -> None:
    claim = node.claim()
    pod = node.client.create(PODS, objects.pod(claim_name="claim"))

    node.client.bind(pod, NODE)

    assert awaited(node.event).endswith(
        f"pod pod ({pod['metadata']['uid']}) is not allowed to use ResourceClaim claim"
        f" ({claim['metadata']['uid']})"
    )
    assert plugin.calls == []


def test_new_claim_of_same_name_waits_until_the_old_one_is_unprepared(
    node: NodeUnderTest, plugin: TinyPlugin
) -> None:
    old_uid = node.run("old")
    plugin.unprepare_error = "busy"
    node.delete("old", force=True)
    node.client.delete(CLAIMS, "claim", "default")

    node.pod("new", claim=node.claim())

    assert awaited(node.event).endswith(
        f"old ResourceClaim with same name claim and different UID {old_uid} still exists"
        " (previous pod force-deleted?!)"
    )
    plugin.unprepare_error = ""
    awaited(lambda: node.phase("new") == "Running")


@pytest.mark.parametrize("restarts", [False, True])
def test_claim_of_force_deleted_pod_is_unprepared(
    node: NodeUnderTest, plugin: TinyPlugin, *, restarts: bool
) -> None:
    node.run()
    with node.stopped() if restarts else nullcontext():
        node.delete(force=True)

    awaited(lambda: plugin.methods == ["Prepare", "Unprepare"])
    checkpoint = node.folder / "k" / "dra_manager_state"
    awaited(lambda: json.loads(checkpoint.read_text()) == [])


def test_failed_container_is_retried_without_another_prepare_call(
    node: NodeUnderTest, plugin: TinyPlugin
) -> None:
    plugin.cdi_dir = node.folder / "elsewhere"
    plugin.cdi_dir.mkdir()
    claim = node.claim()

    node.pod(claim=claim)

    text = f"unresolvable CDI devices example.com/gpu={claim['metadata']['uid']}"
    assert text in awaited(lambda: node.event("Failed"))
    (status,) = awaited(
        lambda: node.client.get(PODS, "pod", "default")["status"].get("containerStatuses")
    )
    assert status["state"]["waiting"]["reason"] == "CreateContainerError"
    for path in plugin.cdi_dir.iterdir():
        path.rename(node.folder / "cdi" / path.name)
    awaited(lambda: node.phase() == "Running")
    assert plugin.methods == ["Prepare"]


def test_slow_call_for_one_pod_delays_neither_other_pods_nor_the_stop(
    node: NodeUnderTest, plugin: TinyPlugin
) -> None:
    slow = node.claim("slow")
    plugin.slow = {slow["metadata"]["uid"]}  # until the plugin ends
    node.pod("a", claim=slow)
    awaited(lambda: plugin.methods == ["Prepare"])

    node.run("b", claim=node.claim("quick"))

    assert node.phase("a") == "Pending"
    node.kubelet.stop()


def test_pods_survive_a_restart_after_which_another_pod_gets_their_claim_prepared_again(
    node: NodeUnderTest, plugin: TinyPlugin
) -> None:
    claim = node.claim()
    node.run("a", claim=claim)
    with node.stopped():
        pass
    awaited(node.connected)

    node.run("b", claim=claim)

    assert node.env("a") == node.env("b") == {"CLAIM": claim["metadata"]["uid"]}
    for pod in ("a", "b"):
        node.delete(pod)
    awaited(lambda: node.phase("a") == node.phase("b") == "")
    assert plugin.methods == ["Prepare", "Prepare", "Unprepare"]


def test_claims_of_running_pods_are_prepared_again_after_a_reboot(
    node: NodeUnderTest, plugin: TinyPlugin
) -> None:
    uid = node.run()
    with node.stopped():
        (plugin.cdi_dir / f"example.com-gpu_{uid}.json").unlink()
        node.runtime = Runtime([plugin.cdi_dir])

    awaited(node.env)
    awaited(lambda: plugin.methods == ["Prepare", "Prepare"])


@pytest.mark.usefixtures("plugin")
def test_kubelet_writes_events_for_start_and_stop_of_each_container(node: NodeUnderTest) -> None:
    node.run()
    node.delete()
    awaited(lambda: node.phase() == "")

    fields = ("reason", "message", "type", "count", "source")
    events = node.client.list(EVENTS).items
    kubelet = ("Normal", 1, {"component": "kubelet", "host": NODE})
    assert sorted(tuple(event[field] for field in fields) for event in events) == [
        ("Created", "Container created", *kubelet),
        ("Killing", "Stopping container main", *kubelet),
        ("Started", "Container started", *kubelet),
    ]
    paths = {event["involvedObject"]["fieldPath"] for event in events}
    assert paths == {"spec.containers{main}"}


def publish(node: NodeUnderTest) -> None:
    """Create slices: "a" of the driver, "b" of another driver and "c" of another node."""
    found: list[Json] = [objects.resource_slice(name=name, pool=name) for name in ("a", "b", "c")]
    found[1]["spec"]["driver"] = "other.example.com"
    found[2]["spec"]["nodeName"] = "node-b"
    for document in found:
        node.client.create(SLICES, document)


@pytest.mark.parametrize("leave", [TinyPlugin.withdraw, TinyPlugin.end])
def test_slices_of_a_driver_are_deleted_some_time_after_it_is_gone(
    node: NodeUnderTest, plugin: TinyPlugin, leave: Callable[[TinyPlugin], None]
) -> None:
    publish(node)
    left_at = time.time()

    leave(plugin)

    awaited(lambda: node.slices() == ["b", "c"])
    wiped = awaited(lambda: node.happened("slices_wiped"))[-1]
    assert wiped.facts == {"driver": DRIVER, "slices": "a"}
    assert wiped.seconds >= left_at + FAST.wipe_delay_seconds


def test_driver_that_reconnects_in_time_keeps_its_slices(node: NodeUnderTest) -> None:
    timings = replace(FAST, wipe_delay_seconds=FOREVER)
    node.start(timings=timings)
    publish(node)
    plugin = node.plugin()
    awaited(node.connected)
    plugin.end()
    awaited(lambda: not node.connected())

    plugin.serve()
    awaited(node.connected)

    # A deletion that is still due later would not become due at once by the next absence.
    object.__setattr__(timings, "wipe_delay_seconds", 0.0)
    assert node.slices() == ["a", "b", "c"]
    plugin.end()
    awaited(lambda: node.slices() == ["b", "c"])


def test_all_slices_of_the_node_are_deleted_at_start_with_wipe_at_start(
    node: NodeUnderTest,
) -> None:
    publish(node)

    node.start(wipe_at_start=True)

    awaited(lambda: node.slices() == ["c"])


def health(name: str, status: pb.HealthStatus, **fields: object) -> pb.DeviceHealth:
    """Return a plugin's health report of one device."""
    device = pb.DeviceIdentifier(pool_name=NODE, device_name=name)
    return pb.DeviceHealth(device=device, health=status, **fields)  # type: ignore[arg-type]


def known(node: NodeUnderTest) -> dict[str, tuple[str, str]]:
    """Return the health that the kubelet knows, as status and message by device."""
    return {
        device: (report.status, report.message)
        for (_, _, device), report in node.kubelet.health.items()
    }


def test_health_is_known_while_the_stream_is_open(node: NodeUnderTest) -> None:
    node.start()
    reports = [
        health("gpu-0", pb.HealthStatus.HEALTHY),
        health("gpu-1", pb.HealthStatus.UNHEALTHY, message="XID 79"),
    ]
    plugin = node.plugin(health=reports)
    expected = {"gpu-0": ("HEALTHY", ""), "gpu-1": ("UNHEALTHY", "XID 79")}
    awaited(lambda: known(node) == expected)

    plugin.end()

    awaited(lambda: known(node) == {})
    plugin.serve()
    awaited(lambda: known(node) == expected)


def test_health_of_a_device_without_further_reports_expires(node: NodeUnderTest) -> None:
    node.start(timings=replace(FAST, health_timeout_seconds=0.2))
    plugin = node.plugin(health=[health("gpu-0", pb.HealthStatus.HEALTHY)])
    awaited(lambda: known(node))

    plugin.health = []

    awaited(lambda: known(node) == {})

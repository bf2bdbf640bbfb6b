"""The simulated kubelet: registration of plugins, pods' claims, restarts, slices and health."""

import json
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from dra_simulator.node.plugin import chosen_services
from dra_simulator.rest import CLAIMS, EVENTS, PODS, SLICES
from dra_simulator.runtime import Runtime
from tensorfusion_dra.kubelet.pb import dra_health_v1alpha1_pb2 as pb
from tests.dra_simulator.kubelets import FAST, NodeUnderTest
from tests.dra_simulator.tiny_plugin import TinyPlugin
from tests.dra_simulator.waiting import always, eventually
from tests.support import objects
from tests.support.objects import DRIVER, NODE, Json


def test_plugin_is_registered_while_its_socket_exists(node: NodeUnderTest) -> None:
    node.start()
    plugin = node.plugin()
    eventually(node.is_registered)
    eventually(lambda: plugin.statuses)

    plugin.withdraw()
    plugin.announce()

    eventually(lambda: plugin.statuses == [(True, ""), (True, "")])
    eventually(node.is_registered)
    plugin.withdraw()
    eventually(lambda: not node.is_registered())
    eventually(lambda: len(node.happened("plugin_deregistered")) == 2)
    assert len(node.happened("plugin_registered")) == 2


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
    eventually(lambda: plugin.statuses)
    registered, text = plugin.statuses[0]
    assert not registered
    assert text.startswith("RegisterPlugin error -- ")
    assert error in text
    assert not node.is_registered()

    plugin.services, plugin.plugin_type = ["v1.DRAPlugin"], "DRAPlugin"

    eventually(node.is_registered)


def test_plugin_that_fails_the_notification_is_deregistered_and_retried(
    node: NodeUnderTest,
) -> None:
    node.start()

    plugin = node.plugin(notify_errors=1)

    eventually(lambda: plugin.statuses == [(True, ""), (True, "")])
    eventually(node.is_registered)
    (failure,) = node.happened("plugin_registration_failed")
    assert "code = Internal desc = not now" in failure.facts["error"]
    assert len(node.happened("plugin_deregistered")) == 1


def test_socket_without_listener_is_retried(node: NodeUnderTest) -> None:
    node.start()
    plugin = node.plugin(announced=False)
    with socket.socket(socket.AF_UNIX) as leaked:
        leaked.bind(str(plugin.registration))
    failures = eventually(lambda: node.happened("plugin_registration_failed"))
    assert "code = Unavailable" in failures[0].facts["error"]

    plugin.registration.unlink()
    plugin.announce()

    eventually(node.is_registered)


def test_unresponsive_plugin_does_not_delay_registration_of_another(node: NodeUnderTest) -> None:
    node.start(timings=replace(FAST, get_info_seconds=5.0))
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(node.kubelet.registration_dir / "0-reg.sock"))
        silent.listen()

        node.plugin()

        eventually(node.is_registered)


def test_hidden_sockets_and_other_files_are_ignored_but_subfolders_are_not(
    node: NodeUnderTest,
) -> None:
    node.start()
    folder = node.kubelet.registration_dir
    (folder / "gpu").mkdir()
    (folder / "file.sock").write_text("")

    node.plugin("b", registration=folder / ".hidden.sock")
    plugin = node.plugin("a", registration=folder / "gpu" / "reg.sock")

    eventually(node.is_registered)
    always(lambda: endpoints(node) == [str(plugin.endpoint)])


def endpoints(node: NodeUnderTest) -> list[str]:
    """Return the endpoints of the driver's plugins."""
    return [plugin.endpoint for plugin in node.kubelet.registered.get(DRIVER, ())]


@pytest.mark.parametrize("leaves", ["old", "new"])
def test_newest_connected_instance_is_used(node: NodeUnderTest, leaves: str) -> None:
    node.start(timings=replace(FAST, health_retry_seconds=60))
    old = node.plugin("a")
    eventually(node.is_registered)
    new = node.plugin("b")
    eventually(lambda: len(endpoints(node)) == 2)
    first, second = node.kubelet.registered[DRIVER]
    eventually(lambda: first.is_connected and second.is_connected)

    if leaves == "old":
        old.withdraw()
        eventually(lambda: endpoints(node) == [str(new.endpoint)])
    else:
        new.end()
        eventually(lambda: not second.is_connected)
    node.run()

    used, unused = (new, old) if leaves == "old" else (old, new)
    assert [method for method, _ in used.calls] == ["v1 Prepare"]
    assert unused.calls == []


def test_second_instance_with_the_same_endpoint_is_rejected(node: NodeUnderTest) -> None:
    node.start()
    first = node.plugin("a")
    eventually(node.is_registered)

    second = node.plugin("b", announced=False)
    second.end()
    second.endpoint = first.endpoint
    second.announce()

    eventually(lambda: second.statuses)
    assert "plugin registration failed with err: endpoint" in second.statuses[0][1]
    assert "already registered for DRA driver plugin" in second.statuses[0][1]


def event(node: NodeUnderTest, reason: str) -> str:
    """Return the latest message of the pods' Events with this reason; "" if there is none."""
    found = (entry for entry in node.client.list(EVENTS).items if entry["reason"] == reason)
    messages = [str(entry["message"]) for entry in found]
    return messages[-1] if messages else ""


def test_pod_runs_with_the_cdi_devices_of_its_prepared_claim(
    node: NodeUnderTest, plugin: TinyPlugin
) -> None:
    claim = node.claim()

    node.run(claim=claim)

    uid = claim["metadata"]["uid"]
    assert plugin.calls == [("v1 Prepare", (uid,))]
    assert node.env() == {"CLAIM": uid}
    (container,) = node.kubelet.containers("default", "pod").values()
    assert container.cdi_ids == (f"example.com/gpu={uid}",)
    status = node.client.get(PODS, "pod", "default")["status"]
    conditions = {entry["type"]: entry["status"] for entry in status["conditions"]}
    assert conditions["Ready"] == conditions["PodScheduled"] == "True"


def test_deleted_pod_stays_in_api_until_its_claims_are_unprepared(
    node: NodeUnderTest, plugin: TinyPlugin
) -> None:
    node.run()
    plugin.unprepare_error = "busy"

    node.delete()

    eventually(lambda: plugin.methods.count("Unprepare") > 1)
    assert node.env() == {}
    assert node.phase() == "Running"
    (failure, *_) = node.happened("pod_not_unprepared")
    assert failure.facts["error"] == (
        "unprepare dynamic resources: NodeUnprepareResources failed for ResourceClaim claim: busy"
    )
    plugin.unprepare_error = ""
    eventually(lambda: node.phase() == "")


def test_claim_of_two_pods_is_prepared_once_and_unprepared_once(
    node: NodeUnderTest, plugin: TinyPlugin
) -> None:
    claim = node.claim()
    node.run("a", claim=claim)
    node.run("b", claim=claim)

    node.delete("a")
    eventually(lambda: node.phase("a") == "")
    assert plugin.methods == ["Prepare"]
    assert node.env("b") == {"CLAIM": claim["metadata"]["uid"]}
    node.delete("b")

    eventually(lambda: node.phase("b") == "")
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
    message = eventually(lambda: event(node, "FailedPrepareDynamicResources"))
    assert message == (
        "Failed to prepare dynamic resources: prepare dynamic resources: NodePrepareResources "
        f"{text}"
    )
    eventually(lambda: plugin.methods.count("Prepare") > 1)
    assert node.phase() == "Pending"

    setattr(plugin, fault, type(value)())

    eventually(lambda: node.phase() == "Running")


def test_claim_that_was_never_prepared_is_unprepared_too(
    node: NodeUnderTest, plugin: TinyPlugin
) -> None:
    plugin.prepare_error = "no room"
    node.pod(claim=node.claim())
    eventually(lambda: event(node, "FailedPrepareDynamicResources"))

    node.delete()

    eventually(lambda: node.phase() == "")
    assert plugin.methods[-1] == "Unprepare"


def test_pod_of_unregistered_driver_waits_and_can_be_deleted(node: NodeUnderTest) -> None:
    node.start()
    node.pod(claim=node.claim())
    message = eventually(lambda: event(node, "FailedPrepareDynamicResources"))
    assert message.endswith("DRA driver gpu.example.com is not registered")

    node.delete()

    eventually(lambda: node.phase() == "")


def test_claim_that_is_not_reserved_for_the_pod_is_not_prepared(
    node: NodeUnderTest, plugin: TinyPlugin
) -> None:
    claim = node.claim()
    pod = node.client.create(PODS, objects.pod(claim_name="claim"))

    node.client.bind(pod, NODE)

    message = eventually(lambda: event(node, "FailedPrepareDynamicResources"))
    assert message.endswith(
        f"pod pod ({pod['metadata']['uid']}) is not allowed to use ResourceClaim claim"
        f" ({claim['metadata']['uid']})"
    )
    assert plugin.calls == []


def test_new_claim_of_same_name_waits_until_the_old_one_is_unprepared(
    node: NodeUnderTest, plugin: TinyPlugin
) -> None:
    old = node.claim()
    node.run("old", claim=old)
    plugin.unprepare_error = "busy"
    node.delete("old", force=True)
    node.client.delete(CLAIMS, "claim", "default")

    node.pod("new", claim=node.claim())

    message = eventually(lambda: event(node, "FailedPrepareDynamicResources"))
    assert message.endswith(
        f"old ResourceClaim with same name claim and different UID {old['metadata']['uid']} still"
        " exists (previous pod force-deleted?!)"
    )
    plugin.unprepare_error = ""
    eventually(lambda: node.phase("new") == "Running")


@pytest.mark.parametrize("restarts", [False, True])
def test_claim_of_force_deleted_pod_is_unprepared(
    node: NodeUnderTest, plugin: TinyPlugin, *, restarts: bool
) -> None:
    node.run()
    if restarts:
        node.stop()
    node.delete(force=True)

    if restarts:
        node.start()

    eventually(lambda: plugin.methods == ["Prepare", "Unprepare"])
    eventually(lambda: checkpoint(node.folder / "k") == [])


def test_failed_container_is_retried_without_another_prepare_call(
    node: NodeUnderTest, plugin: TinyPlugin
) -> None:
    plugin.cdi_dir = node.folder / "elsewhere"
    plugin.cdi_dir.mkdir()
    claim = node.claim()

    node.pod(claim=claim)

    uid = claim["metadata"]["uid"]
    message = eventually(lambda: event(node, "Failed"))
    assert f"unresolvable CDI devices example.com/gpu={uid}" in message
    (status,) = eventually(
        lambda: node.client.get(PODS, "pod", "default")["status"].get("containerStatuses")
    )
    assert status["state"]["waiting"]["reason"] == "CreateContainerError"
    for path in plugin.cdi_dir.iterdir():
        path.rename(node.folder / "cdi" / path.name)
    eventually(lambda: node.phase() == "Running")
    assert plugin.methods == ["Prepare"]


def test_slow_call_for_one_pod_delays_neither_other_pods_nor_the_stop(
    node: NodeUnderTest, plugin: TinyPlugin
) -> None:
    slow, quick = node.claim("slow"), node.claim("quick")
    plugin.slow = {slow["metadata"]["uid"]}
    node.pod("a", claim=slow)
    eventually(lambda: plugin.methods == ["Prepare"])

    node.pod("b", claim=quick)

    eventually(lambda: node.phase("b") == "Running")
    assert node.phase("a") == "Pending"
    node.stop()
    assert plugin.is_slow


def test_running_pod_survives_a_restart_and_is_unprepared_when_deleted(
    node: NodeUnderTest, plugin: TinyPlugin
) -> None:
    node.run()
    node.stop()

    node.start()
    eventually(node.is_registered)

    eventually(node.env)
    node.delete()
    eventually(lambda: node.phase() == "")
    assert plugin.methods == ["Prepare", "Unprepare"]


def test_claim_is_prepared_again_for_a_pod_that_starts_after_a_restart(
    node: NodeUnderTest, plugin: TinyPlugin
) -> None:
    claim = node.claim()
    node.run("a", claim=claim)
    node.stop()
    node.start()
    eventually(node.is_registered)

    node.run("b", claim=claim)

    assert plugin.methods == ["Prepare", "Prepare"]


def test_claims_of_running_pods_are_prepared_again_after_a_reboot(
    node: NodeUnderTest, plugin: TinyPlugin
) -> None:
    node.run()
    node.stop()
    for path in plugin.cdi_dir.iterdir():
        path.unlink()

    node.runtime = Runtime([plugin.cdi_dir])
    node.start()

    eventually(node.env)
    eventually(lambda: plugin.methods == ["Prepare", "Prepare"])


def checkpoint(root_dir: Path) -> list[Json]:
    """Return the claims in the kubelet's checkpoint."""
    found: list[Json] = json.loads((root_dir / "dra_manager_state").read_text())
    return found


def slices(node: NodeUnderTest) -> list[str]:
    """Return the names of all slices."""
    return [found["metadata"]["name"] for found in node.client.list(SLICES).items]


@pytest.fixture
def published(node: NodeUnderTest) -> list[str]:
    """Create a slice of the driver, one of another driver and one of another node."""
    found: list[Json] = [objects.resource_slice(name=name, pool=name) for name in ("a", "b", "c")]
    found[1]["spec"]["driver"] = "other.example.com"
    found[2]["spec"]["nodeName"] = "node-b"
    return [node.client.create(SLICES, document)["metadata"]["name"] for document in found]


@pytest.mark.usefixtures("published")
@pytest.mark.parametrize("how", ["withdrawn", "dead"])
def test_slices_of_a_driver_are_deleted_some_time_after_it_is_gone(
    node: NodeUnderTest, how: str
) -> None:
    node.start()
    plugin = node.plugin()
    eventually(lambda: node.is_registered() and node.kubelet.registered[DRIVER][0].is_connected)

    if how == "withdrawn":
        plugin.withdraw()
    else:
        plugin.end()

    always(lambda: slices(node) == ["a", "b", "c"], seconds=0.2)
    eventually(lambda: slices(node) == ["b", "c"])
    (entry,) = eventually(lambda: node.happened("slices_wiped"))
    assert entry.facts == {"driver": DRIVER, "slices": "a"}


@pytest.mark.usefixtures("published")
def test_driver_that_reconnects_in_time_keeps_its_slices(node: NodeUnderTest) -> None:
    node.start(timings=replace(FAST, wipe_delay_seconds=2.0))
    plugin = node.plugin()
    eventually(lambda: node.is_registered() and node.kubelet.registered[DRIVER][0].is_connected)

    plugin.end()
    eventually(lambda: not node.kubelet.registered[DRIVER][0].is_connected)
    plugin.serve()

    eventually(lambda: node.kubelet.registered[DRIVER][0].is_connected)
    always(lambda: slices(node) == ["a", "b", "c"], seconds=2.2)


@pytest.mark.usefixtures("published")
@pytest.mark.parametrize(("wipes", "left"), [(True, ["c"]), (False, ["a", "b", "c"])])
def test_all_slices_of_the_node_are_deleted_at_start_with_wipe_at_start(
    node: NodeUnderTest, left: list[str], *, wipes: bool
) -> None:
    node.start(wipe_at_start=wipes)

    eventually(lambda: slices(node) == left)
    always(lambda: slices(node) == left, seconds=0.2)


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
    eventually(lambda: known(node) == expected)

    plugin.end()

    eventually(lambda: known(node) == {})
    plugin.serve()
    eventually(lambda: known(node) == expected)


def test_health_of_a_device_without_further_reports_expires(node: NodeUnderTest) -> None:
    node.start(timings=replace(FAST, health_timeout_seconds=0.2))
    plugin = node.plugin(health=[health("gpu-0", pb.HealthStatus.HEALTHY)])
    eventually(lambda: known(node))

    plugin.health = []

    eventually(lambda: known(node) == {})

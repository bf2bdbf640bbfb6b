"""The simulated kubelet: registration of plugins, pods' claims, restarts, slices and health."""

import json
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from dra_simulator.node.plugin import PluginError, chosen_services
from dra_simulator.rest import CLAIMS, EVENTS, PODS, SLICES
from dra_simulator.runtime import Runtime
from tensorfusion_dra.kubelet.pb import dra_health_v1alpha1_pb2 as pb
from tests.dra_simulator.kubelets import FAST, NodeUnderTest
from tests.dra_simulator.tiny_plugin import TinyPlugin
from tests.dra_simulator.waiting import always, eventually
from tests.support import objects
from tests.support.objects import DRIVER, NODE, Json


def service(node: NodeUnderTest) -> str:
    """Return the DRA service of the driver's only plugin."""
    (plugin,) = node.kubelet.registered[DRIVER]
    return plugin.service


def test_plugin_is_registered_while_its_socket_exists(
    node: NodeUnderTest,
) -> None:
    node.start()
    plugin = node.plugin()
    eventually(node.is_registered)
    eventually(lambda: plugin.statuses == [(True, "")])
    assert service(node) == "v1.DRAPlugin"

    plugin.withdraw()

    eventually(lambda: node.happened("plugin_deregistered"))
    assert not node.is_registered()
    assert len(node.happened("plugin_registered")) == 1


def test_recreated_socket_is_registered_again(node: NodeUnderTest) -> None:
    node.start()
    plugin = node.plugin()
    eventually(lambda: plugin.statuses)

    plugin.withdraw()
    plugin.announce()

    eventually(lambda: plugin.statuses == [(True, ""), (True, "")])
    eventually(node.is_registered)


def test_first_known_service_in_the_plugins_list_is_used(node: NodeUnderTest) -> None:
    node.start()
    plugin = node.plugin(announced=False)
    plugin.services = ["v9.DRAPlugin", "v1beta1.DRAPlugin", "v1.DRAPlugin"]

    plugin.serve()
    plugin.announce()

    eventually(node.is_registered)
    assert service(node) == "v1beta1.DRAPlugin"


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
    plugin = node.plugin(announced=False)
    plugin.services, plugin.plugin_type = services, kind
    plugin.serve()
    plugin.announce()
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
    plugin = node.plugin(announced=False)
    plugin.notify_errors = 1
    plugin.serve()

    plugin.announce()

    eventually(lambda: plugin.statuses == [(True, ""), (True, "")])
    eventually(node.is_registered)
    (failure,) = node.happened("plugin_registration_failed")
    assert "code = Internal desc = not now" in failure.facts["error"]
    assert len(node.happened("plugin_deregistered")) == 1


def test_socket_without_listener_is_retried(node: NodeUnderTest) -> None:
    node.start()
    plugin = node.plugin(announced=False)
    plugin.serve()
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


def test_hidden_sockets_and_other_files_are_ignored(node: NodeUnderTest) -> None:
    node.start()
    plugin = node.plugin(announced=False)
    plugin.serve()
    plugin.registration = node.kubelet.registration_dir / ".hidden.sock"
    (node.kubelet.registration_dir / "file.sock").write_text("")

    plugin.announce()

    always(lambda: not node.kubelet.journal)


def test_socket_in_a_subfolder_is_registered(node: NodeUnderTest) -> None:
    node.start()
    plugin = node.plugin(announced=False)
    plugin.serve()
    folder = node.kubelet.registration_dir / "gpu"
    folder.mkdir()
    plugin.registration = folder / "reg.sock"

    plugin.announce()

    eventually(node.is_registered)


def test_newer_of_two_instances_is_used_and_stays_registered_without_the_older(
    node: NodeUnderTest,
) -> None:
    node.start()
    old = node.plugin("a")
    eventually(node.is_registered)
    new = node.plugin("b")
    eventually(lambda: len(node.kubelet.registered[DRIVER]) == 2)
    eventually(lambda: all(plugin.is_connected for plugin in node.kubelet.registered[DRIVER]))

    node.pod(claim=node.claim())
    eventually(lambda: node.phase() == "Running")
    old.withdraw()
    eventually(lambda: len(node.kubelet.registered[DRIVER]) == 1)

    assert [method for method, _ in new.calls] == ["v1 Prepare"]
    assert old.calls == []
    assert node.kubelet.registered[DRIVER][0].endpoint == str(new.endpoint)


def test_older_of_two_instances_is_used_once_the_newer_is_disconnected(
    node: NodeUnderTest,
) -> None:
    node.start(timings=replace(FAST, health_retry_seconds=60))
    old = node.plugin("a")
    eventually(node.is_registered)
    new = node.plugin("b")
    eventually(lambda: len(node.kubelet.registered[DRIVER]) == 2)
    eventually(lambda: all(plugin.is_connected for plugin in node.kubelet.registered[DRIVER]))

    new.end()
    eventually(lambda: not node.kubelet.registered[DRIVER][1].is_connected)
    node.pod(claim=node.claim())
    eventually(lambda: node.phase() == "Running")

    assert [method for method, _ in old.calls] == ["v1 Prepare"]
    assert len(node.kubelet.registered[DRIVER]) == 2


def test_second_instance_with_the_same_endpoint_is_rejected(node: NodeUnderTest) -> None:
    node.start()
    first = node.plugin("a")
    eventually(node.is_registered)
    second = node.plugin("b", announced=False)
    second.endpoint = first.endpoint

    second.announce()

    eventually(lambda: second.statuses)
    assert "plugin registration failed with err: endpoint" in second.statuses[0][1]
    assert "already registered for DRA driver plugin" in second.statuses[0][1]


def test_v1alpha1_health_service_is_used_if_none_is_listed() -> None:
    listed = ["v1.DRAPlugin", "v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth"]

    assert chosen_services("d", "e", listed)[1] == "v1.DRAResourceHealth"
    assert chosen_services("d", "e", listed[:1])[1] == "v1alpha1.DRAResourceHealth"
    with pytest.raises(PluginError):
        chosen_services("d", "e", listed[1:])


def event(node: NodeUnderTest, reason: str) -> str:
    """Return the latest message of the pods' Events with this reason; "" if there is none."""
    found = (entry for entry in node.client.list(EVENTS).items if entry["reason"] == reason)
    messages = [str(entry["message"]) for entry in found]
    return messages[-1] if messages else ""


def test_pod_runs_with_the_cdi_devices_of_its_prepared_claim(
    node: NodeUnderTest, plugin: TinyPlugin
) -> None:
    claim = node.claim()

    node.pod(claim=claim)

    eventually(lambda: node.phase() == "Running")
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
    node.pod(claim=node.claim())
    eventually(lambda: node.phase() == "Running")
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
    node.pod("a", claim=claim)
    eventually(lambda: node.phase("a") == "Running")
    node.pod("b", claim=claim)
    eventually(lambda: node.phase("b") == "Running")

    node.delete("a")
    eventually(lambda: node.phase("a") == "")
    assert plugin.methods == ["Prepare"]
    assert node.env("b") == {"CLAIM": claim["metadata"]["uid"]}
    node.delete("b")

    eventually(lambda: node.phase("b") == "")
    assert plugin.methods == ["Prepare", "Unprepare"]


def test_failed_prepare_is_reported_as_event_and_retried(
    node: NodeUnderTest, plugin: TinyPlugin
) -> None:
    plugin.prepare_error = "no room"
    node.pod(claim=node.claim())
    message = eventually(lambda: event(node, "FailedPrepareDynamicResources"))
    assert message == (
        "Failed to prepare dynamic resources: prepare dynamic resources:"
        " NodePrepareResources failed for ResourceClaim claim: no room"
    )
    eventually(lambda: plugin.methods.count("Prepare") > 1)
    assert node.phase() == "Pending"

    plugin.prepare_error = ""

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


def test_response_that_lacks_a_claim_is_an_error(node: NodeUnderTest, plugin: TinyPlugin) -> None:
    claim = node.claim()
    plugin.hidden = {claim["metadata"]["uid"]}

    node.pod(claim=claim)

    message = eventually(lambda: event(node, "FailedPrepareDynamicResources"))
    assert message.endswith("NodePrepareResources skipped 1 ResourceClaims")


def test_response_with_an_unrequested_claim_is_an_error(
    node: NodeUnderTest, plugin: TinyPlugin
) -> None:
    plugin.extra = {"other"}

    node.pod(claim=node.claim())

    message = eventually(lambda: event(node, "FailedPrepareDynamicResources"))
    assert message.endswith("NodePrepareResources returned result for unknown claim UID other")


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
    node.pod("old", claim=old)
    eventually(lambda: node.phase("old") == "Running")
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


def test_claim_of_force_deleted_pod_is_unprepared(node: NodeUnderTest, plugin: TinyPlugin) -> None:
    node.pod(claim=node.claim())
    eventually(lambda: node.phase() == "Running")

    node.delete(force=True)

    eventually(lambda: plugin.methods == ["Prepare", "Unprepare"])


def test_claims_are_unprepared_before_the_status_shows_that_the_pod_has_ended(
    node: NodeUnderTest, plugin: TinyPlugin
) -> None:
    node.pod(claim=node.claim())
    eventually(lambda: node.phase() == "Running")
    plugin.unprepare_error = "busy"

    node.kubelet.finish("default", "pod")

    eventually(lambda: "Unprepare" in plugin.methods)
    assert node.phase() == "Running"
    plugin.unprepare_error = ""
    eventually(lambda: node.phase() == "Succeeded")
    always(lambda: node.phase() == "Succeeded", seconds=0.1)


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
    node.pod(claim=node.claim())
    eventually(lambda: node.phase() == "Running")
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
    node.pod("a", claim=claim)
    eventually(lambda: node.phase("a") == "Running")
    node.stop()
    node.start()
    eventually(node.is_registered)

    node.pod("b", claim=claim)

    eventually(lambda: node.phase("b") == "Running")
    assert plugin.methods == ["Prepare", "Prepare"]


def test_claims_of_running_pods_are_prepared_again_after_a_reboot(
    node: NodeUnderTest, plugin: TinyPlugin
) -> None:
    node.pod(claim=node.claim())
    eventually(lambda: node.phase() == "Running")
    node.stop()
    for path in plugin.cdi_dir.iterdir():
        path.unlink()

    node.runtime = Runtime([plugin.cdi_dir])
    node.start()

    eventually(node.env)
    eventually(lambda: plugin.methods == ["Prepare", "Prepare"])


def test_claim_of_pod_force_deleted_while_no_kubelet_ran_is_unprepared(
    node: NodeUnderTest, plugin: TinyPlugin
) -> None:
    node.pod(claim=node.claim())
    eventually(lambda: node.phase() == "Running")
    node.stop()
    node.delete(force=True)

    node.start()

    eventually(lambda: plugin.methods == ["Prepare", "Unprepare"])
    eventually(lambda: checkpoint(node.folder / "k") == [])


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
def test_all_slices_of_the_node_are_deleted_at_start_with_wipe_at_start(
    node: NodeUnderTest,
) -> None:
    node.start(wipe_at_start=True)

    eventually(lambda: slices(node) == ["c"])


@pytest.mark.usefixtures("published")
def test_slices_survive_the_start_without_wipe_at_start(node: NodeUnderTest) -> None:
    node.start()

    always(lambda: slices(node) == ["a", "b", "c"], seconds=0.2)


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
    plugin = node.plugin(announced=False)
    plugin.health = [
        health("gpu-0", pb.HealthStatus.HEALTHY),
        health("gpu-1", pb.HealthStatus.UNHEALTHY, message="XID 79"),
    ]
    plugin.serve()
    plugin.announce()
    expected = {"gpu-0": ("HEALTHY", ""), "gpu-1": ("UNHEALTHY", "XID 79")}
    eventually(lambda: known(node) == expected)

    plugin.end()

    eventually(lambda: known(node) == {})
    plugin.serve()
    eventually(lambda: known(node) == expected)


def test_health_of_a_device_without_further_reports_expires(node: NodeUnderTest) -> None:
    node.start(timings=replace(FAST, health_timeout_seconds=0.2))
    plugin = node.plugin(announced=False)
    plugin.health = [health("gpu-0", pb.HealthStatus.HEALTHY)]
    plugin.serve()
    plugin.announce()
    eventually(lambda: known(node))

    plugin.health = []

    eventually(lambda: known(node) == {})

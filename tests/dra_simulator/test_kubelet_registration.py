"""Registration of plugins: discovery, validation, selection and deregistration."""

import socket
from dataclasses import replace

import pytest

from dra_simulator.node import plugins
from dra_simulator.node.plugin import PluginError
from tests.dra_simulator.kubelets import FAST, NodeUnderTest
from tests.dra_simulator.waiting import always, eventually
from tests.support.objects import DRIVER


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

    assert plugins.chosen_services("d", "e", listed)[1] == "v1.DRAResourceHealth"
    assert plugins.chosen_services("d", "e", listed[:1])[1] == "v1alpha1.DRAResourceHealth"
    with pytest.raises(PluginError):
        plugins.chosen_services("d", "e", listed[1:])

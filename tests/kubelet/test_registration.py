"""Registration as the kubelet uses it: real gRPC over a real unix socket."""

from pathlib import Path
from threading import Event, Thread

import pytest
from structlog.testing import capture_logs

from tensorfusion_dra.kubelet.registration import Registration
from tensorfusion_dra.kubelet.server import UnixServer
from tests.support.kubelet import PluginClient
from tests.support.waiting import PATIENCE_SECONDS, eventually


def test_registration_announces_every_service_with_v1_first(folder: Path) -> None:
    path = folder / "reg.sock"
    registration = Registration("/var/lib/kubelet/plugins/x/dra.sock")
    server = UnixServer(path, [registration.service()], workers=2)
    server.start()

    with PluginClient(path) as kubelet, capture_logs() as logs:
        info = kubelet.plugin_info()
        kubelet.notify(registered=False, error="plugin validation failed")
        kubelet.notify(registered=True)
    server.stop(grace_seconds=0)

    assert (info.type, info.name) == ("DRAPlugin", "tensor-fusion.ai.dra-driver")
    assert info.endpoint == "/var/lib/kubelet/plugins/x/dra.sock"
    assert list(info.supported_versions) == [
        "v1.DRAPlugin",
        "v1beta1.DRAPlugin",
        "v1.DRAResourceHealth",
        "v1alpha1.DRAResourceHealth",
    ]
    assert [line["event"] for line in logs] == ["registration_refused", "registered"]
    assert logs[0]["error"] == "plugin validation failed"


def test_silent_kubelet_is_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tensorfusion_dra.kubelet.registration._SILENCE_SECONDS", 0.01)
    registration = Registration("/dra.sock")
    stopping = Event()
    with capture_logs() as logs:
        waiting = Thread(target=registration.await_kubelet, args=(stopping,))
        waiting.start()
        assert eventually(lambda: bool(logs))
        stopping.set()
        waiting.join(PATIENCE_SECONDS)

    assert logs[0]["event"] == "kubelet_awaited"

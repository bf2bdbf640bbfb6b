"""The bridge to Tensor Fusion's hypervisor runs only if the settings turn it on."""

import threading
from pathlib import Path

import pytest

from tensorfusion_dra.app.node_plugin.process import NodePlugin
from tensorfusion_dra.app.shared.node_settings import Settings
from tensorfusion_dra.runtime.supervisor import Supervisor


@pytest.mark.parametrize("sockets", ["", "device-plugins"])
def test_hypervisor_bridge_runs_if_its_sockets_are_set(tmp_path: Path, sockets: str) -> None:
    settings = Settings(
        node_name="node-01",
        kubelet_root=str(tmp_path),
        cdi_dir=str(tmp_path),
        tensor_fusion_root=str(tmp_path / "tf"),
        simulated_gpus="1xT4",
        hypervisor_sockets=sockets and str(tmp_path / sockets),
    )
    with Supervisor() as supervisor:
        NodePlugin(settings, supervisor)

        assert ("workers" in {each.name for each in threading.enumerate()}) == bool(sockets)
        assert not supervisor.stopping.is_set()

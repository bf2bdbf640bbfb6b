"""The bridge to Tensor Fusion's hypervisor is there only if the settings turn it on."""

from pathlib import Path

from tensorfusion_dra.app.node_plugin import hypervisor_bridge
from tensorfusion_dra.app.shared.node_settings import Settings
from tensorfusion_dra.cluster.api import Api, ResourceApi, RetriedReads
from tensorfusion_dra.driver.workers import Workers
from tensorfusion_dra.runtime.supervisor import Supervisor
from tensorfusion_dra.state.ledger import Ledger


def built(folder: Path, supervisor: Supervisor, sockets: str) -> Workers | None:
    ledger = Ledger(folder)
    supervisor.on_stop(ledger.close)
    supervisor.join_on_stop(seconds=60)
    return hypervisor_bridge.constructed(
        Settings(
            node_name="node-01", hypervisor_sockets=sockets, tensor_fusion_root=str(folder / "tf")
        ),
        supervisor,
        ledger,
        ResourceApi(Api(None)),
        RetriedReads(),
    )


def test_without_the_setting_there_is_none(tmp_path: Path) -> None:
    with Supervisor() as supervisor:
        assert built(tmp_path, supervisor, "") is None


def test_with_the_setting_it_runs_until_the_process_stops(tmp_path: Path) -> None:
    with Supervisor() as supervisor:
        assert built(tmp_path, supervisor, str(tmp_path)) is not None

        assert not supervisor.stopping.is_set()

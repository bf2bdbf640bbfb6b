"""The bridge to Tensor Fusion's hypervisor, if the settings turn it on."""

from functools import partial
from pathlib import Path

from tensorfusion_dra.app.shared.node_settings import Settings
from tensorfusion_dra.cluster.api import ResourceApi, RetriedReads
from tensorfusion_dra.cluster.pods import Pods, WorkerPods
from tensorfusion_dra.driver.worker_keeper import WorkerKeeper
from tensorfusion_dra.driver.workers import Workers
from tensorfusion_dra.runtime.supervisor import Supervisor
from tensorfusion_dra.state.ledger import Ledger


def constructed(
    settings: Settings,
    supervisor: Supervisor,
    ledger: Ledger,
    resource_api: ResourceApi,
    reads: RetriedReads,
) -> Workers | None:
    """Return the registrar of workers, and run its follow-up; None if the bridge is off."""
    if not settings.hypervisor_sockets:
        return None
    # Imported here so that a node without the bridge does not load them.
    from tensorfusion_dra.enforcement.hypervisor.device_plugin import DevicePlugin  # noqa: PLC0415
    from tensorfusion_dra.enforcement.hypervisor.shared_memory import WorkerMemory  # noqa: PLC0415

    plugin = DevicePlugin(Path(settings.hypervisor_sockets))
    keeper = WorkerKeeper(plugin, claims=ledger.claims)
    worker_pods = WorkerPods(resource_api.api, node_name=settings.node_name, reads=reads)
    workers = Workers(
        Pods(resource_api.api, reads=reads),
        worker_pods,
        plugin,
        WorkerMemory(Path(settings.tensor_fusion_root) / "shm"),
        ledger,
        on_change=keeper.note_limits,
    )
    watch = worker_pods.watch(keeper.note_pods, keeper.note_event)
    supervisor.on_stop(keeper.stop)
    supervisor.run("workers", partial(keeper.run, workers))
    supervisor.on_stop(watch.stop)
    supervisor.run("worker-watch", watch.run)
    return workers

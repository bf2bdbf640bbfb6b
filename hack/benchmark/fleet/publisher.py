"""One node's publisher in a process of its own: the driver's parts without the kubelet's sockets.

The process is forked after all imports, so it shares their memory with the others. Ledger, cards,
catalog, connections, threads and requests are its own, and the same code as in a node plugin.
"""

import gc
import os
import sys
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from benchmark.fleet.traffic import CountedApi, Sent, Traffic
from tensorfusion_dra.app.node_plugin import node_base, publishing
from tensorfusion_dra.app.shared import logging
from tensorfusion_dra.app.shared.node_settings import Settings
from tensorfusion_dra.cluster.api import ResourceApi
from tensorfusion_dra.core.devices.health import CardEvent, EventKind
from tensorfusion_dra.runtime.supervisor import Supervisor

XID: Final = 79
"""A card that reports it is unhealthy at once."""
_NICE: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings:
    """What a publisher of the fleet needs to know.

    Attributes:
        folder: Of this node alone; gets its ledger and its log.
    """

    name: str
    folder: Path
    kubeconfig: Path
    gpus: str
    pool_source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a publisher did since its last report.

    Attributes:
        open_watches: Number of watches that are open now.
    """

    sent: list[Sent]
    open_watches: int


def serve(node: NodeSettings, commands: Connection) -> None:
    """Follow the commands that arrive: ``publish``, ``sicken``, ``report`` and ``stop``.

    Each is answered when it is carried out, with a Report or None. None is sent first, once the
    node is ready to publish.
    """
    os.nice(_NICE)
    gc.freeze()  # a collection would write to the pages of all shared objects
    traffic = Traffic()
    with (node.folder / "log").open("a", encoding="utf-8") as log, Supervisor() as supervisor:
        sys.stderr = log
        logging.configure(level="info", form="json", stream=log)
        settings = _settings(node)
        base = node_base.recovered(settings, supervisor)
        base.catalog.refresh()
        api = CountedApi(node.kubeconfig, traffic)
        api.connect()
        wake: Any = None
        commands.send(None)
        while (command := commands.recv()) != "stop":
            answer: Report | None = None
            if command == "publish":
                resource_api = ResourceApi(api)
                publish = publishing.constructed(settings, base.catalog, resource_api)
                publish.start(settings, supervisor, base.catalog, resource_api)
                wake = publish.publisher.wake
            elif command == "sicken":
                card = next(iter(base.catalog.current().devices)).gpu  # type: ignore[union-attr]
                event = CardEvent(gpu_uuid=card.uuid, kind=EventKind.XID, code=XID)
                if base.catalog.note_event(event):
                    wake()
            elif command == "report":
                answer = Report(sent=traffic.take(), open_watches=traffic.open_watches)
            commands.send(answer)


def _settings(node: NodeSettings) -> Settings:
    root = node.folder
    settings = Settings(
        node_name=node.name,
        kubeconfig=str(node.kubeconfig),
        kubelet_root=str(root),
        cdi_dir=str(root / "cdi"),
        tensor_fusion_root=str(root / "tensor-fusion"),
        simulated_gpus=node.gpus,
        pool_source=node.pool_source,
    )
    (root / "cdi").mkdir()
    return settings

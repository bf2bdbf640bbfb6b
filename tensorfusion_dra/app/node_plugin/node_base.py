"""The parts of a node plugin that need neither the kubelet nor the API server."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tensorfusion_dra.app.node_plugin import pool_source
from tensorfusion_dra.app.shared import node_parts, providers
from tensorfusion_dra.app.shared.node_settings import Settings
from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims.enforcers.enforcer import Enforcer
from tensorfusion_dra.discovery.host import HostSizes
from tensorfusion_dra.driver.catalog import DeviceCatalog
from tensorfusion_dra.driver.local_cards import NodeFactsReader
from tensorfusion_dra.driver.node_files import NodeFiles
from tensorfusion_dra.driver.ports.discovery import CardEvents
from tensorfusion_dra.driver.recover import Reconciler
from tensorfusion_dra.runtime.supervisor import Supervisor
from tensorfusion_dra.state import claim_files
from tensorfusion_dra.state.host_files import HostFiles
from tensorfusion_dra.state.ledger import Ledger


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeBase:
    """Parts for the node's claims and cards.

    Attributes:
        card_events: None if the settings turn them off.
        enforcers: By name; one of another package has one thread for all its users.
    """

    ledger: Ledger
    files: NodeFiles
    facts: NodeFactsReader
    reconciler: Reconciler
    catalog: DeviceCatalog
    card_events: CardEvents | None
    enforcers: Mapping[str, Enforcer]


def recovered(settings: Settings, supervisor: Supervisor) -> NodeBase:
    """Open the ledger, rebuild the files of its claims, and prepare to read the cards.

    Raises:
        InputError: A file that the settings name cannot be used.
        RetryableError: The ledger cannot be read now.
        FatalError: A newer release has changed the ledger.
    """
    ledger = Ledger(settings.data_folder)
    supervisor.on_stop(ledger.close)
    enforcers = node_parts.enforcers(settings)
    files = NodeFiles(
        claim_files.cdi_specs(Path(settings.cdi_dir)),
        claim_files.limits(Path(settings.tensor_fusion_root) / "claims"),
        claim_files.device_metadata(settings.data_folder / names.METADATA_FOLDER),
        HostFiles(Path(settings.tensor_fusion_root)),
        enforcers,
    )
    facts = node_parts.node_facts(settings, enforcers)
    reconciler = Reconciler(ledger, files, boot_id=facts.boot_id, seconds=settings.recover_seconds)
    reconciler.begin()
    provided = providers.load(settings)
    supervisor.on_stop(provided.close)
    discovery = supervisor.enter(node_parts.discovery(settings))
    catalog = DeviceCatalog(
        discovery,
        None if pool_source.follows(settings) else node_parts.node(settings),
        host=HostSizes(settings.disk_folder),
        providers=provided,
        tracker=node_parts.health_tracker(settings, ledger.claims),
        taint_effect=node_parts.taint_effect(settings),
    )
    return NodeBase(
        ledger=ledger,
        files=files,
        facts=facts,
        reconciler=reconciler,
        catalog=catalog,
        card_events=discovery.events if settings.health_events == "true" else None,
        enforcers=enforcers,
    )

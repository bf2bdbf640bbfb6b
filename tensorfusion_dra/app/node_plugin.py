"""The DaemonSet's process: builds the parts, starts them in order, stops them in reverse."""

import os
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import structlog

from tensorfusion_dra.app import card_health, parts, pool_source, providers
from tensorfusion_dra.app.settings import Settings
from tensorfusion_dra.app.supervisor import Supervisor
from tensorfusion_dra.cluster.api import Api
from tensorfusion_dra.cluster.claim_status import ClaimStatus
from tensorfusion_dra.cluster.claims import Claims
from tensorfusion_dra.cluster.nodes import Nodes
from tensorfusion_dra.cluster.pods import Pods
from tensorfusion_dra.cluster.resource_api import ResourceApi
from tensorfusion_dra.cluster.slice_watch import SliceWatch
from tensorfusion_dra.cluster.slices import Slices
from tensorfusion_dra.core.errors import FatalError, RetryableError
from tensorfusion_dra.core.share_parameters import Isolation
from tensorfusion_dra.discovery.host import WithHost
from tensorfusion_dra.driver import recover
from tensorfusion_dra.driver.card_watch import CardWatch
from tensorfusion_dra.driver.catalog import CatalogReader
from tensorfusion_dra.driver.health_news import HealthNews
from tensorfusion_dra.driver.prepare import Preparer
from tensorfusion_dra.driver.projection import Projection
from tensorfusion_dra.driver.publish import Publisher
from tensorfusion_dra.driver.share_terms import ShareTerms
from tensorfusion_dra.driver.status import StatusReporter
from tensorfusion_dra.kubelet import sockets
from tensorfusion_dra.kubelet.dra import DraService
from tensorfusion_dra.kubelet.health import HealthService
from tensorfusion_dra.kubelet.registration import Registration
from tensorfusion_dra.kubelet.server import UnixServer
from tensorfusion_dra.state import claim_files
from tensorfusion_dra.state.host_files import NodeFiles
from tensorfusion_dra.state.ledger import Ledger

log = structlog.get_logger()

_DRA_WORKERS: Final = 32
"""Each open health stream holds one; calls of different pods run side by side."""
_REGISTRATION_WORKERS: Final = 2
_JOIN_SECONDS: Final = 5.0


def run(settings: Settings) -> int:
    """Serves until told to stop; the exit code.

    Raises:
        InputError: A file that the settings name cannot be used.
    """
    started = time.monotonic()
    # Sockets and the ledger are for this process alone; what others read gets its mode by name.
    os.umask(0o077)
    supervisor = Supervisor()
    supervisor.stop_on_signals()
    try:
        with ExitStack() as running:
            _start(settings, supervisor, running)
            log.info("serving", node=settings.node_name, seconds=_since(started))
            cause = supervisor.wait()
    except (FatalError, RetryableError) as error:
        log.error("start_failed", error=str(error))
        return 1
    log.info("stopped", error=str(cause) if cause else None)
    return 1 if cause else 0


def _start(settings: Settings, supervisor: Supervisor, running: ExitStack) -> None:
    """Starts everything; leaving the stack stops it in reverse. Slices are not deleted."""
    paths = sockets.paths(
        registry_folder=settings.registry_folder,
        data_folder=settings.data_folder,
        pod_uid=settings.pod_uid,
    )
    ledger = Ledger(settings.data_folder)
    running.callback(ledger.close)
    projection = Projection(
        claim_files.cdi_specs(Path(settings.cdi_dir)),
        claim_files.limits(Path(settings.tensor_fusion_root) / "claims"),
        NodeFiles(),
        parts.enforcers(settings),
    )
    recover.recover(ledger, projection)

    discovery = parts.discovery(settings, running)
    cards = WithHost(discovery, data_folder=Path(settings.data_dir))
    node = None if pool_source.follows(settings) else parts.node(settings)
    catalog = CatalogReader(
        cards,
        node,
        providers=providers.load(),
        memory=card_health.memory(settings, ledger.claims),
        taint_effect=card_health.taint_effect(settings),
    )
    api = Api(Path(settings.kubeconfig) if settings.kubeconfig else None)
    resource_api = ResourceApi(api)
    running.callback(supervisor.join, seconds=_JOIN_SECONDS)

    status = StatusReporter(ClaimStatus(resource_api), sick=catalog.sick)
    supervisor.run("status", status.run)
    running.callback(status.stop)
    preparer = Preparer(
        Claims(resource_api),
        ledger,
        projection,
        catalog,
        host=parts.host(settings),
        share_terms=ShareTerms(
            isolation=Isolation(settings.isolation),
            pods=Pods(api) if settings.read_pods == "true" else None,
        ),
        status=status,
    )
    health = HealthService(catalog)
    services = (*DraService(preparer, supervisor.fail).services(), *health.services())
    dra_server = UnixServer(paths.dra, services, workers=_DRA_WORKERS)
    dra_server.start()
    running.callback(dra_server.stop, grace_seconds=settings.drain_seconds)
    running.callback(health.stop)

    publisher = _publish(settings, supervisor, running, catalog=catalog, resource_api=resource_api)
    events = discovery.events if settings.health_events == "true" else None
    watch = CardWatch(catalog, events, poll_seconds=settings.poll_seconds, on_change=publisher.wake)
    news = HealthNews(catalog, ledger, status, card_health.events(settings, api))
    for part in (watch, news):
        running.callback(part.stop)
    supervisor.run("cards", watch.run)
    supervisor.run("card-events", watch.run_events)
    supervisor.run("health-news", news.run)
    _register(paths, supervisor, running)


def _publish(
    settings: Settings,
    supervisor: Supervisor,
    running: ExitStack,
    *,
    catalog: CatalogReader,
    resource_api: ResourceApi,
) -> Publisher:
    resource_api.api.connect()
    slices = Slices(resource_api, node_name=settings.node_name)
    nodes = Nodes(resource_api.api, node_name=settings.node_name)
    publisher = Publisher(catalog, slices, nodes)
    watch = SliceWatch(
        resource_api,
        selector=slices.selector,
        on_change=publisher.wake,
        on_return=publisher.server_returned,
    )
    running.callback(publisher.stop)
    running.callback(watch.stop)
    supervisor.run("publish", publisher.run)
    supervisor.run("slice-watch", watch.run)
    if pool_source.follows(settings):
        pool_source.follow(
            settings,
            supervisor,
            running,
            catalog=catalog,
            api=resource_api.api,
            on_served=publisher.wake,
        )
    return publisher


def _register(paths: sockets.SocketPaths, supervisor: Supervisor, running: ExitStack) -> None:
    """Only now may the kubelet find us: it can call at once."""
    registration = Registration(endpoint=str(paths.dra))
    server = UnixServer(paths.registration, [registration.service()], workers=_REGISTRATION_WORKERS)
    server.start()
    running.callback(server.stop, grace_seconds=0)
    supervisor.run("registration", lambda: registration.await_kubelet(supervisor.stopping))


def _since(started: float) -> float:
    return round(time.monotonic() - started, 3)

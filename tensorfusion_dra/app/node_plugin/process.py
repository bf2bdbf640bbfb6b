"""The DaemonSet's process: builds the parts, starts them in order, stops them in reverse."""

import os
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import structlog

from tensorfusion_dra.app.node_plugin import pool_source
from tensorfusion_dra.app.shared import card_health, node_parts, providers, version
from tensorfusion_dra.app.shared.health_endpoint import HealthEndpoint
from tensorfusion_dra.app.shared.node_settings import Settings
from tensorfusion_dra.app.shared.supervisor import Supervisor
from tensorfusion_dra.cluster.api import Api
from tensorfusion_dra.cluster.claim_status import ClaimStatus
from tensorfusion_dra.cluster.claims import Claims
from tensorfusion_dra.cluster.events import Events
from tensorfusion_dra.cluster.nodes import Nodes
from tensorfusion_dra.cluster.pods import Pods
from tensorfusion_dra.cluster.resource_api import ResourceApi
from tensorfusion_dra.cluster.retries import Reads
from tensorfusion_dra.cluster.slice_watch import SliceWatch
from tensorfusion_dra.cluster.slices import Slices
from tensorfusion_dra.core.devices.sharing import Isolation
from tensorfusion_dra.core.errors import FatalError, RetryableError
from tensorfusion_dra.discovery.host.sizes import HostSizes
from tensorfusion_dra.driver.card_watch import CardWatch
from tensorfusion_dra.driver.catalog import CatalogReader
from tensorfusion_dra.driver.division import Division
from tensorfusion_dra.driver.health_announcer import HealthAnnouncer
from tensorfusion_dra.driver.prepare import Preparer
from tensorfusion_dra.driver.projection import Projection
from tensorfusion_dra.driver.publish import Publisher
from tensorfusion_dra.driver.reconciler import Reconciler
from tensorfusion_dra.driver.share_policies import SharePolicyReader
from tensorfusion_dra.driver.stale_claims import StaleClaimCollector
from tensorfusion_dra.driver.status import StatusReporter
from tensorfusion_dra.kubelet import sockets
from tensorfusion_dra.kubelet.dra import DraService
from tensorfusion_dra.kubelet.health import HealthService
from tensorfusion_dra.kubelet.plugin_servers import PluginServers
from tensorfusion_dra.kubelet.probe import Probe
from tensorfusion_dra.kubelet.registration import Registration
from tensorfusion_dra.state import claim_files
from tensorfusion_dra.state.host_files import HostFiles
from tensorfusion_dra.state.ledger import Ledger
from tensorfusion_dra.state.publishing_right import PublishingRight

log = structlog.get_logger()

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
            servers = _start(settings, supervisor, running)
            log.info(
                "serving",
                version=version.current(),
                node=settings.node_name,
                seconds=_since(started),
            )
            cause = supervisor.wait()
    except (FatalError, RetryableError) as error:
        log.error("start_failed", version=version.current(), error=str(error))
        return 1
    log.info("stopped", error=str(cause) if cause else None)
    code = 1 if cause else 0
    if servers.calls_cut:
        # They may wait for the API server for half a minute more, in threads that the interpreter
        # would join.
        sys.stderr.flush()
        os._exit(code)
    return code


def _start(settings: Settings, supervisor: Supervisor, running: ExitStack) -> PluginServers:
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
        HostFiles(),
        node_parts.enforcers(settings),
    )
    offers = node_parts.node_offers(settings)
    reconciler = Reconciler(
        ledger, projection, boot_id=offers.boot_id, seconds=settings.recover_seconds
    )
    reconciler.begin()

    discovery = node_parts.discovery(settings, running)
    node = None if pool_source.follows(settings) else node_parts.node(settings)
    catalog = CatalogReader(
        discovery,
        node,
        host=HostSizes(settings.disk_folder),
        providers=providers.load(),
        tracker=card_health.tracker(settings, ledger.claims),
        taint_effect=card_health.taint_effect(settings),
    )
    api = Api(Path(settings.kubeconfig) if settings.kubeconfig else None)
    resource_api = ResourceApi(api)
    running.callback(supervisor.join, seconds=_JOIN_SECONDS)

    status = StatusReporter(ClaimStatus(resource_api), sick=catalog.sick)
    supervisor.run("status", status.run)
    running.callback(status.stop)
    reads = Reads()
    preparer = Preparer(
        Claims(resource_api, reads=reads),
        ledger,
        projection,
        catalog,
        offers=offers,
        share_policies=SharePolicyReader(
            isolation=Isolation(settings.isolation),
            pods=Pods(api, reads=reads) if settings.read_pods == "true" else None,
        ),
        status=status,
    )
    health = HealthService(catalog)
    registration = Registration(endpoint=str(paths.dra), on_asked=preparer.kubelet_asked)
    servers = PluginServers(paths, registration, DraService(preparer, supervisor.fail), health)
    running.callback(
        servers.stop, drain_seconds=settings.drain_seconds, stop_now=lambda: supervisor.stop_now
    )
    servers.serve()

    _keep_up(
        settings,
        supervisor,
        running,
        reconciler=reconciler,
        preparer=preparer,
        resource_api=resource_api,
    )
    publisher = _publish(settings, supervisor, running, catalog=catalog, resource_api=resource_api)
    _follow_cards(
        supervisor,
        running,
        watch=CardWatch(
            catalog,
            discovery.events if settings.health_events == "true" else None,
            poll_seconds=settings.poll_seconds,
            on_change=publisher.wake,
        ),
        announcer=HealthAnnouncer(catalog, ledger, status, card_health.events(settings, api)),
        division=Division(catalog, preparer.tenants),
    )
    # Only now may the kubelet find us: it can call at once.
    servers.announce()
    supervisor.run("sockets", lambda: servers.keep(supervisor.stopping))
    supervisor.run("registration", lambda: registration.await_kubelet(supervisor.stopping))
    _answer_probes(settings, running, sockets_answer=Probe(paths).check, registration=registration)
    return servers


def _keep_up(
    settings: Settings,
    supervisor: Supervisor,
    running: ExitStack,
    *,
    reconciler: Reconciler,
    preparer: Preparer,
    resource_api: ResourceApi,
) -> None:
    """What asks the API server waits until the kubelet is served."""
    nodes = Nodes(resource_api.api, node_name=settings.node_name)
    stale_claims = StaleClaimCollector(
        Claims(resource_api), nodes, preparer, gone_seconds=settings.gone_seconds
    )
    events = Events(resource_api.api, nodes, node_name=settings.node_name)
    running.callback(reconciler.stop)
    supervisor.run("reconciler", lambda: reconciler.run(preparer, stale_claims, events))


def _follow_cards(
    supervisor: Supervisor,
    running: ExitStack,
    *,
    watch: CardWatch,
    announcer: HealthAnnouncer,
    division: Division,
) -> None:
    for part in (watch, announcer, division):
        running.callback(part.stop)
    supervisor.run("cards", watch.run)
    supervisor.run("card-events", watch.run_events)
    supervisor.run("health-announcer", announcer.run)
    supervisor.run("division", division.run)


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
    publisher = Publisher(
        catalog,
        slices,
        nodes,
        Events(resource_api.api, nodes, node_name=settings.node_name),
        right=PublishingRight(settings.data_folder),
    )
    watch = SliceWatch(
        resource_api,
        selector=slices.selector,
        on_change=publisher.slices_changed,
        on_return=publisher.server_returned,
        concerns=slices.is_of_node,
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


def _answer_probes(
    settings: Settings,
    running: ExitStack,
    *,
    sockets_answer: Callable[[], None],
    registration: Registration,
) -> None:
    """Alive is whoever answers on its sockets; neither GPUs nor the API server count.

    Ready is who the kubelet has taken as well: a rolling update ends the old instance then.
    """
    if not settings.health_port:
        return

    def ready() -> None:
        sockets_answer()
        registration.check()

    endpoint = HealthEndpoint(
        {"/healthz": sockets_answer, "/readyz": ready},
        host=settings.health_host,
        port=settings.health_port,
    )
    running.callback(endpoint.stop)
    endpoint.start()


def _since(started: float) -> float:
    return round(time.monotonic() - started, 3)

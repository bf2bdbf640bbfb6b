"""The node plugin: builds its parts, starts them in order and stops them in reverse.

The order matters to the kubelet and to pods: the ledger is recovered before any call arrives, the
DRA socket serves before the kubelet can find it, and the parts that need the API server start only
after the kubelet can, because loading the client takes longer than everything before it.
"""

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from tensorfusion_dra.app.node_plugin import (
    hypervisor_bridge,
    node_base,
    node_events,
    publishing,
)
from tensorfusion_dra.app.node_plugin.node_base import NodeBase
from tensorfusion_dra.app.node_plugin.observing import Observing
from tensorfusion_dra.app.shared import node_parts, process_memory, version
from tensorfusion_dra.app.shared.health_endpoint import HealthEndpoint, Page
from tensorfusion_dra.app.shared.node_settings import Settings
from tensorfusion_dra.cluster.api import Api, ResourceApi, RetriedReads
from tensorfusion_dra.cluster.claims import Claims, ClaimStatus
from tensorfusion_dra.cluster.nodes import Nodes
from tensorfusion_dra.cluster.pods import Pods
from tensorfusion_dra.core.devices.sharing import Isolation
from tensorfusion_dra.core.errors import FatalError, RetryableError
from tensorfusion_dra.driver.card_watch import CardWatch
from tensorfusion_dra.driver.catalog import DeviceCatalog
from tensorfusion_dra.driver.enforcement_watch import EnforcementWatch, NodeEnforcer
from tensorfusion_dra.driver.health_announcer import HealthAnnouncer
from tensorfusion_dra.driver.limit_changes import LimitChanges
from tensorfusion_dra.driver.local_cards import LocalCards
from tensorfusion_dra.driver.operations import Operations
from tensorfusion_dra.driver.prepare import Preparer
from tensorfusion_dra.driver.recover import Reconciler
from tensorfusion_dra.driver.share_policies import NeighbourReader, SharePolicyReader
from tensorfusion_dra.driver.stale_claims import StaleClaimCollector
from tensorfusion_dra.driver.status import StatusReporter, utc_now
from tensorfusion_dra.kubelet import sockets
from tensorfusion_dra.kubelet.dra import DraService
from tensorfusion_dra.kubelet.health import HealthService
from tensorfusion_dra.kubelet.plugin_servers import PluginServers, Registration
from tensorfusion_dra.runtime.calls import CallsInFlight
from tensorfusion_dra.runtime.supervisor import Supervisor
from tensorfusion_dra.state import saved_state
from tensorfusion_dra.state.saved_state import SavedState

log = structlog.get_logger()

_JOIN_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Preparing:
    """The prepare path, and the parts that follow up on prepared claims."""

    preparer: Preparer
    limit_changes: LimitChanges
    status: StatusReporter
    calls: CallsInFlight
    enforcement: EnforcementWatch


def run(settings: Settings) -> int:
    """Serve until stopped; return the exit code.

    Raises:
        InputError: A file that the settings name cannot be used.
    """
    started = time.monotonic()
    # Sockets and ledger are private to this user; files for other programs get an explicit mode.
    os.umask(0o077)
    supervisor = Supervisor()
    supervisor.stop_on_signals()
    try:
        with supervisor:
            servers = _start(settings, supervisor)
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
    if servers.calls_cancelled:
        # The cancelled calls may wait for the API server for another half minute, in threads that
        # the interpreter would join.
        sys.stderr.flush()
        os._exit(code)
    return code


def _start(settings: Settings, supervisor: Supervisor) -> PluginServers:
    """Start all parts; the supervisor stops them in reverse order. Slices are not deleted."""
    base = node_base.recovered(settings, supervisor)
    observing = Observing()
    api = Api(
        Path(settings.kubeconfig) if settings.kubeconfig else None,
        exchanges=(observing.api_server, observing.metrics.api_requests),
    )
    resource_api = ResourceApi(api)
    supervisor.join_on_stop(seconds=_JOIN_SECONDS)

    operations = Operations((observing.operations, observing.metrics.operations))
    preparing = _preparing(settings, supervisor, base, resource_api, operations)
    registration, servers = _served(settings, supervisor, preparing, base.catalog)
    publish = publishing.constructed(settings, base.catalog, resource_api)
    _follow_cards(settings, supervisor, base, on_change=publish.publisher.wake)
    servers.announce()  # the kubelet may call as soon as it finds the sockets
    supervisor.run("sockets", lambda: servers.keep(supervisor.stopping))

    api.connect()
    process_memory.finish_start()
    _reconcile(settings, supervisor, base.reconciler, preparing, resource_api)
    pool = publish.start(settings, supervisor, base.catalog, resource_api)
    _report_health(settings, supervisor, base, preparing, api)
    observer = observing.observer(
        settings,
        base,
        enforcement=preparing.enforcement,
        publisher=publish.publisher,
        registration=registration,
    )
    pages = observing.pages(settings, supervisor, observer)
    # After the client: a new instance that cannot log in never becomes ready, so that a rolling
    # update keeps the old one.
    ready = [servers.check, registration.check, *([pool.check] if pool else [])]
    _answer_probes(settings, supervisor, servers.check, ready, pages)
    return servers


def _preparing(
    settings: Settings,
    supervisor: Supervisor,
    base: NodeBase,
    resource_api: ResourceApi,
    operations: Operations,
) -> _Preparing:
    calls = CallsInFlight()
    signs = node_parts.live_signs(settings, base.enforcers)
    is_required = settings.require_enforcement == "true"
    node_enforcer = NodeEnforcer(
        signs, enforcer=settings.enforcer, is_required=is_required, now=utc_now
    )
    watch = EnforcementWatch(
        signs,
        base.enforcers,
        SavedState(settings.data_folder, saved_state.LIMITS),
        now=utc_now,
        node=node_enforcer if node_parts.needs_enforcer(settings) else None,
    )
    status = StatusReporter(
        ClaimStatus(resource_api), calls=calls, sick=base.catalog.sick, enforcement=watch
    )
    supervisor.own("status", status)
    reads = RetriedReads()
    rules = base.facts.rules
    workers = hypervisor_bridge.constructed(settings, supervisor, base.ledger, resource_api, reads)
    limit_changes = LimitChanges(
        base.ledger,
        base.files,
        base.catalog,
        rules=rules,
        status=status,
        workers=workers,
    )
    preparer = Preparer(
        claims_at_server=Claims(resource_api, reads=reads),
        pods=Pods(resource_api.api, reads=reads) if settings.read_pods == "true" else None,
        ledger=base.ledger,
        files=base.files,
        cards=LocalCards(base.catalog, base.facts),
        share_policies=SharePolicyReader(isolation=Isolation(settings.isolation)),
        neighbours=NeighbourReader(
            fixed=rules.fixed(base.facts.enforcer),
            counts_by_pid=rules.counts_by_pid(base.facts.enforcer),
        ),
        limit_changes=limit_changes,
        status=status,
        operations=operations,
        workers=workers,
        required=signs if is_required else None,
    )
    return _Preparing(
        preparer=preparer,
        limit_changes=limit_changes,
        status=status,
        calls=calls,
        enforcement=watch,
    )


def _served(
    settings: Settings, supervisor: Supervisor, preparing: _Preparing, catalog: DeviceCatalog
) -> tuple[Registration, PluginServers]:
    """Serve the DRA socket, before the kubelet knows of it."""
    paths = sockets.paths(
        registry_folder=settings.registry_folder,
        data_folder=settings.data_folder,
        pod_uid=settings.pod_uid,
    )
    registration = Registration(endpoint=str(paths.dra))
    dra = DraService(preparing.preparer, preparing.calls, supervisor.fail)
    servers = PluginServers(paths, registration, dra, HealthService(catalog))
    supervisor.on_stop(
        servers.stop, drain_seconds=settings.drain_seconds, stop_now=lambda: supervisor.stop_now
    )
    servers.serve()
    return registration, servers


def _reconcile(
    settings: Settings,
    supervisor: Supervisor,
    reconciler: Reconciler,
    preparing: _Preparing,
    resource_api: ResourceApi,
) -> None:
    preparer = preparing.preparer
    nodes = Nodes(resource_api.api, node_name=settings.node_name)
    stale_claims = StaleClaimCollector(
        Claims(resource_api),
        nodes,
        preparer,
        gone_seconds=settings.gone_seconds,
        check_seconds=settings.check_seconds,
    )
    events = node_events.writer(settings, resource_api.api)
    supervisor.on_stop(reconciler.stop)
    supervisor.run(
        "reconciler",
        lambda: reconciler.run(
            preparer, stale_claims, events, on_recovered=preparing.enforcement.follow
        ),
    )


def _follow_cards(
    settings: Settings, supervisor: Supervisor, base: NodeBase, *, on_change: Callable[[], None]
) -> None:
    """Read the cards; prepares wait for the first reading."""
    watch = CardWatch(
        base.catalog, base.card_events, poll_seconds=settings.poll_seconds, on_change=on_change
    )
    supervisor.own("cards", watch)
    supervisor.run("card-events", watch.run_events)


def _report_health(
    settings: Settings, supervisor: Supervisor, base: NodeBase, preparing: _Preparing, api: Api
) -> None:
    """Act on what changes about cards and limits: Events, the claims' status, their shares."""
    announcer = HealthAnnouncer(
        base.catalog, base.ledger, preparing.status, node_events.writer(settings, api)
    )
    supervisor.own("health-announcer", announcer)
    supervisor.own("limit-changes", preparing.limit_changes)
    events = node_events.writer(settings, api)
    watch, report = preparing.enforcement, preparing.status.report_changed
    supervisor.on_stop(watch.stop)
    supervisor.run("enforcement", lambda: watch.run(report, events))


def _answer_probes(
    settings: Settings,
    supervisor: Supervisor,
    live: Callable[[], None],
    ready: Sequence[Callable[[], None]],
    pages: Mapping[str, Page],
) -> None:
    """Answer liveness and readiness probes, and serve the pages beside them.

    The process is live if it answers on its sockets, whatever the state of GPUs and API server. It
    is ready if it is also registered and does not wait for a GPUPool (PoolFollower says when it
    does); then a rolling update stops the old instance.
    """
    if not settings.health_port:
        return

    def all_ready() -> None:
        for check in ready:
            check()

    endpoint = HealthEndpoint(
        {"/healthz": live, "/readyz": all_ready},
        pages,
        host=settings.health_host,
        port=settings.health_port,
    )
    supervisor.on_stop(endpoint.stop)
    endpoint.start()


def _since(started: float) -> float:
    return round(time.monotonic() - started, 3)

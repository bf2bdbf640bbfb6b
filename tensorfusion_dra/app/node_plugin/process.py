"""The node plugin: builds its parts, starts them in order and stops them in reverse.

The order matters to the kubelet and to pods: the store is recovered before any call arrives, the
DRA socket serves before the kubelet can find it, and the parts that need the API server start only
after the kubelet can, because a kubeconfig takes longer to load than everything before it.
"""

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import structlog

from tensorfusion_dra.app.node_plugin import status_page
from tensorfusion_dra.app.shared import (
    health_endpoint,
    node_parts,
    process_memory,
    providers,
    version,
)
from tensorfusion_dra.app.shared.node_settings import Settings
from tensorfusion_dra.cluster import watch
from tensorfusion_dra.cluster.api import Api
from tensorfusion_dra.cluster.objects import (
    ApiClaims,
    ApiClaimStatus,
    ApiEvents,
    ApiNodes,
    ApiPods,
    ApiWorkerPods,
)
from tensorfusion_dra.cluster.slices import ApiSlices
from tensorfusion_dra.cluster.watch import ObjectCache
from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims import enforcer as enforcer_rules
from tensorfusion_dra.core.claims import resize
from tensorfusion_dra.core.claims.enforcer import Enforcer, NodeAccess
from tensorfusion_dra.core.devices import cordon
from tensorfusion_dra.core.devices.gpu import Isolation
from tensorfusion_dra.core.errors import FatalError, InputError, RetryableError
from tensorfusion_dra.core.kubernetes.node_fit import NodeLabels
from tensorfusion_dra.core.kubernetes.untyped_json import map_at
from tensorfusion_dra.discovery.host import MachineSizes
from tensorfusion_dra.driver.binding_conditions import BindingConditions
from tensorfusion_dra.driver.catalog_follower import CatalogFollower
from tensorfusion_dra.driver.claim_facts import FactsReader
from tensorfusion_dra.driver.claim_upkeep import NodeFiles, Upkeep
from tensorfusion_dra.driver.driver_replacement import DriverReplacement
from tensorfusion_dra.driver.enforcement_watch import EnforcementWatch
from tensorfusion_dra.driver.node_observer import NodeObserver
from tensorfusion_dra.driver.operations import Operations
from tensorfusion_dra.driver.pool_follower import PoolFollower, member
from tensorfusion_dra.driver.prepare import Preparer
from tensorfusion_dra.driver.publish import (
    CatalogBuilder,
    OtherUsersReader,
    Publisher,
    ReadingLoop,
)
from tensorfusion_dra.driver.recover import Reconciler
from tensorfusion_dra.driver.resize import ResizeFollower
from tensorfusion_dra.driver.stale_claims import StaleClaimCollector
from tensorfusion_dra.driver.status import StatusReporter, utc_now
from tensorfusion_dra.driver.use_watch import UseWatch
from tensorfusion_dra.enforcers import written_files
from tensorfusion_dra.kubelet import sockets
from tensorfusion_dra.kubelet.dra import DraService, HealthService
from tensorfusion_dra.kubelet.plugin_servers import PluginServers
from tensorfusion_dra.metrics import NodeMetrics
from tensorfusion_dra.runtime.calls import CallsInFlight
from tensorfusion_dra.runtime.loops import Wakeup
from tensorfusion_dra.runtime.supervisor import Supervisor
from tensorfusion_dra.state import claim_files, saved_state
from tensorfusion_dra.state.claim_files import HostFiles
from tensorfusion_dra.state.claim_store import ClaimStore
from tensorfusion_dra.state.publisher_lease import PublisherLease
from tensorfusion_dra.state.saved_state import SavedState

log = structlog.get_logger()

_JOIN_SECONDS: Final = 5.0
_TAINT_RULES_SECONDS: Final = 600.0
"""Until an API server without DeviceTaintRules is asked again: it may have been upgraded."""


def run(settings: Settings) -> int:
    """Serve until stopped; return the exit code.

    Raises:
        InputError: A file that the settings name cannot be used.
    """
    started = time.monotonic()
    # Sockets and records are private to this user; files for other programs get an explicit mode.
    os.umask(0o077)
    supervisor = Supervisor()
    supervisor.stop_on_signals()
    try:
        with supervisor:
            servers = NodePlugin(settings, supervisor).start()
            log.info(
                "serving",
                version=version.current(),
                node=settings.node_name,
                seconds=round(time.monotonic() - started, 3),
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


class NodePlugin:
    """The parts of the node plugin; the supervisor stops them in reverse order."""

    def __init__(self, settings: Settings, supervisor: Supervisor) -> None:
        """Open the store, rebuild the files of its claims, and build the path of a prepare.

        Nothing is sent to the API server yet.

        Raises:
            InputError: A file that the settings name cannot be used.
            RetryableError: The store cannot be read now.
            FatalError: A newer release has written a record, or an earlier one the database.
        """
        self._settings = settings
        self._supervisor = supervisor
        enforcers = node_parts.enforcers(settings)
        tensor_fusion_root = Path(settings.tensor_fusion_root)
        files = NodeFiles(
            claim_files.cdi_specs(Path(settings.cdi_dir)),
            claim_files.limits(tensor_fusion_root),
            claim_files.device_metadata(settings.data_folder / names.METADATA_FOLDER),
            HostFiles(tensor_fusion_root),
            enforcers,
        )
        rules = node_parts.lending_rules(settings, enforcers)
        boot_id = node_parts.boot_id(settings)
        self._store = ClaimStore(
            settings.data_folder,
            rules=rules,
            devices_of=files.devices_of,
            with_files=files.claim_uids,
        )
        supervisor.on_stop(self._store.close)
        self._reconciler = Reconciler(
            self._store, files, boot_id=boot_id, seconds=max(1.0, 2 * settings.poll_seconds)
        )
        self._reconciler.begin()
        reading_due, publishing_due = Wakeup(), Wakeup()
        node_enforcer = node_parts.node_enforcer(settings, enforcers, on_change=reading_due.wake)
        provided = providers.load(settings, reading_due.wake)
        claims_of = self._store.claims
        self._replacement = replacement = DriverReplacement(
            tensor_fusion_root / names.DRIVER_REPLACEMENT_MARKER_FILE,
            claims_of,
            is_followed=node_parts.follows_driver(settings),
            on_change=reading_due.wake,
        )
        discovery = supervisor.enter(
            node_parts.discovery(settings, claims_of, check=replacement.check)
        )
        self._card_events = discovery.events if settings.health_events else None
        other_users = OtherUsersReader(node_parts.allocations(settings))
        self.cards = CatalogBuilder(
            discovery,
            None if node_parts.follows_gpupool(settings) else node_parts.node(settings),
            host=MachineSizes(settings.disk_folder),
            providers=provided,
            tracker=node_parts.health_tracker(settings, claims_of, replacement=replacement),
            taint_effect=node_parts.taint_effect(settings),
            enforcement=node_enforcer.of_devices,
            other_users=other_users,
            records=claims_of,
            on_change=publishing_due.wake,
            read_soon=reading_due.wake,
        )
        self.catalog = self.cards.catalog
        self._reading = ReadingLoop(
            self.cards,
            poll_seconds=settings.poll_seconds,
            wakeup=reading_due,
            events=self._card_events,
        )

        self._enforcers = enforcers
        self._metrics = NodeMetrics()
        self._operations = Operations(self._metrics.operation_ended)
        self._api = Api(Path(settings.kubeconfig) if settings.kubeconfig else None)
        self._nodes = ApiNodes(self._api, node_name=settings.node_name)
        supervisor.on_stop(supervisor.join, seconds=_JOIN_SECONDS)

        self._calls = CallsInFlight()
        claims = ApiClaims(self._api)
        self._settle: Callable[[], None] = lambda: None
        if settings.enforcer_wait_seconds:
            self._settle = BindingConditions(
                node_enforcer,
                claims.listed,
                ApiClaimStatus(self._api, manager=names.BINDING_MANAGER),
                node_name=settings.node_name,
                now=utc_now,
            ).settle
        self._use = UseWatch(discovery.processes, claims_of, claims, enforcers)
        self._enforcement = EnforcementWatch(
            enforcers,
            SavedState(settings.data_folder, saved_state.LIMITS),
            records=claims_of,
            now=utc_now,
            node=node_enforcer,
            excess=self._use.excess,
        )
        self._status = StatusReporter(
            ApiClaimStatus(self._api),
            calls=self._calls,
            unhealthy=self.catalog.unhealthy,
            enforcement=self._enforcement,
            used=self._use.shown,
        )
        supervisor.own("status", self._status)
        pods = ApiPods(self._api)
        access = NodeAccess(
            claims_of,
            pods,
            ApiWorkerPods(self._api, node_name=settings.node_name),
            damaged=self._store.damaged,
            working=self._use.working if settings.observe_use else frozenset,
            wait_for_stop=supervisor.stopping.wait,
        )
        for enforcer in enforcers.values():
            for name, loop in enforcer.loops(access).items():
                supervisor.own(name, loop)
        self._upkeep = Upkeep(self._store, files, enforcers, self._status)
        self._preparer = Preparer(
            claims,
            self._store,
            FactsReader(
                catalog=self.catalog,
                other_users=other_users,
                files=node_parts.card_files(settings),
                pods=pods if settings.read_pods else None,
                enforcer=node_enforcer,
                rules=rules,
                isolation=Isolation(settings.isolation),
                boot_id=boot_id,
                describes_devices=settings.device_metadata,
            ),
            self._upkeep,
            self._operations,
        )
        self._resize = ResizeFollower(
            claims,
            self._store,
            self._upkeep,
            self._status,
            label=resize.node_label(settings.node_name),
            catalog=self.catalog,
            rules=rules,
            events=self._events(),
        )
        # For the status page alone: Kubernetes and the scheduler follow these rules by themselves.
        self._taint_rules = ObjectCache(
            self._api, watch.TAINT_RULES, absent_seconds=_TAINT_RULES_SECONDS
        )
        self._slices = ApiSlices(self._api, node_name=settings.node_name)
        self.publisher = Publisher(
            self.catalog,
            self._slices,
            self._nodes,
            self._events(),
            lease=PublisherLease(settings.data_folder),
            wakeup=publishing_due,
        )

    def _events(self) -> ApiEvents:
        """Return a writer of Events on this node's Node and its pods, for use in one thread."""
        return ApiEvents(self._api, self._nodes, node_name=self._settings.node_name)

    def start(self) -> PluginServers:
        """Serve the kubelet, then follow cards, API server and pool; return the kubelet's servers.

        A stop deletes no slices.

        Raises:
            RetryableError: This instance cannot log in at the API server.
            FatalError: A socket cannot be bound.
            InputError: A port cannot be bound.
        """
        settings, supervisor = self._settings, self._supervisor
        paths = sockets.paths(
            registry_folder=settings.registry_folder,
            data_folder=settings.data_folder,
            pod_uid=settings.pod_uid,
        )
        servers = PluginServers(
            paths,
            DraService(self._preparer, self._calls, supervisor.fail),
            HealthService(self.catalog),
        )
        supervisor.on_stop(
            servers.stop, drain_seconds=settings.drain_seconds, stop_now=supervisor.stop_now.is_set
        )
        servers.serve()
        # Prepares wait for the first reading.
        supervisor.own("cards", self._reading)
        if self._card_events is not None:
            supervisor.run("card-events", partial(self._card_events.run, self.cards.on_event))
        servers.announce()  # the kubelet may call as soon as it finds the sockets
        supervisor.run("sockets", lambda: servers.keep(supervisor.stopping))

        self._api.connect()
        process_memory.finish_start()
        stale_claims = StaleClaimCollector(
            ApiClaims(self._api),
            self._nodes,
            self._preparer,
            gone_seconds=settings.gone_seconds,
            check_seconds=36 * settings.gone_seconds,
        )
        supervisor.on_stop(self._reconciler.stop)
        supervisor.run(
            "reconciler",
            partial(
                self._reconciler.run,
                self._preparer,
                self._status,
                stale_claims,
                self._events(),
            ),
        )
        pool = self.publish()
        supervisor.own(
            "catalog-follower",
            CatalogFollower(self.catalog, self._store, self._upkeep, self._status, self._events()),
        )
        if settings.resize:
            supervisor.own("resize", self._resize)
            follow = self._resize
            watch_claims = ApiClaims(self._api).watch(
                f"{names.LABEL_NODE}={follow.label}",
                follow.keep,
                follow.on_list,
                follow.on_event,
            )
            supervisor.own("resize-watch", watch_claims)
        supervisor.on_stop(self._enforcement.stop)
        report = self._status.report_changed
        supervisor.run(
            "enforcement",
            partial(self._enforcement.run, report, self._events(), self._settle),
        )
        if settings.observe_use:
            supervisor.on_stop(self._use.stop)
            supervisor.run(
                "use", partial(self._use.run, report, self._events(), self._enforcement.wake)
            )
        # After the client: a new instance that cannot log in never becomes ready, so that a
        # rolling update keeps the old one.
        self._answer(servers, pool)
        return servers

    def publish(self) -> PoolFollower | None:
        """Publish the node's devices.

        Returns:
            The follower of the node's GPUPool; None if its values come from the settings.
        """
        # Before the publisher starts, which lists the slices in each round without a watch.
        slice_watch = self._slices.watch(
            on_change=self.publisher.slices_changed,
            on_return=self.publisher.server_returned,
            on_others=self.cards.set_other_slices,
        )
        settings = self._settings
        follows_driver = node_parts.follows_driver(settings)
        if follows_driver or node_parts.follows_gpupool(settings):
            # Before the first slice is written, which would otherwise offer cordoned cards.
            with suppress(RetryableError):
                self.cards.set_cordoned(cordon.of_node(self._nodes.annotations()))
        self._supervisor.own("publish", self.publisher)
        self._supervisor.own("slice-watch", slice_watch)
        follower: PoolFollower | None = None
        pool_due = Wakeup()

        def on_node() -> None:
            with suppress(InputError):  # a proxy that answers 404
                for found in nodes.items():
                    if follows_driver:
                        self._replacement.follow(NodeLabels.of(found).labels)
                    self.cards.set_cordoned(
                        cordon.of_node(map_at(found, "metadata", "annotations"))
                    )
            pool_due.wake()

        nodes = ObjectCache(self._api, watch.NODES, name=settings.node_name, on_change=on_node)
        if node_parts.follows_gpupool(settings):
            by_name = settings.gpupool if settings.pool_source == "object" else ""
            pools = ObjectCache(self._api, watch.GPUPOOLS, name=by_name, on_change=pool_due.wake)
            follower = PoolFollower(
                partial(member, pools, nodes, pool_name=by_name, node_name=settings.node_name),
                self.cards,
                self._events(),
                expands_memory=settings.expands_memory,
                wakeup=pool_due,
            )
            self._supervisor.own("gpupool", follower)
            self._supervisor.own("gpupool-watch", pools)
        if follower is not None or follows_driver:
            self._supervisor.own("node-watch", nodes)
        self._supervisor.own("taint-rule-watch", self._taint_rules)
        return follower

    def _answer(self, servers: PluginServers, pool: PoolFollower | None) -> None:
        """Answer liveness and readiness probes, and serve the status page and the metrics.

        The process is live if it answers on its sockets, whatever the state of GPUs and API server.
        It is ready if it is also registered and does not wait for a GPUPool (PoolFollower says when
        it does); then a rolling update stops the old instance.
        """
        settings = self._settings
        observer = NodeObserver(
            catalog=self.catalog,
            claims=self._store.claims,
            current_verdicts=self._enforcement.current_verdicts,
            use=self._use.current,
            raised=partial(enforcer_rules.raised, self._enforcers.values()),
            resized=self._status.resized,
            enforcer=self._enforcement.node,
            keepers={
                name: each.facts.keeper or f"enforcer {name}"
                for name, each in self._enforcers.items()
            },
            registration=servers.registration,
            api_server=self._api.exchanges.view,
            publishing=self.publisher.view,
            store=self._reconciler.view,
            xids=self.cards.xids,
            operations=self._operations.recent,
            taint_rules=self._known_taint_rules,
            node=settings.node_name,
            version=version.current(),
        )

        def ready() -> None:
            servers.check()
            servers.check_registered()
            if pool:
                pool.check()

        health_endpoint.serve(
            self._supervisor,
            {"/healthz": servers.check, "/readyz": ready},
            status_page.pages(settings.status_page_mode, observer.view),
            partial(
                self._metrics.written,
                view=observer.view,
                most_shares=settings.metrics_shares,
                tenant_files=partial(_free_ratios, self._enforcers),
            ),
            health_address=settings.health_address,
            metrics_address=settings.metrics_address,
        )

    def _known_taint_rules(self) -> Sequence[Mapping[str, Any]]:
        with suppress(InputError, RetryableError):  # before Kubernetes 1.37, or not listed yet
            return self._taint_rules.items()
        return ()


def _free_ratios(enforcers: Mapping[str, Enforcer]) -> Mapping[str, float]:
    """Return the free part of the folders that containers write to, by enforcer."""
    found = {
        name: written_files.free_ratio(each.tenants_folder)
        for name, each in enforcers.items()
        if each.tenants_folder
    }
    return {name: free for name, free in found.items() if free is not None}

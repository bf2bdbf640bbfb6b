"""The admission webhook: builds its parts, starts them in order and stops them in reverse."""

import sys
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Final

import structlog

from tensorfusion_dra.app.shared import (
    health_endpoint,
    process_memory,
    version,
)
from tensorfusion_dra.app.webhook.settings import WebhookSettings
from tensorfusion_dra.cluster import watch
from tensorfusion_dra.cluster.api import Api, resource_path
from tensorfusion_dra.cluster.cluster_lists import ClusterLists
from tensorfusion_dra.cluster.objects import ApiClaims, ApiPods, Quotas, has_priority_class
from tensorfusion_dra.cluster.pod_events import PodEvents
from tensorfusion_dra.cluster.published_cards import PublishedCards
from tensorfusion_dra.cluster.watch import ObjectCache
from tensorfusion_dra.core import names
from tensorfusion_dra.core.admission import class_admission
from tensorfusion_dra.core.admission.claim_admission import CONFIG_PATHS
from tensorfusion_dra.core.claims.enforcer import EnforcerFacts
from tensorfusion_dra.core.errors import InputError, RetryableError
from tensorfusion_dra.core.kubernetes.review import ReviewOutcome
from tensorfusion_dra.enforcers import registered
from tensorfusion_dra.metrics import WebhookMetrics
from tensorfusion_dra.runtime.supervisor import Supervisor
from tensorfusion_dra.webhook.admission import AdmissionRules
from tensorfusion_dra.webhook.certificates import Certificates
from tensorfusion_dra.webhook.quota_admission import QuotaAdmission
from tensorfusion_dra.webhook.reviews import Reviews
from tensorfusion_dra.webhook.server import ReviewServer

log = structlog.get_logger()

GRACE_SECONDS: Final = 10.0
"""Time for requests in flight to finish."""
_JOIN_SECONDS: Final = 5.0
_SWITCH_SECONDS: Final = 0.0005
"""Time for which a thread computes while others wait, a tenth of Python's default: the thread that
reads and writes has to wait for each of the workers."""


def run(settings: WebhookSettings) -> int:
    """Serve until stopped; return the exit code.

    Raises:
        InputError: A file that the settings name, or a port, cannot be used.
    """
    started = time.monotonic()
    sys.setswitchinterval(_SWITCH_SECONDS)
    supervisor = Supervisor()
    supervisor.stop_on_signals()
    with supervisor:
        server = _start(settings, supervisor, started=started)
        cause = supervisor.wait()
        if cause is None:
            # Accept requests a while longer, but close each connection after its next answer.
            server.is_leaving.set()
            time.sleep(settings.drain_seconds)
    log.info("stopped", error=str(cause) if cause else None)
    return 1 if cause else 0


def _start(settings: WebhookSettings, supervisor: Supervisor, *, started: float) -> ReviewServer:
    certificates = Certificates(
        *(Path(settings.tls_cert_file), Path(settings.tls_key_file)),
        Path(settings.client_ca_file) if settings.client_ca_file else None,
    )
    metrics = WebhookMetrics(("Pod", *CONFIG_PATHS), ReviewOutcome)
    api = Api(Path(settings.kubeconfig) if settings.kubeconfig else None)
    api.connect()
    process_memory.finish_start()
    objects = {
        "gpupool-watch": ObjectCache(api, watch.GPUPOOLS),
        "template-watch": ObjectCache(api, watch.TEMPLATES),
        "quota-watch": ObjectCache(api, watch.QUOTAS),
        "class-watch": ObjectCache(api, resource_path("deviceclasses")),
    }
    pools, templates, quotas, classes = objects.values()
    slices = PublishedCards(api)
    claim_templates = ObjectCache(
        api, resource_path("resourceclaimtemplates"), name=names.CLAIM_TEMPLATE, keep=watch.NAMES
    )
    pod_events = PodEvents(api)
    # With auto, the nodes decide.
    facts = EnforcerFacts(enforces_hard=True, names_containers=True)
    if settings.enforcer != registered.AUTO:
        facts = registered.facts(settings.enforcer)
    admission = AdmissionRules(
        pools=pools,
        templates=templates,
        pods=ApiPods(api),
        slices=slices,
        quotas=quotas,
        has_priority_class=partial(has_priority_class, api),
        classes=classes,
        keeps_cards_apart=partial(_keeps_cards_apart, api),
        claim_templates=claim_templates,
        warns_at_present=True,
        on_warnings=pod_events.say,
        default_enabled=settings.default_enabled,
        scheduler=settings.scheduler_name,
        virtual=settings.virtual_capacity,
        enforces_hard=facts.enforces_hard,
        names_containers=facts.names_containers,
    )
    server = ReviewServer(
        Reviews(
            admission,
            QuotaAdmission(
                *(quotas, Quotas(api), ApiClaims(api), ApiPods(api), classes),
                trusts_clients=bool(settings.client_ca_file),
            ),
            on_review=metrics.reviewed,
        ).respond,
        host=settings.host,
        port=settings.port,
        context=certificates.context,
        on_error=metrics.refused,
    )
    supervisor.on_stop(supervisor.join, seconds=_JOIN_SECONDS)
    for name, part in objects.items():
        supervisor.own(name, part)
    supervisor.own("slice-watch", slices)
    supervisor.own("claim-template-watch", claim_templates)
    supervisor.own("pod-events", pod_events)
    supervisor.on_stop(server.stop, grace_seconds=GRACE_SECONDS)
    supervisor.run("server", server.run)
    health_port = health_endpoint.serve(
        supervisor,
        {
            "/healthz": server.check,
            "/readyz": partial(_check_ready, supervisor, objects.values(), slices),
        },
        {},
        partial(
            metrics.written,
            version=version.current(),
            expires_at=certificates.expires_at,
            api_server=api.exchanges.view,
        ),
        health_address=settings.health_address,
        metrics_address=settings.metrics_address,
    )
    log.info(
        "serving",
        version=version.current(),
        port=server.port,
        health_port=health_port,
        seconds=round(time.monotonic() - started, 3),
    )
    return server


def _check_ready(
    supervisor: Supervisor, objects: Iterable[ObjectCache], slices: PublishedCards
) -> None:
    """Raise RetryableError until all objects were read once, and while the process stops."""
    if supervisor.stopping.is_set():
        raise RetryableError("the process is stopping")
    slices.current()
    for each in objects:
        try:
            each.items()
        except InputError:
            continue  # no CRDs of Tensor Fusion, so there is nothing to wait for


def _keeps_cards_apart(api: Api, wait_seconds: float) -> bool:
    """Return True if the scheduler of this release gives each card of a request only once."""
    cluster = ClusterLists(api, wait_seconds=wait_seconds)
    return class_admission.keeps_cards_apart(cluster.minor_version)

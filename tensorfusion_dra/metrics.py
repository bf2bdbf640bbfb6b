"""Metrics of a node plugin and of the webhook, by prometheus_client.

What happens is counted; everything else is computed at a scrape. Every known combination of label
values exists from the start at 0. Otherwise a counter would begin with its first event, and a rate
over it would miss that event.

Label values come from outside: names of pods and claims, for example. So each is made printable
and cut to a length that no legal name has.
"""

import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import product
from types import SimpleNamespace
from typing import Any, Final, TypeVar

from prometheus_client import Counter, Histogram, disable_created_metrics
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.process_collector import ProcessCollector

from tensorfusion_dra.core import printable
from tensorfusion_dra.core.claims.operation import STAGES, EndedOperation, OperationKind, Result
from tensorfusion_dra.core.claims.verdicts import State
from tensorfusion_dra.core.devices import xids
from tensorfusion_dra.core.devices.gpu import Isolation
from tensorfusion_dra.core.devices.health import ProblemKind
from tensorfusion_dra.core.kubernetes.device_rules import KUBERNETES_DROPS
from tensorfusion_dra.core.observed import (
    NO_ANSWER,
    ApiServerView,
    CardAmounts,
    CardView,
    NodeView,
    RegistrationState,
    ShareView,
)

LabelValues = tuple[str, ...]
MetricKind = TypeVar("MetricKind", Counter, Histogram)

NAMESPACE: Final = "tensorfusion_dra"
"""Prefix of every metric's name, without its underscore."""
CALL_SECONDS: Final = (
    *(0.0005, 0.001, 0.002, 0.003, 0.004, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05),
    *(0.075, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
)
"""Bounds for whole calls: most take 2 to 20 ms, and the kubelet gives up after 45 s."""
STAGE_SECONDS: Final = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0015, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.02, 0.05),
    *(0.1, 0.25, 1.0, 5.0, 30.0),
)
"""Bounds for parts of calls, some of which take less than a millisecond."""
_MAX_CHARACTERS: Final = 300
"""The longest names in Kubernetes have 253."""
NODE_PLUGIN: Final = (
    ("get", "groups"),
    *((verb, "resourceslices") for verb in ("list", "watch", "create", "update", "delete")),
    ("get", "resourceclaims"),
    ("patch", "resourceclaims/status"),
    ("get", "nodes"),
    ("get", "pods"),
    ("create", "events"),
)
"""Requests of every node plugin. Some settings need more, which are counted when they are sent."""
WEBHOOK: Final = (
    ("get", "groups"),
    ("get", "pods"),
    ("create", "events"),
    *(
        (verb, resource)
        for resource in (
            *("resourceslices", "resourceclaimtemplates", "deviceclasses"),
            *("gpupools", "schedulingconfigtemplates", "gpuresourcequotas"),
        )
        for verb in ("list", "watch")
    ),
)
"""Requests of the webhook."""
_CODES: Final = ("401", "403", "404", "409", "429", "500", "503", NO_ANSWER)
"""Codes of every kind of request that exist from the start, besides that of success."""
_PROCESS: Final = ProcessCollector(registry=None)
_GATES: Final = sorted(frozenset().union(*KUBERNETES_DROPS))
HEALTHY: Final = "healthy"
_HEALTH: Final = (HEALTHY, *(kind.name.lower() for kind in ProblemKind))

_AMOUNTS: Final[Sequence[tuple[str, str, Callable[[CardView], CardAmounts]]]] = (
    ("physical", "that the card itself has for containers", lambda card: card.physical),
    ("capacity", "that the card's shares divide, as published", lambda card: card.capacity),
    ("consumed", "that prepared shares count against the capacity", lambda card: card.consumed),
    ("free", "left, or 0 if a share has the card exclusively", lambda card: card.free),
)
_SHARE: Final = ("namespace", "claim", "request", "uuid", "share_id")
_OF_PODS: Final = ("namespace", "claim", "uuid", "pod")
_PERCENT: Final = 100
_ERRORS: Final = ("400", "404", "405", "413", "415", "500", "503")
"""Every status with which webhook.server and webhook.reviews refuse a request."""

disable_created_metrics()  # type: ignore[no-untyped-call] # a series more for each counter


def new(
    kind: type[MetricKind],
    name: str,
    about: str,
    labels: Sequence[str],
    known: Iterable[LabelValues],
    **options: Any,
) -> MetricKind:
    """Return a metric at 0.

    Args:
        name: Of a counter without its ending _total.
        known: Combinations of label values that exist from the start.
        options: For a histogram, its buckets: their upper bounds in seconds and in order; one
            without a bound comes after them.
    """
    made = kind(name, about, labels, namespace=NAMESPACE, registry=None, **options)
    for values in known:
        made.labels(*values)
    return made


def label(text: str) -> str:
    """Return a label's value for text from outside."""
    return printable.one_line(text[:_MAX_CHARACTERS])


def counter(
    name: str, about: str, labels: Sequence[str], values: Iterable[tuple[LabelValues, int]]
) -> Metric:
    """Return the family of a counter; its name ends with _total, which is not given here."""
    return _filled(CounterMetricFamily(f"{NAMESPACE}_{name}", about, labels=labels), values)


def gauge(
    name: str, about: str, labels: Sequence[str], values: Iterable[tuple[LabelValues, float]]
) -> Metric:
    """Return the family of a gauge."""
    return _filled(GaugeMetricFamily(f"{NAMESPACE}_{name}", about, labels=labels), values)


def single(name: str, about: str, value: float) -> Metric:
    """Return the family of a gauge without labels."""
    return GaugeMetricFamily(f"{NAMESPACE}_{name}", about, value=value)


def one_of(
    name: str,
    about: str,
    labels: Sequence[str],
    present: Iterable[tuple[LabelValues, str]],
    *,
    known: Sequence[str],
) -> Metric:
    """Return the family of a gauge that is 1 for the present state and 0 for the other known ones.

    Args:
        labels: Names of the labels before `state`.
        present: The state by label values.
        known: All states.
    """
    is_state = (((*key, each), each == state) for key, state in present for each in known)
    return gauge(name, about, (*labels, "state"), is_state)


def info(name: str, about: str, labels: Sequence[str], each: Iterable[LabelValues]) -> Metric:
    """Return the family of facts that are only labels; its name ends with _info."""
    family = InfoMetricFamily(f"{NAMESPACE}_{name}", about, labels=labels)
    return _filled(family, ((values, {}) for values in each))


def _filled(
    family: CounterMetricFamily | GaugeMetricFamily | InfoMetricFamily,
    samples: Iterable[tuple[LabelValues, Any]],
) -> Metric:
    for values, value in samples:
        family.add_metric(values, value)
    return family


def exposition(metrics: Iterable[Metric], *, accept: str) -> tuple[str, bytes]:
    """Return the metrics as text, with its content type.

    Args:
        metrics: In the order in which they are written.
        accept: The Accept header of the request. OpenMetrics is written if it names that, else
            Prometheus' text format.
    """
    is_open = "application/openmetrics-text" in accept
    encode: Callable[..., bytes] = openmetrics.generate_latest if is_open else generate_latest
    # All our names are legal in every escaping scheme, so the text is the same with each. Only with
    # this one does the library not go through each name character by character.
    text = encode(SimpleNamespace(collect=lambda: metrics), escaping=openmetrics.ALLOWUTF8)
    return openmetrics.CONTENT_TYPE_LATEST if is_open else CONTENT_TYPE_PLAIN_0_0_4, text


def of_process(version: str) -> Iterator[Metric]:
    """Yield what is known of this process: its version, memory, processor time and files."""
    labels = {"version": version, "python_version": platform.python_version()}
    yield info("build", "Versions of this process.", tuple(labels), [tuple(labels.values())])
    yield from _PROCESS.collect()


def api_requests(
    known: Iterable[tuple[str, str]], counted: Mapping[tuple[str, str, str], int]
) -> Metric:
    """Return the family of the requests to the API server.

    Args:
        known: Verb and resource of the requests that exist from the start.
        counted: The requests so far by verb, resource and code.
    """
    values = {
        (verb, resource, code): 0
        for verb, resource in known
        for code in ("201" if verb == "create" else "200", *_CODES)
    }
    return counter(
        "api_requests",
        "Requests to the API server; the code is none if there was no complete answer.",
        ("verb", "resource", "code"),
        {**values, **counted}.items(),
    )


class NodeMetrics:
    """Counts of a node plugin, and their exposition; safe for all threads.

    It counts the durations of prepares and unprepares, as a whole by result and in parts by stage.
    """

    def __init__(self) -> None:
        self._totals: Final = {
            kind: new(
                Histogram,
                f"{kind.value}_duration_seconds",
                f"Time to {kind.value} one claim, from the arrival of the kubelet's call.",
                ("result",),
                [(result.value,) for result in Result],
                buckets=CALL_SECONDS,
            )
            for kind in OperationKind
        }
        self._stages: Final = {
            kind: new(
                Histogram,
                f"{kind.value}_stage_duration_seconds",
                f"Time that one {kind.value} spent in one stage.",
                ("stage",),
                [(stage.value,) for stage in STAGES[kind]],
                buckets=STAGE_SECONDS,
            )
            for kind in OperationKind
        }

    def operation_ended(self, operation: EndedOperation) -> None:
        """Count an operation."""
        self._totals[operation.kind].labels(operation.result.value).observe(operation.seconds)
        for stage, seconds in operation.seconds_by_stage.items():
            self._stages[operation.kind].labels(stage.value).observe(seconds)

    def written(
        self,
        accept: str,
        *,
        view: Callable[[], NodeView],
        most_shares: int,
        tenant_files: Callable[[], Mapping[str, float]] = dict,
    ) -> tuple[str, bytes]:
        """Return all metrics as text, with its content type.

        Args:
            accept: The Accept header of the request.
            view: Returns the node at the moment.
            most_shares: Number of shares that get series of their own.
            tenant_files: Returns the free part of the folders that containers write to, by
                enforcer.
        """
        node = view()
        found = [
            *(
                each
                for kind in OperationKind
                for each in (*self._totals[kind].collect(), *self._stages[kind].collect())
            ),
            info(
                "node",
                "The node and its resource pool.",
                ("node", "pool"),
                [(node.node, label(node.pool))],
            ),
            single("claims", "Prepared claims with shares of cards.", node.claims),
            *_of_shares(node.shares, most=most_shares),
            single(
                "cards_known", "1 once the cards and their pool are known.", not node.cards_missing
            ),
            single(
                "cards_left_out", "Cards and devices that are not published.", len(node.left_out)
            ),
            *_of_cards(node.cards),
            single("slices", "Slices of the node's pool.", node.publishing.slices),
            single("slice_devices", "Devices in the node's slices.", node.publishing.devices),
            single("slice_generation", "Generation of the pool.", node.publishing.generation or 0),
            counter(
                "slice_writes",
                "Slices written or deleted, by the reason.",
                ("reason",),
                (((reason.value,), number) for reason, number in node.publishing.writes.items()),
            ),
            gauge(
                "slice_fields_dropped",
                "1 if the API server has this feature gate off and drops its fields.",
                ("feature_gate",),
                (((gate,), gate in node.publishing.dropped_gates) for gate in _GATES),
            ),
            single(
                "publishing_right",
                "1 if this instance publishes the node's slices.",
                node.publishing.holds_lease,
            ),
            single(
                "publishing_failing",
                "1 if the last attempt to compare or write the slices failed.",
                bool(node.publishing.error),
            ),
            single(
                "api_server_failing",
                "1 if nothing has succeeded since the last request that failed.",
                node.api_server.is_failing,
            ),
            one_of(
                "kubelet_registration",
                "1 for the state of the registration with the kubelet.",
                (),
                [((), node.registration.state.value)],
                known=[state.value for state in RegistrationState],
            ),
            single(
                "store_readable",
                "1 if the records of claims could be read for this scrape.",
                not node.shares_error,
            ),
            single(
                "store_damaged_records",
                "Records of claims that cannot be read; their GPUs take no new claim.",
                node.store.damaged,
            ),
            counter(
                "store_repairs",
                "Damaged records of claims that were written again.",
                ("kind",),
                [(("restored",), node.store.restored)],
            ),
            gauge(
                "tenant_files_free_ratio",
                "Free part of the space, or of the files, of the folder that containers write to.",
                ("enforcer",),
                (((label(name),), free) for name, free in tenant_files().items()),
            ),
            api_requests(NODE_PLUGIN, node.api_server.requests),
            *of_process(node.version),
        ]
        return exposition(found, accept=accept)


def _of_cards(cards: Sequence[CardView]) -> list[Metric]:
    """Return the families of all cards."""
    foreign = [(_uuid(card), card.foreign) for card in cards if card.foreign]
    return [
        info(
            "card",
            "A published card.",
            (
                *("uuid", "device", "model", "product_name", "driver_version", "pci_bus_id"),
                *("partition", "parent_uuid"),
            ),
            (
                tuple(
                    map(
                        label,
                        (
                            gpu.uuid,
                            card.device.name,
                            gpu.model,
                            gpu.product_name,
                            gpu.driver_version,
                            gpu.pci_bus_id or "",
                            gpu.partition,
                            gpu.parent_uuid,
                        ),
                    )
                )
                for card in cards
                for gpu in (card.device.gpu,)
            ),
        ),
        *(
            each
            for name, about, amounts in _AMOUNTS
            for each in (
                gauge(
                    f"card_{name}_tflops",
                    f"Compute {about}, in TFLOPS.",
                    ("uuid",),
                    ((_uuid(card), amounts(card).tflops) for card in cards),
                ),
                gauge(
                    f"card_{name}_vram_bytes",
                    f"Memory {about}.",
                    ("uuid",),
                    ((_uuid(card), amounts(card).vram_bytes) for card in cards),
                ),
            )
        ),
        gauge(
            "card_oversubscription_ratio",
            "Capacity divided by what the card itself has.",
            ("uuid", "resource"),
            (
                ((*_uuid(card), resource), whole / own)
                for card in cards
                for resource, whole, own in (
                    ("tflops", card.capacity.nano_tflops, card.physical.nano_tflops),
                    ("vram", card.capacity.vram_bytes, card.physical.vram_bytes),
                )
                if own
            ),
        ),
        one_of(
            "card_health",
            "1 for the card's state of health.",
            ("uuid",),
            (
                (_uuid(card), card.unhealthy.worst.kind.name.lower() if card.unhealthy else HEALTHY)
                for card in cards
            ),
            known=_HEALTH,
        ),
        gauge(
            "card_unhealthy_since_timestamp_seconds",
            "When the card became unhealthy; absent while it is healthy.",
            ("uuid", "reason"),
            (
                (
                    (*_uuid(card), label(card.unhealthy.worst.reason)),
                    card.unhealthy.since.timestamp(),
                )
                for card in cards
                if card.unhealthy
            ),
        ),
        gauge(
            "card_foreign_vram_bytes",
            "Memory that processes outside of all shares use; absent if there are none.",
            ("uuid",),
            ((labels, used.vram_bytes) for labels, used in foreign),
        ),
        gauge(
            "card_foreign_processes",
            "Processes that use the card outside of all shares; absent if there are none.",
            ("uuid",),
            ((labels, used.processes) for labels, used in foreign),
        ),
        counter(
            "card_xids",
            "XIDs that the NVIDIA driver reported about the card.",
            ("uuid", "xid"),
            (
                ((*_uuid(card), str(code)), counts.get(code, 0))
                for card in cards
                for counts in ({each.code: each.count for each in card.xids},)
                # Those that NVIDIA describes exist at 0.
                for code in {**xids.DESCRIPTIONS, **counts}
            ),
        ),
    ]


def _uuid(card: CardView) -> LabelValues:
    return (label(card.device.gpu.uuid),)


def _of_shares(shares: Sequence[ShareView], *, most: int) -> list[Metric]:
    """Return the families of all shares.

    They are the only ones whose number grows with the pods of the node, so they are bounded. What
    is left out is counted.

    Args:
        shares: Of all prepared claims.
        most: Number of shares that get series of their own.
    """
    # The format allows no two samples with the same labels. Two shares with the same ones are the
    # same claim before and after it was created again, or shares for admin access without an ID.
    shown: dict[LabelValues, ShareView] = {}
    for share in shares[:most]:
        ref, of_card = share.claim.ref, share.share
        key = (ref.namespace, ref.name, of_card.request, of_card.gpu_uuid, of_card.share_id or "")
        shown.setdefault(tuple(map(label, key)), share)
    pods = {
        (namespace, claim, uuid, label(pod.name if pod else ""))
        for (namespace, claim, _, uuid, _), share in shown.items()
        for pod in share.claim.pods or (None,)
    }
    by_state = [_state(share) for share in shares]
    limits = [(labels, share.limit) for labels, share in shown.items() if share.limit]
    used = [(labels, share.used) for labels, share in shown.items() if share.used]
    return [
        single("shares", "Shares of prepared claims.", len(shares)),
        gauge(
            "shares_by_enforcement",
            "Shares by whether their limits are enforced.",
            ("state",),
            (((state.value,), by_state.count(state)) for state in State),
        ),
        single("shares_left_out", "Shares without series of their own.", len(shares) - len(shown)),
        info(
            "share",
            "A share of a prepared claim.",
            (*_SHARE, "isolation", "enforcement"),
            (
                (*key, share.share.isolation.value, _state(share).value)
                for key, share in shown.items()
            ),
        ),
        info("share_pod", "A pod of the claim of a share.", _OF_PODS, sorted(pods)[:most]),
        gauge(
            "share_requested_tflops",
            "Compute that the share counts against its card's capacity, in TFLOPS.",
            _SHARE,
            ((labels, share.requested.tflops) for labels, share in shown.items()),
        ),
        gauge(
            "share_requested_vram_bytes",
            "Memory that the share counts against its card's capacity.",
            _SHARE,
            ((labels, share.requested.vram_bytes) for labels, share in shown.items()),
        ),
        gauge(
            "share_limit_compute_ratio",
            "Part of the card's compute that the container may use; absent without a limit.",
            _SHARE,
            ((labels, limit.sm_percent / _PERCENT) for labels, limit in limits),
        ),
        gauge(
            "share_raised_compute_ratio",
            "Part of the compute that it may use while others idle; absent if its limit holds.",
            _SHARE,
            (
                (labels, share.raised_percent / _PERCENT)
                for labels, share in shown.items()
                if share.raised_percent
            ),
        ),
        gauge(
            "share_limit_vram_bytes",
            "Memory that the container may use; absent without a limit.",
            _SHARE,
            ((labels, limit.vram_bytes) for labels, limit in limits),
        ),
        gauge(
            "share_used_compute_ratio",
            "Part of the time in which its kernels ran; absent without observe-use, and for "
            "partitions, of which NVML does not say it.",
            _SHARE,
            (
                (labels, each.sm_percent / _PERCENT)
                for labels, each in used
                if shown[labels].share.isolation is not Isolation.PARTITIONED
            ),
        ),
        gauge(
            "share_used_vram_bytes",
            "Memory that the share's processes use; absent without observe-use.",
            _SHARE,
            ((labels, each.vram_bytes) for labels, each in used),
        ),
    ]


def _state(share: ShareView) -> State:
    return share.enforcement.verdict.state if share.enforcement else State.UNKNOWN


class WebhookMetrics:
    """Counts of the webhook, and their exposition; safe for all threads."""

    def __init__(self, kinds: Iterable[str], outcomes: Iterable[str]) -> None:
        """Args:
        kinds: Of reviewed objects.
        outcomes: Of reviews.
        """
        self._reviews: Final = new(
            Histogram,
            "webhook_review_duration_seconds",
            "Time of one review.",
            ("kind", "outcome"),
            product(kinds, outcomes),
            buckets=CALL_SECONDS,
        )
        self._refused: Final = new(
            Counter,
            "webhook_requests_refused",
            "Requests that got an HTTP error instead of a verdict.",
            ("code",),
            ((code,) for code in _ERRORS),
        )

    def reviewed(self, kind: str, outcome: str, seconds: float) -> None:
        """Count a review that has ended, as `on_review` of webhook.reviews."""
        self._reviews.labels(kind, outcome).observe(seconds)

    def refused(self, status: int) -> None:
        """Count a request that got an HTTP error instead of a decision."""
        self._refused.labels(str(status)).inc()

    def written(
        self,
        accept: str,
        *,
        version: str,
        expires_at: Callable[[], datetime | None],
        api_server: Callable[[], ApiServerView],
    ) -> tuple[str, bytes]:
        """Return all metrics as text, with its content type.

        Args:
            accept: The Accept header of the request.
            version: Of this driver.
            expires_at: Returns when the certificate in use expires; None if that is unknown.
            api_server: Returns the record of the requests to the API server.
        """
        expires = expires_at()
        found = [
            *self._reviews.collect(),
            *self._refused.collect(),
            gauge(
                "webhook_certificate_expiry_timestamp_seconds",
                "When the certificate in use expires.",
                (),
                [((), expires.timestamp())] if expires else [],
            ),
            api_requests(WEBHOOK, api_server().requests),
            *of_process(version),
        ]
        return exposition(found, accept=accept)

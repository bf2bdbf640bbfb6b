"""The metrics of a node plugin: what it counts from its start, and its page."""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from prometheus_client import Histogram
from prometheus_client.metrics_core import Metric

from tensorfusion_dra.core.claims.operation import STAGES, EndedOperation, OperationKind, Result
from tensorfusion_dra.core.claims.verdicts import State
from tensorfusion_dra.core.devices import xids
from tensorfusion_dra.core.devices.health import ProblemKind
from tensorfusion_dra.core.kubernetes.device_rules import KUBERNETES_DROPS
from tensorfusion_dra.core.observed import (
    Amounts,
    CardView,
    NodeView,
    RegistrationState,
    ShareView,
)
from tensorfusion_dra.metrics import prometheus
from tensorfusion_dra.metrics.prometheus import LabelValues, label

_GATES: Final = sorted(frozenset().union(*KUBERNETES_DROPS))
HEALTHY: Final = "healthy"
_HEALTH: Final = (HEALTHY, *(kind.name.lower() for kind in ProblemKind))

_AMOUNTS: Final[Sequence[tuple[str, str, Callable[[CardView], Amounts]]]] = (
    ("physical", "that the card itself has for containers", lambda card: card.physical),
    ("capacity", "that the card's shares divide, as published", lambda card: card.capacity),
    ("consumed", "that prepared shares count against the capacity", lambda card: card.consumed),
    ("free", "that is left of the capacity", lambda card: card.free),
)
_SHARE: Final = ("namespace", "pod", "claim", "request", "uuid", "share_id")
_PERCENT: Final = 100


class NodeMetrics:
    """Counts of a node plugin, and their exposition; safe for all threads.

    It counts the durations of prepares and unprepares, as a whole by result and in parts by stage.
    """

    def __init__(self) -> None:
        self._totals: Final = {
            kind: prometheus.new(
                Histogram,
                f"{kind.value}_duration_seconds",
                f"Time to {kind.value} one claim, from the arrival of the kubelet's call.",
                ("result",),
                [(result.value,) for result in Result],
                buckets=prometheus.CALL_SECONDS,
            )
            for kind in OperationKind
        }
        self._stages: Final = {
            kind: prometheus.new(
                Histogram,
                f"{kind.value}_stage_duration_seconds",
                f"Time that one {kind.value} spent in one stage.",
                ("stage",),
                [(stage.value,) for stage in STAGES[kind]],
                buckets=prometheus.STAGE_SECONDS,
            )
            for kind in OperationKind
        }

    def operation_ended(self, operation: EndedOperation) -> None:
        """Count an operation."""
        self._totals[operation.kind].labels(operation.result.value).observe(operation.seconds)
        for stage, seconds in operation.seconds_by_stage.items():
            self._stages[operation.kind].labels(stage.value).observe(seconds)

    def written(
        self, accept: str, *, view: Callable[[], NodeView], most_shares: int
    ) -> tuple[str, bytes]:
        """Return all metrics as text, with its content type.

        Args:
            accept: The Accept header of the request.
            view: Returns the node at the moment.
            most_shares: Number of shares that get series of their own.
        """
        node = view()
        found = [
            *(
                each
                for kind in OperationKind
                for each in (*self._totals[kind].collect(), *self._stages[kind].collect())
            ),
            prometheus.info(
                "node",
                "The node and its resource pool.",
                ("node", "pool"),
                [(node.node, label(node.pool))],
            ),
            prometheus.single("claims", "Prepared claims with shares of cards.", node.claims),
            *_of_shares(node.shares, most=most_shares),
            prometheus.single(
                "cards_known", "1 once the cards and their pool are known.", not node.cards_missing
            ),
            prometheus.single(
                "cards_left_out", "Cards and devices that are not published.", len(node.left_out)
            ),
            *_of_cards(node.cards),
            prometheus.single("slices", "Slices of the node's pool.", node.publishing.slices),
            prometheus.single(
                "slice_devices", "Devices in the node's slices.", node.publishing.devices
            ),
            prometheus.single(
                "slice_generation", "Generation of the pool.", node.publishing.generation or 0
            ),
            prometheus.counter(
                "slice_writes",
                "Slices written or deleted, by the reason.",
                ("reason",),
                (((reason.value,), number) for reason, number in node.publishing.writes.items()),
            ),
            prometheus.gauge(
                "slice_fields_dropped",
                "1 if the API server has this feature gate off and drops its fields.",
                ("feature_gate",),
                (((gate,), gate in node.publishing.dropped_gates) for gate in _GATES),
            ),
            prometheus.single(
                "publishing_right",
                "1 if this instance publishes the node's slices.",
                node.publishing.holds_lease,
            ),
            prometheus.single(
                "publishing_failing",
                "1 if the last attempt to compare or write the slices failed.",
                bool(node.publishing.error),
            ),
            prometheus.single(
                "api_server_failing",
                "1 if nothing has succeeded since the last request that failed.",
                node.api_server.is_failing,
            ),
            prometheus.states(
                "kubelet_registration",
                "1 for the state of the registration with the kubelet.",
                (),
                [((), node.registration.state.value)],
                known=[state.value for state in RegistrationState],
            ),
            prometheus.single(
                "ledger_readable",
                "1 if the records of claims could be read for this scrape.",
                not node.shares_error,
            ),
            prometheus.single(
                "ledger_damaged_records",
                "Records of claims that cannot be read; their GPUs take no new claim.",
                node.store.damaged,
            ),
            prometheus.counter(
                "ledger_repairs",
                "Damaged records of claims that were written again.",
                ("kind",),
                [(("restored",), node.store.restored)],
            ),
            prometheus.api_requests(prometheus.NODE_PLUGIN, node.api_server.requests),
            *prometheus.of_process(node.version),
        ]
        return prometheus.written(found, accept=accept)


def _of_cards(cards: Sequence[CardView]) -> list[Metric]:
    """Return the families of all cards."""
    foreign = [(_uuid(card), card.foreign) for card in cards if card.foreign]
    return [
        prometheus.info(
            "card",
            "A published card.",
            ("uuid", "device", "model", "product_name", "driver_version", "pci_bus_id"),
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
                prometheus.gauge(
                    f"card_{name}_tflops",
                    f"Compute {about}, in TFLOPS.",
                    ("uuid",),
                    ((_uuid(card), amounts(card).tflops) for card in cards),
                ),
                prometheus.gauge(
                    f"card_{name}_vram_bytes",
                    f"Memory {about}.",
                    ("uuid",),
                    ((_uuid(card), amounts(card).vram_bytes) for card in cards),
                ),
            )
        ),
        prometheus.gauge(
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
        prometheus.states(
            "card_health",
            "1 for the card's state of health.",
            ("uuid",),
            (
                (_uuid(card), card.unhealthy.worst.kind.name.lower() if card.unhealthy else HEALTHY)
                for card in cards
            ),
            known=_HEALTH,
        ),
        prometheus.gauge(
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
        prometheus.gauge(
            "card_foreign_vram_bytes",
            "Memory that processes outside of all shares use; absent if there are none.",
            ("uuid",),
            ((labels, used.vram_bytes) for labels, used in foreign),
        ),
        prometheus.gauge(
            "card_foreign_processes",
            "Processes that use the card outside of all shares; absent if there are none.",
            ("uuid",),
            ((labels, used.processes) for labels, used in foreign),
        ),
        prometheus.counter(
            "card_xids",
            "XIDs that the NVIDIA driver reported about the card.",
            ("uuid", "xid"),
            (count for card in cards for count in _xids(card)),
        ),
    ]


def _uuid(card: CardView) -> LabelValues:
    return (label(card.device.gpu.uuid),)


def _xids(card: CardView) -> Iterable[tuple[LabelValues, int]]:
    """Yield the number of each XID; those that NVIDIA describes as marking a card exist at 0."""
    numbers = dict.fromkeys(xids.DESCRIPTIONS, 0)
    numbers.update((each.code, each.count) for each in card.xids)
    for code, number in numbers.items():
        yield (*_uuid(card), str(code)), number


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
        ref, pods = share.claim.ref, ",".join(pod.name for pod in share.claim.pods)
        card = (share.share.request, share.share.gpu_uuid, share.share.share_id or "")
        labels = tuple(map(label, (ref.namespace, pods, ref.name, *card)))
        shown.setdefault(labels, share)
    states = [_state(share) for share in shares]
    limits = [(labels, share.limit) for labels, share in shown.items() if share.limit]
    used = [(labels, share.used) for labels, share in shown.items() if share.used]
    return [
        prometheus.single("shares", "Shares of prepared claims.", len(shares)),
        prometheus.gauge(
            "shares_by_enforcement",
            "Shares by whether their limits are enforced.",
            ("state",),
            (((state.value,), states.count(state)) for state in State),
        ),
        prometheus.single(
            "shares_left_out", "Shares without series of their own.", len(shares) - len(shown)
        ),
        prometheus.info(
            "share",
            "A share of a prepared claim.",
            (*_SHARE, "isolation", "enforcement"),
            (
                (*key, share.share.isolation.value, _state(share).value)
                for key, share in shown.items()
            ),
        ),
        prometheus.gauge(
            "share_requested_tflops",
            "Compute that the share counts against its card's capacity, in TFLOPS.",
            _SHARE,
            ((labels, share.requested.tflops) for labels, share in shown.items()),
        ),
        prometheus.gauge(
            "share_requested_vram_bytes",
            "Memory that the share counts against its card's capacity.",
            _SHARE,
            ((labels, share.requested.vram_bytes) for labels, share in shown.items()),
        ),
        prometheus.gauge(
            "share_limit_compute_ratio",
            "Part of the card's compute that the container may use; absent without a limit.",
            _SHARE,
            ((labels, limit.sm_percent / _PERCENT) for labels, limit in limits),
        ),
        prometheus.gauge(
            "share_limit_vram_bytes",
            "Memory that the container may use; absent without a limit.",
            _SHARE,
            ((labels, limit.vram_bytes) for labels, limit in limits),
        ),
        prometheus.gauge(
            "share_used_compute_ratio",
            "Part of the time in which its kernels ran; absent without observe-use.",
            _SHARE,
            ((labels, each.sm_percent / _PERCENT) for labels, each in used),
        ),
        prometheus.gauge(
            "share_used_vram_bytes",
            "Memory that the share's processes use; absent without observe-use.",
            _SHARE,
            ((labels, each.vram_bytes) for labels, each in used),
        ),
    ]


def _state(share: ShareView) -> State:
    return share.enforcement.verdict.state if share.enforcement else State.UNKNOWN

"""Metric families of the node plugin: what it has counted, and its node at the moment."""

from collections.abc import Iterator
from typing import Final

from prometheus_client.metrics_core import Metric

from tensorfusion_dra.core.claims.operation import OperationKind
from tensorfusion_dra.core.kubernetes.slice_normal_form import KUBERNETES_DROPS
from tensorfusion_dra.core.observed.node_view import (
    LedgerView,
    NodeView,
    PublishingView,
    RegistrationState,
)
from tensorfusion_dra.metrics import card_families, families, share_families
from tensorfusion_dra.metrics.families import label
from tensorfusion_dra.metrics.operations import OperationDurations

_GATES: Final = sorted(frozenset().union(*KUBERNETES_DROPS))


def of_operations(durations: OperationDurations) -> Iterator[Metric]:
    """Yield the durations of prepares and unprepares."""
    for kind in OperationKind:
        yield families.histogram(
            f"{kind.value}_duration_seconds",
            f"Time to {kind.value} one claim, from the arrival of the kubelet's call.",
            ("result",),
            durations.totals[kind],
        )
        yield families.histogram(
            f"{kind.value}_stage_duration_seconds",
            f"Time that one {kind.value} spent in one stage.",
            ("stage",),
            durations.stages[kind],
        )


def of_view(view: NodeView, *, most_shares: int) -> Iterator[Metric]:
    """Yield what the node is like at the moment.

    Args:
        view: The node.
        most_shares: Number of shares that get series of their own.
    """
    yield families.info(
        "node", "The node and its resource pool.", ("node", "pool"), [(view.node, label(view.pool))]
    )
    yield families.single("claims", "Prepared claims with shares of cards.", view.claims)
    yield from share_families.of_shares(view.shares, most=most_shares)
    yield families.single(
        "cards_known", "1 once the cards and their pool are known.", not view.cards_missing
    )
    yield families.single(
        "cards_left_out", "Cards and devices that are not published.", len(view.left_out)
    )
    yield from card_families.of_cards(view.cards)
    yield from _publishing(view.publishing)
    yield families.single(
        "api_server_failing",
        "1 if nothing has succeeded since the last request that failed.",
        view.api_server.is_failing,
    )
    yield families.states(
        "kubelet_registration",
        "1 for the state of the registration with the kubelet.",
        (),
        [((), view.registration.state.value)],
        known=[state.value for state in RegistrationState],
    )
    yield families.single(
        "ledger_readable", "1 if the ledger could be read for this scrape.", not view.shares_error
    )
    yield _ledger(view.ledger)


def _publishing(view: PublishingView) -> Iterator[Metric]:
    yield families.single("slices", "Slices of the node's pool.", view.slices)
    yield families.single("slice_devices", "Devices in the node's slices.", view.devices)
    yield families.single("slice_generation", "Generation of the pool.", view.generation or 0)
    yield families.counter(
        "slice_writes",
        "Slices written or deleted, by the reason.",
        ("reason",),
        {(reason.value,): number for reason, number in view.writes.items()},
    )
    yield families.gauge(
        "slice_fields_dropped",
        "1 if the API server has this feature gate off and drops its fields.",
        ("feature_gate",),
        (((gate,), gate in view.dropped_gates) for gate in _GATES),
    )
    yield families.single(
        "publishing_right", "1 if this instance publishes the node's slices.", view.has_right
    )
    yield families.single(
        "publishing_failing",
        "1 if the last attempt to compare or write the slices failed.",
        bool(view.error),
    )


def _ledger(view: LedgerView) -> Metric:
    return families.counter(
        "ledger_repairs",
        "Damage of the ledger that was found.",
        ("kind",),
        {
            ("quarantined",): view.quarantined,
            ("restored",): view.restored,
            ("lost",): view.lost,
        },
    )

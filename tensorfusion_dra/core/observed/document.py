"""The view of a node as JSON: /status.json, which docs/status-page.md documents.

Within one format, fields are added but neither removed nor changed in their meaning. Compute is in
TFLOPS, memory in bytes, durations in seconds, moments in RFC 3339 with a time zone.
"""

from datetime import UTC, datetime
from typing import Any, Final

from tensorfusion_dra.core import printable
from tensorfusion_dra.core.claims.limits import Limit
from tensorfusion_dra.core.claims.verdicts import CurrentVerdict
from tensorfusion_dra.core.kubernetes.quantity import NANO
from tensorfusion_dra.core.observed.node_view import (
    Amounts,
    CardView,
    NodeView,
    ShareView,
)

FORMAT: Final = 1
_MAX_TEXT: Final = 1000

Json = dict[str, Any]


def as_json(view: NodeView) -> Json:
    """Return the view as JSON."""
    return {
        "format": FORMAT,
        "observedAt": _moment(view.observed_at),
        "node": {
            "name": _text(view.node),
            "pool": _text(view.pool),
            "version": view.version,
            "startedAt": _moment(view.started_at),
        },
        "registration": {
            "state": view.registration.state.value,
            "since": _moment(view.registration.since),
            "error": _text(view.registration.error),
        },
        "apiServer": {
            "failing": view.api_server.is_failing,
            "lastSuccessAt": _moment(view.api_server.last_success_at),
            "lastErrorAt": _moment(view.api_server.last_error_at),
            "lastError": _text(view.api_server.last_error),
        },
        "publishing": {
            "publishes": view.publishing.holds_lease,
            "generation": view.publishing.generation,
            "slices": view.publishing.slices,
            "devices": view.publishing.devices,
            "confirmedAt": _moment(view.publishing.confirmed_at),
            "writtenAt": _moment(view.publishing.written_at),
            "droppedGates": list(view.publishing.dropped_gates),
            "error": _text(view.publishing.error),
            "errorSince": _moment(view.publishing.error_since),
        },
        "ledger": {
            "restored": view.ledger.restored,
            "damaged": view.ledger.damaged,
        },
        "enforcer": _enforcement(view.enforcer),
        "cards": [_card(card) for card in view.cards],
        "cardsMissing": _text(view.cards_missing),
        "leftOut": [
            {"subject": _text(each.subject), "reason": _text(each.reason)} for each in view.left_out
        ],
        "shares": [_share(share) for share in view.shares],
        "sharesError": _text(view.shares_error),
        "useError": _text(view.use_error),
        "operations": [
            {
                "operation": each.kind.value,
                "namespace": _text(each.claim.namespace),
                "claim": _text(each.claim.name),
                "claimUID": _text(each.claim.uid),
                "endedAt": _moment(each.ended_at),
                "seconds": round(each.seconds, 6),
                "stages": [
                    {"stage": stage.value, "seconds": round(seconds, 6)}
                    for stage, seconds in each.seconds_by_stage.items()
                ],
                "result": each.result.value,
                "lastStage": each.last_stage.value,
                "error": _text(each.error),
                "fromRecord": each.from_record,
            }
            for each in view.operations
        ],
    }


def _card(card: CardView) -> Json:
    return {
        "device": _text(card.device),
        "uuid": _text(card.uuid),
        "index": card.index,
        "productName": _text(card.product_name),
        "model": _text(card.model),
        "driverVersion": _text(card.driver_version),
        "pciBusID": _text(card.pci_bus_id),
        "simulated": card.is_simulated,
        "physical": _amounts(card.physical),
        "totalVramBytes": card.total_vram_bytes,
        "capacity": _amounts(card.capacity),
        "oversubscribed": card.is_virtual,
        "consumed": _amounts(card.consumed),
        "free": _amounts(card.free),
        "health": {
            "healthy": card.unhealthy is None,
            "absent": card.is_absent,
            "reason": _text(card.unhealthy.worst.reason) if card.unhealthy else "",
            "message": _text(card.unhealthy.worst.text) if card.unhealthy else "",
            "since": _moment(card.unhealthy.since) if card.unhealthy else None,
        },
        "xids": [
            {
                "xid": each.code,
                "message": _text(each.text),
                "marksCard": each.marks_card,
                "count": each.count,
                "lastAt": _moment(each.last_at),
            }
            for each in card.xids
        ],
        "foreign": None
        if card.foreign is None
        else {"vramBytes": card.foreign.vram_bytes, "processes": card.foreign.processes},
        "otherCapacities": [
            {
                "name": _text(each.name),
                "quantity": str(each.quantity),
                "consumed": str(each.consumed),
            }
            for each in card.others
        ],
    }


def _share(share: ShareView) -> Json:
    limit = _limit(share.limit)
    if limit is not None:
        compute = share.limit_nano_tflops
        limit["tflops"] = None if compute is None else compute / NANO
    return {
        "namespace": _text(share.claim.namespace),
        "claim": _text(share.claim.name),
        "claimUID": _text(share.claim.uid),
        "pods": [_text(pod) for pod in share.pods],
        "request": _text(share.request),
        "shareID": share.share_id,
        "device": _text(share.device),
        "uuid": _text(share.gpu_uuid),
        "requested": _amounts(share.requested),
        "limit": limit,
        "wanted": _limit(share.wanted),
        "isolation": share.isolation.value,
        "qos": share.qos.value,
        "enforcer": _text(share.enforcer),
        "exclusive": share.is_exclusive,
        "adminAccess": share.is_admin,
        "enforcement": _enforcement(share.enforcement),
        "used": None
        if share.used is None
        else {
            "vramBytes": share.used.vram_bytes,
            "computePercent": share.used.sm_percent,
            "processes": share.used.processes,
            "nearLimit": share.used.is_near(share.limit),
        },
    }


def _limit(limit: Limit | None) -> Json | None:
    if limit is None:
        return None
    return {"computePercent": limit.sm_percent, "vramBytes": limit.vram_bytes}


def _enforcement(current: CurrentVerdict | None) -> Json | None:
    if current is None:
        return None
    return {
        "state": current.verdict.state.value,
        "reason": _text(current.verdict.reason),
        "message": _text(current.verdict.text),
        "limits": current.verdict.limits_json(),
        "since": _moment(current.since),
    }


def _amounts(amounts: Amounts) -> Json:
    return {"tflops": amounts.tflops, "vramBytes": amounts.vram_bytes}


def _moment(at: datetime | None) -> str | None:
    return None if at is None else at.astimezone(UTC).isoformat(timespec="milliseconds")


def _text(text: str) -> str:
    """Return external text on one line and of bounded length."""
    line = printable.one_line(text)
    return line if len(line) <= _MAX_TEXT else f"{line[: _MAX_TEXT - 1]}…"

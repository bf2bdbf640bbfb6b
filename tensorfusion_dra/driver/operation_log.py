"""The closing line of an operation: one line with all that an administrator needs of it."""

from typing import Final

import structlog

from tensorfusion_dra.core.claims.operation import EndedOperation, OperationKind, Result
from tensorfusion_dra.core.claims.prepared import PreparedClaim, PreparedShare

log = structlog.get_logger()

_DONE: Final = {
    OperationKind.PREPARE: "claim_prepared",
    OperationKind.UNPREPARE: "claim_unprepared",
}
_FAILED: Final = {
    OperationKind.PREPARE: "claim_prepare_failed",
    OperationKind.UNPREPARE: "claim_unprepare_failed",
}


def close(operation: EndedOperation) -> None:
    """Log an operation; the caller has bound its claim.

    At info if it succeeded, at warning if the kubelet will call again, at error if this process
    ends or has a defect.
    """
    facts: dict[str, object] = {
        "seconds": round(operation.seconds, 4),
        "stages_ms": {
            str(stage): round(seconds * 1000, 2)
            for stage, seconds in operation.seconds_by_stage.items()
        },
    }
    if operation.result is Result.SUCCESS:
        if operation.prepared is not None:
            facts |= _prepared(operation.prepared) | {"from_record": operation.from_record}
        log.info(_DONE[operation.kind], **facts)
        return
    facts |= {"result": operation.result.value, "stage": operation.last_stage.value}
    if operation.result in (Result.FATAL, Result.UNEXPECTED):
        log.error(_FAILED[operation.kind], **facts, error=operation.error)
    else:
        log.warning(_FAILED[operation.kind], **facts, error=operation.error)


def _prepared(claim: PreparedClaim) -> dict[str, object]:
    """Return what the claim got, and the pod in whose name it has its folders (ADR 12)."""
    facts: dict[str, object] = {"shares": [_share(share) for share in claim.shares]}
    if claim.pods:
        facts |= {"pod": str(claim.pods[0]), "pods": len(claim.pods)}
    return facts


def _share(share: PreparedShare) -> dict[str, object]:
    """Return the share's limits, and what it wanted if that is more."""
    facts: dict[str, object] = {"device": share.device}
    if share.limit is not None:
        facts |= {"vram_bytes": share.limit.vram_bytes, "sm_percent": share.limit.sm_percent}
    if share.memory_clamped:
        facts["wanted_vram_bytes"] = share.wanted_vram_bytes
    if share.compute_clamped:
        facts["wanted_sm_percent"] = share.wanted_sm_percent
    return facts

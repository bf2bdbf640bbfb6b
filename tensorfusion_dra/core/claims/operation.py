"""Operations on a claim, prepare and unprepare: their stages and results.

The log, the metrics and the status page name them with the words of this module.
"""

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Final, NamedTuple

from tensorfusion_dra.core.claims.claim import ClaimRef


class OperationKind(StrEnum):
    """Operation that the kubelet asked for one claim."""

    PREPARE = "prepare"
    UNPREPARE = "unprepare"


class Stage(StrEnum):
    """Stage of an operation; an operation is in one stage at any time.

    Attributes:
        QUEUE: Wait for its turn: for the claims before it in the same call, and for another call
            for the same claim.
        READ: Read the claim from the API server.
        LOOKUP: Look for a record that may answer, and compare it and its files with the claim.
        RESOLVE: Find out what the claim asks for and what the node offers: the first reading of
            the cards, pods, policies, device nodes.
        ADMIT: Wait for the store, check that the claim fits, and put its record.
        FLUSH: Commit, until the disk has it.
        WRITE: Write the claim's files, and those of other claims whose limits changed by it.
        REGISTER: Have the claim's enforcer keep the limits.
        WITHDRAW: Wait for the store, and remove the claim's files and record.
    """

    QUEUE = "queue"
    READ = "read"
    LOOKUP = "lookup"
    RESOLVE = "resolve"
    ADMIT = "admit"
    FLUSH = "flush"
    WRITE = "write"
    REGISTER = "register"
    WITHDRAW = "withdraw"


STAGES: Final[Mapping[OperationKind, tuple[Stage, ...]]] = {
    # Withdrawn is the record of an earlier allocation of the claim.
    OperationKind.PREPARE: tuple(Stage),
    OperationKind.UNPREPARE: (Stage.QUEUE, Stage.WITHDRAW, Stage.FLUSH, Stage.WRITE),
}
"""Stages that an operation of each kind may have."""


class Result(StrEnum):
    """Result of an operation: success, or the kind of its error (core/errors.py)."""

    SUCCESS = "success"
    CLAIM_ERROR = "claim_error"
    RETRYABLE = "retryable"
    NO_ROOM = "no_room"
    FATAL = "fatal"
    UNEXPECTED = "unexpected"


class EndedOperation(NamedTuple):
    """An operation that has ended.

    Attributes:
        kind: What the kubelet asked for.
        claim: The claim.
        ended_at: When it ended.
        seconds: Time from the arrival of the kubelet's call to the end.
        seconds_by_stage: Time in each stage that it entered, the one entered first first.
        last_stage: The stage in which it ended; that of the error, if it failed.
        result: How it ended.
        error: Text of its error; "" for success.
        from_record: True if the claim was prepared already, so that its record was the answer.
    """

    kind: OperationKind
    claim: ClaimRef
    ended_at: datetime
    seconds: float
    seconds_by_stage: Mapping[Stage, float]
    last_stage: Stage
    result: Result
    error: str = ""
    from_record: bool = False

"""What became of each claim of one call by the kubelet."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

import structlog
from structlog.contextvars import bound_contextvars

from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.errors import DriverError, FatalError

log = structlog.get_logger()

Outcome = TypeVar("Outcome")


@dataclass(frozen=True, slots=True)
class Failure:
    """Why one claim could not be prepared or unprepared; the kubelet shows the text."""

    text: str


def of_each(
    event: str, refs: Iterable[ClaimRef], step: Callable[[ClaimRef], Outcome]
) -> dict[str, Outcome | Failure]:
    """Take a step for each claim; the outcomes by UID, with one closing line in the log for each.

    Args:
        event: Of the line, such as claim_prepared; of a failure it becomes claim_not_prepared.
        refs: The claims of the call.
        step: What is done for one of them.

    Raises:
        FatalError: Of a step; the steps of the other claims are not taken then.
    """
    outcomes: dict[str, Outcome | Failure] = {}
    for ref in refs:
        start = time.monotonic()
        with bound_contextvars(claim=str(ref), claim_uid=ref.uid):
            try:
                outcomes[ref.uid] = step(ref)
            except FatalError:
                raise
            except DriverError as error:
                outcomes[ref.uid] = Failure(str(error))
                log.warning(
                    event.replace("claim_", "claim_not_"), error=str(error), seconds=_since(start)
                )
            else:
                log.info(event, seconds=_since(start))
    return outcomes


def _since(start: float) -> float:
    return round(time.monotonic() - start, 4)

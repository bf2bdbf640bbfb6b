"""The outcome of one call by the kubelet, claim by claim."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Failure:
    """Reason why one claim could not be prepared or unprepared; the kubelet shows the text."""

    text: str

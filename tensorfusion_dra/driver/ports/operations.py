"""Interface of the observers of operations on claims: metrics, status page."""

from typing import Protocol

from tensorfusion_dra.core.claims.operation import EndedOperation


class OperationObserver(Protocol):
    """Follower of operations; called by all threads, while the kubelet waits for the answer."""

    def operation_ended(self, operation: EndedOperation) -> None:
        """Take note of an operation and return at once: no input or output, no waiting.

        What it raises is logged and changes nothing for the claim or other observers.
        """
        ...

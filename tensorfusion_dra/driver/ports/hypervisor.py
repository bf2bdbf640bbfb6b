"""Interfaces to Tensor Fusion's hypervisor on this node."""

from collections.abc import Collection, Mapping
from typing import Protocol

from tensorfusion_dra.core.claims.claim import PodRef
from tensorfusion_dra.core.claims.limits import Limit


class DevicePlugin(Protocol):
    """The hypervisor as a device plugin, which allocates cards to workers."""

    def is_serving(self) -> bool:
        """Return True if its sockets exist; it may still not answer."""
        ...

    def allocate(self, index: int, *, wait_seconds: float) -> frozenset[str]:
        """Have it allocate the cards of the worker with this index; return their UUIDs.

        The UUIDs are in lower case. Cards that the hypervisor does not know are missing. It does
        nothing for a worker whose cards it has allocated already. It waits for a worker that it
        does not see yet, or that already runs.

        Raises:
            RetryableError: It does not serve, or did not answer in time, or refused.
        """
        ...


class WorkerMemory(Protocol):
    """The shared memory from which a worker's limiter reads its limits.

    The hypervisor creates it and writes a heartbeat into it twice a second. It never changes the
    limits in it.
    """

    def is_kept(self, pod: PodRef, gpu_ids: tuple[str, ...]) -> bool:
        """Return True if it is that of this pod and has these cards and a fresh heartbeat.

        Args:
            pod: The worker.
            gpu_ids: The UUIDs of exactly its cards, in lower case.
        """
        ...

    def is_of(self, pod: PodRef) -> bool:
        """Return True if the pod was registered with the folder that is at its path now."""
        ...

    def is_replaced(self, pod: PodRef) -> bool:
        """Return True if the pod was registered with another folder than that at its path now."""
        ...

    def note_registered(self, pod: PodRef) -> None:
        """Note that the pod is registered, and with which folder.

        Raises:
            RetryableError: It cannot be noted.
        """
        ...

    def note_trouble(self, pod: PodRef, text: str) -> None:
        """Note why the limits of a registered pod do not hold; "" if nothing speaks against it."""
        ...

    def await_kept(self, pod: PodRef, gpu_ids: tuple[str, ...], *, wait_seconds: float) -> None:
        """Return once it has these cards and a fresh heartbeat.

        Raises:
            RetryableError: It has not within the time.
        """
        ...

    def set_limits(self, pod: PodRef, limits: Mapping[str, Limit]) -> bool:
        """Write the limits by GPU UUID where they differ; return True if one did.

        The limiter reads them at its next call.

        Raises:
            RetryableError: There is no shared memory, or it has another layout or lacks a card.
        """
        ...

    def clear(self, pod: PodRef) -> None:
        """Remove what an earlier pod of this name left, or an earlier registration of this pod.

        Raises:
            RetryableError: See remove().
        """
        ...

    def remove(self, pod: PodRef) -> None:
        """Remove the pod's folder, whatever its containers made of it, and what was noted.

        Raises:
            RetryableError: The folder above it cannot be written.
        """
        ...

    def forget(self, pod: PodRef) -> None:
        """Remove what was noted; the folder at the pod's path is of another pod.

        Raises:
            RetryableError: It cannot be removed.
        """
        ...

    def forget_others(self, used: Collection[str]) -> None:
        """Remove what was noted of pods other than those with these UIDs."""
        ...

"""Interfaces by which driver, enforcers and webhook use API server, machine and cards."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from tensorfusion_dra.core.claims.claim import ClaimRef, PodRef
from tensorfusion_dra.core.claims.prepared import Mount
from tensorfusion_dra.core.devices.gpu import Inventory
from tensorfusion_dra.core.devices.health import CardEvent
from tensorfusion_dra.core.devices.slices import Slice
from tensorfusion_dra.core.kubernetes.projection import Projection


class ClaimSource(Protocol):
    """Reader of ResourceClaims."""

    def fetch(self, ref: ClaimRef, *, wait_seconds: float) -> Mapping[str, Any]:
        """Return the stored ResourceClaim with this namespace and name, whatever its UID.

        Raises:
            ClaimError: There is no such claim.
            RetryableError: The API server did not answer in time, or answered with an error.
        """
        ...


class Loop(Protocol):
    """A loop that runs in a thread of its own."""

    def run(self) -> None:
        """Run until stopped."""
        ...

    def stop(self) -> None:
        """End run()."""
        ...


class Pods(Protocol):
    """Reader of pods at the API server."""

    def find(self, pod: PodRef, *, wait_seconds: float) -> Mapping[str, Any] | None:
        """Return the stored pod with this UID; None if it is gone or replaced.

        Raises:
            MissingPermissionError: The driver has no permission to read pods.
            RetryableError: The API server did not answer in time, or answered with an error.
        """
        ...


class WorkerPods(Protocol):
    """Reader and marker of the node's pods that have the label of workers."""

    def of_node(self, keep: Projection, *, wait_seconds: float) -> Sequence[Mapping[str, Any]]:
        """Return the fields in `keep` of this node's worker pods, whoever marked them as workers.

        Raises:
            MissingPermissionError: The driver has no permission to list pods.
            RetryableError: The API server did not answer in time, or answered with an error.
        """
        ...

    def mark(
        self,
        pod: PodRef,
        *,
        labels: Mapping[str, str | None],
        annotations: Mapping[str, str | None],
        wait_seconds: float,
    ) -> None:
        """Set labels and annotations of the pod with this UID; None removes one.

        Raises:
            MissingPermissionError: The driver has no permission to patch the pod.
            RetryableError: They may not be set; the pod may be gone.
        """
        ...

    def watch(
        self,
        keep: Projection,
        on_list: Callable[[Sequence[Mapping[str, Any]]], None],
        on_event: Callable[[str, Mapping[str, Any]], None],
    ) -> Loop:
        """Return a watch of the node's workers, to be run by a thread of its own."""
        ...


class Slices(Protocol):
    """Reader and writer of this node's ResourceSlices, for one thread."""

    def fetch(self) -> Sequence[Slice]:
        """Return all slices of this driver and node, in any pool.

        They include all own writes, but changes of other writers only after a while. After an error
        of a write that leaves doubts about the stored slices, they are listed again.

        Raises:
            MissingPermissionError: The driver has no permission to list slices.
            RetryableError: The API server did not answer in time, or answered with an error.
        """
        ...

    def create(self, item: Slice) -> Slice:
        """Create the slice; return it as the API server stored it.

        Args:
            item: The complete object.

        Raises:
            MissingPermissionError: The driver has no permission to create slices.
            RetryableError: It may not have been stored. After a conflict, what was read before is
                outdated.
        """
        ...

    def replace(self, item: Slice) -> Slice:
        """Replace the stored slice if it is unchanged since it was read; return it as stored.

        Args:
            item: The complete object, with the resourceVersion that was read.

        Raises:
            MissingPermissionError: The driver has no permission to update slices.
            RetryableError: It may not have been stored. After a conflict, what was read before is
                outdated.
        """
        ...

    def trial(self, item: Slice) -> Slice:
        """Return the slice as the API server would store it; store nothing.

        Raises:
            MissingPermissionError: The driver has no permission to create slices.
            RetryableError: The API server did not answer in time, or answered with an error.
        """
        ...

    def delete(self, item: Slice) -> None:
        """Delete this very object if it is unchanged since it was read; return once it is gone.

        Raises:
            MissingPermissionError: The driver has no permission to delete slices.
            RetryableError: The object may still exist.
        """
        ...


class Nodes(Protocol):
    """Reader of this node's Node object."""

    def uid(self) -> str:
        """Return the UID of this node's Node object.

        Raises:
            RetryableError: There is no such object, or the API server did not answer.
        """
        ...

    def is_ready(self) -> bool:
        """Return True if the Node is Ready: its kubelet has sent heartbeats within the last minute.

        Raises:
            RetryableError: There is no such object, or the API server did not answer.
        """
        ...


class Objects(Protocol):
    """Cache of the objects of one kind, kept current by a watch."""

    def items(self) -> Sequence[Mapping[str, Any]]:
        """Return all objects as the API server last sent them.

        Raises:
            RetryableError: The API server has not listed them yet.
            InputError: The API server does not serve this kind.
        """
        ...


class ClaimStatus(Protocol):
    """Writer of this driver's entries in the `status.devices` of ResourceClaims."""

    def write(self, ref: ClaimRef, devices: Sequence[Mapping[str, Any]]) -> bool:
        """Store the entries in the status of the claim with this UID; return True once stored.

        They replace all entries of this driver; those of other drivers stay.

        Return False if the claim is gone, was replaced by another claim of its name, or no longer
        has these devices. Nothing was written then, and a retry would not write anything either.

        Raises:
            MissingPermissionError: The driver has no permission to write the status.
            StatusError: The API server refused this one.
            RetryableError: The entries may not have been written.
        """
        ...


class Events(Protocol):
    """Writer of Events on this node's Node object and on its pods."""

    def warn(self, reason: str, message: str, *, pod: PodRef | None = None) -> bool:
        """Write an Event of type Warning; return True if it is written.

        The same Event is not written again within ten minutes; True is returned for it. An Event
        that cannot be written is logged and raises nothing. Nothing is sent during a pause that the
        API server requested.

        Args:
            reason: In CamelCase, for programs.
            message: For people.
            pod: The pod that it is about; None for the Node. Without permission to write Events
                about pods, it is written about the Node.
        """
        ...

    def note(self, reason: str, message: str, *, pod: PodRef | None = None) -> bool:
        """Write an Event of type Normal; otherwise like warn()."""
        ...


class Discovery(Protocol):
    """Reader of the node's GPUs."""

    def read(self) -> Inventory:
        """Return every card of the node as it is now.

        Raises:
            HungError: A call into the NVIDIA driver has been running for too long.
            RetryableError: The cards cannot be read yet; the text names what is missing, such as
                the library or the loaded driver.
            FatalError: The NVIDIA driver was replaced; only a new process can load its library.
        """
        ...


class HostSizes(Protocol):
    """Sizes of the host's memory and disk, into which a pool may expand VRAM."""

    def memory_bytes(self) -> int:
        """Return the size of the machine's memory, regardless of this container's own limit.

        Raises:
            RetryableError: It cannot be read; the text names the file.
        """
        ...

    def disk_bytes(self) -> int:
        """Return the size of the data disk's file system, including used space.

        Raises:
            RetryableError: It cannot be read; the text names the folder.
        """
        ...


class CardEvents(Protocol):
    """Source of the events that the NVIDIA driver reports about the node's cards."""

    def watch(self, gpu_uuids: frozenset[str]) -> None:
        """Wait for events of these cards only, from now on.

        Other cards are not kept open, so that they can be reset.
        """
        ...

    def run(self, on_event: Callable[[CardEvent], None]) -> None:
        """Call `on_event` for each event, until stopped."""
        ...

    def stop(self) -> None:
        """End run()."""
        ...


class DeviceNodes(Protocol):
    """Finder of the host's device nodes; all paths are as the container runtime sees them."""

    def of_card(self, minor: int, capability_minors: Sequence[int] = ()) -> tuple[str, ...]:
        """Return the paths of a card's own nodes, and of those for one of its partitions.

        Raises:
            RetryableError: A node is missing or is no character device.
        """
        ...

    def common(self) -> tuple[str, ...]:
        """Return the paths of the nodes that every container with a card needs.

        Raises:
            RetryableError: A node without which no CUDA program starts is missing.
        """
        ...


class DriverFiles(Protocol):
    """Finder of the NVIDIA driver's libraries for containers."""

    def toolkit_device(self, gpu_uuid: str) -> str | None:
        """Return the card's qualified CDI device name from NVIDIA's container toolkit, or None."""
        ...

    def mounts(self) -> tuple[Mount, ...]:
        """Return mounts of the libraries found under the driver root.

        Raises:
            RetryableError: A library without which no CUDA program starts is missing.
        """
        ...

"""The driver's ports in memory, with faults on demand."""

import copy
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tensorfusion_dra.core.claims.claim import ClaimRef, PodRef
from tensorfusion_dra.core.claims.enforcer import Needs
from tensorfusion_dra.core.claims.prepared import Mount
from tensorfusion_dra.core.devices.gpu import Inventory
from tensorfusion_dra.core.devices.slices import Slice
from tensorfusion_dra.core.errors import ClaimError, RetryableError
from tensorfusion_dra.core.kubernetes import device_rules
from tensorfusion_dra.state.claim_files import HostFiles
from tensorfusion_dra.state.publisher_lease import PublisherLease


@dataclass
class FixedDiscovery:
    """Discovery of cards set by a test; None means that the NVIDIA driver is not loaded yet."""

    inventory: Inventory | None

    def read(self) -> Inventory:
        if self.inventory is None:
            raise RetryableError("waiting for the NVIDIA driver")
        return self.inventory


@dataclass
class ClaimsInMemory:
    """ResourceClaims by namespace and name."""

    stored: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    fetched: list[str] = field(default_factory=list)
    away: bool = False

    def put(self, claim: Mapping[str, Any]) -> ClaimRef:
        metadata = claim["metadata"]
        self.stored[f"{metadata['namespace']}/{metadata['name']}"] = claim
        return ClaimRef(namespace=metadata["namespace"], name=metadata["name"], uid=metadata["uid"])

    def fetch(self, ref: ClaimRef, *, wait_seconds: float) -> Mapping[str, Any]:
        assert wait_seconds > 0
        self.fetched.append(str(ref))
        if self.away:
            raise RetryableError(f"claim {ref}: no answer")
        if str(ref) not in self.stored:
            raise ClaimError(f"claim {ref}: found none")
        return self.stored[str(ref)]


@dataclass
class SlicesInMemory:
    """ResourceSlices of an API server that drops the fields of disabled feature gates."""

    gates_off: frozenset[str] = frozenset()
    items: dict[str, Slice] = field(default_factory=dict)
    writes: list[str] = field(default_factory=list)
    away: bool = False
    refuses_trials: bool = False
    _versions: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def fetch(self) -> Sequence[Slice]:
        self._check_away()
        return copy.deepcopy([self.items[name] for name in sorted(self.items)])

    def create(self, item: Slice) -> Slice:
        self._check_away()
        if item["metadata"]["name"] in self.items:
            raise RetryableError("409: exists")
        return self._keep("create", item, uid=f"uid-{next(self._versions)}")

    def replace(self, item: Slice) -> Slice:
        self._check_away()
        old = self.items.get(item["metadata"]["name"])
        if old is None:
            raise RetryableError("404: not found")
        if old["metadata"]["resourceVersion"] != item["metadata"]["resourceVersion"]:
            raise RetryableError("409: conflict")
        return self._keep("replace", item, uid=old["metadata"]["uid"])

    def trial(self, item: Slice) -> Slice:
        self._check_away()
        if self.refuses_trials:
            raise RetryableError("400: a webhook does not support dry run")
        devices = device_rules.without(item["spec"]["devices"], self.gates_off)
        return {**item, "spec": {**item["spec"], "devices": devices}}

    def delete(self, item: Slice) -> None:
        self._check_away()
        name = item["metadata"]["name"]
        if self.items[name]["metadata"]["uid"] != item["metadata"]["uid"]:
            raise RetryableError("409: another object")
        del self.items[name]
        self.writes.append(f"delete {name}")

    def _keep(self, verb: str, item: Slice, *, uid: str) -> Slice:
        kept: dict[str, Any] = copy.deepcopy(dict(item))
        kept["spec"]["devices"] = device_rules.without(kept["spec"]["devices"], self.gates_off)
        kept["metadata"]["uid"] = uid
        kept["metadata"]["resourceVersion"] = str(next(self._versions))
        name = kept["metadata"]["name"]
        self.items[name] = kept
        self.writes.append(f"{verb} {name}")
        return copy.deepcopy(kept)

    def _check_away(self) -> None:
        if self.away:
            raise RetryableError("no answer")


class LeaseInMemory(PublisherLease):
    """The lease to publish; `newer` is True while a newer instance holds it."""

    newer = False
    taken = 0
    released = False

    def __init__(self) -> None:
        """Use no file."""

    def take(self) -> None:
        self.taken += 1

    def held(self) -> bool:
        return not self.newer

    def release(self) -> None:
        self.released = True


class OneNode:
    """The Node object of this node."""

    current = "node-uid-1"
    ready = True

    def uid(self) -> str:
        return self.current

    def is_ready(self) -> bool:
        return self.ready


@dataclass
class EventsInMemory:
    """Events by reason and message: warnings in `written`, others in `noted`.

    The pods that they are about are in `pods`, in the order of all Events.

    While `away` is True, the API server does not answer and nothing is written.
    """

    written: list[tuple[str, str]] = field(default_factory=list)
    noted: list[tuple[str, str]] = field(default_factory=list)
    pods: list[PodRef | None] = field(default_factory=list)
    away: bool = False

    def warn(self, reason: str, message: str, *, pod: PodRef | None = None) -> bool:
        return self._write(self.written, (reason, message), pod)

    def note(self, reason: str, message: str, *, pod: PodRef | None = None) -> bool:
        return self._write(self.noted, (reason, message), pod)

    def _write(
        self, events: list[tuple[str, str]], event: tuple[str, str], pod: PodRef | None
    ) -> bool:
        if not self.away:
            events.append(event)
            self.pods.append(pod)
        return not self.away


@dataclass
class DeviceNodesInMemory:
    """Device nodes that all exist unless a test adds them to `missing`."""

    missing: set[int] = field(default_factory=set)

    def of_card(self, minor: int, capability_minors: Sequence[int] = ()) -> tuple[str, ...]:
        if minor in self.missing:
            raise RetryableError(f"device node /dev/nvidia{minor}: No such file or directory")
        nodes = (f"/dev/nvidia-caps/nvidia-cap{number}" for number in capability_minors)
        return (f"/dev/nvidia{minor}", *nodes)

    def common(self) -> tuple[str, ...]:
        return ("/dev/nvidiactl", "/dev/nvidia-uvm")


@dataclass
class DriverFilesInMemory:
    """Libraries of the NVIDIA driver: from a toolkit for some cards, from mounts for the rest."""

    by_toolkit: set[str] = field(default_factory=set)
    missing: bool = False

    def toolkit_device(self, gpu_uuid: str) -> str | None:
        return f"nvidia.com/gpu={gpu_uuid}" if gpu_uuid in self.by_toolkit else None

    def mounts(self) -> tuple[Mount, ...]:
        if self.missing:
            raise RetryableError("driver library libcuda.so.1: not found")
        return (Mount(host_path="/host/libcuda.so.1", container_path="/usr/lib/libcuda.so.1"),)


class HostFilesInMemory(HostFiles):
    """Files and sockets of an enforcer that all exist unless a test adds them to `absent`.

    Attributes:
        before_write: Called once, after a claim's files were made of its record, before they are
            written.
    """

    def __init__(self) -> None:
        self.before_write: Callable[[], object] = lambda: None
        self.absent: set[str] = set()
        self.folders: set[str] = set()
        self.texts: dict[str, str] = {}

    def missing(self, needs: Needs) -> str:  # type: ignore[override]
        lacking = (each for each in (*needs.files, *needs.sockets) if each in self.absent)
        return next((f"{file}: No such file or directory" for file in lacking), "")

    def has(self, needs: Needs) -> bool:
        act, self.before_write = self.before_write, lambda: None
        act()
        texts = {file.path: file.text for file in needs.texts}
        folders = {folder.path for folder in needs.folders}
        return folders <= self.folders and texts.items() <= self.texts.items()

    def provide(self, needs: Needs) -> None:
        self.folders |= {folder.path for folder in needs.folders}
        self.texts |= {file.path: file.text for file in needs.texts}

    def remove(self, folder: str) -> None:
        self.folders.discard(folder)

    def delete_removed(self) -> list[str]:
        return []

    def names(self, root: str) -> frozenset[str]:
        paths = (folder.rpartition("/") for folder in self.folders)
        return frozenset(name for parent, _, name in paths if parent == root)


@dataclass
class PodsInMemory:
    """Annotations of pods in `stored` and the rest of pods in `documents`, by namespace/name."""

    stored: dict[str, Mapping[str, str]] = field(default_factory=dict)
    documents: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    pods_read: list[str] = field(default_factory=list)

    def find(self, pod: PodRef, *, wait_seconds: float) -> Mapping[str, Any] | None:
        assert wait_seconds > 0
        self.pods_read.append(str(pod))
        if str(pod) not in {*self.documents, *self.stored}:
            return None
        metadata = {"annotations": self.stored.get(str(pod), {})}
        return {"metadata": metadata, **self.documents.get(str(pod), {})}

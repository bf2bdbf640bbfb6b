"""Evidence of enforcers: where it is on the host, and what was read there.

A file that is only installed, such as a library, is evidence of nothing but itself: it shows that a
container could start with a limiter, never that one is working.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tensorfusion_dra.core.claims.limits import Limit


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidencePaths:
    """Host paths at which an enforcer leaves evidence of one claim; "" or empty if there are none.

    Attributes:
        files: What a limiter needs to be loaded, such as its library.
        shared_memory: File in which Tensor Fusion's hypervisor keeps the limits of the pod.
        registered_folder: File that names the folder with which the pod was registered.
        caches: Files in which HAMi-core counts, by request.
        socket: Control socket of the MPS daemon, or that of the container memory-limits.
        limited_pod: UID of the pod whose cgroup the NVIDIA driver limits.
        gpu_uuids: The cards on which it does.
    """

    files: tuple[str, ...] = ()
    shared_memory: str = ""
    registered_folder: str = ""
    caches: Mapping[str, str] = field(default_factory=dict)
    socket: str = ""
    limited_pod: str = ""
    gpu_uuids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEvidence:
    """A file that a limiter needs.

    Attributes:
        trouble: Why it could not be examined, or what is wrong with it; "" if it is as it should
            be.
    """

    path: str
    trouble: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedMemory:
    """The shared memory of a pod, as Tensor Fusion's hypervisor writes it and its limiter reads it.

    Attributes:
        found: False if there is no such file.
        is_replaced: True if its folder is not the one that the pod's containers have mounted.
        overruled: What the hypervisor obeys instead of the limits in it; "" if nothing.
        trouble: Why it could not be read; "" if it could.
        heartbeat: Time of the hypervisor's last visit, in seconds since 1970; 0 for none.
        limits: By GPU UUID, in the hypervisor's spelling.
        processes: Number of processes that registered. A hypervisor need not remove those that
            ended.
    """

    path: str
    found: bool = True
    is_replaced: bool = False
    overruled: str = ""
    trouble: str = ""
    heartbeat: int = 0
    limits: Mapping[str, Limit] = field(default_factory=dict)
    processes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    """The file in which the processes of one request under HAMi-core count their memory.

    Attributes:
        trouble: Why it could not be read; "" if it could, or if there is no such file yet.
        limits: By the index of a card in the container; 0 means no limit. Empty while no process
            has initialized the file.
        processes: Number of processes that are registered.
    """

    path: str
    trouble: str = ""
    limits: tuple[Limit, ...] = ()
    processes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Daemon:
    """The control socket of a daemon.

    Attributes:
        trouble: Why it accepts no connection, or cannot work; "" if it does.
        hints: What else it found wrong.
    """

    path: str
    trouble: str = ""
    hints: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What was read at the paths of one claim; None or empty where there is no such path.

    Attributes:
        read_at: Time of the reading, in seconds since 1970.
        memory: Limit and use of the pod in bytes by GPU UUID, or why a card's cannot be read.
    """

    read_at: float
    memory: Mapping[str, tuple[int, int] | str] = field(default_factory=dict)
    files: tuple[FileEvidence, ...] = ()
    shared_memory: SharedMemory | None = None
    caches: Mapping[str, Cache] = field(default_factory=dict)
    daemon: Daemon | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEvidencePaths:
    """Where an enforcer leaves evidence of itself on a node, whatever claims there are.

    Attributes:
        enforcer: Name of the enforcer.
        files: What a limiter needs to be loaded.
        sockets: Pattern of the hypervisor's device plugin sockets.
        http: Host and port of the hypervisor; None if the node does not know its address.
        socket: Control socket of the MPS daemon.
    """

    enforcer: str
    files: tuple[str, ...] = ()
    sockets: str = ""
    http: tuple[str, int] | None = None
    socket: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEvidence:
    """What was read at the paths of a node.

    Attributes:
        read_at: Time of the reading, in seconds since 1970.
        hypervisor: A description of the first sign of life of Tensor Fusion's hypervisor; "" if
            there is none.
        asked: Where a sign of the hypervisor was looked for, with what was found instead.
        daemon: The MPS daemon's socket; None for other enforcers.
    """

    read_at: float
    files: tuple[FileEvidence, ...] = ()
    hypervisor: str = ""
    asked: tuple[str, ...] = ()
    daemon: Daemon | None = None

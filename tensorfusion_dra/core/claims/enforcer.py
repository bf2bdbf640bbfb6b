"""Interface of enforcers, which keep containers within their limits, and of their classes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from tensorfusion_dra.core.claims.evidence import EvidencePaths
from tensorfusion_dra.core.claims.prepared import Mount, PreparedClaim, PreparedShare
from tensorfusion_dra.core.devices.gpu import Isolation


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """A host folder that has to exist before the container starts.

    Attributes:
        mode: Permission bits, set regardless of the umask.
    """

    path: str
    mode: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TextFile:
    """A host file with a fixed content, readable by every user."""

    path: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Hook:
    """A program of the host that the container runtime runs; a failure ends the container.

    Attributes:
        name: When it runs, such as createRuntime: before the container's first process.
        path: The program on the host.
        args: Its arguments, the first of which is its name.
    """

    name: str
    path: str
    args: tuple[str, ...]
    timeout_seconds: int

    def as_cdi(self) -> dict[str, Any]:
        """Return the hook as a CDI spec has it."""
        return {
            "hookName": self.name,
            "path": self.path,
            "args": list(self.args),
            "timeout": self.timeout_seconds,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Edits:
    """Additions to the containers of one request.

    Attributes:
        env: An empty value overrides a variable of the image or the pod.
        hooks: Only of the driver's own enforcers.
    """

    env: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    hooks: tuple[Hook, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """Files, sockets and folders that have to be on the host before prepare may succeed.

    Attributes:
        files: Have to exist already; the claim fails without them.
        sockets: Unix sockets on which a process has to accept connections; the claim fails while
            none does. For a service without which a container would run without its limits.
        folders: Created for the claim, and removed with everything in them once no claim of its
            pods needs them.
        texts: Written if they are missing or different. They belong to all claims, and stay.
    """

    files: tuple[str, ...] = ()
    sockets: tuple[str, ...] = ()
    folders: tuple[Folder, ...] = ()
    texts: tuple[TextFile, ...] = ()


class Enforcer(Protocol):
    """Translator of limits into the variables and mounts that a limiter reads; without I/O."""

    @property
    def name(self) -> str:
        """Name of the enforcer in the settings."""
        ...

    @property
    def enforces_hard(self) -> bool:
        """True if it brings a limiter that reads its limits from the container's environment."""
        ...

    @property
    def enforces_compute(self) -> bool:
        """True if all processes of a claim together are kept within its compute limits."""
        ...

    @property
    def enforces_memory(self) -> bool:
        """True if all processes of a claim together are kept within its memory limits."""
        ...

    @property
    def counts_by_pid(self) -> bool:
        """True if it tells processes apart by their PID in the container.

        Containers that use one request at the same time then need one PID namespace.
        """
        ...

    @property
    def expands_memory(self) -> bool:
        """True if it can extend a card's memory by the host's memory or disk."""
        ...

    @property
    def fixed(self) -> frozenset[Isolation]:
        """Isolation modes in which a running container's limit cannot be lowered."""
        ...

    @property
    def claims_root(self) -> str:
        """Host folder in which each claim has a folder of its own, named by its UID; "" if none.

        The claim's folder is removed with the claim, with everything that containers wrote into it.
        """
        ...

    def needs(self, claim: PreparedClaim) -> Needs:
        """Return what the claim's containers need on the host.

        Raises:
            ClaimError: The enforcer cannot express the claim's limits.
        """
        ...

    def evidence_paths(self, claim: PreparedClaim) -> EvidencePaths:
        """Return the paths that show whether limits hold; empty for a simulated card."""
        ...

    def edits(self, claim: PreparedClaim, shares: Sequence[PreparedShare]) -> Edits:
        """Return the additions to the containers of one request.

        Args:
            claim: The request's claim.
            shares: The request's shares from enforced(); at least one.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EnforcerSettings:
    """The node's settings as an enforcer sees them.

    Attributes:
        folder: Host folder of this enforcer alone, for files that all its claims share.
        claims_root: Host folder in which each claim can have a folder of its own, named by its UID.
            That folder is removed with the claim, with everything that containers wrote into it.
        values: Every setting of the node plugin as text, by the name of its flag.
    """

    folder: str
    claims_root: str
    values: Mapping[str, str] = field(default_factory=dict)


class EnforcerKind(Protocol):
    """Class of an enforcer, which an entry point names.

    Attributes:
        name: Name of the enforcer in the settings, and of its entry point.
        enforces_hard: As in Enforcer; the webhook needs it without the node's settings.
        expands_memory: As in Enforcer.
    """

    name: ClassVar[str]
    enforces_hard: ClassVar[bool]
    expands_memory: ClassVar[bool]

    @classmethod
    def from_settings(cls, settings: EnforcerSettings, /) -> Enforcer:
        """Return the enforcer of a node."""
        ...


def enforced(claim: PreparedClaim) -> Mapping[str, tuple[PreparedShare, ...]]:
    """Return by request the shares that an enforcer handles: all but those with admin access."""
    by_request: dict[str, tuple[PreparedShare, ...]] = {}
    for share in claim.shares:
        if not share.admin_access:
            by_request[share.request] = (*by_request.get(share.request, ()), share)
    return by_request


def is_simulated(shares: Sequence[PreparedShare]) -> bool:
    """Return True if no card has a device node, so that there is nothing to limit on this host."""
    return not any(share.device_nodes for share in shares)

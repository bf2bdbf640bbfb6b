"""What enforces limits inside a container: one small interface, several implementations."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tensorfusion_dra.core.claims.mounts import Mount
from tensorfusion_dra.core.claims.prepared import PreparedClaim, PreparedShare
from tensorfusion_dra.core.devices.sharing import Isolation


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """A host folder that is there before the container is.

    Attributes:
        mode: Permission bits, set whatever the umask.
    """

    path: str
    mode: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Edits:
    """What is added to the containers of one request.

    Attributes:
        env: An empty value takes a variable of the image or the pod out of force.
    """

    env: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What must be on the host before a claim may be answered.

    Attributes:
        files: Are there already; the claim fails without them.
        folders: Are made for the claim.
    """

    files: tuple[str, ...] = ()
    folders: tuple[Folder, ...] = ()


class Enforcer(Protocol):
    """Turns limits into what a limiter in the container understands; does nothing by itself."""

    @property
    def name(self) -> str:
        """As settings name it."""
        ...

    @property
    def enforces_hard(self) -> bool:
        """Whether it brings a limiter that takes its limits from the container's environment."""
        ...

    @property
    def expands_memory(self) -> bool:
        """Whether it can give a card more memory than it has, from the host's memory or disk."""
        ...

    @property
    def fixed(self) -> frozenset[Isolation]:
        """Isolation modes in which a running container's limit cannot be lowered."""
        ...

    @property
    def claims_root(self) -> str:
        """A host folder in which each claim has a folder of its own, named by its UID; "" if none.

        The claim's folder goes with the claim, with all that containers put into it.
        """
        ...

    def needs(self, claim: PreparedClaim) -> Needs:
        """What the claim's containers need of the host."""
        ...

    def edits(self, claim: PreparedClaim, shares: Sequence[PreparedShare]) -> Edits:
        """What a request's containers get.

        Args:
            claim: The request's claim.
            shares: The request's shares that have a limit or an isolation; at least one.
        """
        ...


def enforced(claim: PreparedClaim) -> Mapping[str, tuple[PreparedShare, ...]]:
    """The shares of each request that an enforcer has to do with: all but those for admins."""
    by_request: dict[str, tuple[PreparedShare, ...]] = {}
    for share in claim.shares:
        if not share.admin_access:
            by_request[share.request] = (*by_request.get(share.request, ()), share)
    return by_request


def is_simulated(shares: Sequence[PreparedShare]) -> bool:
    """None of the cards has a device node, so there is nothing to limit on this host."""
    return not any(share.device_nodes for share in shares)

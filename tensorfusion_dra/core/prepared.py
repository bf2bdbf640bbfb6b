"""A prepared claim: the ledger's record, from which its CDI spec and its answer follow."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tensorfusion_dra.core import quantity
from tensorfusion_dra.core.claim import ClaimRef
from tensorfusion_dra.core.limits import Limit
from tensorfusion_dra.core.quantity import Quantity


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedShare:
    """One claim's part of one device (consumable capacity, KEP-5075).

    Attributes:
        request: The claim's main request that it serves.
        share_id: Set by the scheduler if the device may be allocated more than once; else None.
        consumed: Amount by capacity that counts against the device: all of it if the device is
            given alone, nothing for admin access.
        exclusive: The device is given alone.
        admin_access: The container sees the whole card, without limits.
        device_nodes: Paths on the host; none for a simulated card.
        limit: What the container may use; None for admin access.
    """

    request: str
    pool: str
    device: str
    gpu_uuid: str
    share_id: str | None
    consumed: Mapping[str, Quantity]
    exclusive: bool
    admin_access: bool
    device_nodes: tuple[str, ...]
    limit: Limit | None

    def as_json(self) -> dict[str, Any]:
        """The share as the ledger keeps it."""
        return {
            "request": self.request,
            "pool": self.pool,
            "device": self.device,
            "gpuUUID": self.gpu_uuid,
            "shareID": self.share_id,
            "consumed": {name: str(amount) for name, amount in self.consumed.items()},
            "exclusive": self.exclusive,
            "adminAccess": self.admin_access,
            "deviceNodes": list(self.device_nodes),
            "limit": None if self.limit is None else self.limit.as_json(),
        }

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> "PreparedShare":
        """The share that as_json wrote."""
        return cls(
            request=kept["request"],
            pool=kept["pool"],
            device=kept["device"],
            gpu_uuid=kept["gpuUUID"],
            share_id=kept["shareID"],
            consumed={name: quantity.parse(text) for name, text in kept["consumed"].items()},
            exclusive=kept["exclusive"],
            admin_access=kept["adminAccess"],
            device_nodes=tuple(kept["deviceNodes"]),
            limit=None if kept["limit"] is None else Limit.from_json(kept["limit"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedClaim:
    """A claim that this node has prepared.

    Attributes:
        common_nodes: Device nodes that every container with a card needs, such as
            /dev/nvidiactl; paths on the host.
    """

    ref: ClaimRef
    shares: tuple[PreparedShare, ...]
    common_nodes: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """The claim as the ledger keeps it."""
        return {
            "namespace": self.ref.namespace,
            "name": self.ref.name,
            "uid": self.ref.uid,
            "shares": [share.as_json() for share in self.shares],
            "commonNodes": list(self.common_nodes),
        }

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> "PreparedClaim":
        """The claim that as_json wrote."""
        return cls(
            ref=ClaimRef(namespace=kept["namespace"], name=kept["name"], uid=kept["uid"]),
            shares=tuple(PreparedShare.from_json(share) for share in kept["shares"]),
            common_nodes=tuple(kept["commonNodes"]),
        )

    def with_nodes(
        self, device_nodes: Mapping[str, tuple[str, ...]], common_nodes: tuple[str, ...]
    ) -> "PreparedClaim":
        """The claim with today's device nodes: a card's minor number may change at a reboot.

        Args:
            device_nodes: By device name; a share of a device that is not in it stays as it is.
            common_nodes: As in the attribute; taken if any share has nodes.
        """
        shares = tuple(
            replace(share, device_nodes=device_nodes.get(share.device, share.device_nodes))
            for share in self.shares
        )
        with_cards = any(share.device_nodes for share in shares)
        return replace(self, shares=shares, common_nodes=common_nodes if with_cards else ())

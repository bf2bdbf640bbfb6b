"""Access of a container to its cards: device nodes and the libraries of the NVIDIA driver."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tensorfusion_dra.core.claims.prepared import Mount, PreparedClaim


@dataclass(frozen=True, slots=True, kw_only=True)
class CardAccess:
    """Access to one card; empty for a simulated card.

    Attributes:
        device_nodes: Paths on the host.
        toolkit_device: The card's qualified CDI device in the spec of NVIDIA's container toolkit;
            None if the node has no such spec.
    """

    device_nodes: tuple[str, ...] = ()
    toolkit_device: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedAccess:
    """Access that a container needs once, however many cards it has.

    Attributes:
        device_nodes: Paths on the host, such as /dev/nvidiactl.
        driver_mounts: Driver libraries; empty where NVIDIA's container toolkit mounts them.
    """

    device_nodes: tuple[str, ...] = ()
    driver_mounts: tuple[Mount, ...] = ()


def refreshed(
    claim: PreparedClaim, cards: Mapping[str, CardAccess], shared: SharedAccess, *, boot_id: str
) -> PreparedClaim:
    """Return the claim with the access of this boot: minor numbers may change at a reboot.

    Args:
        claim: The recorded claim.
        cards: Access by device name. A share whose device is missing keeps its recorded access.
        shared: Used only if some share has device nodes.
        boot_id: ID of this boot. The claim gets it only if `cards` covers all its shares.
    """
    shares = tuple(
        replace(
            share,
            device_nodes=cards[share.device].device_nodes,
            toolkit_device=cards[share.device].toolkit_device,
        )
        if share.device in cards
        else share
        for share in claim.shares
    )
    if not any(share.device_nodes for share in shares):
        shared = SharedAccess()
    return replace(
        claim,
        shares=shares,
        common_nodes=shared.device_nodes,
        driver_mounts=shared.driver_mounts,
        boot_id=boot_id if cards.keys() >= {s.device for s in shares} else claim.boot_id,
    )

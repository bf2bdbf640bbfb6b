"""How a container gets at a card: device nodes, and the libraries of its driver."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tensorfusion_dra.core.claims.mounts import Mount
from tensorfusion_dra.core.claims.prepared import PreparedClaim


@dataclass(frozen=True, slots=True, kw_only=True)
class CardAccess:
    """What one card takes; nothing for a simulated one.

    Attributes:
        device_nodes: Paths on the host.
        toolkit_device: Its qualified CDI device in the spec of NVIDIA's container toolkit.
    """

    device_nodes: tuple[str, ...] = ()
    toolkit_device: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedAccess:
    """What a container with any card takes once.

    Attributes:
        device_nodes: Such as /dev/nvidiactl; paths on the host.
        driver_mounts: Libraries of the driver, where no toolkit brings them.
    """

    device_nodes: tuple[str, ...] = ()
    driver_mounts: tuple[Mount, ...] = ()


def refreshed(
    claim: PreparedClaim, cards: Mapping[str, CardAccess], shared: SharedAccess, *, boot_id: str
) -> PreparedClaim:
    """The claim with today's access: a card's minor number may change at a reboot.

    Args:
        claim: As recorded.
        cards: By device name; a share of a device that is not in it stays as it is.
        shared: Taken if any share has nodes.
        boot_id: Of today's boot; the claim gets it if every share has today's access.
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

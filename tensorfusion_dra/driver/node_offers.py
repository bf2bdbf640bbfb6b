"""The machine, as far as a card of it is handed out."""

from collections.abc import Sequence
from dataclasses import dataclass

from tensorfusion_dra.core.claims.access import CardAccess, SharedAccess
from tensorfusion_dra.core.claims.fit import NodeOffer
from tensorfusion_dra.core.claims.tenancy import LendingRules
from tensorfusion_dra.core.devices.device import Device
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.driver.catalog import Catalog
from tensorfusion_dra.driver.ports.discovery import DeviceNodes, DriverFiles


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOffers:
    """What the driver needs of the machine to hand out a card.

    Attributes:
        enforcer: The name of what enforces the limits of new claims.
        enforces_hard: Whether it brings a limiter for hard isolation.
        rules: For limits above requests.
        boot_id: Of this boot.
    """

    device_nodes: DeviceNodes
    driver_files: DriverFiles
    enforcer: str
    rules: LendingRules
    boot_id: str
    enforces_hard: bool = False

    def offer(self, catalog: Catalog, wanted: set[str]) -> NodeOffer:
        """What this node can give, with the access to the devices that are wanted.

        Raises:
            RetryableError: Something that a container with one of them needs is missing.
        """
        cards = [device for device in catalog.devices if device.name in wanted]
        return NodeOffer(
            pool=catalog.node.pool,
            devices=catalog.by_name(),
            access={device.name: self._access(device) for device in cards},
            shared_access=self._shared_access(cards),
            enforcer=self.enforcer,
            enforces_hard=self.enforces_hard,
            rules=self.rules,
            boot_id=self.boot_id,
        )

    def _access(self, device: Device) -> CardAccess:
        if device.gpu.simulated:
            return CardAccess()
        if device.gpu.minor is None:
            raise RetryableError(f"{device.name}: the driver tells no minor number, expected one")
        return CardAccess(
            device_nodes=self.device_nodes.of_card(device.gpu.minor),
            toolkit_device=self.driver_files.toolkit_device(device.gpu.uuid),
        )

    def _shared_access(self, cards: Sequence[Device]) -> SharedAccess:
        """What every container with one of these cards needs besides the card's own nodes."""
        real = [device for device in cards if not device.gpu.simulated]
        if not real:
            return SharedAccess()
        # Either NVIDIA's toolkit brings the driver's libraries, or mounts do; a container with
        # neither could not use its card, and this fails.
        by_toolkit = all(self.driver_files.toolkit_device(d.gpu.uuid) for d in real)
        return SharedAccess(
            device_nodes=self.device_nodes.common(),
            driver_mounts=() if by_toolkit else self.driver_files.mounts(),
        )

"""Node facts needed to grant a container access to a card: device nodes, driver files, boot ID."""

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
    """Collector of the node facts that fit() needs to grant access to devices.

    Attributes:
        device_nodes: Finds the device nodes of cards.
        driver_files: Finds the libraries of the NVIDIA driver.
        enforcer: Name of the enforcer for new claims.
        rules: Rules for limits above requests.
        boot_id: ID of this boot.
        enforces_hard: True if the enforcer brings a limiter for hard isolation.
        describes_devices: True if containers of new claims get files with the metadata of their
            devices.
    """

    device_nodes: DeviceNodes
    driver_files: DriverFiles
    enforcer: str
    rules: LendingRules
    boot_id: str
    enforces_hard: bool = False
    describes_devices: bool = False

    def offer(self, catalog: Catalog, wanted: set[str]) -> NodeOffer:
        """Return what this node offers to a claim.

        Args:
            catalog: The node's devices.
            wanted: Names of the claim's devices; access is looked up for these only.

        Raises:
            RetryableError: A device node or library that a container with these devices needs is
                missing.
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
            describes_devices=self.describes_devices,
        )

    def _access(self, device: Device) -> CardAccess:
        if device.gpu.simulated:
            return CardAccess()
        if device.gpu.minor is None:
            raise RetryableError(f"{device.name}: found no minor number, expected one from NVML")
        return CardAccess(
            device_nodes=self.device_nodes.of_card(device.gpu.minor),
            toolkit_device=self.driver_files.toolkit_device(device.gpu.uuid),
        )

    def _shared_access(self, cards: Sequence[Device]) -> SharedAccess:
        """Return what a container with any of these cards needs besides each card's own nodes."""
        real = [device for device in cards if not device.gpu.simulated]
        if not real:
            return SharedAccess()
        # The driver's libraries come from NVIDIA's toolkit if it has every card, else from mounts.
        # A container with neither could not use its card, so mounts() raises if they are missing.
        by_toolkit = all(self.driver_files.toolkit_device(d.gpu.uuid) for d in real)
        return SharedAccess(
            device_nodes=self.device_nodes.common(),
            driver_mounts=() if by_toolkit else self.driver_files.mounts(),
        )

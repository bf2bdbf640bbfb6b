"""Cards of this node as claims use them: present or absent, and their device nodes in this boot."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from tensorfusion_dra.core.claims import device_metadata, prepared
from tensorfusion_dra.core.claims.admit import NodeFacts
from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.claims.lending import LendingRules
from tensorfusion_dra.core.claims.prepared import CardAccess, PreparedClaim, SharedAccess
from tensorfusion_dra.core.devices.device import Device
from tensorfusion_dra.core.devices.health import ProblemKind
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.driver.ports import DeviceNodes, DriverFiles
from tensorfusion_dra.driver.publish import Catalog, DeviceCatalog


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFactsReader:
    """Collector of the node facts that admit() needs to grant access to devices.

    Attributes:
        device_nodes: Finds the device nodes of cards.
        driver_files: Finds the libraries of the NVIDIA driver.
        rules: Rules for limits above requests.
        boot_id: ID of this boot.
        describes_devices: True if containers of new claims get files with the metadata of their
            devices.
        metadata_folder: Host folder of these files.
    """

    device_nodes: DeviceNodes
    driver_files: DriverFiles
    rules: LendingRules
    boot_id: str
    describes_devices: bool = False
    metadata_folder: str = ""

    def of_devices(self, catalog: Catalog, wanted: set[str]) -> NodeFacts:
        """Return what admit() has to know of this node for a claim with these devices.

        Args:
            catalog: The node's devices.
            wanted: Names of the claim's devices; access is looked up for these only.

        Raises:
            RetryableError: A device node or library that a container with these devices needs is
                missing.
        """
        cards = [device for device in catalog.devices if device.name in wanted]
        return NodeFacts(
            pool=catalog.node.pool,
            devices=catalog.by_name(),
            access={device.name: self._access(device) for device in cards},
            shared_access=self._shared_access(cards),
            rules=self.rules,
            boot_id=self.boot_id,
            describes_devices=self.describes_devices,
            metadata_folder=self.metadata_folder,
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


_FIRST_READ_SECONDS: Final = 10.0


class CardsUnreadError(RetryableError):
    """A claim needs the node's cards, which have not been read yet."""


@dataclass(frozen=True, slots=True)
class LocalCards:
    """The node's cards, for claims that are prepared or refreshed.

    Attributes:
        catalog: Lists the cards and their health.
        facts: Finds the device nodes and driver files of a card.
    """

    catalog: DeviceCatalog
    facts: NodeFactsReader

    def wait_for_catalog(self, ref: ClaimRef, deadline: float) -> Catalog:
        """Return the catalog; wait up to 10 seconds for the first one.

        After a failed call the kubelet waits for a minute or more before it calls again, so a short
        wait at startup saves a pod that minute.

        Args:
            ref: The claim, for the error text.
            deadline: On time.monotonic()'s clock; shortens the wait.

        Raises:
            CardsUnreadError: There is still none.
        """
        seconds = min(_FIRST_READ_SECONDS, deadline - time.monotonic())
        catalog = self.catalog.wait_changed(None, seconds=max(0.0, seconds), stopped=lambda: False)
        if catalog is None:
            raise CardsUnreadError(f"claim {ref}: {self.catalog.reason_missing()}")
        return catalog

    def check_present(self, ref: ClaimRef, devices: Iterable[str]) -> None:
        """Check that none of the devices is absent or has its NVIDIA driver replaced.

        Another unhealthy card passes: the claim tolerates the taint, or was allocated before it. No
        container can use an absent card, and one that used the driver would keep it loaded.

        Args:
            ref: The claim, for the error text.
            devices: Their names.

        Raises:
            RetryableError: One of the devices cannot be used now.
        """
        catalog = self.catalog.current()
        if catalog is None:
            return
        for device in devices:
            unhealthy = catalog.unhealthy.get(device)
            if unhealthy is not None and (
                device in catalog.absent or unhealthy.worst.kind is ProblemKind.REPLACED
            ):
                text = unhealthy.worst.text
                raise RetryableError(f"claim {ref}: {device}: {text}, expected a working GPU")

    def check_free(self, ref: ClaimRef, devices: Iterable[str]) -> None:
        """Check that no container has one of the devices from somebody else.

        Args:
            ref: The claim, for the error text.
            devices: Their names, without those that a claim only observes.

        Raises:
            RetryableError: One has.
        """
        used = self.catalog.cards_used_elsewhere()
        for device in devices:
            if device in used:
                raise RetryableError(
                    f"claim {ref}: {device}: found a container that has this GPU from "
                    f"{used[device]}, expected only claims of this driver"
                )

    def with_todays_access(self, record: PreparedClaim) -> PreparedClaim:
        """Return the record with the device nodes and mounts that its cards have now.

        After a reboot a card may have another minor number, or the NVIDIA driver other files. Then
        the metadata is replaced as well: another PCI address, another driver version. As long as
        the cards have not been read, a record of this boot is returned as it is.

        Raises:
            CardsUnreadError: The record is of an earlier boot, and the cards have not been read
                yet.
            RetryableError: One of the claim's cards is missing since a reboot, or a device node or
                driver file is missing.
        """
        rebooted = record.boot_id != self.facts.boot_id
        catalog = self.catalog.current()
        if catalog is None:
            if rebooted:
                raise CardsUnreadError(f"claim {record.ref}: {self.catalog.reason_missing()}")
            return record
        facts = self.facts.of_devices(catalog, {share.device for share in record.shares})
        missing = sorted({share.device for share in record.shares} - facts.access.keys())
        if rebooted and missing:
            # The device nodes in the record may be another card's by now.
            raise RetryableError(f"claim {record.ref}: {', '.join(missing)}: gone since a reboot")
        if not facts.access:
            return record
        if rebooted and record.metadata is not None:
            metadata = device_metadata.refreshed(record.metadata, facts.devices)
            record = replace(record, metadata=metadata)
        return prepared.refreshed(record, facts.access, facts.shared_access, boot_id=facts.boot_id)

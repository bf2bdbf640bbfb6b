"""Facts that a prepare needs before it decides: cards, pods, policies, signs of the enforcer.

All reading is done here. It may be slow: the first reading of the cards, the API server, a hung
enforcer. So it comes before the lock of the store is taken, and admit.py only computes.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final

import structlog

from tensorfusion_dra.core.claims import device_metadata, isolation, prepared, share_policy
from tensorfusion_dra.core.claims.admit import ClaimFacts, ContainerNeighbours
from tensorfusion_dra.core.claims.claim import AllocatedClaim, ClaimRef
from tensorfusion_dra.core.claims.lending import LendingRules
from tensorfusion_dra.core.claims.ports import DeviceNodes, DriverFiles, Pods
from tensorfusion_dra.core.claims.prepared import (
    CardAccess,
    Limit,
    PreparedClaim,
    Remains,
    SharedAccess,
)
from tensorfusion_dra.core.claims.share_policy import SharePolicy
from tensorfusion_dra.core.devices.device import Device, Node
from tensorfusion_dra.core.devices.gpu import Isolation, Qos
from tensorfusion_dra.core.devices.health import ProblemKind
from tensorfusion_dra.core.errors import ClaimError, RetryableError
from tensorfusion_dra.core.kubernetes import resource_claims
from tensorfusion_dra.driver.publish import Catalog, DeviceCatalog, OtherUsersReader
from tensorfusion_dra.enforcers import registered
from tensorfusion_dra.enforcers.choice import EnforcerChooser

log = structlog.get_logger()

_FIRST_READING_SECONDS: Final = 10.0
"""After a failed call the kubelet waits for a minute or more before it calls again, so a short wait
at startup saves a pod that minute."""

StoredPods = Mapping[str, Mapping[str, Any]]
"""Pods by namespace/name; those that are gone or replaced are empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CardFiles:
    """Finder of what a container needs of the host to use a card.

    Attributes:
        device_nodes: Finds the device nodes of cards.
        driver_files: Finds the libraries of the NVIDIA driver.
    """

    device_nodes: DeviceNodes
    driver_files: DriverFiles

    def access(self, devices: Iterable[Device]) -> tuple[Mapping[str, CardAccess], SharedAccess]:
        """Return the access to each of these devices, and what a container needs once.

        Raises:
            RetryableError: A device node or library that a container needs is missing.
        """
        cards: dict[str, CardAccess] = {}
        real = []
        for device in devices:
            cards[device.name] = CardAccess()
            if not device.gpu.simulated:
                if device.gpu.minor is None:
                    raise RetryableError(
                        f"{device.name}: found no minor number, expected one from NVML"
                    )
                toolkit_device = self.driver_files.toolkit_device(device.gpu.uuid)
                minors = device.gpu.capability_minors
                if device.gpu.partition and len(minors) != 2 and not toolkit_device:
                    raise RetryableError(
                        f"{device.name}: found no device nodes for its instances, expected their "
                        "numbers in /proc/driver/nvidia-caps/mig-minors"
                    )
                cards[device.name] = CardAccess(
                    device_nodes=self.device_nodes.of_card(device.gpu.minor, minors),
                    toolkit_device=toolkit_device,
                )
                real.append(cards[device.name])
        if not real:
            return cards, SharedAccess()
        # The driver's libraries come from NVIDIA's toolkit if it has every card, else from mounts.
        # A container with neither could not use its card, so mounts() raises if they are missing.
        by_toolkit = all(each.toolkit_device for each in real)
        mounts = () if by_toolkit else self.driver_files.mounts()
        return cards, SharedAccess(device_nodes=self.device_nodes.common(), driver_mounts=mounts)


@dataclass(frozen=True, slots=True, kw_only=True)
class FactsReader:
    """Reader of the facts of one claim at a time; safe for all threads.

    Attributes:
        catalog: Lists the cards and their health.
        other_users: Finds who else gave the cards to containers.
        files: Finds what containers need to use a card.
        pods: None if the driver has no permission to read pods.
        enforcer: Chooses the enforcer of new claims.
        rules: For limits above requests.
        isolation: Default for shares whose isolation no source sets, not even the node's pool.
        boot_id: ID of this boot.
        describes_devices: True if containers of new claims get files with the metadata of their
            devices.
    """

    catalog: DeviceCatalog
    other_users: OtherUsersReader
    files: CardFiles
    pods: Pods | None
    enforcer: EnforcerChooser
    rules: LendingRules
    isolation: Isolation
    boot_id: str
    describes_devices: bool = False

    def of_claim(
        self, claim: AllocatedClaim, remains: Remains | None, deadline: float
    ) -> ClaimFacts:
        """Return what admit.py has to know to prepare the claim.

        Args:
            claim: As allocated.
            remains: Of a claim whose record is damaged: its containers were started with these
                limits, under this enforcer.
            deadline: On time.monotonic()'s clock.

        Raises:
            ClaimError: The parameters or annotations of the claim, its class or a pod are
                malformed, or several containers of a pod would have the whole limit each.
            RetryableError: The cards are not known yet, one of the claim's cannot be used now, or
                something cannot be read.
        """
        catalog = self.catalog_for(claim.ref, deadline)
        wanted = {allocation.device for allocation in claim.allocations}
        check_present(claim.ref, wanted, catalog)
        used = self.other_users.holders(device.gpu for device in catalog.devices)
        for allocation in claim.allocations:
            if allocation.device in used and not allocation.admin_access:
                raise RetryableError(
                    f"claim {claim.ref}: {allocation.device}: found a container that has this GPU "
                    f"from {used[allocation.device]}, expected only claims of this driver"
                )

        @cache
        def stored_pods() -> StoredPods:
            pods = self.pods
            if pods is None:
                return {}
            return {
                str(pod): pods.find(pod, wait_seconds=deadline - time.monotonic()) or {}
                for pod in claim.pods
            }

        devices = catalog.by_name()
        policies = self._policies(claim, stored_pods, catalog.node)
        is_whole = isolation.takes_whole_cards(claim.allocations, devices)
        own = isolation.own_enforcer(claim, devices)
        choice = self.enforcer.of_new_claim(own=own, may_wait=not is_whole)
        enforcer = choice.enforcer
        shown: Mapping[tuple[str, str | None], Limit] = {}
        if remains is not None and remains.enforcer in self.rules.facts:
            enforcer, shown = remains.enforcer, remains.limits
        access, shared_access = self.files.access(
            device for device in catalog.devices if device.name in wanted
        )
        return ClaimFacts(
            pool=catalog.node.pool,
            devices=devices,
            access=access,
            shared_access=shared_access,
            enforcer=enforcer,
            hard_needs="" if choice.enforces_hard else registered.HARD_NEEDS,
            none_found=choice.none_found,
            unenforced=choice.unenforced,
            rules=self.rules,
            boot_id=self.boot_id,
            describes_devices=self.describes_devices,
            policies=policies,
            neighbours=self._neighbours(claim, policies, stored_pods, enforcer),
            group=claim.group,
            shown=shown,
        )

    def catalog_for(self, ref: ClaimRef, deadline: float) -> Catalog:
        """Return the catalog; wait up to 10 seconds for the first one.

        Args:
            ref: The claim, for the error text.
            deadline: On time.monotonic()'s clock; shortens the wait.

        Raises:
            RetryableError: There is still none.
        """
        seconds = max(0.0, min(_FIRST_READING_SECONDS, deadline - time.monotonic()))
        catalog = self.catalog.wait_changed(None, seconds=seconds, stopped=lambda: False)
        if catalog is None:
            raise RetryableError(f"claim {ref}: {self.catalog.reason_missing}")
        return catalog

    def today(self, record: PreparedClaim, deadline: float) -> PreparedClaim:
        """Return the record with the device nodes and mounts of this boot.

        After a reboot a card may have another minor number, or the NVIDIA driver other files. Then
        the metadata is replaced as well: another PCI address, another driver version. As long as
        the cards have not been read, a record of this boot stays as it is.

        Args:
            record: As it is recorded now.
            deadline: For a record of an earlier boot, which has to wait for the cards.

        Raises:
            RetryableError: The record is of an earlier boot and the cards are not known yet, one of
                them is gone since, or a device node or driver file is missing.
        """
        rebooted = record.boot_id != self.boot_id
        catalog = self.catalog_for(record.ref, deadline) if rebooted else self.catalog.current()
        names = {share.device for share in record.shares}
        devices = [each for each in catalog.devices if each.name in names] if catalog else []
        missing = sorted(names - {device.name for device in devices})
        if rebooted and missing:
            # The device nodes in the record may be another card's by now.
            raise RetryableError(f"claim {record.ref}: {', '.join(missing)}: gone since a reboot")
        access, shared = self.files.access(devices)
        if not access:
            return record
        if rebooted and record.metadata is not None:
            by_name = {device.name: device for device in devices}
            metadata = device_metadata.refreshed(record.metadata, by_name)
            record = replace(record, metadata=metadata)
        return prepared.refreshed(record, access, shared, boot_id=self.boot_id)

    def _policies(
        self, claim: AllocatedClaim, stored_pods: Callable[[], StoredPods], node: Node
    ) -> Sequence[SharePolicy]:
        """Return the policies of the claim's allocations, in the same order.

        The pods are read only if a value of some share is set neither by parameters nor by the
        claim's annotations. With the webhook these have all values.
        """

        def of_pods() -> Mapping[str, Mapping[str, str]]:
            if self.pods is not None and len(claim.pods) > 1:
                log.debug(
                    "shared_claim_uses_smallest_limits", claim=str(claim.ref), pods=len(claim.pods)
                )
            return {
                # Without those that this driver added: they are results and request nothing.
                pod: {
                    key: str(text)
                    for key, text in share_policy.original_annotations(stored).items()
                }
                for pod, stored in stored_pods().items()
            }

        defaults = SharePolicy(
            isolation=node.isolation or self.isolation,
            qos=Qos(node.qos),
            tflops_limit=None,
            vram_limit=None,
            limiter=True,
        )
        return share_policy.of_claim(claim, of_pods, defaults)

    def _neighbours(
        self,
        claim: AllocatedClaim,
        policies: Sequence[SharePolicy],
        stored_pods: Callable[[], StoredPods],
        enforcer: str,
    ) -> ContainerNeighbours:
        """Return the claims that share a container with this claim, as its pods list them.

        Some enforcers cannot keep two claims of one container apart (core/kubernetes/
        resource_claims.py explains why), so admit.py refuses the second one. No pod is read if the
        enforcer can tell the claim from others in a container.

        Example: container `train` uses the claims `a` and `b`, and the enforcer is HAMi-core. `a`
        is prepared. For `b` this returns `a`, and `b` is refused. If only the container `log` used
        `b`, this would return nothing, and both would be prepared.

        Raises:
            ClaimError: Several containers of a pod would have the whole limit each.
            RetryableError: A pod cannot be read now.
        """
        facts = self.rules.facts_of(enforcer)
        if not any(each.isolation in facts.mixed for each in policies):
            return ContainerNeighbours()
        if self.pods is None:
            return ContainerNeighbours(is_known=False)
        found: set[str] = set()
        is_counted = facts.counts_by_pid and any(
            each.limiter and each.isolation is not Isolation.SHARED for each in policies
        )
        for stored in filter(None, stored_pods().values()):
            together = resource_claims.containers_at_once(stored, claim.ref.name)
            if is_counted and together:
                raise ClaimError(
                    f"claim {claim.ref}: found containers {' and '.join(together)} that use it at "
                    "the same time, expected one, or shareProcessNamespace: true in the pod: "
                    "otherwise each would have the whole limit, because processes are told apart "
                    "by their PIDs"
                )
            found |= resource_claims.claims_sharing_a_container(stored, claim.ref.name)
        return ContainerNeighbours(frozenset(found))


def check_present(ref: ClaimRef, devices: Iterable[str], catalog: Catalog) -> None:
    """Check that none of the devices is absent or has its NVIDIA driver replaced.

    Another unhealthy card passes: the claim tolerates the taint, or was allocated before it. No
    container can use an absent card, and one that used the driver would keep it loaded.

    Args:
        ref: The claim, for the error text.
        devices: Their names.
        catalog: The node's cards.

    Raises:
        RetryableError: One of the devices cannot be used now.
    """
    for device in devices:
        unhealthy = catalog.unhealthy.get(device)
        if unhealthy is not None and (
            device in catalog.absent or unhealthy.worst.kind is ProblemKind.REPLACED
        ):
            text = unhealthy.worst.text
            raise RetryableError(f"claim {ref}: {device}: {text}, expected a working GPU")

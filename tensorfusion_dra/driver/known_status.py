"""What this process knows of the status of one claim."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

from tensorfusion_dra.core.claims import device_status
from tensorfusion_dra.core.claims.device_status import Readiness
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.devices.health import Sickness


@dataclass(slots=True, kw_only=True)
class KnownStatus:
    """State of a claim's status, as far as this process knows it.

    Attributes:
        since: Time of the claim's first report in this process.
        shares: Fingerprint of the shares that were reported last. None while their record waits,
            so that no call of the kubelet has to compute it.
        trouble: Why the claim's limits are not enforced; "" if they are.
        readiness: By device, as last reported. Kept for lastTransitionTime: a change of limits is
            no transition.
        entries: Hash of the entries last written; None if none were, or if a write may or may not
            have been made.
    """

    since: datetime
    shares: int | None = None
    trouble: str = ""
    readiness: Mapping[str, Readiness] | None = None
    entries: int | None = None

    def is_same(self, claim: PreparedClaim, trouble: str | None) -> bool:
        """Return True if the claim was reported last with these shares and this trouble."""
        if self.shares is None or trouble != self.trouble:
            return False
        return device_status.fingerprint(claim) == self.shares

    def update_readiness(
        self,
        claim: PreparedClaim,
        sick: Mapping[str, Sickness],
        now: Callable[[], datetime],
    ) -> Mapping[str, Readiness]:
        """Set and return the readiness; the start of a device's changes only with a transition.

        Args:
            claim: Its shares name the devices.
            sick: The unhealthy devices by name.
            now: Returns the wall clock's time.
        """
        earlier = self.readiness or {}
        readiness = {}
        for device in {share.device for share in claim.shares}:
            before = earlier.get(device, Readiness(since=self.since))
            sickness = sick.get(device)
            since = before.since
            if sickness is not None:
                since = sickness.since
            elif before.is_ready == bool(self.trouble) or before.sickness is not None:
                since = now()
            readiness[device] = Readiness(since=since, sickness=sickness, trouble=self.trouble)
        self.readiness = readiness
        return readiness

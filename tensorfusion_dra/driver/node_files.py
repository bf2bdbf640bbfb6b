"""Files of prepared claims: CDI specs, limits, device metadata, and folders for the enforcer.

They depend on the claim's record alone, so they can be rebuilt from it at any time.
"""

from collections.abc import Callable, Mapping, Sequence

from tensorfusion_dra.core.claims import cdi, device_metadata, documents
from tensorfusion_dra.core.claims import claim as claims
from tensorfusion_dra.core.claims import enforcer as enforcers
from tensorfusion_dra.core.claims.documents import Remains
from tensorfusion_dra.core.claims.enforcer import Enforcer
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.enforcers import choice
from tensorfusion_dra.state.claim_files import ClaimFiles
from tensorfusion_dra.state.host_files import HostFiles


class NodeFiles:
    """Writer of the claims' files, and of folders for their enforcers."""

    def __init__(
        self,
        specs: ClaimFiles,
        limits: ClaimFiles,
        metadata: ClaimFiles,
        host_files: HostFiles,
        enforcers: Mapping[str, Enforcer],
    ) -> None:
        self._specs = specs
        self._limits = limits
        self._metadata = metadata
        self._host_files = host_files
        self._enforcers = enforcers

    def ensure(self, claim: PreparedClaim) -> int:
        """Write what is missing or different; return the number of files written.

        The CDI spec is written last, so that a container that starts with it finds all the rest.

        Raises:
            ClaimError: The claim's enforcer is unknown or cannot express its limits, because
                settings changed or an earlier release took over. Nothing is written.
            RetryableError: A file that the claim's limits depend on is missing, or a folder cannot
                be written.
        """
        enforcer = enforcers.of_claim(claim, self._enforcers)
        needs = enforcer.needs(claim)
        spec = cdi.spec(claim, enforcer, metadata_folder=str(self._metadata.folder))
        if missing := self._host_files.missing(needs):
            raise RetryableError(choice.missing_error(enforcer, missing))
        self._host_files.provide(needs)
        uid = claim.ref.uid
        written = int(self._limits.ensure(uid, documents.limits_document(claim)))
        if claim.metadata is not None:
            for name, document in device_metadata.documents(claim, claim.metadata).items():
                written += self._metadata.ensure(name, document)
        return written + self._specs.ensure(uid, spec)

    def remove(
        self,
        claim_uid: str,
        claim: PreparedClaim | None,
        *,
        recorded: Callable[[], Sequence[PreparedClaim]] = tuple,
    ) -> None:
        """Remove the claim's files, and its folders unless another claim of its pods needs them.

        Args:
            claim_uid: UID of the claim.
            claim: The claim's record; None if there is none.
            recorded: Returns all recorded claims; called only if there are folders that claims of
                the same pods may use as well.

        Raises:
            RetryableError: A folder cannot be written.
        """
        self._specs.remove(claim_uid)
        self._limits.remove(claim_uid)
        if claim is not None:
            metadata = device_metadata.file_names(claim) if claim.metadata else ()
        else:  # without a record, they are looked up
            found = self._metadata.claim_uids()
            metadata = tuple(n for n in found if device_metadata.claim_uid(n) == claim_uid)
        for name in metadata:
            self._metadata.remove(name)
        own = enforcers.needs_of_record(claim, self._enforcers).folders if claim else ()
        if own:
            pods = {pod.name for pod in claim.pods} if claim else set()
            used = {
                folder
                for other in recorded()
                if other.ref.uid != claim_uid and not pods.isdisjoint(p.name for p in other.pods)
                for folder in enforcers.needs_of_record(other, self._enforcers).folders
            }
            for folder in own:
                if folder not in used:
                    self._host_files.remove(folder.path)
        for root in self._claims_roots():
            self._host_files.remove(f"{root}/{claim_uid}")

    def remove_unfinished(self) -> None:
        """Remove temporary files of crashed writes; a write that is running starts again.

        Raises:
            RetryableError: A folder cannot be read or written.
        """
        self._specs.remove_unfinished()
        self._limits.remove_unfinished()
        self._metadata.remove_unfinished()

    def delete_removed(self) -> Sequence[str]:
        """Delete what is left of removed folders; return why some of it cannot be deleted."""
        return self._host_files.delete_removed()

    def remains(self, claim_uid: str) -> Remains | None:
        """Return what the claim's limits document says; None if there is none of this claim.

        Raises:
            RetryableError: A folder cannot be read.
        """
        found = documents.remains(self._limits.read(claim_uid))
        return found if found is not None and found.ref.uid == claim_uid else None

    def devices_of(self, claim_uid: str) -> frozenset[str] | None:
        """Return the devices of a claim, as its limits document or else its CDI spec has them.

        None if neither says so.
        """
        try:
            found, spec = self.remains(claim_uid), self._specs.read(claim_uid)
        except RetryableError:
            return None
        return found.devices if found is not None else cdi.devices_of(spec)

    def claim_uids(self) -> frozenset[str]:
        """Return the UIDs of all claims that have a file or a folder.

        Raises:
            RetryableError: A folder cannot be read.
        """
        folders = [self._host_files.names(root) for root in self._claims_roots()]
        described = {device_metadata.claim_uid(name) for name in self._metadata.claim_uids()}
        found = self._specs.claim_uids().union(self._limits.claim_uids(), described, *folders)
        return frozenset(filter(claims.is_uid, found))

    def _claims_roots(self) -> list[str]:
        roots = (enforcer.claims_root for enforcer in self._enforcers.values())
        return [root for root in roots if root]

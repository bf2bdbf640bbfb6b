"""Target of a request, and checks that an object in its body belongs to it."""

from dataclasses import dataclass

from dra_simulator.api import failures
from dra_simulator.api.failures import ApiError
from dra_simulator.api.kinds import Kind
from dra_simulator.api.store import Stored
from dra_simulator.api.strategy import Json, part
from tensorfusion_dra.core.kubernetes.field_errors import FieldError


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Target of a request.

    Attributes:
        namespace: "" for cluster-scoped objects, and for lists across all namespaces.
        name: "" for lists and creates.
        subresource: "" for the object itself.
    """

    kind: Kind
    namespace: str = ""
    name: str = ""
    subresource: str = ""

    def missing(self) -> ApiError:
        """Return 404 for this object."""
        return failures.not_found(self.kind.plural, self.kind.group, self.name)

    def invalid(self, errors: list[FieldError]) -> ApiError:
        """Return 422 for this object."""
        return failures.invalid(self.kind.kind, self.kind.group, self.name, errors)

    def conflict(self, why: str) -> ApiError:
        """Return 409 for this object."""
        return failures.conflict(self.kind.plural, self.kind.group, self.name, why)

    def check_namespace(self, metadata: Json) -> None:
        """Check that the metadata names no other namespace than the request.

        Raises:
            ApiError: 400 if it does.
        """
        if self.kind.namespaced and metadata.get("namespace", self.namespace) != self.namespace:
            raise failures.bad_request(
                "the namespace of the provided object does not match the namespace sent on the"
                " request"
            )

    def check_identity(self, metadata: Json, before: Stored | None) -> None:
        """Check that the metadata belongs to the stored object in its current version.

        Args:
            before: Stored object; None to check only the name and the namespace.

        Raises:
            ApiError: 400 for another name or namespace, 409 for another UID or resourceVersion.
        """
        if metadata.get("name", self.name) != self.name:
            raise failures.bad_request(
                f"the name of the object ({metadata['name']}) does not match the name on the URL"
                f" ({self.name})"
            )
        self.check_namespace(metadata)
        if before is None:
            return
        uid = part(before.document, "metadata")["uid"]
        if metadata.get("uid") not in {None, "", uid}:
            raise self.conflict(
                f"StorageError: invalid object, Code: 4, Key: /registry/{self.kind.plural}/"
                f"{self.name}, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: UID"
                f" in precondition: {metadata['uid']}, UID in object meta: {uid}"
            )
        if metadata.get("resourceVersion") not in {None, "", str(before.version)}:
            raise failures.modified(self.kind.plural, self.kind.group, self.name)

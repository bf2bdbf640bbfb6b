"""Read-only checks of a cluster: objects, access reviews and dry-run writes."""

from collections.abc import Mapping
from typing import Any, Final

from tensorfusion_dra.cluster.api import Api, StatusError
from tensorfusion_dra.core.doctor.rights import Answer, Right
from tensorfusion_dra.core.errors import RetryableError

_REVIEWS: Final = "/apis/authorization.k8s.io/v1"
_WAIT_SECONDS: Final = 10.0
_FIELD_MANAGER: Final = "tensorfusion-dra-doctor"


class ClusterProbe:
    """Read-only client of the API server, for the doctor command. Use it from one thread."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def find(self, path: str) -> dict[str, Any] | None:
        """Return the object at a path; None if there is none.

        Raises:
            RetryableError: The API server did not answer, or the right to read is missing.
        """
        try:
            return self._api.call("GET", path, wait_seconds=_WAIT_SECONDS)
        except StatusError as error:
            if error.status == 404:
                return None
            raise

    def items(self, path: str, **query: str) -> list[dict[str, Any]] | None:
        """Return the objects of a collection; None if the API server does not have the kind.

        Raises:
            RetryableError: The API server did not answer, or the right to list is missing.
        """
        try:
            listed = self._api.call("GET", path, query=query, wait_seconds=_WAIT_SECONDS)
        except StatusError as error:
            if error.status == 404:
                return None
            raise
        items: list[dict[str, Any]] = listed.get("items") or []
        return items

    def dry_run(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Create an object in a dry run and return it as it would have been stored.

        Field validation is not strict: a field whose feature gate is off is dropped instead of
        rejected, and the caller sees in the result that it is missing.

        Raises:
            StatusError: The API server would not have stored it.
            RetryableError: The API server did not answer.
        """
        query = {"dryRun": "All", "fieldManager": _FIELD_MANAGER}
        return self._api.call("POST", path, query=query, body=body, wait_seconds=_WAIT_SECONDS)

    def review_access(self, right: Right, *, service_account: tuple[str, str] | None) -> Answer:
        """Return the result of an access review for a right.

        Args:
            right: A right without a namespace is reviewed for all namespaces.
            service_account: Namespace and name of the service account to review; None reviews the
                caller's own rights.

        Raises:
            RetryableError: The API server did not answer, or the right to review is missing.
        """
        resource, _, subresource = right.resource.partition("/")
        wanted = {
            "verb": right.verb,
            "group": right.group,
            "resource": resource,
            "subresource": subresource,
            "name": right.name,
            "namespace": right.namespace,
        }
        spec: dict[str, Any] = {
            "resourceAttributes": {key: value for key, value in wanted.items() if value}
        }
        kind = "SelfSubjectAccessReview"
        if service_account is not None:
            kind = "SubjectAccessReview"
            spec |= _identity(*service_account)
        body = {"apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": spec}
        path = f"{_REVIEWS}/{kind.lower()}s"
        reviewed = self._api.call("POST", path, body=body, wait_seconds=_WAIT_SECONDS)
        status = reviewed.get("status")
        if not isinstance(status, dict) or "allowed" not in status:
            raise RetryableError(f"{path}: found no status.allowed in the answer")
        return Answer(right, bool(status["allowed"]), str(status.get("reason") or ""))


def _identity(namespace: str, name: str) -> dict[str, Any]:
    """Return the user and groups of a service account, as fields of a SubjectAccessReview spec."""
    return {
        "user": f"system:serviceaccount:{namespace}:{name}",
        "groups": [
            "system:serviceaccounts",
            f"system:serviceaccounts:{namespace}",
            "system:authenticated",
        ],
    }

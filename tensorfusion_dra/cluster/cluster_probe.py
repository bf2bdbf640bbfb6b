"""A look at a cluster that changes nothing: objects, rights, and writes on trial."""

from collections.abc import Mapping
from typing import Any, Final

from tensorfusion_dra.cluster.api import Api, StatusError
from tensorfusion_dra.core.doctor.required_rights import Right
from tensorfusion_dra.core.doctor.rights import Answer
from tensorfusion_dra.core.errors import RetryableError

_REVIEWS: Final = "/apis/authorization.k8s.io/v1"
_WAIT_SECONDS: Final = 10.0
_FIELD_MANAGER: Final = "tensorfusion-dra-doctor"


class ClusterProbe:
    """Asks the API server; for one thread."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def find(self, path: str) -> dict[str, Any] | None:
        """The object at a path, or None.

        Raises:
            RetryableError: There is no answer, or no right to one.
        """
        try:
            return self._api.call("GET", path, wait_seconds=_WAIT_SECONDS)
        except StatusError as error:
            if error.status == 404:
                return None
            raise

    def items(self, path: str, **query: str) -> list[dict[str, Any]] | None:
        """The objects of a collection; None if the API server does not have the kind.

        Raises:
            RetryableError: There is no answer, or no right to one.
        """
        try:
            listed = self._api.call("GET", path, query=query, wait_seconds=_WAIT_SECONDS)
        except StatusError as error:
            if error.status == 404:
                return None
            raise
        items: list[dict[str, Any]] = listed.get("items") or []
        return items

    def tried(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """The object as it would have been stored; nothing is.

        Unknown fields are taken as the API server takes them from old clients, since a gate that
        is off is to be seen, and not an error about it.

        Raises:
            StatusError: It would not have been stored.
            RetryableError: There is no answer.
        """
        query = {"dryRun": "All", "fieldManager": _FIELD_MANAGER}
        return self._api.call("POST", path, query=query, body=body, wait_seconds=_WAIT_SECONDS)

    def answers(self, right: Right, *, service_account: tuple[str, str] | None) -> Answer:
        """Whether one has a right.

        Args:
            right: In all namespaces if it names none.
            service_account: Namespace and name of whom is asked about; None for whoever asks.

        Raises:
            RetryableError: There is no answer, or no right to one.
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
    """A service account as the API server knows it."""
    return {
        "user": f"system:serviceaccount:{namespace}:{name}",
        "groups": [
            "system:serviceaccounts",
            f"system:serviceaccounts:{namespace}",
            "system:authenticated",
        ],
    }

"""One-time lists of whole collections, in pages, so that a large cluster fits into the answers."""

from functools import cached_property
from typing import Any, Final

from tensorfusion_dra.cluster.api import Api, StatusError
from tensorfusion_dra.cluster.resource_api import ResourceApi
from tensorfusion_dra.core.doctor import kubernetes

_PAGE: Final = "500"
_NOT_FOUND: Final = 404
_FORBIDDEN: Final = 403
_EXPIRED: Final = 410
_FIRST_MINOR_WITH_TAINT_RULES: Final = 37
"""The first one that has DeviceTaintRules by default, and in v1."""


class ClusterLists:
    """Reader of the cluster's objects with the rights of whoever runs the command.

    Attributes:
        unreadable: What could not be read for want of a right, as texts.
    """

    def __init__(self, api: Api) -> None:
        self._api = api
        self.resource_api: Final = ResourceApi(api)
        self.unreadable: Final[list[str]] = []

    def slices(self, **query: str) -> list[dict[str, Any]]:
        """Return the ResourceSlices."""
        return self.items(self.resource_api.slices(), **query)

    def claims(self) -> list[dict[str, Any]]:
        """Return the ResourceClaims of all namespaces."""
        return self.items(self.resource_api.claims())

    @cached_property
    def minor_version(self) -> int | None:
        """36 for Kubernetes 1.36; None if the API server's version is none of Kubernetes 1."""
        return kubernetes.minor_version(str((self.find("/version") or {}).get("gitVersion", "")))

    def taint_rules(self) -> list[dict[str, Any]]:
        """Return the DeviceTaintRules; none without the right, or before Kubernetes 1.37."""
        if (self.minor_version or 0) < _FIRST_MINOR_WITH_TAINT_RULES:
            return []
        return self.readable_items(self.path("devicetaintrules"), "DeviceTaintRules") or []

    def path(self, plural: str, *, namespace: str = "", name: str = "") -> str:
        """Return a path of resource.k8s.io."""
        parts = [f"/apis/{self.resource_api.api_version()}"]
        parts += [f"namespaces/{namespace}"] if namespace else []
        return "/".join([*parts, plural, *([name] if name else [])])

    def items(self, path: str, **query: str) -> list[dict[str, Any]]:
        """Return the objects of a collection; none if the API server does not have the kind.

        Raises:
            RetryableError: The API server did not answer, or the right to list is missing.
        """
        found: list[dict[str, Any]] = []
        page = ""
        while True:
            asked = {**query, "limit": _PAGE, **({"continue": page} if page else {})}
            try:
                listed = self._api.call("GET", path, query=asked)
            except StatusError as error:
                if error.status == _NOT_FOUND:
                    return []
                if error.status == _EXPIRED and page:  # the list took longer than etcd keeps it
                    return list(self._api.call("GET", path, query=query).get("items") or [])
                raise
            found += listed.get("items") or []
            page = str((listed.get("metadata") or {}).get("continue") or "")
            if not page:
                return found

    def find(self, path: str) -> dict[str, Any] | None:
        """Return the object at a path; None if there is none.

        Raises:
            RetryableError: The API server did not answer, or the right to read is missing.
        """
        try:
            return self._api.call("GET", path)
        except StatusError as error:
            if error.status == _NOT_FOUND:
                return None
            raise

    def find_readable(self, path: str, what: str) -> dict[str, Any] | None:
        """Return the object at a path; None, with a note, if the right to read it is missing.

        Raises:
            RetryableError: The API server did not answer.
        """
        try:
            return self.find(path)
        except StatusError as error:
            if error.status != _FORBIDDEN:
                raise
            self._note(f"{what} (no right to get them)")
            return None

    def readable_items(self, path: str, what: str, **query: str) -> list[dict[str, Any]] | None:
        """Return the objects of a collection; None, with a note, if the right to list is missing.

        Args:
            what: Name of the objects in the note.

        Raises:
            RetryableError: The API server did not answer.
        """
        try:
            return self.items(path, **query)
        except StatusError as error:
            if error.status != _FORBIDDEN:
                raise
            self._note(f"{what} (no right to list them)")
            return None

    def _note(self, text: str) -> None:
        if text not in self.unreadable:
            self.unreadable.append(text)

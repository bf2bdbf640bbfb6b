"""One-time reads of a cluster for commands, with the permissions of whoever runs them.

Whole collections are read in pages, so that a large cluster fits into the answers.
"""

import re
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from http.client import HTTPException
from typing import Any, Final, TypeVar

from tensorfusion_dra.cluster.api import READ_SECONDS, Api, resource_path
from tensorfusion_dra.cluster.watch import TAINT_RULES
from tensorfusion_dra.core import printable
from tensorfusion_dra.core.errors import RetryableError, StatusError

Found = TypeVar("Found")

TAINT_RULES_MINOR: Final = 37
"""First minor version of Kubernetes whose API server serves DeviceTaintRules by default, in v1."""


def minor_version(text: str) -> int | None:
    """Return 36 for v1.36.2 and 1.36+; None if the text is not a version of Kubernetes 1."""
    found = re.match(r"v?1\.([0-9]+)", text)
    return int(found[1]) if found else None


class ClusterLists:
    """Reader of the cluster's objects with the permissions of whoever runs the command.

    Use it from one thread. It changes nothing: its writes are dry runs.

    Attributes:
        unreadable: What could not be read for want of a permission, as texts.
    """

    def __init__(
        self, api: Api, *, wait_seconds: float = READ_SECONDS, release: int | None = None
    ) -> None:
        """Args:
        wait_seconds: For each request.
        release: Minor version to assume; None for that of the cluster.
        """
        self.api: Final = api
        self._release: Final = release
        self._wait_seconds: Final = wait_seconds
        self.unreadable: Final[list[str]] = []

    def slices(self, **query: str) -> list[dict[str, Any]]:
        """Return the ResourceSlices."""
        return self.items(resource_path("resourceslices"), **query)

    def claims(self) -> list[dict[str, Any]]:
        """Return the ResourceClaims of all namespaces."""
        return self.items(resource_path("resourceclaims"))

    @cached_property
    def _versions(self) -> dict[str, Any]:
        return self.find("/version") or {}

    @property
    def version(self) -> str:
        """The API server's version, such as v1.36.2; "" if it does not say."""
        return str(self._versions.get("gitVersion", ""))

    @property
    def minor_version(self) -> int | None:
        """36 for Kubernetes 1.36; None if the API server's version is none of Kubernetes 1.

        While a cluster is upgraded, a newer API server may emulate the version before.
        """
        minor = self._release or self._versions.get("emulationMinor")
        return minor_version(f"1.{minor}" if minor else self.version)

    def taint_rules(self) -> list[dict[str, Any]]:
        """Return the DeviceTaintRules; none without the permission, or before Kubernetes 1.37."""
        if (self.minor_version or 0) < TAINT_RULES_MINOR:
            return []
        return self.readable_items(TAINT_RULES, "DeviceTaintRules") or []

    def items(self, path: str, **query: str) -> list[dict[str, Any]]:
        """Return the objects of a collection; none if the API server does not have the kind.

        Raises:
            RetryableError: The API server did not answer, or permission to list is missing.
        """
        return self.items_if_served(path, **query) or []

    def items_if_served(self, path: str, **query: str) -> list[dict[str, Any]] | None:
        """Return the objects of a collection; None if the API server does not have the kind.

        Raises:
            RetryableError: The API server did not answer, or permission to list is missing.
        """
        try:
            # Whole: this reader is a command that somebody runs, and ends with it.
            return self.api.listed(path, dict, query=query, wait_seconds=self._wait_seconds).items
        except StatusError as error:
            if error.status != 404:
                raise
            return None

    def find(self, path: str) -> dict[str, Any] | None:
        """Return the object at a path; None if there is none.

        Raises:
            RetryableError: The API server did not answer, or permission to read is missing.
        """
        return self.api.find(path, wait_seconds=self._wait_seconds)

    def find_readable(self, path: str, what: str) -> dict[str, Any] | None:
        """Return the object at a path; None, with a note, if permission to read it is missing.

        Raises:
            RetryableError: The API server did not answer.
        """
        return self._readable(partial(self.find, path), f"{what} (no right to get them)")

    def readable_items(self, path: str, what: str, **query: str) -> list[dict[str, Any]] | None:
        """Return the objects of a collection; None, with a note, if permission to list is missing.

        Args:
            what: Name of the objects in the note.

        Raises:
            RetryableError: The API server did not answer.
        """
        return self._readable(partial(self.items, path, **query), f"{what} (no right to list them)")

    def _readable(self, read: Callable[[], Found | None], note: str) -> Found | None:
        try:
            return read()
        except StatusError as error:
            if error.status != 403:
                raise
            if note not in self.unreadable:
                self.unreadable.append(note)
            return None

    def end_of_log(self, pod: Mapping[str, Any], container: str, *, previous: bool) -> str:
        """Return the last line of a container's log.

        Without a log, or without the right to read it, the error takes the place of the line.

        Args:
            previous: True for the log before the last restart.
        """
        path = "/api/v1/namespaces/{namespace}/pods/{name}/log".format_map(pod["metadata"])
        query = {"container": container, "tailLines": "1", "limitBytes": "4096"}
        query |= {"previous": "true"} if previous else {}
        try:
            sent = self.api.send("GET", path, query=query, wait_seconds=self._wait_seconds)
            return printable.one_line(sent.body().decode(errors="replace").strip())
        except (RetryableError, HTTPException, OSError) as error:
            return printable.one_line(error)

    def dry_run(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Create an object in a dry run and return it as it would have been stored.

        Field validation is not strict: a field whose feature gate is off is dropped instead of
        rejected, and the caller sees in the result that it is missing.

        Raises:
            StatusError: The API server would not have stored it.
            RetryableError: The API server did not answer.
        """
        return self.api.call(
            "POST",
            path,
            query={"dryRun": "All", "fieldManager": "tensorfusion-dra-doctor"},
            body=body,
            wait_seconds=self._wait_seconds,
        )

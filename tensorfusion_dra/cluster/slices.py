"""This node's ResourceSlices."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from tensorfusion_dra.cluster.api import StatusError
from tensorfusion_dra.cluster.resource_api import ResourceApi
from tensorfusion_dra.core import names
from tensorfusion_dra.core.slices import Slice

_FIELD_MANAGER: Final = "tensorfusion-dra"


class Slices:
    """See ports.Slices."""

    def __init__(self, resource_api: ResourceApi, *, node_name: str) -> None:
        self._resource_api = resource_api
        # The Node authorizer and the admission policy let a node see its own slices only.
        self.selector = f"spec.driver={names.DRIVER},spec.nodeName={node_name}"

    def fetch(self) -> Sequence[Slice]:
        """See ports.Slices."""
        listed = self._resource_api.api.call(
            "GET", self._resource_api.slices(), query={"fieldSelector": self.selector}
        )
        items: list[Slice] = listed.get("items") or []
        return items

    def create(self, item: Slice, *, trial: bool = False) -> Slice:
        """See ports.Slices."""
        return self._write("POST", self._resource_api.slices(), item, trial=trial)

    def replace(self, item: Slice, *, trial: bool = False) -> Slice:
        """See ports.Slices. Its resourceVersion turns a foreign write meanwhile into a conflict."""
        path = self._resource_api.slices(item["metadata"]["name"])
        return self._write("PUT", path, item, trial=trial)

    def delete(self, item: Slice) -> None:
        """See ports.Slices."""
        metadata = item["metadata"]
        preconditions = {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}
        try:
            self._resource_api.api.call(
                "DELETE",
                self._resource_api.slices(metadata["name"]),
                body={"preconditions": preconditions},
            )
        except StatusError as error:
            if error.status != 404:
                raise

    def _write(self, method: str, path: str, item: Slice, *, trial: bool) -> Slice:
        query = {"fieldValidation": "Strict", "fieldManager": _FIELD_MANAGER}
        if trial:
            query["dryRun"] = "All"
        body: Mapping[str, Any] = {
            **item,
            "apiVersion": self._resource_api.api_version(),
            "kind": "ResourceSlice",
        }
        return self._resource_api.api.call(method, path, query=query, body=body)

"""OpenAPI v3 documents with what kubectl looks for before it creates, applies or patches.

It asks whether the server validates fields: whether the PATCH operation of the kind takes the
parameter fieldValidation. How a patch merges the lists of the built-in kinds it knows by itself.
There are no schemas, so `kubectl explain` has nothing to show.
"""

import hashlib
from collections.abc import Mapping
from functools import cached_property
from typing import Final

from dra_simulator.api import kinds, rendering
from dra_simulator.api.kinds import Json, Kind

_ROOT: Final = "/openapi/v3"
_GVK: Final = "x-kubernetes-group-version-kind"
_PARAMETERS: Final = ("dryRun", "fieldManager", "fieldValidation", "force")


class OpenApi:
    """OpenAPI v3 index, and the document of each group version.

    Attributes:
        versions: Served versions of each group.
    """

    def __init__(self, versions: Mapping[str, tuple[str, ...]]) -> None:
        self.versions: Final = versions

    def document(self, path: str) -> str | None:
        """Return the text at a path such as ``/openapi/v3/api/v1``; None if there is none."""
        if path.rstrip("/") != _ROOT:
            return self._documents.get(path.removeprefix(f"{_ROOT}/").rstrip("/"))
        found = {
            name: hashlib.sha256(text.encode()).hexdigest()
            for name, text in self._documents.items()
        }
        paths = {
            name: {"serverRelativeURL": f"{_ROOT}/{name}?hash={digest}"}
            for name, digest in found.items()
        }
        return rendering.text({"paths": paths})

    @cached_property
    def _documents(self) -> dict[str, str]:
        """Documents by the path of their group version, such as ``apis/resource.k8s.io/v1``."""
        return {
            f"{'apis' if group else 'api'}/{kinds.api_version(group, version)}": rendering.text(
                {
                    "openapi": "3.0.0",
                    "info": {"title": "Simulated Kubernetes", "version": "unversioned"},
                    "paths": {
                        f"/{kind.plural}/{{name}}": {"patch": _patch(kind, version)}
                        for kind in kinds.KINDS
                        if kind.group == group
                    },
                    "components": {"schemas": {}},
                }
            )
            for group, versions in self.versions.items()
            for version in versions
        }


def _patch(kind: Kind, version: str) -> Json:
    return {
        "parameters": [
            {"name": name, "in": "query", "schema": {"type": "string"}} for name in _PARAMETERS
        ],
        "responses": {"200": {"description": "OK"}},
        _GVK: {"group": kind.group, "version": version, "kind": kind.kind},
    }

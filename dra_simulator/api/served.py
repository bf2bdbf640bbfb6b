"""Kinds and versions that a server serves, and its discovery documents."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from dra_simulator.api import kinds
from dra_simulator.api.kinds import KINDS, Json, Kind

VERSION: Final = {
    "major": "1",
    "minor": "36",
    "gitVersion": "v1.36.2",
    "gitTreeState": "clean",
    "platform": "linux/amd64",
}

_VERBS: Final = [
    "create",
    "delete",
    "deletecollection",
    "get",
    "list",
    "patch",
    "update",
    "watch",
]


@dataclass(frozen=True, slots=True)
class Served:
    """Group versions that a server serves.

    Attributes:
        versions: Versions of each group, the preferred one first.
    """

    versions: Mapping[str, tuple[str, ...]]

    def kind(self, group: str, version: str, plural: str) -> Kind | None:
        """Return the resource, or None if it is not served."""
        if version not in self.versions.get(group, ()):
            return None
        found = (kind for kind in KINDS if (kind.group, kind.plural) == (group, plural))
        return next(found, None)

    def discovery(self, path: str) -> Json | None:
        """Return the document at a path such as ``/apis/resource.k8s.io``; None if it has none."""
        document: Json | None = None
        match path.strip("/").split("/"):
            case ["version"]:
                document = dict(VERSION)
            case ["api"]:
                document = {"kind": "APIVersions", "versions": list(self.versions[""])}
            case ["api", version] if version in self.versions[""]:
                document = self._resource_list("", version)
            case ["apis"]:
                groups = [self._group(group) for group in self.versions if group]
                document = {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
            case ["apis", group] if group in self.versions:
                document = {"kind": "APIGroup", "apiVersion": "v1", **self._group(group)}
            case ["apis", group, version] if version in self.versions.get(group, ()):
                document = self._resource_list(group, version)
            case _:
                pass
        return document

    def _group(self, group: str) -> Json:
        versions = [
            {"groupVersion": f"{group}/{version}", "version": version}
            for version in self.versions[group]
        ]
        return {"name": group, "versions": versions, "preferredVersion": versions[0]}

    def _resource_list(self, group: str, version: str) -> Json:
        resources: list[Json] = []
        for kind in KINDS:
            if kind.group != group:
                continue
            entry: Json = {
                "name": kind.plural,
                "singularName": kind.singular,
                "namespaced": kind.namespaced,
                "kind": kind.kind,
                "verbs": _VERBS,
            }
            if kind.short_names:
                entry["shortNames"] = list(kind.short_names)
            if kind.categories:
                entry["categories"] = list(kind.categories)
            resources.append(entry)
            for subresource, verbs in kind.subresources.items():
                resources.append(
                    {
                        "name": f"{kind.plural}/{subresource}",
                        "singularName": "",
                        "namespaced": kind.namespaced,
                        "kind": "Binding" if subresource == "binding" else kind.kind,
                        "verbs": list(verbs),
                    }
                )
        return {
            "kind": "APIResourceList",
            "apiVersion": "v1",
            "groupVersion": kinds.api_version(group, version),
            "resources": resources,
        }

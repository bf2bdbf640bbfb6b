"""Resources that the simulated API server can serve, and the documents that describe them.

Of OpenAPI there is only what kubectl reads before it creates, applies or patches: whether the PATCH
operation of the kind takes the parameter fieldValidation. How a patch merges the lists of built-in
kinds it knows by itself. There are no schemas, so `kubectl explain` has nothing to show.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from tensorfusion_dra.core.kubernetes import releases
from tensorfusion_dra.core.names import TENSOR_FUSION_GROUP

Json = dict[str, object]

RESOURCE_GROUP: Final = "resource.k8s.io"
ADMISSION_GROUP: Final = "admissionregistration.k8s.io"
MUTATING: Final = "mutatingwebhookconfigurations"
VALIDATING: Final = "validatingwebhookconfigurations"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One resource.

    Attributes:
        struct: Name of its struct in the schema.
        subresources: Verbs that each subresource supports.
        categories: Names of groups of kinds, such as ``all``, that clients list together.
        selectable: Paths of the fields, besides metadata's, that a field selector may name.
        has_generation: metadata.generation counts changes of the spec.
        renamed: Stored name of each field that has another name in this kind.
    """

    group: str
    plural: str
    singular: str
    kind: str
    struct: str
    namespaced: bool
    subresources: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    selectable: tuple[str, ...] = ()
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    has_generation: bool = False
    renamed: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_custom(self) -> bool:
        """Return True if a CustomResourceDefinition defines the kind."""
        return self.struct == "CustomResource"

    @property
    def storage(self) -> str:
        """Name under which its objects are stored; both groups of events share one."""
        return self.plural

    def inward(self, document: Json) -> Json:
        """Return a document with its fields renamed to their stored names."""
        return {self.renamed.get(name, name): value for name, value in document.items()}

    def outward(self, document: Json) -> Json:
        """Return a stored document with its fields renamed to those of this kind."""
        names = {stored: name for name, stored in self.renamed.items()}
        return {names.get(name, name): value for name, value in document.items()}


_VERBS: Final = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
_STATUS: Final = {"status": ("get", "patch", "update")}
_EVENT_FIELDS: Final = (
    "involvedObject.kind",
    "involvedObject.namespace",
    "involvedObject.name",
    "involvedObject.uid",
    "involvedObject.apiVersion",
    "involvedObject.resourceVersion",
    "involvedObject.fieldPath",
    "reason",
    "reportingComponent",
    "type",
)
KINDS: Final = (
    Kind(
        group="",
        plural="namespaces",
        singular="namespace",
        kind="Namespace",
        struct="Namespace",
        namespaced=False,
        subresources=_STATUS,
        selectable=("status.phase",),
        short_names=("ns",),
    ),
    Kind(
        group="",
        plural="nodes",
        singular="node",
        kind="Node",
        struct="Node",
        namespaced=False,
        subresources=_STATUS,
        selectable=("spec.unschedulable",),
        short_names=("no",),
    ),
    Kind(
        group="",
        plural="pods",
        singular="pod",
        kind="Pod",
        struct="Pod",
        namespaced=True,
        subresources={**_STATUS, "binding": ("create",)},
        selectable=(
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "status.phase",
            "status.podIP",
            "status.nominatedNodeName",
        ),
        short_names=("po",),
        categories=("all",),
        has_generation=True,
    ),
    Kind(
        group="",
        plural="events",
        singular="event",
        kind="Event",
        struct="CoreEvent",
        namespaced=True,
        selectable=_EVENT_FIELDS,
        short_names=("ev",),
    ),
    Kind(
        group="events.k8s.io",
        plural="events",
        singular="event",
        kind="Event",
        struct="CoreEvent",
        renamed={
            "regarding": "involvedObject",
            "note": "message",
            "reportingController": "reportingComponent",
            "deprecatedSource": "source",
            "deprecatedFirstTimestamp": "firstTimestamp",
            "deprecatedLastTimestamp": "lastTimestamp",
            "deprecatedCount": "count",
        },
        namespaced=True,
        short_names=("ev",),
    ),
    Kind(
        group=RESOURCE_GROUP,
        plural="deviceclasses",
        singular="deviceclass",
        kind="DeviceClass",
        struct="DeviceClass",
        namespaced=False,
        has_generation=True,
    ),
    Kind(
        group=RESOURCE_GROUP,
        plural="devicetaintrules",
        singular="devicetaintrule",
        kind="DeviceTaintRule",
        struct="DeviceTaintRule",
        namespaced=False,
        subresources=_STATUS,
        has_generation=True,
    ),
    Kind(
        group=RESOURCE_GROUP,
        plural="resourceclaims",
        singular="resourceclaim",
        kind="ResourceClaim",
        struct="ResourceClaim",
        namespaced=True,
        subresources=_STATUS,
    ),
    Kind(
        group=RESOURCE_GROUP,
        plural="resourceclaimtemplates",
        singular="resourceclaimtemplate",
        kind="ResourceClaimTemplate",
        struct="ResourceClaimTemplate",
        namespaced=True,
    ),
    Kind(
        group=RESOURCE_GROUP,
        plural="resourceslices",
        singular="resourceslice",
        kind="ResourceSlice",
        struct="ResourceSlice",
        namespaced=False,
        selectable=("spec.nodeName", "spec.driver", "spec.pool.name"),
        has_generation=True,
    ),
    Kind(
        group=TENSOR_FUSION_GROUP,
        plural="gpupools",
        singular="gpupool",
        kind="GPUPool",
        struct="CustomResource",
        namespaced=False,
        subresources=_STATUS,
        has_generation=True,
    ),
    Kind(
        group=TENSOR_FUSION_GROUP,
        plural="schedulingconfigtemplates",
        singular="schedulingconfigtemplate",
        kind="SchedulingConfigTemplate",
        struct="CustomResource",
        namespaced=False,
        subresources=_STATUS,
        has_generation=True,
    ),
    Kind(
        group=TENSOR_FUSION_GROUP,
        plural="gpuresourcequotas",
        singular="gpuresourcequota",
        kind="GPUResourceQuota",
        struct="CustomResource",
        namespaced=True,
        subresources=_STATUS,
        has_generation=True,
    ),
    *(
        Kind(
            group=ADMISSION_GROUP,
            plural=f"{kind.lower()}s",
            singular=kind.lower(),
            kind=kind,
            struct="WebhookConfiguration",
            namespaced=False,
        )
        for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
    ),
)


def api_version(group: str, version: str) -> str:
    """Return ``resource.k8s.io/v1``, or the bare version for the core group."""
    return f"{group}/{version}" if group else version


@dataclass(frozen=True, slots=True)
class Served:
    """Group versions that a server serves.

    Attributes:
        versions: Versions of each group, the preferred one first.
        release: Minor version of Kubernetes that the server reports.
    """

    versions: Mapping[str, tuple[str, ...]]
    release: int = releases.SIMULATED

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
                document = {
                    "major": "1",
                    "minor": str(self.release),
                    "gitVersion": f"v1.{self.release}.0",
                    "gitTreeState": "clean",
                    "platform": "linux/amd64",
                }
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
            case ["openapi", "v3"]:
                served = [
                    f"{'apis' if group else 'api'}/{api_version(group, version)}"
                    for group, versions in self.versions.items()
                    for version in versions
                ]
                paths = {name: {"serverRelativeURL": f"/openapi/v3/{name}"} for name in served}
                document = {"paths": paths}
            case ["openapi", "v3", "api", version] if version in self.versions[""]:
                document = _openapi("", version)
            case ["openapi", "v3", "apis", group, version] if version in self.versions.get(
                group, ()
            ):
                document = _openapi(group, version)
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
            "groupVersion": api_version(group, version),
            "resources": resources,
        }


def _openapi(group: str, version: str) -> Json:
    names = ("dryRun", "fieldManager", "fieldValidation", "force")
    schema = {"type": "string"}
    parameters = [{"name": name, "in": "query", "schema": schema} for name in names]
    return {
        "openapi": "3.0.0",
        "info": {"title": "Simulated Kubernetes", "version": "unversioned"},
        "paths": {
            f"/{kind.plural}/{{name}}": {
                "patch": {
                    "parameters": parameters,
                    "responses": {"200": {"description": "OK"}},
                    "x-kubernetes-group-version-kind": {
                        "group": group,
                        "version": version,
                        "kind": kind.kind,
                    },
                }
            }
            for kind in KINDS
            if kind.group == group
        },
        "components": {"schemas": {}},
    }

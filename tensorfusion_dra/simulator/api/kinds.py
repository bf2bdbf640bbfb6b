"""The resources that the simulated API server can serve."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from tensorfusion_dra.core.names import TENSOR_FUSION_GROUP

Json = dict[str, object]

RESOURCE_GROUP: Final = "resource.k8s.io"
ADMISSION_GROUP: Final = "admissionregistration.k8s.io"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One resource.

    Attributes:
        struct: Its name in the schema.
        subresources: With the verbs that each takes.
        categories: Names of groups of kinds, such as ``all``, that clients list together.
        selectable: The fields, beside metadata's, that a field selector may name; each by its path.
        has_generation: Its strategy counts spec changes.
        answers_deleted: A delete answers the object that is gone, not a Status.
        renamed: Fields by another name than they are stored under, with that name.
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
    answers_deleted: bool = True
    renamed: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_custom(self) -> bool:
        """Whether a CustomResourceDefinition defines it."""
        return self.struct == "CustomResource"

    @property
    def storage(self) -> str:
        """Under which word its objects are stored; the events of both groups are the same."""
        return self.plural

    def inward(self, document: Json) -> Json:
        """A document with its fields named as they are stored."""
        return {self.renamed.get(name, name): value for name, value in document.items()}

    def outward(self, document: Json) -> Json:
        """A stored document with its fields named as this kind names them."""
        names = {stored: name for name, stored in self.renamed.items()}
        return {names.get(name, name): value for name, value in document.items()}


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
    "source",
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
        answers_deleted=False,
    ),
    Kind(
        group="",
        plural="pods",
        singular="pod",
        kind="Pod",
        struct="Pod",
        namespaced=True,
        subresources={**_STATUS, "binding": ("create",), "log": ("get",)},
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
        answers_deleted=False,
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
        answers_deleted=False,
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
        selectable=("spec.nodeName", "spec.driver"),
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
    """``resource.k8s.io/v1``, or the bare version for the core group."""
    return f"{group}/{version}" if group else version

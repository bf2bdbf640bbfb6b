"""Strategy of each kind: the defaults, the validation and the deletion of its objects."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from dra_simulator.api import gates, metadata, object_rules, rules
from dra_simulator.api.formats import duplicate, forbidden, not_found, not_supported
from dra_simulator.api.gates import DEFAULT_GATES
from dra_simulator.api.kinds import ADMISSION_GROUP, MUTATING, RESOURCE_GROUP, VALIDATING, Kind
from dra_simulator.api.object_rules import CheckExpression, any_expression
from dra_simulator.api.rules import SCHEMA
from dra_simulator.api.schema import Json, elements, part
from tensorfusion_dra.core.kubernetes import name_rules, releases
from tensorfusion_dra.core.kubernetes.field_errors import (
    FieldError,
    invalid,
    required,
)
from tensorfusion_dra.core.names import TENSOR_FUSION_GROUP

_SLICE_IMMUTABLE: Final = ("spec.pool.name", "spec.driver", "spec.nodeName")
_POD_DEFAULTS: Final[Json] = {
    "restartPolicy": "Always",
    "terminationGracePeriodSeconds": 30,
    "dnsPolicy": "ClusterFirst",
    "schedulerName": "default-scheduler",
}
_POD_MUTABLE: Final = frozenset(
    {
        "activeDeadlineSeconds",
        "ephemeralContainers",
        "schedulingGates",
        "terminationGracePeriodSeconds",
        "tolerations",
    }
)
_GATED: Final[Json] = {
    "type": "PodScheduled",
    "status": "False",
    "lastProbeTime": None,
    "lastTransitionTime": None,
    "reason": "SchedulingGated",
    "message": "Scheduling is blocked due to non-empty scheduling gates",
}
_EVENT_BYTES: Final = {"reportingInstance": 128, "action": 128, "reason": 128, "message": 1024}
ADMIN_LABEL: Final = "resource.kubernetes.io/admin-access"
_ADMIN_TEXT: Final = (
    f"admin access to devices requires the `{ADMIN_LABEL}: true` label on the containing namespace"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Settings of the server that strategies need.

    Attributes:
        gates: Enabled feature gates.
        release: Minor version of Kubernetes whose rules hold.
        check: Returns the error in a CEL expression; None if there is none.
        labels: Returns the labels of a namespace.
    """

    gates: frozenset[str] = DEFAULT_GATES
    release: int = releases.SIMULATED
    check: CheckExpression = any_expression
    labels: Callable[[str], Mapping[str, object]] = field(default=lambda _: {})


@dataclass(frozen=True, slots=True)
class Strategy:
    """Strategy of a kind without rules of its own.

    Attributes:
        has_status: The status is written only through /status.
        immutable: Paths of the immutable fields.
    """

    setting: Setting
    has_status: bool = False
    immutable: tuple[str, ...] = ()

    def prepare(self, document: Json, old: Json | None) -> None:
        """Set defaults and drop fields that may not be written; old is None for a create."""
        if self.has_status:
            document.pop("status", None)
            if old is not None and "status" in old:
                document["status"] = old["status"]

    def errors(self, document: Json, old: Json | None) -> Iterable[FieldError]:
        """Return the errors in a prepared create or update."""
        return ()

    def prepare_status(self, document: Json, old: Json) -> None:
        """Do the same as prepare for a write to /status."""

    def status_errors(self, document: Json, old: Json) -> Iterable[FieldError]:
        """Return the errors in a prepared write to /status."""
        return ()

    def grace_seconds(self, document: Json, requested: int | None) -> int | None:
        """Return how many seconds a deleted object waits for its kubelet; None if it does not."""
        return None

    def _complete(self, struct: str, spec: Json, old_spec: Json) -> None:
        _set_defaults(struct, spec)
        gates.drop(struct, spec, {struct: old_spec}, self.setting.gates)

    def _admin_errors(
        self, document: Json, struct: str, found: Json, path: str
    ) -> Iterator[FieldError]:
        """Yield an error for each admin access that the object's namespace does not allow."""
        namespace = str(part(document, "metadata").get("namespace", ""))
        if self.setting.labels(namespace).get(ADMIN_LABEL) != "true":
            for _, at, inner in SCHEMA.walk(struct, found, path):
                if inner.get("adminAccess") is True:
                    where = at.removesuffix(".exactly")
                    yield forbidden(f"{where}.adminAccess", _ADMIN_TEXT)


class SliceStrategy(Strategy):
    """Strategy of ResourceSlices."""

    def prepare(self, document: Json, old: Json | None) -> None:
        """Set the time of new taints and drop fields of disabled gates."""
        self._complete("ResourceSliceSpec", part(document, "spec"), part(old or {}, "spec"))

    def errors(self, document: Json, old: Json | None) -> Iterator[FieldError]:
        """Return the errors by object_rules."""
        return object_rules.slice_errors(part(document, "spec"), self.setting.release)


class ClaimStrategy(Strategy):
    """Strategy of ResourceClaims."""

    def prepare(self, document: Json, old: Json | None) -> None:
        """Set the default mode and count of requests and drop fields of disabled gates."""
        super().prepare(document, old)
        self._complete("ResourceClaimSpec", part(document, "spec"), part(old or {}, "spec"))

    def errors(self, document: Json, old: Json | None) -> Iterator[FieldError]:
        """Yield the errors in a new spec; an update cannot change it."""
        if old is None:
            spec = part(document, "spec")
            yield from self._admin_errors(document, "ResourceClaimSpec", spec, "spec")
            yield from object_rules.spec_errors(
                "spec", spec, self.setting.check, self.setting.release
            )

    def prepare_status(self, document: Json, old: Json) -> None:
        """Drop fields of disabled gates and the status of devices that are no longer allocated."""
        status, old_status = part(document, "status"), part(old, "status")
        _set_defaults("ResourceClaimStatus", status)
        before = {"ResourceClaimStatus": old_status, "ResourceClaimSpec": part(old, "spec")}
        gates.drop("ResourceClaimStatus", status, before, self.setting.gates)
        gone = object_rules.allocated_devices(old_status) - object_rules.allocated_devices(status)
        if isinstance(status.get("devices"), list):
            status["devices"] = [
                device
                for device in elements(status["devices"])
                if object_rules.device_key(device) not in gone
            ]

    def status_errors(self, document: Json, old: Json) -> Iterator[FieldError]:
        """Yield errors: an allocation is immutable; it and its consumers must be valid."""
        status, old_status = part(document, "status"), part(old, "status")
        if not any(result.get("adminAccess") for result in object_rules.results(old_status)):
            yield from self._admin_errors(document, "ResourceClaimStatus", status, "status")
        yield from object_rules.status_errors(document, old, self.setting.release)


class TemplateStrategy(Strategy):
    """Strategy of ResourceClaimTemplates."""

    def prepare(self, document: Json, old: Json | None) -> None:
        """Set defaults and drop fields as for a claim."""
        spec, old_spec = part(document, "spec"), part(old or {}, "spec")
        self._complete("ResourceClaimSpec", part(spec, "spec"), part(old_spec, "spec"))

    def errors(self, document: Json, old: Json | None) -> Iterator[FieldError]:
        """Yield the errors in the spec and in the metadata of the claims to be made."""
        spec = part(document, "spec")
        copied, inner = part(spec, "metadata"), part(spec, "spec")
        yield from self._admin_errors(document, "ResourceClaimSpec", inner, "spec.spec")
        yield from metadata.map_errors("spec.metadata", copied)
        for name in copied:
            if name not in {"labels", "annotations"} and copied[name]:
                yield forbidden(f"spec.metadata.{name}", "cannot be set")
        yield from object_rules.spec_errors(
            "spec.spec", inner, self.setting.check, self.setting.release
        )


class ClassStrategy(Strategy):
    """Strategy of DeviceClasses."""

    def prepare(self, document: Json, old: Json | None) -> None:
        """Drop a new extendedResourceName if its gate is disabled."""
        self._complete("DeviceClassSpec", part(document, "spec"), part(old or {}, "spec"))

    def errors(self, document: Json, old: Json | None) -> Iterator[FieldError]:
        """Return the errors in the spec; unchanged selectors are not compiled again."""
        spec, old_spec = part(document, "spec"), part(old or {}, "spec")
        known = old is not None and spec.get("selectors") == old_spec.get("selectors")
        return object_rules.class_errors(spec, any_expression if known else self.setting.check)


class TaintRuleStrategy(Strategy):
    """Strategy of DeviceTaintRules."""

    def prepare(self, document: Json, old: Json | None) -> None:
        """Set the time of a new taint."""
        self._complete("DeviceTaintRuleSpec", part(document, "spec"), part(old or {}, "spec"))

    def errors(self, document: Json, old: Json | None) -> Iterator[FieldError]:
        """Yield the errors in the taint."""
        yield from object_rules.taint_errors("spec.taint", part(part(document, "spec"), "taint"))


def _set_defaults(struct: str, document: Json) -> None:
    for inner, _, found in SCHEMA.walk(struct, document, ""):
        match inner:
            case "DeviceTaint":
                found.setdefault("timeAdded", metadata.timestamp())
            case "DeviceToleration" if not found.get("operator"):
                found["operator"] = "Equal"
            case "ExactDeviceRequest" | "DeviceSubRequest":
                found["allocationMode"] = found.get("allocationMode") or "ExactCount"
                if found["allocationMode"] == "ExactCount" and not found.get("count"):
                    found["count"] = 1


class PodStrategy(Strategy):
    """Strategy of pods, limited to what claims and deletion need."""

    def prepare(self, document: Json, old: Json | None) -> None:
        """Set the usual defaults; a new pod is Pending."""
        super().prepare(document, old)
        spec = document.setdefault("spec", {})
        assert isinstance(spec, dict)
        for name, value in _POD_DEFAULTS.items():
            spec.setdefault(name, value)
        if old is None:
            status: Json = {"phase": "Pending"}
            if spec.get("schedulingGates"):
                status["conditions"] = [_GATED]
            document["status"] = status

    def errors(self, document: Json, old: Json | None) -> Iterator[FieldError]:
        """Yield errors: containers use only the pod's claims, and most of a spec is immutable."""
        spec = part(document, "spec")
        if old is not None:
            if _fixed(spec) != _fixed(part(old, "spec")):
                yield forbidden(
                    "spec",
                    "pod updates may not change fields other than `spec.containers[*].image`,"
                    "`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,"
                    "`spec.tolerations`,`spec.terminationGracePeriodSeconds`",
                )
            return
        names = [claim.get("name") for claim in elements(spec.get("resourceClaims"))]
        for kind in ("limits", "requests"):
            for name in part(part(spec, "resources"), kind):
                if name not in {"cpu", "memory"} and not name.startswith("hugepages-"):
                    yield not_supported(
                        f"spec.resources.{kind}[{name}]", name, ("cpu", "hugepages-", "memory")
                    )
        seen: list[object] = []
        for struct, at, found in SCHEMA.walk("PodSpec", spec, "spec"):
            yield from rules.errors(struct, found, at)
            match struct:
                case "PodResourceClaim":
                    yield from _source_errors(at, found)
                case "Container":
                    if found.get("name") in seen:
                        yield duplicate(f"{at}.name", found.get("name"))
                    seen.append(found.get("name"))
                    claims = elements(part(found, "resources").get("claims"))
                    yield from _use_errors(f"{at}.resources.claims", list(claims), names)

    def status_errors(self, document: Json, old: Json) -> Iterator[FieldError]:
        """Yield an error for each status of a claim that the pod does not have."""
        claims = elements(part(document, "spec").get("resourceClaims"))
        names = {claim.get("name") for claim in claims}
        statuses = elements(part(document, "status").get("resourceClaimStatuses"))
        for index, status in enumerate(statuses):
            if status.get("name") not in names:
                text = "must match the name of an entry in `spec.resourceClaims`"
                path = f"status.resourceClaimStatuses[{index}].name"
                yield invalid(path, status.get("name"), text)

    def grace_seconds(self, document: Json, requested: int | None) -> int | None:
        """Return the requested or the pod's own seconds; 0 for a pod on no node or finished."""
        spec, status = part(document, "spec"), part(document, "status")
        if not spec.get("nodeName") or status.get("phase") in {"Succeeded", "Failed"}:
            return 0
        own = spec.get("terminationGracePeriodSeconds", 30)
        assert isinstance(own, int)
        return max(0, own if requested is None else requested)


def _fixed(spec: Json) -> Json:
    """Return the immutable part of a pod's spec, without empty fields."""
    fixed = {name: value for name, value in spec.items() if name not in _POD_MUTABLE and value}
    for place in ("containers", "initContainers"):
        if place in fixed:
            fixed[place] = [
                {name: value for name, value in container.items() if name != "image" and value}
                for container in elements(fixed[place])
            ]
    return fixed


def _source_errors(path: str, claim: Json) -> Iterator[FieldError]:
    given = [claim.get(f"resourceClaim{kind}Name") for kind in ("", "Template")]
    if given == [None, None]:
        text = "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`"
        yield invalid(path, claim, text)
    elif None not in given:
        text = "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified"
        yield invalid(path, claim, text)


def _use_errors(path: str, claims: list[Json], names: list[object]) -> Iterator[FieldError]:
    """Yield the errors in the claims that a container uses; names are those of the pod's claims."""
    seen: list[tuple[object, object]] = []
    for index, claim in enumerate(claims):
        where, name = f"{path}[{index}]", claim.get("name")
        key = (name, claim.get("request", ""))
        # A container that uses a whole claim cannot name one of its requests as well.
        if key in seen or (name, "") in seen or (not key[1] and name in {n for n, _ in seen}):
            yield duplicate(where, name)
        elif name not in names:
            text = "must be one of the names in pod.spec.resourceClaims"
            found = not_found(where, name)
            empty = "" if names else " which is empty"
            yield FieldError(where, found.reason, f"{found.text}: {text}{empty}")
        seen.append(key)


class NamespaceStrategy(Strategy):
    """Strategy of namespaces."""

    def prepare(self, document: Json, old: Json | None) -> None:
        """Make a new namespace active and label it with its name."""
        super().prepare(document, old)
        if old is not None:
            return
        labels = part(document, "metadata").setdefault("labels", {})
        assert isinstance(labels, dict)
        labels["kubernetes.io/metadata.name"] = part(document, "metadata").get("name", "")
        document["spec"] = {"finalizers": ["kubernetes"]}
        document["status"] = {"phase": "Active"}


class NodeStrategy(Strategy):
    """Strategy of nodes, which may be created with a status."""

    def prepare(self, document: Json, old: Json | None) -> None:
        """Keep the status of a new node."""
        if old is not None:
            super().prepare(document, old)


class EventStrategy(Strategy):
    """Strategy of events. One with an eventTime is of the new kind and needs more fields."""

    def errors(self, document: Json, old: Json | None) -> Iterator[FieldError]:
        """Yield errors: an event must be in the namespace of the object that it is about."""
        namespace = str(part(document, "metadata").get("namespace", ""))
        about = part(document, "involvedObject").get("namespace", "")
        is_new = document.get("eventTime") is not None
        elsewhere = {"default", "kube-system"} if is_new else {"default"}
        if (not about and namespace not in elsewhere) or (
            about and about != namespace and not is_new
        ):
            yield invalid("involvedObject.namespace", about, "does not match event.namespace")
        if not is_new:
            return
        reporter = document.get("reportingComponent")
        if not reporter:
            yield required("reportingController")
        else:
            yield from name_rules.label_key("reportingController", reporter)
        for name, most in _EVENT_BYTES.items():
            text = str(document.get(name, ""))
            if not text and name != "message":
                yield required(name)
            if len(text.encode()) > most:
                yield invalid(name, "", f"can have at most {most} characters")


class NewEventStrategy(EventStrategy):
    """Strategy of events that are written through events.k8s.io."""

    def errors(self, document: Json, old: Json | None) -> Iterator[FieldError]:
        """Yield errors: an event needs a time and a known type, and must not set the old fields."""
        yield from super().errors(document, old)
        if document.get("eventTime") is None:
            yield required("eventTime")
        if document.get("type") not in {"Normal", "Warning"}:
            yield invalid("type", "", f"has invalid value: {document.get('type', '')}")
        for name in ("firstTimestamp", "lastTimestamp", "count", "source"):
            if document.get(name):
                yield invalid(name, "", "needs to be unset")


def of_kinds(setting: Setting) -> Callable[[Kind], Strategy]:
    """Return a function that returns the strategy of a kind on a server with this setting."""
    table: dict[tuple[str, str], Strategy] = {
        ("", "namespaces"): NamespaceStrategy(setting, has_status=True),
        ("", "nodes"): NodeStrategy(setting, has_status=True),
        ("", "pods"): PodStrategy(setting, has_status=True),
        ("", "events"): EventStrategy(setting),
        ("events.k8s.io", "events"): NewEventStrategy(setting),
        (RESOURCE_GROUP, "deviceclasses"): ClassStrategy(setting),
        (RESOURCE_GROUP, "devicetaintrules"): TaintRuleStrategy(setting, has_status=True),
        (RESOURCE_GROUP, "resourceclaims"): ClaimStrategy(
            setting, has_status=True, immutable=("spec",)
        ),
        (RESOURCE_GROUP, "resourceclaimtemplates"): TemplateStrategy(setting, immutable=("spec",)),
        (RESOURCE_GROUP, "resourceslices"): SliceStrategy(setting, immutable=_SLICE_IMMUTABLE),
        (ADMISSION_GROUP, MUTATING): Strategy(setting),
        (ADMISSION_GROUP, VALIDATING): Strategy(setting),
        (TENSOR_FUSION_GROUP, "gpupools"): Strategy(setting, has_status=True),
        (TENSOR_FUSION_GROUP, "schedulingconfigtemplates"): Strategy(setting, has_status=True),
        (TENSOR_FUSION_GROUP, "gpuresourcequotas"): Strategy(setting, has_status=True),
    }
    return lambda kind: table[kind.group, kind.plural]

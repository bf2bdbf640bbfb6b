"""Strategy of each kind: the defaults, the validation and the deletion of its objects."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from dra_simulator.api import claim_rules, gates, metadata, slice_rules
from dra_simulator.api.claim_rules import CheckExpression, any_expression
from dra_simulator.api.gates import DEFAULT_GATES
from dra_simulator.api.kinds import ADMISSION_GROUP, MUTATING, RESOURCE_GROUP, VALIDATING, Kind
from dra_simulator.api.schema import elements, part
from tensorfusion_dra.core.kubernetes import name_rules
from tensorfusion_dra.core.kubernetes.field_errors import (
    FieldError,
    duplicate,
    forbidden,
    invalid,
    not_found,
    required,
    too_many,
)
from tensorfusion_dra.core.names import TENSOR_FUSION_GROUP

Json = dict[str, object]

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
        check: Returns the error in a CEL expression; None if there is none.
        labels: Returns the labels of a namespace.
    """

    gates: frozenset[str] = DEFAULT_GATES
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


class SliceStrategy(Strategy):
    """Strategy of ResourceSlices."""

    def prepare(self, document: Json, old: Json | None) -> None:
        """Set the time of new taints and drop fields of disabled gates."""
        spec = part(document, "spec")
        for device in elements(spec.get("devices")):
            for taint in elements(device.get("taints")):
                taint.setdefault("timeAdded", metadata.timestamp())
        gates.drop_from_slice(spec, part(old or {}, "spec"), self.setting.gates)

    def errors(self, document: Json, old: Json | None) -> Iterator[FieldError]:
        """Return the errors by slice_rules."""
        return slice_rules.slice_errors(part(document, "spec"))


class ClaimStrategy(Strategy):
    """Strategy of ResourceClaims."""

    def prepare(self, document: Json, old: Json | None) -> None:
        """Set the default mode and count of requests and drop fields of disabled gates."""
        super().prepare(document, old)
        _prepare_spec(part(document, "spec"), part(old or {}, "spec"), self.setting.gates)

    def errors(self, document: Json, old: Json | None) -> Iterator[FieldError]:
        """Yield the errors in a new spec; an update cannot change it."""
        if old is not None:
            return
        spec = part(document, "spec")
        yield from _admin_errors(self, document, spec)
        yield from claim_rules.spec_errors("spec", spec, self.setting.check)

    def prepare_status(self, document: Json, old: Json) -> None:
        """Drop fields of disabled gates and the status of devices that are no longer allocated."""
        status, old_status = part(document, "status"), part(old, "status")
        for result in elements(claim_rules.results(status)):
            _default_operators(result)
        gates.drop_from_status(status, old_status, part(old, "spec"), self.setting.gates)
        gone = claim_rules.allocated_devices(old_status) - claim_rules.allocated_devices(status)
        if isinstance(status.get("devices"), list):
            status["devices"] = [
                device
                for device in elements(status["devices"])
                if claim_rules.device_key(device) not in gone
            ]

    def status_errors(self, document: Json, old: Json) -> Iterator[FieldError]:
        """Yield errors: an allocation is immutable; it and its consumers must be valid."""
        old_results = claim_rules.results(part(old, "status"))
        if not _is_admin(old_results):
            for index, result in enumerate(elements(claim_rules.results(part(document, "status")))):
                if result.get("adminAccess") is True and not self._admin_allowed(document):
                    where = f"status.allocation.devices.results[{index}].adminAccess"
                    yield forbidden(where, _ADMIN_TEXT)
        yield from claim_rules.status_errors(document, old)

    def _admin_allowed(self, document: Json) -> bool:
        namespace = str(part(document, "metadata").get("namespace", ""))
        return self.setting.labels(namespace).get(ADMIN_LABEL) == "true"


class TemplateStrategy(Strategy):
    """Strategy of ResourceClaimTemplates."""

    def prepare(self, document: Json, old: Json | None) -> None:
        """Set defaults and drop fields as for a claim."""
        spec, old_spec = part(document, "spec"), part(old or {}, "spec")
        _prepare_spec(part(spec, "spec"), part(old_spec, "spec"), self.setting.gates)

    def errors(self, document: Json, old: Json | None) -> Iterator[FieldError]:
        """Yield the errors in the spec and in the metadata of the claims to be made."""
        spec = part(document, "spec")
        copied = part(spec, "metadata")
        yield from _admin_errors(self, document, part(spec, "spec"))
        yield from metadata.map_errors("spec.metadata", copied)
        for name in copied:
            if name not in {"labels", "annotations"} and copied[name]:
                yield forbidden(f"spec.metadata.{name}", "cannot be set")
        yield from claim_rules.spec_errors("spec.spec", part(spec, "spec"), self.setting.check)


class ClassStrategy(Strategy):
    """Strategy of DeviceClasses."""

    def prepare(self, document: Json, old: Json | None) -> None:
        """Drop a new extendedResourceName if its gate is disabled."""
        spec, old_spec = part(document, "spec"), part(old or {}, "spec")
        if (
            "DRAExtendedResource" not in self.setting.gates
            and "extendedResourceName" not in old_spec
        ):
            spec.pop("extendedResourceName", None)

    def errors(self, document: Json, old: Json | None) -> Iterator[FieldError]:
        """Yield the errors in selectors and configs; unchanged selectors are not compiled again."""
        spec, old_spec = part(document, "spec"), part(old or {}, "spec")
        selectors = spec.get("selectors")
        known = old is not None and selectors == old_spec.get("selectors")
        check = claim_rules.any_expression if known else self.setting.check
        yield from claim_rules.selectors_errors("spec.selectors", selectors, check)
        configs = list(elements(spec.get("config")))
        if len(configs) > claim_rules.MOST_CONFIGS:
            yield too_many("spec.config", len(configs), claim_rules.MOST_CONFIGS)
            return
        for index, config in enumerate(configs):
            yield from claim_rules.config_errors(f"spec.config[{index}]", config)
        name = spec.get("extendedResourceName")
        if name is not None and not _is_extended_resource(str(name)):
            text = "must be a valid extended resource name"
            yield invalid("spec.extendedResourceName", name, text)


def _prepare_spec(spec: Json, old: Json, enabled_gates: frozenset[str]) -> None:
    for request in elements(part(spec, "devices").get("requests")):
        exactly = request.get("exactly")
        wanted = [exactly] if isinstance(exactly, dict) else []
        for devices in (*wanted, *elements(request.get("firstAvailable"))):
            if not devices.get("allocationMode"):
                devices["allocationMode"] = "ExactCount"
            if devices["allocationMode"] == "ExactCount" and not devices.get("count"):
                devices["count"] = 1
            _default_operators(devices)
    gates.drop_from_claim(spec, old, enabled_gates)


def _default_operators(tolerating: Json) -> None:
    for toleration in elements(tolerating.get("tolerations")):
        if not toleration.get("operator"):
            toleration["operator"] = "Equal"


def _admin_errors(strategy: Strategy, document: Json, spec: Json) -> Iterator[FieldError]:
    namespace = str(part(document, "metadata").get("namespace", ""))
    if strategy.setting.labels(namespace).get(ADMIN_LABEL) == "true":
        return
    for index, request in enumerate(elements(part(spec, "devices").get("requests"))):
        if part(request, "exactly").get("adminAccess") is True:
            yield forbidden(f"spec.devices.requests[{index}].adminAccess", _ADMIN_TEXT)
            return


def _is_admin(results: Iterable[object]) -> bool:
    return any(isinstance(r, dict) and r.get("adminAccess") is True for r in results)


def _is_extended_resource(name: str) -> bool:
    if "/" not in name or "kubernetes.io/" in name or name.startswith("requests."):
        return False
    return not any(name_rules.label_key("", f"requests.{name}"))


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
        names: list[str] = []
        for index, claim in enumerate(elements(spec.get("resourceClaims"))):
            yield from _pod_claim_errors(f"spec.resourceClaims[{index}]", claim, names)
        if not spec.get("containers"):
            yield required("spec.containers")
        seen: list[object] = []
        for place in ("initContainers", "containers"):
            for index, container in enumerate(elements(spec.get(place))):
                path = f"spec.{place}[{index}]"
                yield from name_rules.label(f"{path}.name", container.get("name"))
                if container.get("name") in seen:
                    yield duplicate(f"{path}.name", container.get("name"))
                seen.append(container.get("name"))
                if not container.get("image"):
                    yield required(f"{path}.image")
                claims = elements(part(container, "resources").get("claims"))
                yield from _container_claim_errors(f"{path}.resources.claims", list(claims), names)

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


def _pod_claim_errors(path: str, claim: Json, names: list[str]) -> Iterator[FieldError]:
    name = claim.get("name")
    if not name:
        yield required(f"{path}.name")
    elif name in names:
        yield duplicate(f"{path}.name", name)
    else:
        yield from name_rules.label(f"{path}.name", name)
        names.append(str(name))
    sources = [
        source
        for source in ("resourceClaimName", "resourceClaimTemplateName")
        if claim.get(source) is not None
    ]
    if not sources:
        text = "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`"
        yield invalid(path, claim, text)
    if len(sources) > 1:
        text = "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified"
        yield invalid(path, claim, text)
    for source in sources:
        yield from name_rules.subdomain(f"{path}.{source}", claim[source])


def _container_claim_errors(
    path: str, claims: list[Json], names: list[str]
) -> Iterator[FieldError]:
    seen: list[tuple[object, object]] = []
    for index, claim in enumerate(claims):
        where, name = f"{path}[{index}]", claim.get("name")
        key = (name, claim.get("request", ""))
        if not name:
            yield required(where)
            continue
        if key[1]:
            yield from name_rules.label(f"{where}.request", key[1])
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
        """Default the allocatable resources of a new node to its capacity."""
        if old is not None:
            super().prepare(document, old)
            return
        status = document.get("status")
        if isinstance(status, dict) and "capacity" in status:
            status.setdefault("allocatable", status["capacity"])


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
        (RESOURCE_GROUP, "resourceclaims"): ClaimStrategy(
            setting, has_status=True, immutable=("spec",)
        ),
        (RESOURCE_GROUP, "resourceclaimtemplates"): TemplateStrategy(setting, immutable=("spec",)),
        (RESOURCE_GROUP, "resourceslices"): SliceStrategy(setting, immutable=_SLICE_IMMUTABLE),
        (ADMISSION_GROUP, MUTATING): Strategy(setting),
        (ADMISSION_GROUP, VALIDATING): Strategy(setting),
        (TENSOR_FUSION_GROUP, "gpupools"): Strategy(setting, has_status=True),
        (TENSOR_FUSION_GROUP, "schedulingconfigtemplates"): Strategy(setting, has_status=True),
    }
    return lambda kind: table[kind.group, kind.plural]

"""Strategies of the core kinds: pods, namespaces, nodes, events."""

from collections.abc import Iterator
from typing import Final

from dra_simulator.api.schema import elements
from dra_simulator.api.strategy import Json, Strategy, part
from tensorfusion_dra.core.kubernetes import name_rules
from tensorfusion_dra.core.kubernetes.field_errors import (
    FieldError,
    duplicate,
    forbidden,
    invalid,
    not_found,
    required,
)

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
        for field in ("initContainers", "containers"):
            for index, container in enumerate(elements(spec.get(field))):
                path = f"spec.{field}[{index}]"
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
    for field in ("containers", "initContainers"):
        if field in fixed:
            fixed[field] = [
                {name: value for name, value in container.items() if name != "image" and value}
                for container in elements(fixed[field])
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
        field
        for field in ("resourceClaimName", "resourceClaimTemplateName")
        if claim.get(field) is not None
    ]
    if not sources:
        text = "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`"
        yield invalid(path, claim, text)
    if len(sources) > 1:
        text = "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified"
        yield invalid(path, claim, text)
    for field in sources:
        yield from name_rules.subdomain(f"{path}.{field}", claim[field])


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
        metadata = part(document, "metadata")
        labels = metadata.setdefault("labels", {})
        assert isinstance(labels, dict)
        labels["kubernetes.io/metadata.name"] = metadata.get("name", "")
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

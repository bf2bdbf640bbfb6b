"""Admission of writes by the webhooks of the stored configurations, as in the API server.

The store is not locked during the calls. Not covered: matchPolicy Equivalent, by which a rule for
one version also matches other versions, and reinvocationPolicy. Unlike on a real server, an apply
to an existing object calls no webhook, validating webhooks are called before a name is made from
generateName, and a patch that adds an unknown field fails the request instead of losing the field.
"""

import base64
import http.client
import json
import ssl
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final
from urllib.parse import urlsplit

from dra_simulator.api import failures, kinds, patches
from dra_simulator.api.failures import ApiError
from dra_simulator.api.kinds import MUTATING, VALIDATING
from dra_simulator.api.registry import Change, Registry, Target
from dra_simulator.api.schema import DecodeError, Json, part
from dra_simulator.api.store import Store, Stored
from tensorfusion_dra.core.errors import DriverError

Webhook = Mapping[str, Any]
"""Entry of a stored configuration."""

_REVIEW: Final = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}
_SECONDS: Final = 10


class WebhookError(DriverError):
    """A webhook's condition cannot be evaluated, or it did not return a valid response."""


Condition = Callable[[str, Mapping[str, object]], bool]
"""Returns True if an expression holds for these variables; raises WebhookError."""


def no_condition(expression: str, _: Mapping[str, object]) -> bool:
    """Reject every match condition, for servers whose webhooks have none."""
    raise WebhookError(f"{expression}: this server evaluates no match conditions")


@dataclass(frozen=True, slots=True)
class Write:
    """One create, update, patch or apply.

    Attributes:
        version: API version of the request.
        warnings: Warnings for the client; those of the webhooks are appended.
        document: The object that webhooks have to admit, with its kind and apiVersion.
        old: The object before the write; None for a create.
    """

    target: Target
    version: str
    dry_run: bool
    warnings: list[str]
    document: Json = field(default_factory=dict)
    old: Json | None = None

    @property
    def operation(self) -> str:
        """The operation, in the words of AdmissionReview."""
        return "UPDATE" if self.old else "CREATE"


class Admitting:
    """The registry behind the webhooks."""

    def __init__(self, registry: Registry, holds: Condition) -> None:
        self._registry: Final = registry
        self._store: Final = registry.store
        self._holds: Final = holds

    def create(self, write: Write, decoded: Json) -> Stored:
        """Create an object after admission, like Registry.create."""
        admitted = self._admitted(write, decoded, None)
        return self._registry.create(write.target, admitted, dry_run=write.dry_run)

    def apply(self, write: Write, wanted: Json) -> tuple[Stored, bool]:
        """Apply an object, after admission if it is new, like Registry.apply."""
        if self._find(write) is None:
            wanted = self._admitted(write, wanted, None)
        return self._registry.apply(write.target, wanted, dry_run=write.dry_run)

    def change(self, write: Write, change: Change) -> Stored:
        """Update or patch an object after admission, like Registry.change.

        An object that changes during the calls is a conflict; a real server calls them again.
        """
        before = self._find(write)
        if before is None or not self._needs_admission(write):
            return self._registry.change(write.target, change, dry_run=write.dry_run)
        admitted = self._admitted(write, change(before), before)

        def pinned(now: Stored) -> Json:
            if now.version != before.version:
                kind = write.target.kind
                raise failures.modified(kind.plural, kind.group, write.target.name)
            return admitted

        return self._registry.change(write.target, pinned, dry_run=write.dry_run)

    def _find(self, write: Write) -> Stored | None:
        target = write.target
        return self._store.get(target.kind.storage, target.namespace, target.name)

    def _needs_admission(self, write: Write) -> bool:
        found = (*self._webhooks(MUTATING), *self._webhooks(VALIDATING))
        return not write.target.subresource and bool(found)

    def _webhooks(self, plural: str) -> Iterator[Webhook]:
        """Yield the webhooks, ordered by the name of their configuration and as listed there."""
        for stored in self._store.listed(plural, None)[0]:
            listed = stored.document.get("webhooks")
            yield from listed if isinstance(listed, list) else ()

    def _admitted(self, write: Write, decoded: Json, old: Stored | None) -> Json:
        """Return the object as the webhooks change it.

        Raises:
            ApiError: A webhook denies the request, or a required one cannot be called.
        """
        if not self._needs_admission(write):
            return decoded
        kind = write.target.kind
        marks: Json = {
            "kind": kind.kind,
            "apiVersion": kinds.api_version(kind.group, write.version),
        }
        metadata = dict(part(decoded, "metadata"))
        if kind.namespaced:
            metadata["namespace"] = write.target.namespace
        document: Json = {**marks, **decoded, "metadata": metadata}
        write = replace(write, old={**marks, **old.document} if old else None)
        for webhook in self._webhooks(MUTATING):
            document = self._called(webhook, replace(write, document=document))
        for webhook in self._webhooks(VALIDATING):
            self._called(webhook, replace(write, document=document), may_change=False)
        return {name: value for name, value in document.items() if name not in marks}

    def _called(self, webhook: Webhook, write: Write, *, may_change: bool = True) -> Json:
        """Return the object after a webhook; as it is if that does not match, or may fail."""
        name = webhook["name"]
        try:
            if not _matches(webhook, write, self._store, self._holds):
                return write.document
            review = _review(write)
            response = _response(_posted(webhook, review), review, may_change=may_change)
        except WebhookError as error:
            if webhook.get("failurePolicy", "Fail") == "Fail":
                raise _internal(f'failed calling webhook "{name}": {error}') from error
            return write.document
        write.warnings.extend(text[:256] for text in response.get("warnings") or ())
        if not response.get("allowed"):
            raise _denied(name, response.get("status") or {})
        if not response.get("patch"):
            return write.document
        try:
            operations = json.loads(base64.b64decode(str(response["patch"])))
            changed = patches.operated(write.document, operations)
            marks = {field: changed.pop(field, None) for field in ("apiVersion", "kind")}
            struct = write.target.kind.struct
            decoded, complaints = self._registry.schema.decode(struct, changed)
        except (ApiError, DecodeError, ValueError, TypeError) as error:
            raise _internal(f'webhook "{name}": patch: {error}') from error
        if complaints:
            raise _internal(f'webhook "{name}": patch: {", ".join(complaints)}')
        return {**marks, **decoded}


def _matches(webhook: Webhook, write: Write, store: Store, holds: Condition) -> bool:
    """Return True if the webhook has to be called.

    Raises:
        WebhookError: A condition cannot be evaluated, and none before it is false.
    """
    if not any(_rule_matches(rule, write) for rule in webhook.get("rules") or ()):
        return False
    if not _selects(webhook.get("namespaceSelector"), _namespace_labels(write, store)):
        return False
    labelled = [write.document, *([write.old] if write.old else [])]
    if not any(_selects(webhook.get("objectSelector"), _labels(found)) for found in labelled):
        return False
    variables: dict[str, object] = {
        "object": write.document,
        "oldObject": write.old,
        "request": {"operation": write.operation, "namespace": write.target.namespace},
    }
    conditions = webhook.get("matchConditions") or ()
    return all(holds(condition["expression"], variables) for condition in conditions)


def _rule_matches(rule: Mapping[str, Any], write: Write) -> bool:
    kind = write.target.kind
    scope = "Namespaced" if kind.namespaced else "Cluster"
    wanted = (
        ("apiGroups", kind.group),
        ("apiVersions", write.version),
        ("resources", kind.plural),
        ("operations", write.operation),
    )
    return rule.get("scope", "*") in {"*", scope} and all(
        {"*", value} & set(rule.get(field) or ()) for field, value in wanted
    )


def _namespace_labels(write: Write, store: Store) -> Json | None:
    """Return the namespace's labels; None for a cluster-scoped object, which is always selected."""
    if not write.target.kind.namespaced:
        return None
    stored = store.get("namespaces", "", write.target.namespace)
    return _labels(stored.document) if stored else {}


def _labels(document: Json) -> Json:
    return part(part(document, "metadata"), "labels")


def _selects(selector: Mapping[str, Any] | None, labels: Json | None) -> bool:
    if labels is None or not selector:
        return True
    named = (selector.get("matchLabels") or {}).items()
    return all(labels.get(key) == value for key, value in named) and all(
        _requirement_holds(requirement, labels)
        for requirement in selector.get("matchExpressions") or ()
    )


def _requirement_holds(requirement: Mapping[str, Any], labels: Json) -> bool:
    key, values = requirement["key"], requirement.get("values") or ()
    holds = {
        "In": labels.get(key) in values,
        "NotIn": labels.get(key) not in values,
        "Exists": key in labels,
        "DoesNotExist": key not in labels,
    }
    return holds[requirement["operator"]]


def _review(write: Write) -> Json:
    kind = write.target.kind
    gvk = {"group": kind.group, "version": write.version, "kind": kind.kind}
    gvr = {"group": kind.group, "version": write.version, "resource": kind.plural}
    metadata = write.document.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    options = "CreateOptions" if write.operation == "CREATE" else "UpdateOptions"
    request: Json = {
        "uid": str(uuid.uuid4()),
        "kind": gvk,
        "requestKind": gvk,
        "resource": gvr,
        "requestResource": gvr,
        **({"name": name} if name else {}),
        **({"namespace": write.target.namespace} if kind.namespaced else {}),
        "operation": write.operation,
        "userInfo": {"username": "system:admin", "groups": ["system:masters"]},
        "object": write.document,
        "oldObject": write.old,
        "dryRun": write.dry_run,
        "options": {"kind": options, "apiVersion": "meta.k8s.io/v1"},
    }
    return {**_REVIEW, "request": request}


def _posted(webhook: Webhook, review: Json) -> Json:
    """Send an AdmissionReview and return the answer."""
    client = webhook["clientConfig"]
    seconds = webhook.get("timeoutSeconds") or _SECONDS
    if not client.get("url"):
        raise WebhookError(
            "failed to call webhook: clientConfig: found no url, expected one (services are not"
            " supported)"
        )
    url = urlsplit(client["url"])
    target = f"{url.path or '/'}?timeout={seconds}s"
    pem = base64.b64decode(client.get("caBundle") or "").decode()
    try:
        context = ssl.create_default_context(cadata=pem or None)
        connection = http.client.HTTPSConnection(
            url.hostname or "", url.port, timeout=seconds, context=context
        )
        try:
            connection.request(
                "POST", target, json.dumps(review), {"Content-Type": "application/json"}
            )
            response = connection.getresponse()
            text = response.read()
        finally:
            connection.close()
    except (OSError, http.client.HTTPException) as error:
        raise WebhookError(f'failed to call webhook: Post "{client["url"]}": {error}') from error
    if response.status != http.client.OK:
        found = text.decode(errors="replace").strip()
        raise WebhookError(f"an error on the server ({found}) has prevented the request")
    try:
        answer = json.loads(text)
    except ValueError as error:
        raise WebhookError(f"received invalid webhook response: {error}") from error
    if not isinstance(answer, dict):
        raise WebhookError("received invalid webhook response: expected an object")
    return answer


def _response(answer: Json, review: Json, *, may_change: bool) -> dict[str, Any]:
    """Return the response in a valid answer.

    VerifyAdmissionResponse in apiserver's webhook/request.
    """
    found = {name: answer.get(name) for name in _REVIEW}
    if found != _REVIEW:
        raise WebhookError(f"received invalid webhook response: expected {_REVIEW}, got {found}")
    response = answer.get("response")
    if not isinstance(response, dict):
        raise WebhookError("received invalid webhook response: webhook response was absent")
    request = review["request"]
    assert isinstance(request, dict)
    if response.get("uid") != request["uid"]:
        uid = request["uid"]
        raise WebhookError(f'received invalid webhook response: expected response.uid="{uid}"')
    patch_type = "JSONPatch" if response.get("patch") else None
    if response.get("patchType") != patch_type or (patch_type and not may_change):
        raise WebhookError("received invalid webhook response: patch and patchType do not match")
    return response


def _denied(name: str, status: Mapping[str, Any]) -> ApiError:
    """Return the error of a denial (ToStatusErr in apiserver's admission/plugin/webhook/errors)."""
    by = f'admission webhook "{name}" denied the request'
    text = status.get("message") or status.get("reason")
    message = f"{by}: {text}" if text else f"{by} without explanation"
    code = max(int(status.get("code") or 0), http.client.BAD_REQUEST)
    return ApiError(code, str(status.get("reason", "")), message, details=status.get("details"))


def _internal(text: str) -> ApiError:
    message = f"Internal error occurred: {text}"
    return ApiError(500, "InternalError", message, details={"causes": [{"message": text}]})

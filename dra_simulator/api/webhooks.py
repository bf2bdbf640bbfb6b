"""Admission of writes by the webhooks of the stored configurations, as in the API server.

The store is not locked during the calls. Not covered: matchPolicy Equivalent, by which a rule for
one version also matches other versions.
"""

import base64
import http.client
import json
import ssl
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from dra_simulator.api import failures, kinds
from dra_simulator.api.failures import ApiError
from dra_simulator.api.kinds import MUTATING, VALIDATING
from dra_simulator.api.patches import JsonPatch
from dra_simulator.api.registry import Change, Registry, Target, WriteOptions
from dra_simulator.api.schema import DecodeError, Schema, part
from dra_simulator.api.store import Store, Stored
from tensorfusion_dra.core.errors import DriverError

Json = dict[str, object]
Operation = Literal["CREATE", "UPDATE"]

_TRIES: Final = 5
"""Number of attempts that the API server makes to patch an object that changes meanwhile."""
_REVIEW: Final = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}
_SECONDS: Final = 10


class ConditionError(DriverError):
    """A match condition cannot be evaluated."""


Condition = Callable[[str, Mapping[str, object]], bool]
"""Returns True if an expression holds for these variables; raises ConditionError."""


def no_condition(expression: str, _: Mapping[str, object]) -> bool:
    """Reject every match condition, for servers whose webhooks have none."""
    raise ConditionError(f"{expression}: this server evaluates no match conditions")


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """A write that webhooks have to admit.

    Attributes:
        document: The object, with its kind and apiVersion.
        old: The object before the write; None for a create.
    """

    target: Target
    version: str
    operation: Operation
    document: Json
    old: Json | None
    dry_run: bool


@dataclass(frozen=True, slots=True)
class Webhook:
    """One entry of a configuration.

    Attributes:
        entry: The stored entry.
        is_mutating: The webhook may change the object.
    """

    entry: Mapping[str, Any]
    is_mutating: bool

    @property
    def name(self) -> str:
        """Name of the webhook in errors."""
        return str(self.entry["name"])

    @property
    def is_required(self) -> bool:
        """Return True if the request fails when the webhook cannot be called."""
        return bool(self.entry.get("failurePolicy", "Fail") == "Fail")

    @property
    def is_reinvoked(self) -> bool:
        """Return True if the webhook is called again after later webhooks change the object."""
        return bool(self.entry.get("reinvocationPolicy", "Never") == "IfNeeded")


class CallError(DriverError):
    """A webhook did not return a valid response."""


class Webhooks:
    """All webhooks of the stored configurations.

    Unlike on a real server, validating webhooks are called before a name is made from generateName,
    and a patch that adds an unknown field fails the request instead of losing the field.
    """

    def __init__(self, store: Store, schema: Schema, holds: Condition) -> None:
        self._store: Final = store
        self._schema: Final = schema
        self._holds: Final = holds

    def are_configured(self) -> bool:
        """Return True if there is any webhook to call."""
        return any(
            True for plural in (MUTATING, VALIDATING) for _ in _webhooks(self._store, plural)
        )

    def admitted(self, attempt: Attempt) -> tuple[Json, list[str]]:
        """Return the object as the webhooks change it, without kind and apiVersion, and warnings.

        Raises:
            ApiError: A webhook denies the request, or a required one cannot be called.
        """
        warnings: list[str] = []
        document = self._mutated(attempt, warnings)
        final = replace(attempt, document=document)
        for webhook in _webhooks(self._store, VALIDATING):
            self._call(webhook, final, warnings)
        marks = {"apiVersion", "kind"}
        return {name: value for name, value in document.items() if name not in marks}, warnings

    def _mutated(self, attempt: Attempt, warnings: list[str]) -> Json:
        """Call the mutating webhooks; reinvoke those that ask for it and saw an older object."""
        document = attempt.document
        after: dict[str, Json] = {}
        for webhook in _webhooks(self._store, MUTATING):
            response = self._call(webhook, replace(attempt, document=document), warnings)
            if response is not None:
                document = after[webhook.name] = self._patched(webhook, attempt, document, response)
        for webhook in _webhooks(self._store, MUTATING):
            if webhook.is_reinvoked and after.get(webhook.name, document) != document:
                response = self._call(webhook, replace(attempt, document=document), warnings)
                if response is not None:
                    document = self._patched(webhook, attempt, document, response)
        return document

    def _call(self, webhook: Webhook, attempt: Attempt, warnings: list[str]) -> Json | None:
        """Return the response; None if the webhook does not match, or is optional and fails."""
        try:
            if not _matches(webhook, attempt, self._store, self._holds):
                return None
            review = _review(attempt)
            response = _response(_posted(webhook, review), review, webhook)
        except (CallError, ConditionError) as error:
            if webhook.is_required:
                raise _internal(f'failed calling webhook "{webhook.name}": {error}') from error
            return None
        warnings.extend(text[:256] for text in response.get("warnings") or ())
        if not response.get("allowed"):
            raise _denied(webhook, response.get("status") or {})
        return response

    def _patched(self, webhook: Webhook, attempt: Attempt, document: Json, response: Json) -> Json:
        if not response.get("patch"):
            return document
        try:
            patch = JsonPatch(tuple(json.loads(base64.b64decode(str(response["patch"])))))
            changed = patch.applied(document)
            kind = attempt.target.kind
            marks = {name: changed.pop(name, None) for name in ("apiVersion", "kind")}
            decoded, complaints = self._schema.decode(kind.struct, changed)
        except (ApiError, DecodeError, ValueError, TypeError) as error:
            raise _internal(f'webhook "{webhook.name}": patch: {error}') from error
        if complaints:
            raise _internal(f'webhook "{webhook.name}": patch: {", ".join(complaints)}')
        return {**marks, **decoded}


@dataclass(frozen=True, slots=True)
class Write:
    """One create, update, patch or apply.

    Attributes:
        version: API version of the request.
        warnings: Warnings for the client; those of the webhooks are appended.
    """

    target: Target
    version: str
    options: WriteOptions
    warnings: list[str]


class _ChangedError(DriverError):
    """The object changed after the webhooks saw it."""


@dataclass(frozen=True, slots=True)
class Admitting:
    """The registry behind the webhooks.

    Unlike on a real server, an apply to an existing object does not call the webhooks.
    """

    registry: Registry
    webhooks: Webhooks

    def create(self, write: Write, decoded: Json) -> Stored:
        """Create an object after admission, like Registry.create."""
        admitted = self._admitted(write, decoded, None)
        return self.registry.create(write.target, admitted, write.options)

    def apply(self, write: Write, wanted: Json) -> tuple[Stored, bool]:
        """Apply an object, after admission if it is new, like Registry.apply."""
        if self._find(write) is None:
            wanted = self._admitted(write, wanted, None)
        return self.registry.apply(write.target, wanted, write.options)

    def change(self, write: Write, change: Change) -> Stored:
        """Update or patch an object after admission, like Registry.change.

        If the object changes during the calls, the webhooks are called again for its new state.
        """
        for _ in range(_TRIES):
            before = self._find(write)
            if before is None or not self._needs_admission(write):
                return self.registry.change(write.target, change, write.options)
            admitted = self._admitted(write, change(before), before)
            version = before.version

            def pinned(now: Stored, admitted: Json = admitted, version: int = version) -> Json:
                if now.version != version:
                    raise _ChangedError
                return admitted

            try:
                return self.registry.change(write.target, pinned, write.options)
            except _ChangedError:
                continue
        kind = write.target.kind
        raise failures.modified(kind.plural, kind.group, write.target.name)

    def _admitted(self, write: Write, decoded: Json, old: Stored | None) -> Json:
        """Return the object as the webhooks changed it."""
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
        attempt = Attempt(
            target=write.target,
            version=write.version,
            operation="UPDATE" if old else "CREATE",
            document={**marks, **decoded, "metadata": metadata},
            old={**marks, **old.document} if old else None,
            dry_run=write.options.dry_run,
        )
        document, warnings = self.webhooks.admitted(attempt)
        write.warnings.extend(warnings)
        return document

    def _needs_admission(self, write: Write) -> bool:
        return not write.target.subresource and self.webhooks.are_configured()

    def _find(self, write: Write) -> Stored | None:
        target = write.target
        return self.registry.store.get(target.kind.storage, target.namespace, target.name)


def _webhooks(store: Store, plural: str) -> Iterator[Webhook]:
    """Yield every webhook, ordered by the name of its configuration and then as listed there."""
    for stored in store.listed(plural, None)[0]:
        listed = stored.document.get("webhooks")
        for entry in listed if isinstance(listed, list) else ():
            yield Webhook(entry, is_mutating=plural == MUTATING)


def _matches(webhook: Webhook, attempt: Attempt, store: Store, holds: Condition) -> bool:
    """Return True if the webhook has to be called.

    Raises:
        ConditionError: A condition cannot be evaluated, and no other one is false.
    """
    entry = webhook.entry
    if not any(_rule_matches(rule, attempt) for rule in entry.get("rules") or ()):
        return False
    if not _selects(entry.get("namespaceSelector"), _namespace_labels(attempt, store)):
        return False
    labelled = [attempt.document, *([attempt.old] if attempt.old else [])]
    if not any(_selects(entry.get("objectSelector"), _labels(found)) for found in labelled):
        return False
    return _conditions_hold(entry.get("matchConditions") or (), attempt, holds)


def _rule_matches(rule: Mapping[str, Any], attempt: Attempt) -> bool:
    kind = attempt.target.kind
    scope = "Namespaced" if kind.namespaced else "Cluster"
    wanted = (
        ("apiGroups", kind.group),
        ("apiVersions", attempt.version),
        ("resources", kind.plural),
        ("operations", attempt.operation),
    )
    return rule.get("scope", "*") in {"*", scope} and all(
        {"*", value} & set(rule.get(field) or ()) for field, value in wanted
    )


def _conditions_hold(
    conditions: Iterable[Mapping[str, str]], attempt: Attempt, holds: Condition
) -> bool:
    variables: dict[str, object] = {
        "object": attempt.document,
        "oldObject": attempt.old,
        "request": {"operation": attempt.operation, "namespace": attempt.target.namespace},
    }
    error: ConditionError | None = None
    for condition in conditions:
        try:
            if not holds(condition["expression"], variables):
                return False
        except ConditionError as found:
            error = found
    if error is not None:
        raise error
    return True


def _namespace_labels(attempt: Attempt, store: Store) -> Json | None:
    """Return the namespace's labels; None for a cluster-scoped object, which is always selected."""
    if not attempt.target.kind.namespaced:
        return None
    stored = store.get("namespaces", "", attempt.target.namespace)
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
    match requirement["operator"]:
        case "In":
            return labels.get(key) in values
        case "NotIn":
            return labels.get(key) not in values
        case "Exists":
            return key in labels
        case _:
            return key not in labels


def _review(attempt: Attempt) -> Json:
    kind = attempt.target.kind
    gvk = {"group": kind.group, "version": attempt.version, "kind": kind.kind}
    gvr = {"group": kind.group, "version": attempt.version, "resource": kind.plural}
    metadata = attempt.document.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    options = "CreateOptions" if attempt.operation == "CREATE" else "UpdateOptions"
    request: Json = {
        "uid": str(uuid.uuid4()),
        "kind": gvk,
        "requestKind": gvk,
        "resource": gvr,
        "requestResource": gvr,
        **({"name": name} if name else {}),
        **({"namespace": attempt.target.namespace} if kind.namespaced else {}),
        "operation": attempt.operation,
        "userInfo": {"username": "system:admin", "groups": ["system:masters"]},
        "object": attempt.document,
        "oldObject": attempt.old,
        "dryRun": attempt.dry_run,
        "options": {"kind": options, "apiVersion": "meta.k8s.io/v1"},
    }
    return {**_REVIEW, "request": request}


def _posted(webhook: Webhook, review: Json) -> Json:
    """Send an AdmissionReview and return the answer."""
    client = webhook.entry["clientConfig"]
    seconds = webhook.entry.get("timeoutSeconds") or _SECONDS
    if not client.get("url"):
        raise CallError(
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
        raise CallError(f'failed to call webhook: Post "{client["url"]}": {error}') from error
    if response.status != http.client.OK:
        found = text.decode(errors="replace").strip()
        raise CallError(f"an error on the server ({found}) has prevented the request")
    try:
        answer = json.loads(text)
    except ValueError as error:
        raise CallError(f"received invalid webhook response: {error}") from error
    if not isinstance(answer, dict):
        raise CallError("received invalid webhook response: expected an object")
    return answer


def _response(answer: Json, review: Json, webhook: Webhook) -> dict[str, Any]:
    """Return the response in a valid answer.

    VerifyAdmissionResponse in apiserver's webhook/request.
    """
    found = {name: answer.get(name) for name in _REVIEW}
    if found != _REVIEW:
        raise CallError(f"received invalid webhook response: expected {_REVIEW}, got {found}")
    response = answer.get("response")
    if not isinstance(response, dict):
        raise CallError("received invalid webhook response: webhook response was absent")
    request = review["request"]
    assert isinstance(request, dict)
    if response.get("uid") != request["uid"]:
        uid = request["uid"]
        raise CallError(f'received invalid webhook response: expected response.uid="{uid}"')
    patch_type = "JSONPatch" if response.get("patch") else None
    if response.get("patchType") != patch_type or (patch_type and not webhook.is_mutating):
        raise CallError("received invalid webhook response: patch and patchType do not match")
    return response


def _denied(webhook: Webhook, status: Mapping[str, Any]) -> ApiError:
    """Return the error of a denial (ToStatusErr in apiserver's admission/plugin/webhook/errors)."""
    by = f'admission webhook "{webhook.name}" denied the request'
    text = status.get("message") or status.get("reason")
    message = f"{by}: {text}" if text else f"{by} without explanation"
    code = max(int(status.get("code") or 0), http.client.BAD_REQUEST)
    return ApiError(code, str(status.get("reason", "")), message, details=status.get("details"))


def _internal(text: str) -> ApiError:
    message = f"Internal error occurred: {text}"
    return ApiError(500, "InternalError", message, details={"causes": [{"message": text}]})

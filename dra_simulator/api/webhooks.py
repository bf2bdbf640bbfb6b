"""Calls to admission webhooks before a write, as in the API server."""

import base64
import http.client
import json
import ssl
import uuid
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from dra_simulator.api.failures import ApiError
from dra_simulator.api.patches import JsonPatch
from dra_simulator.api.scalars import DecodeError
from dra_simulator.api.schema import Schema
from dra_simulator.api.store import Store
from dra_simulator.api.strategy import Json
from dra_simulator.api.webhook_matching import (
    MUTATING,
    VALIDATING,
    Attempt,
    Condition,
    ConditionError,
    Webhook,
    matches,
    webhooks,
)
from tensorfusion_dra.core.errors import DriverError

_REVIEW: Final = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}
_SECONDS: Final = 10


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
        return any(True for plural in (MUTATING, VALIDATING) for _ in webhooks(self._store, plural))

    def admitted(self, attempt: Attempt) -> tuple[Json, list[str]]:
        """Return the object as the webhooks change it, without kind and apiVersion, and warnings.

        Raises:
            ApiError: A webhook denies the request, or a required one cannot be called.
        """
        warnings: list[str] = []
        document = self._mutated(attempt, warnings)
        final = _with(attempt, document)
        for webhook in webhooks(self._store, VALIDATING):
            self._call(webhook, final, warnings)
        marks = {"apiVersion", "kind"}
        return {name: value for name, value in document.items() if name not in marks}, warnings

    def _mutated(self, attempt: Attempt, warnings: list[str]) -> Json:
        """Call the mutating webhooks; reinvoke those that ask for it and saw an older object."""
        document = attempt.document
        after: dict[str, Json] = {}
        for webhook in webhooks(self._store, MUTATING):
            response = self._call(webhook, _with(attempt, document), warnings)
            if response is not None:
                document = after[webhook.name] = self._patched(webhook, attempt, document, response)
        for webhook in webhooks(self._store, MUTATING):
            if webhook.is_reinvoked and after.get(webhook.name, document) != document:
                response = self._call(webhook, _with(attempt, document), warnings)
                if response is not None:
                    document = self._patched(webhook, attempt, document, response)
        return document

    def _call(self, webhook: Webhook, attempt: Attempt, warnings: list[str]) -> Json | None:
        """Return the response; None if the webhook does not match, or is optional and fails."""
        try:
            if not matches(webhook, attempt, self._store, self._holds):
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


def _with(attempt: Attempt, document: Json) -> Attempt:
    return Attempt(
        target=attempt.target,
        version=attempt.version,
        operation=attempt.operation,
        document=document,
        old=attempt.old,
        dry_run=attempt.dry_run,
    )


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

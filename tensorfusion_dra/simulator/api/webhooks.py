"""Asks admission webhooks before something is written, as the API server does."""

import base64
import http.client
import json
import ssl
import uuid
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from tensorfusion_dra.core.errors import DriverError
from tensorfusion_dra.simulator.api.failures import ApiError
from tensorfusion_dra.simulator.api.patches import JsonPatch
from tensorfusion_dra.simulator.api.scalars import DecodeError
from tensorfusion_dra.simulator.api.schema import Schema
from tensorfusion_dra.simulator.api.store import Store
from tensorfusion_dra.simulator.api.strategy import Json
from tensorfusion_dra.simulator.api.webhook_matching import (
    MUTATING,
    VALIDATING,
    Attempt,
    Condition,
    ConditionError,
    Webhook,
    is_wanted,
    webhooks,
)

_REVIEW: Final = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}
_SECONDS: Final = 10


class CallError(DriverError):
    """A webhook gave no answer that counts."""


class Webhooks:
    """All webhooks of the stored configurations.

    Otherwise than a real server: validating ones are asked before an object gets the name that is
    made for it, and a patch that adds an unknown field fails the request instead of losing it.
    """

    def __init__(self, store: Store, schema: Schema, holds: Condition) -> None:
        self._store: Final = store
        self._schema: Final = schema
        self._holds: Final = holds

    def are_there(self) -> bool:
        """Whether there is any to ask."""
        return any(True for plural in (MUTATING, VALIDATING) for _ in webhooks(self._store, plural))

    def admitted(self, attempt: Attempt) -> tuple[Json, list[str]]:
        """The object as the webhooks want it, without kind and apiVersion, and their warnings.

        Raises:
            ApiError: One denies the request, or is required and cannot be asked.
        """
        warnings: list[str] = []
        document = self._mutated(attempt, warnings)
        final = _with(attempt, document)
        for webhook in webhooks(self._store, VALIDATING):
            self._ask(webhook, final, warnings)
        marks = {"apiVersion", "kind"}
        return {name: value for name, value in document.items() if name not in marks}, warnings

    def _mutated(self, attempt: Attempt, warnings: list[str]) -> Json:
        """After every mutating webhook, and once more after those which others changed later."""
        document = attempt.document
        after: dict[str, Json] = {}
        for webhook in webhooks(self._store, MUTATING):
            response = self._ask(webhook, _with(attempt, document), warnings)
            if response is not None:
                document = after[webhook.name] = self._patched(webhook, attempt, document, response)
        for webhook in webhooks(self._store, MUTATING):
            if webhook.is_asked_again and after.get(webhook.name, document) != document:
                response = self._ask(webhook, _with(attempt, document), warnings)
                if response is not None:
                    document = self._patched(webhook, attempt, document, response)
        return document

    def _ask(self, webhook: Webhook, attempt: Attempt, warnings: list[str]) -> Json | None:
        """Its response, if it was to be asked and could be; None otherwise."""
        try:
            if not is_wanted(webhook, attempt, self._store, self._holds):
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
    """The AdmissionReview that comes back."""
    client = webhook.entry["clientConfig"]
    seconds = webhook.entry.get("timeoutSeconds") or _SECONDS
    if not client.get("url"):
        raise CallError("failed to call webhook: this server knows no services, expected a url")
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
    """What counts of an answer (VerifyAdmissionResponse in apiserver's webhook/request)."""
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
    """ToStatusErr in apiserver's admission/plugin/webhook/errors."""
    by = f'admission webhook "{webhook.name}" denied the request'
    text = status.get("message") or status.get("reason")
    message = f"{by}: {text}" if text else f"{by} without explanation"
    code = max(int(status.get("code") or 0), http.client.BAD_REQUEST)
    return ApiError(code, str(status.get("reason", "")), message, details=status.get("details"))


def _internal(text: str) -> ApiError:
    message = f"Internal error occurred: {text}"
    return ApiError(500, "InternalError", message, details={"causes": [{"message": text}]})

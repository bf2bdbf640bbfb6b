"""AdmissionReviews over HTTP: each path has its rule."""

import json
import logging
import re
import time
from collections.abc import Callable, Mapping
from functools import partial
from http import HTTPStatus
from typing import Final

import structlog

from tensorfusion_dra.core.admission import claim_admission
from tensorfusion_dra.core.admission.dialects import Dialect
from tensorfusion_dra.core.kubernetes import review
from tensorfusion_dra.core.kubernetes.review import Decision, Review, ReviewError, ReviewOutcome
from tensorfusion_dra.core.names import RESOURCE_GROUP
from tensorfusion_dra.runtime.http_server import Request, Response, text_response
from tensorfusion_dra.webhook.admission import AdmissionRules
from tensorfusion_dra.webhook.quota_admission import QuotaAdmission

log = structlog.get_logger()

MUTATE_PODS: Final = "/mutate-pods"
"""Also the beginning of the path of each dialect."""
MUTATE_CLAIMS: Final = "/mutate-resourceclaims"
MUTATE_TEMPLATES: Final = "/mutate-resourceclaimtemplates"
VALIDATE: Final = "/validate"
QUOTAS: Final = "/validate-quotas"

_POD: Final = ("", "v1", "Pod")
_SECONDS: Final = 5.0
_MAX_SECONDS: Final = 10.0
"""Longest timeout in the configuration of the webhook. Whoever asks for longer is somebody else."""
_MARGIN_SECONDS: Final = 0.5
_TIMEOUT: Final = re.compile(r"\btimeout=([1-9][0-9]?)s\b")
"""The API server passes the configuration's timeoutSeconds, 1 to 30, as a query parameter."""
_EVENTS: Final = {
    ReviewOutcome.PASSED: (logging.DEBUG, "review_passed"),
    ReviewOutcome.CHANGED: (logging.INFO, "review_changed"),
    ReviewOutcome.DENIED: (logging.INFO, "review_denied"),
    ReviewOutcome.UNAVAILABLE: (logging.WARNING, "review_unavailable"),
}


Rule = Callable[[Review], Decision]


class Reviews:
    """Dispatcher of AdmissionReviews to their rules, callable from any thread."""

    def __init__(
        self,
        admission: AdmissionRules,
        quotas: QuotaAdmission,
        *,
        on_review: Callable[[str, ReviewOutcome, float], None],
    ) -> None:
        """Args:
        on_review: Called before each answer, by any thread, with the object's kind, the outcome
            and the seconds since the request arrived; returns at once.
        """
        self._on_review: Final = on_review

        def claim_within_quotas(asked: Review) -> Decision:
            decision = quotas.claim(asked)
            if not decision.errors:
                admission.warn_unnamed(asked)
            return decision

        # The API server converts other versions of an object into the one of the configuration.
        claims = {(RESOURCE_GROUP, "v1", "ResourceClaim")}
        checked = {(RESOURCE_GROUP, "v1", kind) for kind in claim_admission.CONFIG_PATHS}
        self._rules: Final[Mapping[str, tuple[Rule, set[tuple[str, str, str]]]]] = {
            MUTATE_PODS: (admission.pod, {_POD}),
            MUTATE_CLAIMS: (admission.claim, claims),
            MUTATE_TEMPLATES: (
                admission.template,
                {(RESOURCE_GROUP, "v1", "ResourceClaimTemplate")},
            ),
            VALIDATE: (admission.parameters, checked),
            QUOTAS: (claim_within_quotas, claims),
            **{
                f"{MUTATE_PODS}/{dialect}": (partial(admission.dialect, dialect), {_POD})
                for dialect in Dialect
            },
        }

    def respond(self, request: Request) -> Response:
        """Return the answer to an HTTP request.

        A request that cannot be read gets an HTTP error instead of a decision. Then the failure
        policy of the webhook's configuration decides.
        """
        waited = time.monotonic() - request.arrived
        wait_seconds = _answer_seconds(request.query) - waited
        refusal: tuple[HTTPStatus, str] | None = None
        if request.path not in self._rules:
            expected = ", ".join(self._rules)
            refusal = HTTPStatus.NOT_FOUND, f"{request.path}: expected one of {expected}"
        elif request.method != "POST":
            refusal = HTTPStatus.METHOD_NOT_ALLOWED, f"{request.method}: expected POST"
        elif request.content_type.partition(";")[0].strip().lower() != "application/json":
            text = f"Content-Type: found {request.content_type!r}, expected application/json"
            refusal = HTTPStatus.UNSUPPORTED_MEDIA_TYPE, text
        elif wait_seconds <= 0:  # the API server has given up
            text = f"{request.path}: found {waited:.1f} s since it arrived, expected less"
            refusal = HTTPStatus.SERVICE_UNAVAILABLE, text
        if refusal:
            return _error(*refusal)
        rule, kinds = self._rules[request.path]
        try:
            parsed = review.parse(request.body, wait_seconds=wait_seconds)
        except ReviewError as error:
            return _error(HTTPStatus.BAD_REQUEST, str(error))
        if (parsed.group, parsed.version, parsed.kind) not in kinds:
            return _error(
                HTTPStatus.BAD_REQUEST,
                f"{request.path}: found {parsed.group}/{parsed.version} {parsed.kind}",
            )
        outcome = ReviewOutcome.FAILED
        try:
            decision = rule(parsed)
            outcome = review.outcome(decision)
        finally:
            seconds = time.monotonic() - request.arrived
            self._on_review(parsed.kind, outcome, seconds)
        facts = {"kind": parsed.kind, "name": str(parsed), "seconds": round(seconds, 4)}
        level, event = _EVENTS[outcome]
        if outcome is not ReviewOutcome.PASSED or decision.warnings:
            facts["warnings"], level = list(decision.warnings), max(level, logging.INFO)
        if decision.errors:
            facts["error"] = "; ".join(map(str, decision.errors))[:1000]
        log.log(level, event, **facts)
        return Response(
            status=HTTPStatus.OK,
            body=json.dumps(review.answer(parsed, decision)).encode(),
            content_type="application/json",
        )


def _answer_seconds(query: str) -> float:
    """Return how long the API server waits, less a margin for the answer's way back."""
    found = _TIMEOUT.search(query)
    return (min(float(found[1]), _MAX_SECONDS) if found else _SECONDS) - _MARGIN_SECONDS


def _error(status: HTTPStatus, text: str) -> Response:
    log.warning("request_refused", status=status.value, error=text[:300])
    return text_response(status, text)

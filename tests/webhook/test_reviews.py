"""AdmissionReviews by path: verdicts for reviews, HTTP errors for other requests."""

import json
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import pytest

from tensorfusion_dra.core.claims.claim import PodRef
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.core.kubernetes.review import Outcome
from tensorfusion_dra.runtime.http_server import Request, Response
from tensorfusion_dra.webhook.admission import Admission
from tensorfusion_dra.webhook.reviews import Reviews
from tests.support.admission import Json, ObjectsInMemory, SlicesInMemory, review_body
from tests.support.builders.pods import pod_annotations, pod_document
from tests.support.builders.stored_claims import template_claim


class MissingPods:
    """Pods that are all missing; records the time allowed for each read."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def find(self, pod: PodRef, *, wait_seconds: float) -> Json | None:
        self.seconds.append(wait_seconds)
        return None


def reviews(
    pods: MissingPods | None = None,
    *,
    pools: ObjectsInMemory | None = None,
    seen: list[tuple[str, Outcome]] | None = None,
) -> Reviews:
    found = [] if seen is None else seen
    return Reviews(
        Admission(
            pools=pools or ObjectsInMemory(),
            templates=ObjectsInMemory(),
            pods=pods or MissingPods(),
            slices=SlicesInMemory(),
            scheduler="default-scheduler",
            virtual=False,
        ),
        on_review=lambda kind, outcome, _: found.append((kind, outcome)),
    )


def respond(
    path: str,
    text: bytes,
    *,
    to: Reviews | None = None,
    method: str = "POST",
    content_type: str = "application/json",
) -> Response:
    path, _, query = path.partition("?")
    request = Request(method=method, path=path, query=query, content_type=content_type, body=text)
    return (to or reviews()).respond(request)


def response(answer: Response) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(answer.body)["response"]
    return found


def test_pod_review_is_answered_with_patch_and_warnings() -> None:
    annotations = pod_annotations(dra_enabled="true", vram_request="16Gi", gpupool="default")

    answer = respond("/mutate-pods?timeout=5s", review_body(pod_document(annotations)))

    assert answer.status == 200
    assert answer.content_type == "application/json"
    found = response(answer)
    assert found["allowed"] is True
    assert found["patchType"] == "JSONPatch"
    assert found["warnings"] == [
        "tensor-fusion.ai/tflops-request: not set, so the pod takes all compute of its GPUs"
    ]


@pytest.mark.parametrize(
    ("path", "changes", "status"),
    [
        ("/", {}, 404),
        ("/mutate-pods/", {}, 404),
        ("/mutate-pods", {"method": "GET"}, 405),
        ("/mutate-pods", {"content_type": "text/plain"}, 415),
        ("/mutate-pods", {"content_type": ""}, 415),
        ("/mutate-pods", {"content_type": "Application/JSON; charset=utf-8"}, 200),
        ("/mutate-resourceclaims", {}, 400),
        ("/validate", {}, 400),
    ],
)
def test_each_path_accepts_only_reviews_of_its_kinds(path: str, changes: Any, status: int) -> None:
    assert respond(path, review_body(pod_document({})), **changes).status == status


@pytest.mark.parametrize(
    ("annotations", "error", "outcome"),
    [
        ({"vram_request": "16Gi"}, None, Outcome.CHANGED),
        ({}, None, Outcome.PASSED),
        ({"vram_request": "many"}, None, Outcome.DENIED),
        ({"vram_request": "16Gi"}, RetryableError("not listed yet"), Outcome.UNAVAILABLE),
        ({"vram_request": "16Gi"}, ZeroDivisionError("a defect"), Outcome.FAILED),
    ],
)
def test_every_review_is_reported_with_its_outcome(
    annotations: Mapping[str, str], error: Exception | None, outcome: Outcome
) -> None:
    pools, seen = ObjectsInMemory(), list[tuple[str, Outcome]]()
    pools.error = error
    pod = pod_document(pod_annotations(dra_enabled="true", **annotations) if annotations else {})
    defect = pytest.raises(ZeroDivisionError) if outcome is Outcome.FAILED else nullcontext()

    with defect:
        respond("/mutate-pods", review_body(pod), to=reviews(pools=pools, seen=seen))

    assert seen == [("Pod", outcome)]


@pytest.mark.parametrize("version", ["v1", "v1beta2"])
@pytest.mark.parametrize("kind", ["ResourceClaim", "ResourceClaimTemplate", "DeviceClass"])
def test_parameters_are_checked_in_all_versions_of_the_same_shape(kind: str, version: str) -> None:
    document = {**template_claim(), "kind": kind, "apiVersion": f"resource.k8s.io/{version}"}

    assert response(respond("/validate", review_body(document)))["allowed"] is True


def test_version_of_another_shape_is_rejected() -> None:
    document = {**template_claim(), "apiVersion": "resource.k8s.io/v1beta1"}

    assert respond("/mutate-resourceclaims", review_body(document)).status == 400


@pytest.mark.parametrize(
    ("query", "seconds"),
    [("?timeout=10s", 9.5), ("?timeout=1s", 0.5), ("", 4.5), ("?timeout=nan", 4.5)],
)
def test_pod_read_uses_the_api_servers_timeout_less_a_margin(query: str, seconds: float) -> None:
    pods = MissingPods()

    respond(f"/mutate-resourceclaims{query}", review_body(template_claim()), to=reviews(pods))

    assert pods.seconds == [seconds]


def test_malformed_review_is_an_http_error() -> None:
    answer = respond("/mutate-pods", b"{")

    assert answer.status == 400
    assert answer.body.startswith(b"body: found no JSON")

"""AdmissionReviews by path: verdicts for reviews, HTTP errors for any other request."""

import base64
import json
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorfusion_dra.core import names
from tensorfusion_dra.core.admission import pod_admission
from tensorfusion_dra.core.claims.claim import PodRef
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.core.kubernetes.review import Outcome
from tensorfusion_dra.runtime.http_server import Request, Response
from tensorfusion_dra.webhook.admission import AdmissionRules, QuotaAdmission
from tensorfusion_dra.webhook.reviews import Reviews
from tests.faults.mutations import mutated
from tests.support.admission import (
    ClaimsInMemory,
    Json,
    ObjectsInMemory,
    SlicesInMemory,
    patched,
    review_body,
)
from tests.support.builders.pods import pod_annotations, pod_document
from tests.support.builders.quotas import quota_document
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
        AdmissionRules(
            pools=pools or ObjectsInMemory(),
            templates=ObjectsInMemory(),
            pods=pods or MissingPods(),
            slices=SlicesInMemory(),
            classes=ObjectsInMemory(),
            scheduler="default-scheduler",
            virtual=False,
        ),
        QuotaAdmission(
            ObjectsInMemory(quota_document(vram="1Gi")),
            ClaimsInMemory(),
            MissingPods(),
            ObjectsInMemory(),
            trusts_clients=False,
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

    found = response(answer)
    warning = "tensor-fusion.ai/tflops-request: not set, so the pod takes all compute of its GPUs"
    assert (answer.status, answer.content_type) == (200, "application/json")
    assert (found["allowed"], found["patchType"]) == (True, "JSONPatch")
    assert found["warnings"] == [warning]


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


@pytest.mark.parametrize("kind", ["ResourceClaim", "ResourceClaimTemplate", "DeviceClass"])
def test_parameters_of_every_kind_are_checked(kind: str) -> None:
    document = {**template_claim(), "kind": kind}

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


TEXTS = st.sampled_from(
    [
        "",
        "0",
        "1",
        "2",
        "-1",
        "100",
        "16Gi",
        "true",
        "false",
        "high",
        "soft",
        "main",
        "a,b",
        "x" * 300,
    ]
) | st.text(max_size=12)
ANNOTATIONS = st.dictionaries(
    st.sampled_from(sorted(pod_admission.KNOWN_ANNOTATIONS)) | st.text(max_size=20),
    TEXTS,
    max_size=8,
)
PATHS = st.sampled_from(["/mutate-pods", "/mutate-resourceclaims", "/validate", "/validate-quotas"])


def rich_pod() -> Json:
    annotations = dict.fromkeys(pod_admission.KNOWN_ANNOTATIONS, "1") | {
        names.ANNOTATION_QOS: "high"
    }
    annotations |= {names.ANNOTATION_DRA_ENABLED: "true", names.ANNOTATION_ISOLATION: "soft"}
    annotations |= {names.ANNOTATION_DEDICATED_GPU: "false"}
    annotations |= {names.ANNOTATION_INJECT_CONTAINER: "main"}
    annotations |= {names.ANNOTATION_CEL_EXPRESSION: 'device.attributes["model"] == "A100"'}
    full = {
        "name": "main",
        "image": "i",
        "env": [{"name": "A", "value": "b"}],
        "resources": {"limits": {"nvidia.com/gpu": "1"}, "claims": [{"name": "nic"}]},
        "securityContext": {"privileged": True},
    }
    return pod_document(annotations, full, initContainers=[full], resourceClaims=[{"name": "nic"}])


def rich_claim() -> Json:
    opaque = {"driver": names.DRIVER, "parameters": {"kind": "GpuShare", "limits": {"vram": "1"}}}
    document = template_claim()
    document["spec"]["devices"]["config"] = [{"opaque": opaque}]
    document["spec"]["devices"]["constraints"] = [{"distinctAttribute": "a/b", "requests": []}]
    return document


@given(PATHS, st.binary(max_size=200))
def test_any_bytes_get_an_http_error(path: str, text: bytes) -> None:
    assert respond(path, text).status == 400


@given(
    PATHS,
    mutated(json.loads(review_body(rich_pod()))) | mutated(json.loads(review_body(rich_claim()))),
)
def test_any_review_is_answered_with_its_uid(path: str, document: Json) -> None:
    answer = respond(path, json.dumps(document).encode())

    assert answer.status in {200, 400}
    if answer.status == 200:
        response = json.loads(answer.body)["response"]
        assert response["uid"] == document["request"]["uid"]
        assert response["allowed"] is not ("status" in response)


@given(ANNOTATIONS)
def test_any_annotations_are_refused_or_admitted_idempotently(
    annotations: dict[str, str],
) -> None:
    document = pod_document({**annotations, names.ANNOTATION_DRA_ENABLED: "true"})

    first = json.loads(respond("/mutate-pods", review_body(document)).body)["response"]

    if first["allowed"]:
        admitted = patched(document, json.loads(base64.b64decode(first["patch"])))
        again = json.loads(respond("/mutate-pods", review_body(admitted)).body)["response"]
        assert again["allowed"] is True
        assert "patch" not in again
    else:
        assert first["status"]["details"]["causes"]

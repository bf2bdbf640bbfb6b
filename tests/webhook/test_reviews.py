"""AdmissionReviews by path: verdicts for reviews, HTTP errors for any other request."""

import base64
import json
import time
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorfusion_dra.core import names
from tensorfusion_dra.core.admission import pod_admission
from tensorfusion_dra.core.claims.claim import PodRef
from tensorfusion_dra.core.claims.ports import Pods
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.core.kubernetes.review import ReviewOutcome
from tensorfusion_dra.runtime.http_server import Request, Response
from tensorfusion_dra.webhook.admission import AdmissionRules
from tensorfusion_dra.webhook.quota_admission import QuotaAdmission
from tensorfusion_dra.webhook.reviews import Reviews
from tests.faults.mutations import mutated
from tests.support.admission import (
    ClaimsInMemory,
    Json,
    ObjectsInMemory,
    PodsInMemory,
    QuotasInMemory,
    SlicesInMemory,
    patched,
    review_body,
)
from tests.support.builders.pods import container_document, pod_annotations, pod_document
from tests.support.builders.quotas import quota_document
from tests.support.builders.stored_claims import template_claim
from tests.support.logs import capture_logs
from tests.support.waiting import FOREVER


class MissingPods:
    """Pods that are all missing; records the time allowed for each read."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def find(self, pod: PodRef, *, wait_seconds: float) -> Json | None:
        self.seconds.append(wait_seconds)
        return None


def reviews(
    pods: Pods | None = None,
    *,
    pools: ObjectsInMemory | None = None,
    seen: list[tuple[str, ReviewOutcome]] | None = None,
    told: list[str] | None = None,
) -> Reviews:
    found = [] if seen is None else seen
    said = [] if told is None else told
    quotas = QuotasInMemory(quota_document(vram="1Gi"))
    return Reviews(
        AdmissionRules(
            pools=pools or ObjectsInMemory(),
            templates=ObjectsInMemory(),
            pods=pods or MissingPods(),
            slices=SlicesInMemory(),
            classes=ObjectsInMemory(),
            scheduler="default-scheduler",
            virtual=False,
            on_warnings=lambda pod, warnings: said.extend(
                [f"{pod['namespace']}/{pod['name']}", *warnings]
            ),
        ),
        QuotaAdmission(
            quotas,
            quotas,
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
    arrived: float | None = None,
) -> Response:
    path, _, query = path.partition("?")
    request = Request(
        method=method,
        path=path,
        query=query,
        content_type=content_type,
        body=text,
        arrived=time.monotonic() if arrived is None else arrived,
    )
    return (to or reviews()).respond(request)


def response(answer: Response) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(answer.body)["response"]
    return found


def test_pod_review_is_answered_with_patch_and_warnings() -> None:
    annotations = pod_annotations(dra_enabled="true", vram_request="16Gi", gpupool="default")

    answer = respond("/mutate-pods?timeout=5s", review_body(pod_document(annotations)))

    assert (answer.status, answer.content_type) == (200, "application/json")
    assert (
        response(answer).items()
        >= {
            "allowed": True,
            "patchType": "JSONPatch",
            "warnings": [
                "tensor-fusion.ai/tflops-request: not set, so the pod takes all compute of its GPUs"
            ],
        }.items()
    )


@pytest.mark.parametrize(
    ("annotations", "logged"),
    [
        (pod_annotations(vram_request="16Gi"), [("info", "review_passed")]),
        (pod_annotations(dra_enabled="false", vram_request="16Gi"), [("debug", "review_passed")]),
    ],
)
def test_a_pod_that_passes_with_a_warning_is_logged_where_somebody_sees_it(
    annotations: dict[str, str], logged: list[tuple[str, str]]
) -> None:
    with capture_logs() as lines:
        answer = respond("/mutate-pods", review_body(pod_document(annotations)))

    assert [(line["log_level"], line["event"]) for line in lines] == logged
    assert lines[0].get("warnings") == response(answer).get("warnings")


POD, CLAIM = pod_document({}), template_claim()


@pytest.mark.parametrize(
    ("path", "document", "changes", "status"),
    [
        ("/", POD, {}, 404),
        ("/mutate-pods/", POD, {}, 404),
        ("/mutate-pods", POD, {"method": "GET"}, 405),
        ("/mutate-pods", POD, {"content_type": "text/plain"}, 415),
        ("/mutate-pods", POD, {"content_type": ""}, 415),
        ("/mutate-pods", POD, {"content_type": "Application/JSON; charset=utf-8"}, 200),
        ("/mutate-resourceclaims", POD, {}, 400),
        ("/mutate-resourceclaims", {**CLAIM, "apiVersion": "resource.k8s.io/v1beta1"}, {}, 400),
        ("/mutate-resourceclaimtemplates", CLAIM, {}, 400),
        ("/validate", POD, {}, 400),
        ("/validate", CLAIM, {}, 200),
        ("/validate", {**CLAIM, "kind": "ResourceClaimTemplate"}, {}, 200),
        ("/validate", {**CLAIM, "kind": "DeviceClass"}, {}, 200),
    ],
)
def test_each_path_accepts_only_reviews_of_its_kinds(
    path: str, document: Json, changes: Any, status: int
) -> None:
    answer = respond(path, review_body(document), **changes)

    assert answer.status == status
    assert status != 200 or response(answer)["allowed"]


@pytest.mark.parametrize(
    ("annotations", "error", "outcome"),
    [
        ({"vram_request": "16Gi"}, None, ReviewOutcome.CHANGED),
        ({}, None, ReviewOutcome.PASSED),
        ({"vram_request": "many"}, None, ReviewOutcome.DENIED),
        ({"vram_request": "16Gi"}, RetryableError("not listed yet"), ReviewOutcome.UNAVAILABLE),
        ({"vram_request": "16Gi"}, ZeroDivisionError("a defect"), ReviewOutcome.FAILED),
    ],
)
def test_every_review_is_reported_with_its_outcome(
    annotations: Mapping[str, str], error: Exception | None, outcome: ReviewOutcome
) -> None:
    pools, seen = ObjectsInMemory(), list[tuple[str, ReviewOutcome]]()
    pools.error = error
    pod = pod_document(pod_annotations(dra_enabled="true", **annotations) if annotations else {})
    defect = pytest.raises(ZeroDivisionError) if outcome is ReviewOutcome.FAILED else nullcontext()

    with defect:
        respond("/mutate-pods", review_body(pod), to=reviews(pools=pools, seen=seen))

    assert seen == [("Pod", outcome)]


@pytest.mark.parametrize(
    ("query", "seconds"),
    [
        ("?timeout=10s", 9.5),
        ("?timeout=30s", 9.5),
        ("?timeout=1s", 0.5),
        ("", 4.5),
        ("?timeout=nan", 4.5),
    ],
)
def test_pod_read_uses_the_api_servers_timeout_less_a_margin_and_what_has_passed(
    query: str, seconds: float
) -> None:
    """From the arrival, which is later here than all that follows, so that this never fails."""
    pods, begun = MissingPods(), time.monotonic()
    arrived = begun + FOREVER

    respond(
        f"/mutate-resourceclaims{query}",
        review_body(template_claim()),
        to=reviews(pods),
        arrived=arrived,
    )

    (found,) = pods.seconds
    assert seconds + arrived - time.monotonic() <= found <= seconds + arrived - begun


@pytest.mark.parametrize("path", ["/mutate-pods", "/validate-quotas"])
def test_review_that_the_api_server_no_longer_waits_for_is_refused_unread(path: str) -> None:
    answer = respond(f"{path}?timeout=10s", b"no review", arrived=time.monotonic() - 9.5)

    assert answer.status == 503
    assert answer.body.startswith(f"{path}: found 9.".encode())


ENTRY = {"resource.kubernetes.io/pod-claim-name": "gpu"}
OTHER_USE = container_document(resources={"claims": [{"name": "nic"}]})
OWN_USE = container_document("own", resources={"claims": [{"name": "gpu", "request": "gpu"}]})


@pytest.mark.parametrize(
    ("containers", "annotations", "operation", "is_told"),
    [
        ([OTHER_USE], ENTRY, "CREATE", True),
        ([OTHER_USE, OWN_USE], ENTRY, "CREATE", False),
        ([OTHER_USE], ENTRY, "UPDATE", False),
        ([OTHER_USE], {}, "CREATE", False),  # of an extended resource
        ([OTHER_USE], {**ENTRY, names.ANNOTATION_TFLOPS_LIMIT: "1"}, "CREATE", True),
        (None, ENTRY, "CREATE", False),  # the pod is gone
    ],
)
def test_pod_is_told_of_a_claim_that_none_of_its_containers_names(
    containers: list[Json] | None, annotations: Json, operation: str, *, is_told: bool
) -> None:
    pods, told = PodsInMemory(), list[str]()
    claim = template_claim()
    claim["metadata"] |= {"namespace": "team-b", "annotations": annotations, "labels": {}}
    if containers is not None:
        pods.stored["uid-train"] = pod_document({}, *containers)
    review = review_body(claim, operation=operation, old=claim)

    answer = respond("/validate-quotas", review, to=reviews(pods, told=told))

    assert response(answer)["allowed"]
    said = "containers: none of them names claim gpu, so they get no GPU of it, and its share is"
    assert told == (["team-b/train", f"{said} lost"] if is_told else [])


@pytest.mark.parametrize(("labels", "dry_run"), [(None, False), ({}, True)])
def test_pod_is_not_told_of_a_claim_of_the_template_nor_at_a_dry_run(
    labels: Json | None, *, dry_run: bool
) -> None:
    pods, told = PodsInMemory(), list[str]()
    claim = template_claim()
    claim["metadata"] |= {"namespace": "team-b", "annotations": ENTRY}
    claim["metadata"] |= {} if labels is None else {"labels": labels}
    pods.stored["uid-train"] = pod_document({}, OTHER_USE)
    review = json.loads(review_body(claim))
    review["request"]["dryRun"] = dry_run

    answer = respond("/validate-quotas", json.dumps(review).encode(), to=reviews(pods, told=told))

    assert (response(answer)["allowed"], told) == (True, [])


def seconds_for_a_warning(timeout: str) -> list[float]:
    """Return for how long a pod is read for a warning, in a review with this timeout."""
    pods = MissingPods()
    claim = template_claim()
    claim["metadata"] |= {"namespace": "team-b", "annotations": ENTRY, "labels": {}}
    respond(f"/validate-quotas?timeout={timeout}", review_body(claim), to=reviews(pods))
    return pods.seconds


def test_pod_is_read_for_a_warning_for_one_second_at_most_and_for_the_time_left() -> None:
    assert seconds_for_a_warning("30s") == [1.0]
    assert max(seconds_for_a_warning("1s"), default=0.5) <= 0.5


def test_claim_is_admitted_although_its_pod_cannot_be_read() -> None:
    pods = PodsInMemory()
    pods.error = RetryableError("GET pods: 503")
    claim = template_claim()
    claim["metadata"] |= {"namespace": "team-b", "annotations": ENTRY}

    answer = respond("/validate-quotas", review_body(claim), to=reviews(pods))

    assert response(answer)["allowed"]


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
        names.ANNOTATION_QOS: "high",
        names.ANNOTATION_DRA_ENABLED: "true",
        names.ANNOTATION_ISOLATION: "soft",
        names.ANNOTATION_DEDICATED_GPU: "false",
        names.ANNOTATION_INJECT_CONTAINER: "main",
        names.ANNOTATION_CEL_EXPRESSION: 'device.attributes["model"] == "A100"',
    }
    full = container_document(
        env=[{"name": "A", "value": "b"}],
        resources={"limits": {"nvidia.com/gpu": "1"}, "claims": [{"name": "nic"}]},
        securityContext={"privileged": True},
    )
    return pod_document(annotations, full, initContainers=[full], resourceClaims=[{"name": "nic"}])


def rich_claim() -> Json:
    parameters = {"kind": "GpuShare", "limits": {"vram": "1"}}
    document = template_claim()
    document["spec"]["devices"] |= {
        "config": [{"opaque": {"driver": names.DRIVER, "parameters": parameters}}],
        "constraints": [{"distinctAttribute": "a/b", "requests": []}],
    }
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
        found = response(answer)
        assert found["uid"] == document["request"]["uid"]
        assert found["allowed"] is not ("status" in found)


@given(ANNOTATIONS)
def test_any_annotations_are_refused_or_admitted_idempotently(
    annotations: dict[str, str],
) -> None:
    document = pod_document({**annotations, names.ANNOTATION_DRA_ENABLED: "true"})

    first = response(respond("/mutate-pods", review_body(document)))

    if first["allowed"]:
        admitted = patched(document, json.loads(base64.b64decode(first["patch"])))
        again = response(respond("/mutate-pods", review_body(admitted)))
        assert again["allowed"] is True
        assert "patch" not in again
    else:
        assert first["status"]["details"]["causes"]

"""Every input is answered: a review with a verdict, anything else with an HTTP error."""

import base64
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tensorfusion_dra.core import names
from tensorfusion_dra.core.admission import pod_admission
from tests.support.admission import Json, patched, review_body
from tests.support.builders.pods import pod_document
from tests.support.builders.stored_claims import template_claim
from tests.webhook.test_reviews import respond

JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=8,
)
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
PATHS = st.sampled_from(["/mutate-pods", "/mutate-resourceclaims", "/validate"])


def deep_sets(document: Json) -> st.SearchStrategy[Json]:
    """Return a strategy for documents with one inner value replaced by junk."""
    paths: list[tuple[Any, ...]] = []

    def walk(found: object, path: tuple[Any, ...]) -> None:
        if path:
            paths.append(path)
        if isinstance(found, dict):
            for name in found:
                walk(found[name], (*path, name))
        elif isinstance(found, list):
            for index in range(len(found)):
                walk(found[index], (*path, index))

    walk(document, ())

    def changed(choice: tuple[tuple[Any, ...], object]) -> Json:
        path, junk = choice
        copied = json.loads(json.dumps(document))
        at = copied
        for part in path[:-1]:
            at = at[part]
        at[path[-1]] = junk
        return dict(copied)

    return st.tuples(st.sampled_from(paths), JUNK).map(changed)


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
    deep_sets(json.loads(review_body(rich_pod())))
    | deep_sets(json.loads(review_body(rich_claim()))),
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

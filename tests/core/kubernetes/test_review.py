"""AdmissionReviews are parsed strictly and answered as the API server expects."""

import base64
import json
from typing import Any

import pytest

from tensorfusion_dra.core.kubernetes import review
from tensorfusion_dra.core.kubernetes.field_errors import FieldError, Reason
from tensorfusion_dra.core.kubernetes.review import PASSED, Decision, Review, ReviewError
from tests.support.admission import review_body, review_of
from tests.support.builders.pods import pod_document

UID = "705ab4f5-6393-11e8-b7cc-42010a800002"


def changed(**fields: Any) -> bytes:
    """Return the body of a review with these request fields changed; None removes a field."""
    document = json.loads(review_body(pod_document({})))
    request = {**document["request"], **fields}
    document["request"] = {name: value for name, value in request.items() if value is not None}
    return json.dumps(document).encode()


def with_value(value: bytes) -> bytes:
    """Return the body of a review whose request has a field with this value."""
    return changed(new="?").replace(b'"?"', value)


def test_parse_reads_every_field() -> None:
    found = review_of(pod_document({"a": "b"}))

    of_request = (found.uid, found.kind, found.operation, found.namespace)
    assert of_request == (UID, "Pod", "CREATE", "team-a")
    assert (found.annotations, str(found)) == ({"a": "b"}, "team-a/train")
    of_controller = {**pod_document({}), "metadata": {"generateName": "train-"}}
    assert str(review_of(of_controller)) == "train-*"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (b"", "found no JSON"),
        (b"\xff\xfe", "found no JSON"),
        (b"[]", "found list, expected an AdmissionReview"),
        (b"5", "found int, expected an AdmissionReview"),
        (b"{}", "found None of None, expected AdmissionReview of admission.k8s.io/v1"),
        (
            b'{"apiVersion": "admission.k8s.io/v1beta1", "kind": "AdmissionReview"}',
            "AdmissionReview of admission.k8s.io/v1beta1, expected",
        ),
        (
            b'{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}',
            "request: found NoneType, expected an object",
        ),
        (changed(uid=""), "uid: found '', expected a string"),
        (changed(uid=7), "uid: found '7', expected a string"),
        (changed(kind="Pod"), "kind: found str, expected an object"),
        (changed(object=[]), "object: found list, expected an object"),
        (changed(object={"metadata": "x"}), "metadata: found str, expected an object"),
        (changed(object={"metadata": {"annotations": "x"}}), "annotations: found str, expected an"),
        (changed(oldObject={"metadata": {"labels": ["x"]}}), "labels: found list, expected an"),
        (changed(operation=None), "operation: found 'None', expected a string"),
        # Too many elements or levels.
        (
            with_value(b"[" + b"[]," * 25_000 + b"1]"),
            "found 50... elements or more, expected at most 50016",
        ),
        (with_value(b"[" * 49_000), "found more than 100 levels of nesting"),
        (with_value(b"[" * 900 + b"]" * 900), "found more than 100 levels of nesting"),
        (with_value(b'{"":' * 98 + b"[]" + b"}" * 98), "found more than 100 levels of nesting"),
    ],
)
def test_malformed_review_is_refused(text: bytes, error: str) -> None:
    with pytest.raises(ReviewError, match=error.replace("[", r"\[")):
        review.parse(text, wait_seconds=1)


def test_large_review_with_few_elements_and_an_unknown_field_is_read() -> None:
    large = with_value(b'{"":' * 97 + b'"' + b"a" * 2**22 + b'"' + b"}" * 97)

    assert review.parse(large, wait_seconds=1).uid == UID


@pytest.mark.parametrize("decision", [PASSED, Decision(changed=pod_document({}))])
def test_review_without_a_change_has_no_patch(decision: Decision) -> None:
    assert review.answer(review_of(pod_document({})), decision) == {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "response": {"uid": UID, "allowed": True},
    }


def test_change_is_a_json_patch_and_warnings_are_truncated() -> None:
    before = pod_document({})
    after = {**before, "spec": {**before["spec"], "schedulerName": "x"}}

    answer = review.answer(review_of(before), Decision(changed=after, warnings=["w" * 300]))

    assert json.loads(base64.b64decode(answer["response"].pop("patch"))) == [
        {"op": "add", "path": "/spec", "value": after["spec"]}
    ]
    assert answer["response"] == {
        "uid": UID,
        "allowed": True,
        "patchType": "JSONPatch",
        "warnings": ["w" * 256],
    }


def test_refusal_lists_every_error_with_its_field() -> None:
    errors = [FieldError(f"a[{n}]", Reason.INVALID, f"found {n}, expected 3") for n in (1, 2)]

    response = review.answer(review_of(pod_document({})), Decision(errors=errors))["response"]

    assert response["allowed"] is False
    assert response["status"] == {
        "status": "Failure",
        "code": 422,
        "reason": "Invalid",
        "message": "a[1]: found 1, expected 3; a[2]: found 2, expected 3",
        "details": {
            "name": "train",
            "kind": "Pod",
            "causes": [
                {
                    "reason": "FieldValueInvalid",
                    "message": f"found {n}, expected 3",
                    "field": f"a[{n}]",
                }
                for n in (1, 2)
            ],
        },
    }


@pytest.mark.parametrize("is_ascii", [True, False])
def test_unpaired_surrogates_are_refused_and_pairs_are_read(*, is_ascii: bool) -> None:
    def parsed(text: str) -> Review:
        document = json.loads(review_body(pod_document({text: text})))
        body = json.dumps(document, ensure_ascii=is_ascii).encode(errors="surrogatepass")
        return review.parse(body, wait_seconds=1)

    assert parsed("\U0001f600").annotations == {"\U0001f600": "\U0001f600"}
    with pytest.raises(ReviewError, match="surrogates not allowed"):
        parsed("\ud800")

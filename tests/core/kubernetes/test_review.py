"""AdmissionReviews, read strictly and answered as the API server expects it."""

import base64
import json
from typing import Any

import pytest

from tensorfusion_dra.core.kubernetes import review
from tensorfusion_dra.core.kubernetes.field_errors import FieldError, Reason
from tensorfusion_dra.core.kubernetes.review import PASSED, ReviewError, Verdict
from tests.support.admission import asked, body, pod

UID = "705ab4f5-6393-11e8-b7cc-42010a800002"


def changed(**fields: Any) -> bytes:
    """A review whose request has other fields; None takes one away."""
    document = json.loads(body(pod({})))
    request = {**document["request"], **fields}
    document["request"] = {name: value for name, value in request.items() if value is not None}
    return json.dumps(document).encode()


def test_a_review_is_read() -> None:
    found = asked(pod({"a": "b"}))

    assert (found.uid, found.kind, found.operation, found.namespace) == (
        UID,
        "Pod",
        "CREATE",
        "team-a",
    )
    assert found.annotations == {"a": "b"}
    assert str(found) == "team-a/train"


def test_a_pod_of_a_controller_has_no_name_yet() -> None:
    nameless = pod({})
    nameless["metadata"] = {"generateName": "train-"}

    assert str(asked(nameless)) == "train-*"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (b"", "found no JSON"),
        (b"\xff\xfe", "found no JSON"),
        (b"[" * 100_000, "found no JSON"),
        (b"[]", "found list, expected an AdmissionReview"),
        (b"{}", "found None of None, expected AdmissionReview of admission.k8s.io/v1"),
        (
            b'{"apiVersion": "admission.k8s.io/v1beta1", "kind": "AdmissionReview"}',
            "AdmissionReview of admission.k8s.io/v1beta1, expected",
        ),
        (
            b'{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}',
            "request: found NoneType, expected an object",
        ),
        (changed(uid=""), "uid: found '', expected a text"),
        (changed(uid=7), "uid: found '7', expected a text"),
        (changed(kind="Pod"), "kind: found str, expected an object"),
        (changed(object=[]), "object: found list, expected an object"),
        (changed(operation=None), "operation: found 'None', expected a text"),
    ],
)
def test_what_is_no_review_is_not_answered(text: bytes, error: str) -> None:
    with pytest.raises(ReviewError, match=error.replace("[", r"\[")):
        review.parse(text, wait_seconds=1)


def test_what_later_versions_add_does_not_matter() -> None:
    assert review.parse(changed(new="field"), wait_seconds=1).uid == UID


def test_a_pass_has_no_patch() -> None:
    assert review.answer(asked(pod({})), PASSED) == {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "response": {"uid": UID, "allowed": True},
    }


def test_a_change_is_a_json_patch() -> None:
    before = pod({})
    after = {**before, "spec": {**before["spec"], "schedulerName": "x"}}

    response = review.answer(asked(before), Verdict(changed=after, warnings=["w" * 300]))[
        "response"
    ]

    assert response["patchType"] == "JSONPatch"
    assert json.loads(base64.b64decode(response["patch"])) == [
        {"op": "add", "path": "/spec/schedulerName", "value": "x"}
    ]
    assert response["warnings"] == ["w" * 256]


def test_no_change_is_no_patch() -> None:
    response = review.answer(asked(pod({})), Verdict(changed=pod({})))["response"]

    assert response == {"uid": UID, "allowed": True}


def test_a_refusal_names_every_error_and_its_field() -> None:
    errors = [FieldError(f"a[{n}]", Reason.INVALID, f"found {n}, expected 3") for n in (1, 2)]

    response = review.answer(asked(pod({})), Verdict(errors=errors))["response"]

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


def test_texts_that_no_encoding_has_get_through() -> None:
    document = json.loads(body(pod({})))
    document["request"]["object"]["metadata"]["annotations"] = {"a": "\ud800"}
    found = review.parse(json.dumps(document).encode(), wait_seconds=1)

    answer = review.answer(found, Verdict(changed={**found.document, "x": "\ud800"}))

    assert json.dumps(answer).encode()

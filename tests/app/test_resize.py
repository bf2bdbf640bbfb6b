"""The verb `resize`: what it asks for, and what it says of the answer."""

from typing import Any

import pytest

from dra_simulator.api.faults import Refuse
from dra_simulator.rest import CLAIMS
from tensorfusion_dra.app import resize as verb
from tensorfusion_dra.core import names
from tests.support import objects
from tests.support.gpu_cluster import Cluster, Printed, request

Capture = pytest.CaptureFixture[str]
RESOURCE = "resource.k8s.io/v1"
AMOUNTS = {"vram": "20Gi", "tflops": "100"}


@pytest.fixture(autouse=True)
def claim(cluster: Cluster, cards: list[str]) -> None:
    """The claim of pod a, which is allocated."""
    cluster.schedule_pod("a", request(AMOUNTS))


def resize(cluster: Cluster, capsys: Capture, *arguments: str) -> Printed:
    return cluster.run(capsys, "resize", "--namespace", "default", *arguments)


def stored(cluster: Cluster, name: str = "a") -> Any:
    return cluster.client.get(CLAIMS, name, "default")


def answer(cluster: Cluster, reason: str, **asked: str) -> None:
    """Write an answer into the claim's status, as the node plugin does."""
    document = stored(cluster)
    (result,) = document["status"]["allocation"]["devices"]["results"]
    condition = {
        "type": "LimitChanged",
        "status": str(reason == "Granted"),
        "reason": reason,
        "message": "limit\n40Gi",
        "lastTransitionTime": "2026-03-01T00:00:00Z",
    }
    document["status"]["devices"] = [
        {name: result[name] for name in ("driver", "pool", "device", "shareID")}
        | {"data": {"asked": asked}, "conditions": [condition]}
    ]
    cluster.client.replace_status(CLAIMS, document)


@pytest.mark.parametrize("target", ["a", "pod/a", "pods/a", "claim/a"])
def test_it_annotates_and_labels_the_claim_and_says_what_stays(
    cluster: Cluster, capsys: Capture, target: str
) -> None:
    ended = resize(cluster, capsys, target, "vram=40Gi", "tflops=199.5")

    metadata = stored(cluster)["metadata"]
    assert ended == (
        0,
        "claim default/a: limits asked for: vram 40Gi, tflops 199500m. Its request stays as it "
        "is: for a larger one, create the pod again with a new claim.\n",
        "",
    )
    assert metadata["annotations"] == {
        names.ANNOTATION_VRAM_LIMIT: "40Gi",
        names.ANNOTATION_TFLOPS_LIMIT: "199500m",
    }
    assert metadata["labels"] == {names.LABEL_NODE: "node-01"}


@pytest.mark.parametrize(("reason", "code"), [("Granted", 0), ("GrantedInPart", 1), ("Refused", 1)])
def test_wait_ends_with_the_answer_of_the_node(
    cluster: Cluster, capsys: Capture, reason: str, code: int
) -> None:
    answer(cluster, reason, vram="40Gi", tflops="much")

    ended = resize(cluster, capsys, "a", "vram=40Gi", "--wait")

    assert ended.code == code
    assert ended.out.splitlines()[1:] == [rf"{reason}: limit\n40Gi"]


def test_a_card_without_limits_beside_it_has_no_answer_to_wait_for(
    cluster: Cluster, capsys: Capture
) -> None:
    cluster.schedule_pod("two", request(AMOUNTS, count=2))
    document = stored(cluster, "two")
    answered, observed = document["status"]["allocation"]["devices"]["results"]
    document["status"]["devices"] = [
        {name: each[name] for name in ("driver", "pool", "device", "shareID")} | {"data": data}
        for each, data in ((answered, {"asked": {"vram": "40Gi"}}), (observed, {}))
    ]
    cluster.client.replace_status(CLAIMS, document)

    assert resize(cluster, capsys, "two", "vram=40Gi", "--wait", "1").code == 0


def test_an_answer_to_an_earlier_question_is_none(cluster: Cluster, capsys: Capture) -> None:
    answer(cluster, "Granted", vram="30Gi")

    ended = resize(cluster, capsys, "a", "vram=40Gi", "--wait", "0.1")

    assert ended.code == 2
    assert "found no answer of the node within 0.1 s" in ended.err
    assert "setting resize" in ended.err


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("a", "memory=1Gi"), "found memory=1Gi, expected vram=40Gi or tflops=200"),
        (("a", "vram"), "vram: found ''"),
        (("a", "vram=much"), "vram: found 'much'"),
        (("a", "vram=-1Gi"), "vram: found -1Gi, expected 0 or more"),
        (("a", "vram=0"), "vram: found '0', expected more than 0"),
        (("a", "vram=\uff14\uff10Gi"), "vram: found '\uff14\uff10Gi'"),
        (("a", "tflops=50%"), "tflops: found '50%'"),
        (("a", "vram=1Gi", "tflops=1", "vram=2Gi"), "vram=2Gi, expected each amount once"),
        (("deploy/a", "vram=1Gi"), "found deploy/a, expected NAME, claim/NAME or pod/NAME"),
        (("policy/a", "vram=1Gi"), "found policy/a, expected NAME"),
        (("pod/", "vram=1Gi"), "found pod/, expected NAME"),
        (("", "vram=1Gi"), "expected NAME"),
        (("a", "vram=1Gi", "--wait", "-5"), "--wait: found -5, expected 0 or more seconds"),
        (("a", "vram=1Gi", "--wait", "nan"), "--wait: found nan, expected 0 or more seconds"),
        (("b", "vram=1Gi"), "default/b: found claims with GPUs: none; expected the name of one"),
        (("pod/b\n", "vram=1Gi"), "found claims with GPUs: none"),
        (("waiting", "vram=1Gi"), "found claims with GPUs: none"),
        (("two", "vram=1Gi"), "found claims with GPUs: a, c; expected the name of one"),
    ],
)
def test_what_cannot_be_asked_for_is_said_and_changes_nothing(
    cluster: Cluster, capsys: Capture, arguments: tuple[str, ...], error: str
) -> None:
    cluster.schedule_pod("c", request(AMOUNTS))
    two = [{"name": name, "resourceClaimName": name} for name in "ac"]
    cluster.add_pod("two", resourceClaims=two)
    cluster.add_pod("waiting", request({"vram": "200Gi"}))
    before = stored(cluster)

    ended = resize(cluster, capsys, *arguments)

    assert ended.code == 2
    assert error in ended.err
    assert stored(cluster) == before


def test_a_claim_of_another_driver_beside_it_is_no_choice(
    cluster: Cluster, capsys: Capture
) -> None:
    cluster.client.create(CLAIMS, objects.claim(objects.exactly(), name="network"))
    both = [{"name": name, "resourceClaimName": name} for name in ("a", "network")]
    cluster.add_pod("both", resourceClaims=both)

    assert resize(cluster, capsys, "both", "vram=40Gi").code == 0
    assert stored(cluster, "network")["metadata"].get("annotations") is None


@pytest.mark.parametrize("status", [403, 409, 422, 500])
def test_a_refusal_of_the_api_server_is_said(
    cluster: Cluster, capsys: Capture, status: int
) -> None:
    cluster.server.faults.add("patch", "resourceclaims", Refuse(status))

    ended = resize(cluster, capsys, "a", "vram=40Gi", "--wait")

    assert ended.code == 2
    assert ended.out == ""
    assert f"PATCH /apis/{RESOURCE}/namespaces/default/resourceclaims/a: {status}" in ended.err


def test_a_claim_that_was_created_again_meanwhile_is_not_changed(
    cluster: Cluster, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = stored(cluster)
    found["metadata"]["uid"] = "of-the-one-before"
    monkeypatch.setattr(verb, "_claim", lambda *_: found)

    assert resize(cluster, capsys, "a", "vram=40Gi").code == 2
    assert names.ANNOTATION_VRAM_LIMIT not in stored(cluster)["metadata"].get("annotations", {})

"""Proposals of the verb `why` for pods that no node has room for."""

import pytest

from dra_simulator.rest import CLAIMS, PODS, TEMPLATES
from tensorfusion_dra.app.why import answers
from tensorfusion_dra.core import names
from tests.support import objects
from tests.support.builders.gpus import gpu
from tests.support.builders.pods import pod_annotations
from tests.support.gpu_cluster import (
    ANNOTATED,
    Cluster,
    request,
    template,
    two_cards,
)

Capture = pytest.CaptureFixture[str]


def test_unhealthy_cards_are_called_so_although_the_webhooks_selector_excludes_their_phase(
    cluster: Cluster, capsys: Capture
) -> None:
    cluster.add_node("node-01", gpu(1), taint="xid-79")
    cluster.client.create(TEMPLATES, template())
    cluster.add_pod("a", metadata={"annotations": ANNOTATED})

    _, found = cluster.why(capsys, "a")

    assert f"the only card is tainted {names.TAINT_UNHEALTHY}=xid-79" in found["answer"]
    assert not any("phase" in text for text in found["helps"])


def test_a_tolerated_taint_leaves_the_phase_as_the_reason(
    cluster: Cluster, capsys: Capture
) -> None:
    cluster.add_node("node-01", gpu(1), taint="xid-79")
    tolerations = [{"key": names.TAINT_UNHEALTHY, "operator": "Exists"}]
    selectors = objects.expressions(f'device.attributes["{names.DRIVER}"].phase == "Running"')
    cluster.add_pod("a", request(selectors=selectors, tolerations=tolerations))

    _, found = cluster.why(capsys, "a")

    assert found["answer"].endswith('the only card does not match phase == "Running".')
    assert found["helps"] == [
        "Repair the cards: the driver publishes them as unhealthy (phase Unknown)."
    ]


def test_a_pod_with_more_cards_than_a_node_has_is_told_so_in_one_sentence(
    cluster: Cluster, capsys: Capture
) -> None:
    cluster.add_node("node-01", *two_cards())
    cluster.client.create(TEMPLATES, template())
    annotations = {**ANNOTATED, names.ANNOTATION_GPU_COUNT: "3"}
    cluster.add_pod("a", metadata={"annotations": annotations})

    _, found = cluster.why(capsys, "a")
    text = cluster.text(capsys, "why", "a")

    expected = "no node has its 3 cards at once: most are on node-01, where 2 of 2 fit alone."
    assert expected in found["answer"]
    assert "fits alone, but with the pod's other cards: does not satisfy distinctAttribute" in text


def test_a_constraint_that_cards_do_not_satisfy_together(cluster: Cluster, capsys: Capture) -> None:
    cluster.add_node("node-01", *two_cards())
    same = {"matchAttribute": f"{names.DRIVER}/{names.ATTR_UUID}"}
    asked = request({"vram": "1Gi"}, count=2)
    cluster.client.create(CLAIMS, objects.claim(asked, name="a", constraints=[same]))
    cluster.client.create(PODS, objects.pod("a", claim_name="a"))

    _, found = cluster.why(capsys, "a")

    assert (
        "its 2 cards at once: most are on node-01, where 2 of 2 fit alone, but 1 does not satisfy "
        f"matchAttribute {names.DRIVER}/{names.ATTR_UUID}."
    ) in found["answer"]


def test_a_constraint_that_a_single_card_does_not_satisfy(
    cluster: Cluster, capsys: Capture
) -> None:
    for number in range(4):
        cluster.add_node(f"node-{number}", gpu(number))
    rack = {"matchAttribute": "example.com/rack"}
    asked = objects.claim(request({"vram": "1Gi"}), name="a", constraints=[rack])
    cluster.client.create(CLAIMS, asked)
    cluster.client.create(PODS, objects.pod("a", claim_name="a"))
    cluster.add_pod("b", request({"vram": "1Gi"}))

    _, found = cluster.why(capsys, "a")
    _, other = cluster.why(capsys, "b")

    assert found["answer"] == (
        "default/a waits: no node has its card: most are on node-0, where 1 of 1 fits alone, but 1 "
        "does not satisfy matchAttribute example.com/rack."
    )
    assert "on node-0, node-1, node-2 and 1 more (" in other["answer"]


def test_of_several_requests_the_answer_names_the_one_that_no_card_fits(
    cluster: Cluster, capsys: Capture
) -> None:
    cluster.add_node("node-01", *two_cards())
    choices = [
        {"name": vram.lower(), **request({"vram": vram, "tflops": "1"})["exactly"]}
        for vram in ("300Gi", "90Gi")
    ]
    large = {"name": "large", "firstAvailable": choices}
    cluster.add_pod("a", request({"vram": "1Gi", "tflops": "1"}, name="small"), large)

    _, found = cluster.why(capsys, "a")
    text = cluster.text(capsys, "why", "a")

    assert found["answer"] == (
        "default/a waits: for request a/large, none of 2 cards fits: 2 have too little free vram."
    )
    assert "a/small: fits alone; a/large/300gi: vram 0 of 80Gi taken, 300Gi more" in text


def test_only_the_request_that_is_too_large_gets_less(cluster: Cluster, capsys: Capture) -> None:
    cluster.add_node("node-01", *two_cards())
    small = {"vram": "10Gi", "tflops": "1"}
    large = request({"vram": "100Gi", "tflops": "1"}, name="large")
    cluster.add_pod("a", large, *(request(small, name=name) for name in ("one", "two")))

    _, found = cluster.why(capsys, "a")

    assert found["helps"][0] == "Request less in request large: vram 80Gi fits now on node-01."


def test_capacity_that_no_card_has(cluster: Cluster, capsys: Capture) -> None:
    cluster.add_node("node-01", *two_cards())
    cluster.add_pod("a", request({"vram": "10Gi", "shine": "1"}))

    _, found = cluster.why(capsys, "a")

    assert found["answer"].endswith("none of 2 cards fits: 2 do not offer the requested shine.")


@pytest.mark.parametrize(
    ("annotation", "value", "expected"),
    [
        (names.ANNOTATION_GPUPOOL, "nowhere", "found nowhere, but the cards have: default (2)."),
        (names.ANNOTATION_QOS, "critical", "found critical, but the cards have: medium (2)."),
    ],
)
def test_annotation_that_selects_no_card_is_named(
    cluster: Cluster, capsys: Capture, annotation: str, value: str, expected: str
) -> None:
    cluster.add_node("node-01", *two_cards())
    cluster.client.create(TEMPLATES, template())
    cluster.add_pod("a", metadata={"annotations": {**ANNOTATED, annotation: value}})

    _, found = cluster.why(capsys, "a")

    assert f"Correct {annotation}: {expected}" in found["helps"]


def test_smaller_request_is_given_as_annotations_that_the_pod_does_not_have_yet(
    cluster: Cluster, capsys: Capture
) -> None:
    cluster.add_node("node-01", *two_cards())
    cluster.client.create(TEMPLATES, template())
    cluster.add_pod("held", request({"vram": "30Gi", "tflops": "12"}, count=2))
    cluster.schedule()
    annotations = pod_annotations(dra_enabled="true", dedicated_gpu="true")
    cluster.add_pod("a", metadata={"annotations": annotations})

    _, found = cluster.why(capsys, "a")

    less = (
        f"Request less: {names.ANNOTATION_TFLOPS_REQUEST}: 300, {names.ANNOTATION_VRAM_REQUEST}: "
        "50Gi instead of whole cards fits now on node-01."
    )
    assert less in found["helps"]


def test_annotations_cannot_write_to_the_terminal(cluster: Cluster, capsys: Capture) -> None:
    cluster.add_node("node-01", *two_cards())
    cluster.client.create(TEMPLATES, template())
    annotations = {**ANNOTATED, names.ANNOTATION_GPU_MODEL: "H\x1b[2J100"}
    cluster.add_pod("a", metadata={"annotations": annotations})

    out = cluster.run(capsys, "why", "a").out

    assert "H\\x1b[2J100" in out
    assert "\x1b" not in out


@pytest.mark.parametrize(
    ("count", "expected"),
    [(1, "1 is tainted a=b"), (2, "2 are tainted a=b"), (0, "0 are tainted a=b")],
)
@pytest.mark.parametrize("verb", ["is", "are"])
def test_one_card_is_counted_in_the_singular(count: int, expected: str, verb: str) -> None:
    assert answers.numbered(count, f"{verb} tainted a=b") == expected


@pytest.mark.parametrize(
    ("count", "expected"), [(1, "1 does not satisfy numa"), (2, "2 do not satisfy numa")]
)
def test_note_about_one_card_agrees_with_the_number_of_cards(count: int, expected: str) -> None:
    assert answers.numbered(count, "does not satisfy numa") == expected

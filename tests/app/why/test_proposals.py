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
from tests.support.objects import Json

Capture = pytest.CaptureFixture[str]
ATTRIBUTES = f'device.attributes["{names.DRIVER}"]'
H100 = f'{ATTRIBUTES}.model == "H100"'


def large(name: str, vram: str) -> Json:
    """An alternative with this vram."""
    return {"name": name, **request({"vram": vram, "tflops": "1"})["exactly"]}


@pytest.mark.parametrize(
    ("made", "answer", "helps", "shown"),
    [
        pytest.param(
            {"requests": [request({"vram": "20Gi"}, selectors=objects.expressions(H100))]},
            'none of 2 cards fits: 2 do not match model == "H100".',
            ['Correct the selector model == "H100": the cards have model: A100 (2).'],
            "",
            id="model that no card has",
        ),
        pytest.param(
            {"requests": [request(selectors=objects.expressions(f"{ATTRIBUTES}.rack == 1"))]},
            "cannot be scheduled on any node: claim default/a: selector #0: CEL runtime error: no "
            "such key: rack.",
            [],
            "",
            id="selector that fails",
        ),
        pytest.param(
            {"requests": [request({"vram": "20Gi", "tflops": "1"}, count=2)], "taint": "xid-79"},
            "no node has its 2 cards at once: most are on node-01, where 1 of 2 fits alone, 1 is "
            f"tainted {names.TAINT_UNHEALTHY}=xid-79.",
            [],
            "",
            id="tainted card",
        ),
        pytest.param(
            {"cards": 1, "taint": "xid-79", "annotations": {}},
            f"the only card is tainted {names.TAINT_UNHEALTHY}=xid-79.",
            [],
            "",
            id="unhealthy card, although the webhook's selector excludes its phase",
        ),
        pytest.param(
            {
                "cards": 1,
                "taint": "xid-79",
                "requests": [
                    request(
                        selectors=objects.expressions(f'{ATTRIBUTES}.phase == "Running"'),
                        tolerations=[{"key": names.TAINT_UNHEALTHY, "operator": "Exists"}],
                    )
                ],
            },
            'the only card does not match phase == "Running".',
            ["Repair the cards: the driver publishes them as unhealthy (phase Unknown)."],
            "",
            id="tolerated taint leaves the phase as the reason",
        ),
        pytest.param(
            {"annotations": {names.ANNOTATION_GPU_COUNT: "3"}},
            "no node has its 3 cards at once: most are on node-01, where 2 of 2 fit alone.",
            [],
            "fits alone, but with the pod's other cards: does not satisfy distinctAttribute",
            id="more cards than a node has",
        ),
        pytest.param(
            {
                "requests": [request({"vram": "1Gi"}, count=2)],
                "constraints": [{"matchAttribute": f"{names.DRIVER}/{names.ATTR_UUID}"}],
            },
            "no node has its 2 cards at once: most are on node-01, where 2 of 2 fit alone, but 1 "
            f"does not satisfy matchAttribute {names.DRIVER}/{names.ATTR_UUID}.",
            [],
            "",
            id="constraint between cards",
        ),
        pytest.param(
            {
                "requests": [
                    request({"vram": "1Gi", "tflops": "1"}, name="small"),
                    {
                        "name": "large",
                        "firstAvailable": [large("300gi", "300Gi"), large("90gi", "90Gi")],
                    },
                ]
            },
            "for request a/large, none of 2 cards fits: 2 have too little free vram.",
            ["Request less in request large/90gi: vram 80Gi fits now on node-01."],
            "a/small: fits alone; a/large/300gi: vram 0 of 80Gi taken, 300Gi more",
            id="of several requests, the one that no card fits",
        ),
        pytest.param(
            {
                "requests": [
                    request({"vram": "100Gi", "tflops": "1"}, name="large"),
                    request({"vram": "10Gi", "tflops": "1"}, name="one"),
                    request({"vram": "10Gi", "tflops": "1"}, name="two"),
                ]
            },
            "for request a/large, none of 2 cards fits: 2 have too little free vram.",
            ["Request less in request large: vram 80Gi fits now on node-01."],
            "",
            id="only the request that is too large gets less",
        ),
        pytest.param(
            {"requests": [request({"vram": "10Gi", "shine": "1"})]},
            "none of 2 cards fits: 2 do not offer the requested shine.",
            [],
            "",
            id="capacity that no card has",
        ),
        pytest.param(
            {"annotations": {names.ANNOTATION_GPUPOOL: "nowhere"}},
            'none of 2 cards fits: 2 do not match pool_name == "nowhere".',
            [
                f"Correct {names.ANNOTATION_GPUPOOL}: found nowhere, but the cards have: "
                "default (2)."
            ],
            "",
            id="pool that no card has",
        ),
        pytest.param(
            {"annotations": {names.ANNOTATION_QOS: "critical"}},
            'none of 2 cards fits: 2 do not match qos == "critical".',
            [f"Correct {names.ANNOTATION_QOS}: found critical, but the cards have: medium (2)."],
            "",
            id="qos that no card has",
        ),
    ],
)
def test_pod_that_no_node_has_room_for(
    cluster: Cluster, capsys: Capture, made: Json, answer: str, *, helps: list[str], shown: str
) -> None:
    cluster.add_node("node-01", *two_cards()[: made.get("cards", 2)], taint=made.get("taint", ""))
    cluster.client.create(TEMPLATES, template())
    if "annotations" in made:
        cluster.add_pod("a", metadata={"annotations": {**ANNOTATED, **made["annotations"]}})
    else:
        asked = objects.claim(*made["requests"], name="a", constraints=made.get("constraints", []))
        cluster.client.create(CLAIMS, asked)
        cluster.client.create(PODS, objects.pod("a", claim_name="a"))

    code, found = cluster.why(capsys, "a")

    of_webhook = [text for text in found["helps"] if text.startswith("install the webhook")]
    assert code == 1
    assert found["answer"].endswith(answer)
    assert [text for text in found["helps"] if text not in of_webhook] == helps
    assert shown in cluster.text(capsys, "why", "a")


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
    assert answers.numbered(2, "does not satisfy numa") == "2 do not satisfy numa"

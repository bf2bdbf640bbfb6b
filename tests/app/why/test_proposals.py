"""Proposals of the verb `why` for pods that no node has room for."""

import pytest

from tensorfusion_dra.app.why import answers
from tensorfusion_dra.core import names
from tensorfusion_dra.simulator.rest import TEMPLATES
from tests.support.builders.gpus import gpu
from tests.support.gpu_cluster import ANNOTATED, Cluster, request, template, two_cards

Capture = pytest.CaptureFixture[str]


def test_cards_that_are_all_tainted(cluster: Cluster, capsys: Capture) -> None:
    for number in (1, 2):
        cluster.add_node(f"node-0{number}", gpu(number), taint="ecc")
    cluster.add_pod("a", request({"vram": "20Gi", "tflops": "1"}))

    code, found = cluster.why(capsys, "a")

    assert code == 1
    assert found["answer"] == (
        f"default/a waits: none of 2 cards fits: 2 are tainted {names.TAINT_UNHEALTHY}=ecc."
    )
    assert found["helps"][0].startswith("Repair gpu-")


def test_pod_with_too_many_cards_is_told_how_many_fit(cluster: Cluster, capsys: Capture) -> None:
    cluster.add_node("node-01", *two_cards())
    cluster.client.create(TEMPLATES, template())
    annotations = {**ANNOTATED, names.ANNOTATION_GPU_COUNT: "4"}
    cluster.add_pod("a", metadata={"annotations": annotations})

    _, found = cluster.why(capsys, "a")

    assert "Request fewer: 2 of the 4 devices fit now on node-01." in found["helps"]


def test_pod_with_a_count_is_told_how_many_fit(cluster: Cluster, capsys: Capture) -> None:
    cluster.add_node("node-01", *two_cards())
    cluster.add_pod("a", request({"vram": "20Gi", "tflops": "1"}, count=3))

    _, found = cluster.why(capsys, "a")

    assert found["helps"] == ["Request fewer: 2 of the 3 devices fit now on node-01."]


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
def test_one_card_is_counted_in_the_singular(count: int, expected: str) -> None:
    assert answers.numbered(count, "are tainted a=b") == expected

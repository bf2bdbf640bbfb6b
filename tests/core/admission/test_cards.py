"""Cards of clusters: few however many nodes there are, and not one node's word against many."""

import tracemalloc
from collections.abc import Iterable
from random import Random
from typing import Any, Final

import pytest

from tensorfusion_dra.cluster.published_cards import _of_cards
from tensorfusion_dra.core.admission import cards, pod_request
from tensorfusion_dra.core.admission.pod_request import PodRequest
from tensorfusion_dra.core.errors import InputError
from tests.support.builders.pods import pod_annotations
from tests.support.builders.slices import slice_of_models

Json = dict[str, Any]
MIB: Final = 2**20
A100, SMALLER, T4 = ("A100", "312", "80Gi"), ("A100", "312", "40Gi"), ("T4", "65", "15Gi")


def of_nodes(*models: tuple[str, str, str], first: int = 0, pool: str = "default") -> list[Json]:
    """Return a slice for each of these cards, each on a node of its own."""
    found = []
    for number, model in enumerate(models, first):
        item = slice_of_models(model)
        spec = {
            **item["spec"],
            "nodeName": f"n{number}",
            "pool": {"name": f"{pool}/n{number}", "resourceSliceCount": 1},
        }
        found.append({**item, "metadata": {"name": f"s{number}"}, "spec": spec})
    return found


def percent(slices: list[Json], **annotations: str) -> tuple[PodRequest, ...]:
    wanted = pod_request.parse(pod_annotations(compute_percent_request="25", **annotations))
    return pod_request.alternatives(wanted, cards.of_slices(slices), pool="")


@pytest.mark.parametrize("asks", [{}, {"gpu_model": "A100"}])
@pytest.mark.parametrize("other", [SMALLER, ("A100", "1", "81Gi"), T4])
def test_a_card_of_one_node_alone_does_not_count_against_many(
    other: tuple[str, str, str], asks: dict[str, str]
) -> None:
    many = of_nodes(*[A100] * 3)

    assert percent([*many, *of_nodes(other, first=3)], **asks) == percent(many, **asks)


def test_two_nodes_do_not_decide_what_a_third_one_has() -> None:
    with pytest.raises(InputError, match="found "):
        percent(of_nodes(A100, A100, T4))


def test_a_card_of_one_node_alone_can_be_named() -> None:
    (found,) = percent([*of_nodes(*[A100] * 3), *of_nodes(T4, first=3)], gpu_model="T4")

    assert str(found.tflops) == "16250m"


@pytest.mark.parametrize("amount", ["vram_request", "vram_percent_request"])
def test_models_of_one_node_alone_are_no_alternatives_beside_one_of_many(amount: str) -> None:
    many = of_nodes(*[A100] * 3)
    fake = slice_of_models(*[(f"A00{number}", "312", "60Gi") for number in range(10)])
    spec = {**fake["spec"], "nodeName": "n9", "pool": {"name": "default/n9"}}
    asks = {amount: "10", "compute_percent_request": pod_request.LIKE_MEMORY}
    wanted = pod_request.parse(pod_annotations(**asks))

    alone, beside = (
        pod_request.alternatives(wanted, cards.of_slices(each), pool="")
        for each in (many, [*many, {**fake, "spec": spec}])
    )

    assert alone == beside


def test_kinds_and_slices_of_one_node_are_bounded() -> None:
    nodes = cards.PublishedNodes()
    found = cards.of_slice(slice_of_models(*[(f"M{kind}", "1", "1Gi") for kind in range(100)]))
    for number in range(100):
        own = found._replace(
            cards=tuple((kind._replace(model=f"N{number}"), 1) for kind, _ in found.cards)
        )
        nodes.put("n", f"s{number}", own)

    ((of_node, _),) = nodes.cards().nodes.items()
    assert len(of_node.cards) == 16
    assert len(found.cards) == 16
    assert len(nodes._slices["n"]) == 8


def test_a_pool_of_one_node_alone_does_not_count_against_many() -> None:
    published = cards.of_slices(
        [*of_nodes(*[A100] * 3, pool="default"), *of_nodes(A100, first=3, pool="prod")]
    )

    assert published.usual_pools() == {"default"}
    assert published.pools() == {"default", "prod"}


def large_slice(node: int, number: int, cards_each: int) -> Json:
    """Return a slice with cards of all attributes that this driver publishes."""
    device = {
        "name": "gpu",
        "attributes": {f"attribute{n}": {"string": f"value {node} {n}"} for n in range(35)},
        "capacity": {"tflops": {"value": "312"}, "vram": {"value": f"{80 + number % 3}Gi"}},
    }
    return {
        "metadata": {"name": f"s{node}-{number}"},
        "spec": {
            "driver": "tensor-fusion.ai.dra-driver",
            "nodeName": f"n{node}",
            "pool": {"name": f"default/n{node}", "resourceSliceCount": 1},
            "devices": [device] * cards_each,
        },
    }


@pytest.mark.parametrize("seed", range(20))
def test_cards_that_are_added_up_step_by_step_are_those_of_all_slices(seed: int) -> None:
    draw, nodes, stored = Random(seed), cards.PublishedNodes(), dict[tuple[str, str], Json]()
    for _ in range(60):
        (item,) = of_nodes(draw.choice((A100, T4)), first=draw.randrange(4))
        at = item["spec"]["nodeName"], f"s{draw.randrange(3)}"
        stored.pop(at, None)
        if draw.random() < 0.6:
            stored[at] = item
        nodes.put(*at, cards.of_slice(stored[at]) if at in stored else None)

        found, expected = nodes.cards().nodes, cards.of_slices(stored.values()).nodes
        assert {each: count for each, (count, _) in found.items()} == {
            each: count for each, (count, _) in expected.items()
        }
        assert all(any(at[0] == name for at in stored) for _, name in found.values())


def test_a_changed_slice_costs_the_sum_of_its_own_node(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes, sums, together = cards.PublishedNodes(), list[int](), cards.together
    for number in range(1_000):
        nodes.put(f"n{number}", "s", cards.of_slice(of_nodes(A100)[0]))

    def counted(slices: Iterable[cards.OfNode]) -> cards.OfNode:
        sums.append(1)
        return together(slices)

    monkeypatch.setattr(cards, "together", counted)

    nodes.put("n7", "s", cards.of_slice(of_nodes(T4)[0]))

    assert (len(nodes.cards().nodes), sums) == (2, [1])


@pytest.mark.parametrize(("nodes", "slices", "each"), [(1_000, 1, 8), (1, 100, 128)])
def test_cards_of_a_large_cluster_and_of_a_node_that_publishes_thousands_take_little_memory(
    nodes: int, slices: int, each: int
) -> None:
    kept_nodes = cards.PublishedNodes()
    tracemalloc.start()
    try:
        for node in range(nodes):
            for number in range(slices):
                item = _of_cards(large_slice(node, number, each))
                kept_nodes.put(item["node"], item["metadata"]["name"], item["cards"])
        found = kept_nodes.cards()
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert kept < 3 * MIB
    assert found.number() == nodes * min(slices, cards.MAX_SLICES) * each

"""Warnings about a pod's request that no published card satisfies at present.

They are no errors: a cluster autoscaler, for example, may add a node with such cards.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from tensorfusion_dra.core import names
from tensorfusion_dra.core.admission.cards import CardKind, Cards
from tensorfusion_dra.core.admission.pod_request import PodRequest

_MOST_NAMED: Final = 5


def warnings(choices: Sequence[PodRequest], every: Cards, *, pool: str) -> Iterator[str]:
    """Yield the reasons for which the pod would wait at present, one line each.

    Args:
        choices: The pod's request, in amounts, for each of its models.
        every: Of all nodes.
        pool: The GPUPool that the pod's devices come from; "" for any.
    """
    numbers = Counter[CardKind]()
    for of_node, (nodes, _) in every.nodes.items():
        for card, number in of_node.cards:
            if card.is_partition == choices[0].is_partitioned:
                numbers[card] += nodes * number
    cards = {card: number for card, number in numbers.items() if card.is_in(pool)}
    if not cards:
        pools = ", ".join(sorted({card.pool for card in numbers})[:_MOST_NAMED])
        yield (
            f"{names.ANNOTATION_GPUPOOL}: {pool} has no GPU at present; pools with GPUs: {pools}"
            if pools
            else "no node has a GPU of this driver at present, so the pod waits"
        )
        return
    able: set[CardKind] = set()
    for wanted in choices:
        (model,) = wanted.models or ("",)
        found = {card for card in cards if card.is_of(model)}
        if not found:
            yield (
                f"{names.ANNOTATION_GPU_MODEL}: found {model[:40]}, but the cards have "
                f"{_counted(cards, model)} at present"
            )
            continue
        able |= found
        for annotation, amount, most in (
            (names.ANNOTATION_TFLOPS_REQUEST, wanted.tflops, max(c.most_tflops for c in found)),
            (names.ANNOTATION_VRAM_REQUEST, wanted.vram, max(c.most_vram for c in found)),
        ):
            if amount and not wanted.whole and amount > most:
                yield f"{annotation}: found {amount}, but the largest card has {most}"
    most_of_node = max(
        sum(number for card, number in of_node.cards if card in able) for of_node in every.nodes
    )
    if able and choices[0].count > most_of_node:
        yield (
            f"{names.ANNOTATION_GPU_COUNT}: found {choices[0].count}, but no node has more than "
            f"{most_of_node} such GPUs at present"
        )


def _counted(cards: Mapping[CardKind, int], asked: str) -> str:
    """Return the models with how many there are of each, the most frequent first.

    A model of which the pod names another product is listed by its product name, such as NVIDIA
    A100-SXM4-80GB if the pod asks for NVIDIA A100-SXM4-40GB.
    """
    found: Counter[str] = Counter()
    for card, count in cards.items():
        found[card.product[:40] if card.model in asked else card.model[:20]] += count
    return ", ".join(f"{name} ({count})" for name, count in found.most_common(_MOST_NAMED))

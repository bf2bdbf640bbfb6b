"""What a pod's request meets among the cards that are published at present.

These are warnings and no errors: a node that has what the pod needs may come, as where nodes are
started for the pods that wait.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from tensorfusion_dra.core import names
from tensorfusion_dra.core.admission import pod_request
from tensorfusion_dra.core.admission.pod_request import Card, PodRequest

_MOST_NAMED: Final = 5


def warnings(
    choices: Sequence[PodRequest], slices: Sequence[Mapping[str, Any]], *, pool: str
) -> Iterator[str]:
    """Yield what keeps the pod waiting as things are, one line each.

    Args:
        choices: The pod's request, in amounts, for each of its models.
        slices: Of all nodes.
        pool: The GPUPool that the pod's devices come from; "" for any.
    """
    every = list(pod_request.cards(slices))
    cards = list(pod_request.cards(slices, pool=pool))
    if not cards:
        pools = ", ".join(sorted({card.pool for card in every})[:_MOST_NAMED])
        yield (
            f"{names.ANNOTATION_GPUPOOL}: {pool} has no GPU at present; pools with GPUs: {pools}"
            if pools
            else "no node has a GPU of this driver at present, so the pod waits"
        )
        return
    able: list[Card] = []
    for wanted in choices:
        (model,) = wanted.models or ("",)
        found = [card for card in cards if card.is_of(model)]
        if not found:
            yield (
                f"{names.ANNOTATION_GPU_MODEL}: found {model[:40]}, but the cards have "
                f"{_counted(card.model for card in cards)} at present"
            )
        able += found
        for annotation, amount, amounts in (
            (names.ANNOTATION_TFLOPS_REQUEST, wanted.tflops, [card.most_tflops for card in found]),
            (names.ANNOTATION_VRAM_REQUEST, wanted.vram, [card.most_vram for card in found]),
        ):
            if amount and amounts and not wanted.whole and amount > max(amounts):
                yield f"{annotation}: found {amount}, but the largest card has {max(amounts)}"
    most = max(Counter(card.node for card in able).values(), default=0)
    if able and choices[0].count > most:
        yield (
            f"{names.ANNOTATION_GPU_COUNT}: found {choices[0].count}, but no node has more than "
            f"{most} such GPUs at present"
        )


def _counted(models: Iterable[str]) -> str:
    """Return names with how many there are of each, the most frequent first."""
    found = Counter(models).most_common(_MOST_NAMED)
    return ", ".join(f"{name[:20]} ({count})" for name, count in found)

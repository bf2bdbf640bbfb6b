"""Claims for several cards, with the schedulers before and since Kubernetes 1.36."""

from typing import Final

import pytest

from tensorfusion_dra.core import names
from tensorfusion_dra.core.admission import claim_admission
from tensorfusion_dra.core.admission.pod_request import PodRequest
from tensorfusion_dra.core.kubernetes.quantity import Quantity
from tests.scheduling.allocating import allocate, devices
from tests.support.builders.stored_claims import template_claim
from tests.support.objects import (
    CLASS,
    DRIVER,
    Json,
    claim,
    exactly,
    resource_slice,
    shared,
)

CARDS: Final = [resource_slice(*(shared(f"gpu-{name}", uuid=name) for name in "abcd"))]
OTHER_CARD: Final = {"distinctAttribute": f"{DRIVER}/uuid"}
SMALL: Final = {"tflops": "1", "vram": "1Gi"}


def allocated_cards(found: Json, *, tries_all_candidates: bool) -> str:
    """Return the cards in the order of the results, such as `abcd`."""
    (allocation,) = allocate(found, slices=CARDS, tries_all_candidates=tries_all_candidates)
    return "".join(name.removeprefix("gpu-") for name in devices(allocation))


@pytest.mark.parametrize(
    ("constraints", "tries_all_candidates", "cards"),
    [([], False, "abcd"), ([], True, "aaaa"), ([OTHER_CARD], True, "abab")],
    ids=["1.36", "1.35", "1.35 with a constraint"],
)
def test_one_request_of_four_may_get_a_card_several_times_before_1_36(
    constraints: list[Json], cards: str, *, tries_all_candidates: bool
) -> None:
    four = claim(exactly(count=4, capacity=SMALL), constraints=constraints)

    assert allocated_cards(four, tries_all_candidates=tries_all_candidates) == cards


@pytest.mark.parametrize("tries_all_candidates", [True, False], ids=["1.35", "1.36"])
@pytest.mark.parametrize("count", [2, 3, 4])
def test_claim_filled_by_the_webhook_gets_as_many_cards_as_its_pod_requests(
    count: int, *, tries_all_candidates: bool
) -> None:
    wanted = PodRequest(count=count, tflops=Quantity.whole(1), vram=Quantity.whole(2**30))
    made = template_claim()
    made["metadata"]["name"] = "train"
    made["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"] = CLASS
    filled = claim_admission.filled(made, wanted, pool="", virtual=False)
    for request in filled["spec"]["devices"]["requests"]:
        del request["exactly"]["selectors"]  # the cards of this test lack the driver's attributes
    (constraint,) = filled["spec"]["devices"]["constraints"]
    assert constraint["distinctAttribute"] == f"{names.DRIVER}/{names.ATTR_UUID}"
    constraint["distinctAttribute"] = f"{DRIVER}/uuid"

    assert allocated_cards(filled, tries_all_candidates=tries_all_candidates) == "abcd"[:count]

"""Claims that are refused because of their annotations, parameters or amounts."""

from dataclasses import replace
from typing import Final

import pytest

from tensorfusion_dra.core.errors import ClaimError
from tests.core.claims.container_cases import (
    HARD,
    OF_HARD_CLASS,
    OF_SHARED_CLASS,
    OVERSUBSCRIBED,
    SHARED,
    TWO,
    WHOLE,
    Claimed,
    admitted_claim,
    one_card,
)
from tests.support.builders.pods import pod_annotations

LIMIT: Final = "pod default/p0: annotation tensor-fusion.ai/vram-limit: found"

NO_HARD_LIMITER: Final = "isolation hard: found no limiter for it on this node, expected an enf"

# Claim, annotations of its pod, reason of the refusal.
REFUSED: Final[list[tuple[Claimed, dict[str, str], str]]] = [
    # Below the request
    (
        one_card(),
        pod_annotations(vram_limit="19Gi"),
        "vram limit: found 19Gi, expected at least its request 20Gi",
    ),
    (
        one_card(),
        pod_annotations(tflops_limit="77.9"),
        "tflops limit: found 77900m, expected at least its request",
    ),
    (
        TWO,
        pod_annotations(vram_limit="19Gi"),
        "vram limit: found 19Gi, expected at least its request 20Gi",
    ),
    (one_card(of_class=OF_HARD_CLASS), pod_annotations(vram_limit="1Mi"), "vram limit: found 1Mi"),
    (WHOLE, pod_annotations(isolation="shared", vram_limit="1Mi"), "vram limit: found 1Mi"),
    (
        one_card("400", "100Gi", node=OVERSUBSCRIBED),
        pod_annotations(vram_limit="80Gi"),
        "request 100Gi",
    ),
    # Malformed
    (one_card(), pod_annotations(vram_limit="-1"), f"{LIMIT} -1, expected 0 or more"),
    (one_card(), pod_annotations(vram_limit=""), f"{LIMIT} '', expected a quantity"),
    (one_card(), pod_annotations(vram_limit="1_000"), f"{LIMIT} '1_000', expected a quantity"),
    (
        one_card(),
        pod_annotations(vram_limit="1e999999999"),
        "vram-limit: found exponent 'e999999999'",
    ),
    (one_card(), pod_annotations(vram_limit="２０Gi"), f"{LIMIT} '２０Gi'"),  # noqa: RUF001 - full-width digits
    (one_card(), pod_annotations(vram_limit="20 GB"), f"{LIMIT} '20 GB', expected a quantity"),
    (
        one_card(),
        pod_annotations(isolation="none"),
        "isolation: found 'none', expected one of soft, hard, shared",
    ),
    (one_card(), pod_annotations(isolation="Soft"), "isolation: found 'Soft'"),
    (one_card(), pod_annotations(isolation=""), "isolation: found ''"),
    (
        one_card(),
        pod_annotations(qos="best"),
        "qos: found 'best', expected one of low, medium, high, critical",
    ),
    (
        one_card(),
        pod_annotations(tflops_limit="x", qos="best"),
        "tflops-limit: found 'x', .*; .*qos: found 'best'",
    ),
    # Parameters
    (
        one_card(of_claim={"limiter": False}),
        {},
        "parameters of the claim: limiter: found this field",
    ),
    (one_card(of_claim={"overridable": True}), {}, "claim: overridable: found this field"),
    (
        one_card(of_claim={"limits": {"vram": "0"}}),
        {},
        "limits.vram: found '0', expected more than 0",
    ),
    (
        one_card(of_claim={"limits": {"vram": "1Gi"}}),
        {},
        "vram limit: found 1Gi, expected at least",
    ),
    (one_card(of_claim={"limit": {}}), {}, "limit: found this field, expected one of apiVersion"),
    (
        one_card(of_class={"isolation": "none"}),
        {},
        "parameters of the class: isolation: found 'none'",
    ),
    # Amounts of the claim
    (one_card("-1"), {}, "tflops: found -1, expected at least 0"),
    (one_card("1", "0"), {}, "vram: found 0, expected at least 1Mi"),
    (one_card("313"), {}, "tflops: found 313 plus 0 in use, expected at most 312"),
    (one_card(beside=("61Gi",)), {}, "vram: found 20Gi plus 61Gi in use, expected at most 80Gi"),
    # A tenant's choice of an isolation that would weaken enforcement
    (one_card(), HARD, NO_HARD_LIMITER),
    (one_card(of_claim=OF_HARD_CLASS), {}, NO_HARD_LIMITER),
    (WHOLE, HARD, NO_HARD_LIMITER),
    (one_card(of_class={"qos": "low", "overridable": False}), HARD, NO_HARD_LIMITER),
    (one_card(of_class={"limiter": False}), HARD, NO_HARD_LIMITER),
    (one_card(of_class=OF_SHARED_CLASS, of_claim=OF_HARD_CLASS), {}, NO_HARD_LIMITER),
    (
        one_card("0", "1Mi"),
        SHARED,
        "isolation shared: found 0 of 312 tflops and 1Mi of 80Gi vram, exp",
    ),
    (
        one_card(),
        SHARED,
        "isolation shared: found 78 of 312 tflops and 20Gi of 80Gi vram, expected the",
    ),
    (one_card("312", "79Gi"), SHARED, "isolation shared: found 312 of 312 tflops and 79Gi of 80Gi"),
    (one_card("311", "80Gi"), SHARED, "isolation shared: found 311 of 312 tflops"),
    (one_card(of_claim=OF_SHARED_CLASS), {}, "isolation shared: found 78 of 312 tflops"),
    (one_card(of_class={"limiter": False}), SHARED, "isolation shared: found 78 of 312 tflops"),
    (
        one_card(of_class=OF_HARD_CLASS, of_claim=OF_SHARED_CLASS),
        {},
        "isolation shared: found 78 of",
    ),
    (
        one_card("312", "80Gi", node=OVERSUBSCRIBED),
        SHARED,
        "isolation shared: found 312 of 468 tflops",
    ),
    (replace(TWO, cards=(("312", "80Gi"), ("78", "20Gi"))), SHARED, "isolation shared: found 78"),
    # Another mode on the card
    (
        one_card(of_class=OF_HARD_CLASS, beside=("1Gi",)),
        {},
        "isolation hard: found the card in isolation soft by default/b0",
    ),
    (one_card(of_class=OF_SHARED_CLASS, beside=("1Gi",)), {}, "expected no other tenant"),
]


@pytest.mark.parametrize(("claimed", "annotations", "reason"), REFUSED)
def test_claim_is_refused(claimed: Claimed, annotations: dict[str, str], reason: str) -> None:
    with pytest.raises(ClaimError, match=f"^claim default/a: .*{reason}"):
        admitted_claim(claimed, annotations)

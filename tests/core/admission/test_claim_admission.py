"""Filling of a claim that was made for a pod from Tensor Fusion's template."""

import copy
from typing import Any

import pytest

from tensorfusion_dra.core.admission import claim_admission, pod_request
from tensorfusion_dra.core.claims import share_policy
from tensorfusion_dra.core.claims.claim import AllocatedClaim, PodRef
from tensorfusion_dra.core.errors import InputError
from tensorfusion_dra.core.kubernetes import json_patch
from tests.support.admission import Json
from tests.support.builders.claims import claim_ref
from tests.support.builders.pods import pod_annotations
from tests.support.builders.stored_claims import template_claim

UUID = "tensor-fusion.ai.dra-driver/uuid"
BOTH = ["gpu-request", "gpu-request-2"]
UNIQUE = {"requests": BOTH, "distinctAttribute": UUID}
NIC: Json = {"name": "nic", "exactly": {"deviceClassName": "nic.example.com"}}
AMOUNTS: Any = {"tflops_request": "100", "vram_request": "16Gi"}


def filled(found: Json, *, pool: str = "prod", virtual: bool = False, **annotations: str) -> Json:
    wanted = pod_request.parse(pod_annotations(**annotations), [])
    return claim_admission.filled(found, wanted, pool=pool, virtual=virtual)


def exactly(found: Json) -> Json:
    request: Json = found["spec"]["devices"]["requests"][0]["exactly"]
    return request


def expressions(found: Json) -> list[str]:
    return [entry["cel"]["expression"] for entry in exactly(found)["selectors"]]


def with_selectors(*texts: str) -> Json:
    found = template_claim()
    exactly(found)["selectors"] = [{"cel": {"expression": text}} for text in texts]
    return found


def request_names(found: Json) -> list[str]:
    return [request["name"] for request in found["spec"]["devices"]["requests"]]


def test_selector_and_amounts_come_from_the_pod() -> None:
    found = filled(template_claim(), **AMOUNTS, gpu_model="A100", qos="high")

    assert exactly(found) == {
        "deviceClassName": "tensor-fusion.ai",
        "allocationMode": "ExactCount",
        "count": 1,
        "selectors": exactly(found)["selectors"],
        "capacity": {"requests": {"tflops": "100", "vram": "16Gi"}},
    }
    (expression,) = expressions(found)
    for part in ('model.orValue("") == "A100"', '"prod"', '"high"', '"Running"'):
        assert part in expression


def test_virtual_amounts_are_requested_in_an_oversubscribing_pool() -> None:
    found = filled(template_claim(), virtual=True, **AMOUNTS)

    assert exactly(found)["capacity"]["requests"] == {
        "virtual_tflops": "100",
        "virtual_vram": "16Gi",
    }


def test_unset_amount_is_not_requested_and_so_taken_whole() -> None:
    assert exactly(filled(template_claim(), vram_request="16Gi"))["capacity"]["requests"] == {
        "vram": "16Gi"
    }
    assert "capacity" not in exactly(filled(template_claim(), dedicated_gpu="true"))


def test_pods_own_expression_is_translated_and_replaces_the_generated_one() -> None:
    found = filled(
        template_claim(),
        **AMOUNTS,
        gpu_model="A100",
        dra_cel_expression='device.attributes["model"] == "H100"\n',
    )

    assert expressions(found) == [
        'device.attributes["tensor-fusion.ai.dra-driver"].model == "H100"'
    ]
    assert exactly(found)["capacity"]["requests"] == {"tflops": "100", "vram": "16Gi"}


def test_placeholder_is_removed_and_other_selectors_of_the_template_stay() -> None:
    found = filled(with_selectors("true", "device.driver != ''"), **AMOUNTS)

    assert len(expressions(found)) == 2
    assert expressions(found)[0] == "device.driver != ''"


def test_each_gpu_has_its_own_request_and_a_constraint_gives_them_different_cards() -> None:
    devices = filled(template_claim(), **AMOUNTS, gpu_count="4")["spec"]["devices"]

    every = ["gpu-request", "gpu-request-2", "gpu-request-3", "gpu-request-4"]
    assert [request["name"] for request in devices["requests"]] == every
    for request in devices["requests"]:
        assert request["exactly"] == devices["requests"][0]["exactly"]
        assert request["exactly"]["count"] == 1
    assert devices["constraints"] == [{"requests": every, "distinctAttribute": UUID}]


@pytest.mark.parametrize(
    ("constraint", "expected"),
    [
        ({"requests": ["gpu-request"], "distinctAttribute": UUID}, UNIQUE),
        ({"distinctAttribute": UUID}, {"distinctAttribute": UUID}),
    ],
)
def test_template_constraint_for_different_cards_is_not_repeated(
    constraint: Json, expected: Json
) -> None:
    found = template_claim()
    found["spec"]["devices"]["constraints"] = [constraint]

    assert filled(found, **AMOUNTS, gpu_count="2")["spec"]["devices"]["constraints"] == [expected]


def test_template_constraint_on_another_request_does_not_suffice() -> None:
    found = template_claim()
    other = {"requests": ["other"], "distinctAttribute": UUID}
    found["spec"]["devices"]["constraints"] = [other]

    filled_in = filled(found, **AMOUNTS, gpu_count="2")

    assert filled_in["spec"]["devices"]["constraints"] == [other, UNIQUE]


def test_template_constraints_and_config_of_the_request_apply_to_every_gpu() -> None:
    found = template_claim()
    near = {"requests": ["nic", "gpu-request"], "matchAttribute": "example.com/root"}
    parameters = {"requests": ["gpu-request"], "opaque": {"driver": "d", "parameters": {}}}
    found["spec"]["devices"] |= {"constraints": [near], "config": [parameters]}
    found["spec"]["devices"]["requests"].append(NIC)

    devices = filled(found, **AMOUNTS, gpu_count="2")["spec"]["devices"]

    assert devices["constraints"] == [{**near, "requests": ["nic", *BOTH]}, UNIQUE]
    assert devices["config"] == [{**parameters, "requests": BOTH}]


def test_template_request_with_the_name_of_an_additional_gpu_is_refused() -> None:
    found = template_claim()
    found["spec"]["devices"]["requests"].append({**NIC, "name": "gpu-request-2"})

    with pytest.raises(InputError, match="found another request 'gpu-request-2', expected"):
        filled(found, **AMOUNTS, gpu_count="2")


def test_request_name_too_long_for_a_number_is_refused() -> None:
    found = template_claim()
    found["spec"]["devices"]["requests"][0]["name"] = "g" * 62

    with pytest.raises(InputError, match="must be no more than 63 bytes"):
        filled(found, **AMOUNTS, gpu_count="2")


def test_claim_has_at_most_32_requests() -> None:
    found = template_claim()
    assert len(request_names(filled(found, **AMOUNTS, gpu_count="32"))) == 32

    found["spec"]["devices"]["requests"].append(NIC)
    with pytest.raises(InputError, match="found 33 requests in the claim, 32 of them for one GPU"):
        filled(found, **AMOUNTS, gpu_count="32")


def test_request_of_this_drivers_class_is_filled_at_any_position() -> None:
    found = template_claim()
    ours = found["spec"]["devices"]["requests"][0]
    found["spec"]["devices"]["requests"] = [NIC, ours]

    requests = filled(found, **AMOUNTS)["spec"]["devices"]["requests"]

    assert requests[0] == NIC
    assert requests[1]["exactly"]["capacity"]


def test_request_of_an_administrators_own_class_is_filled_too() -> None:
    found = template_claim()
    exactly(found)["deviceClassName"] = "large-gpus"

    assert exactly(filled(found, **AMOUNTS))["capacity"]


@pytest.mark.parametrize(
    "requests", [None, [], [{"name": "gpu", "firstAvailable": [{"name": "a"}]}]]
)
def test_a_claim_without_a_request_to_fill_is_refused(requests: Any) -> None:
    found = template_claim()
    found["spec"]["devices"]["requests"] = requests

    with pytest.raises(InputError, match="found no request with `exactly`"):
        filled(found, **AMOUNTS)


def test_filled_claim_is_not_changed_again() -> None:
    found = with_selectors("true")
    before = copy.deepcopy(found)
    annotations: Any = {**AMOUNTS, "gpu_count": "4", "vram_limit": "32Gi", "qos": "low"}

    once = filled(found, **annotations)

    assert json_patch.between(once, filled(once, **annotations)) == []
    assert found == before


def test_pods_limits_qos_and_isolation_are_read_from_the_claim() -> None:
    found = filled(
        template_claim(),
        **AMOUNTS,
        tflops_limit="200",
        vram_limit="32Gi",
        qos="high",
        isolation="hard",
    )
    stored = AllocatedClaim(
        ref=claim_ref("a"), allocations=(), annotations=found["metadata"]["annotations"]
    )

    share = share_policy.annotated(stored)

    assert share is not None
    assert (str(share.tflops_limit), str(share.vram_limit)) == ("200", "32Gi")
    assert (share.qos, share.isolation) == ("high", "hard")


def test_node_need_not_read_a_pod_without_limits() -> None:
    annotations = filled(template_claim(), **AMOUNTS)["metadata"]["annotations"]
    stored = AllocatedClaim(ref=claim_ref("a"), allocations=(), annotations=annotations)

    share = share_policy.annotated(stored)

    assert share is not None
    assert share.tflops_limit is None


def test_pods_annotations_override_the_templates() -> None:
    found = template_claim()
    found["metadata"]["annotations"] = {
        "other": "stays",
        **pod_annotations(qos="low", vram_limit="8Gi", tflops_limit="50"),
    }

    annotations = filled(found, **AMOUNTS, qos="high")["metadata"]["annotations"]

    assert annotations == {
        "other": "stays",
        **pod_annotations(qos="high", vram_limit="8Gi", tflops_limit="50"),
    }


def test_owner_is_the_pod_that_the_claim_was_made_for() -> None:
    assert claim_admission.owner(template_claim(), "team-a") == PodRef(
        namespace="team-a", name="train", uid="uid-train"
    )


@pytest.mark.parametrize("owners", [None, [], [{"apiVersion": "apps/v1", "kind": "Pod"}]])
def test_claim_without_a_pod_as_owner_is_refused(owners: Any) -> None:
    found = template_claim()
    found["metadata"]["ownerReferences"] = owners

    with pytest.raises(InputError, match="found no owner of kind Pod"):
        claim_admission.owner(found, "team-a")


def test_only_labelled_claims_are_filled() -> None:
    other = template_claim()
    other["metadata"]["labels"] = {"tensor-fusion.ai/resource-claim-template": "false"}

    assert claim_admission.is_labelled(template_claim()) is True
    assert claim_admission.is_labelled(other) is False

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
EVERY = [*BOTH, "gpu-request-3", "gpu-request-4"]
UNIQUE = {"requests": BOTH, "distinctAttribute": UUID}
NIC: Json = {"name": "nic", "exactly": {"deviceClassName": "nic.example.com"}}
AMOUNTS: Any = {"tflops_request": "100", "vram_request": "16Gi"}
TWO: Any = {**AMOUNTS, "gpu_count": "2"}


def filled(found: Json, *, pool: str = "prod", virtual: bool = False, **annotations: str) -> Json:
    wanted = pod_request.parse(pod_annotations(**annotations), [])
    return claim_admission.filled(found, wanted, pool=pool, virtual=virtual)


def exactly(found: Json) -> Json:
    request: Json = found["spec"]["devices"]["requests"][0]["exactly"]
    return request


def with_requests(*others: Json, name: str = "gpu-request", **devices: Any) -> Json:
    """Return the template's claim with this name of its request, further requests and fields."""
    found = template_claim()
    first = {**found["spec"]["devices"]["requests"][0], "name": name}
    found["spec"]["devices"] |= {"requests": [first, *others], **devices}
    return found


def with_selectors(*texts: str) -> Json:
    found = template_claim()
    exactly(found)["selectors"] = [{"cel": {"expression": text}} for text in texts]
    return found


def test_selector_and_amounts_come_from_the_pod() -> None:
    request = exactly(filled(template_claim(), **AMOUNTS, gpu_model="A100", qos="high"))

    (selector,) = request.pop("selectors")
    assert request == {
        "deviceClassName": "tensor-fusion.ai",
        "allocationMode": "ExactCount",
        "count": 1,
        "capacity": {"requests": {"tflops": "100", "vram": "16Gi"}},
    }
    for part in ('model.orValue("") == "A100"', '"prod"', '"high"', '"Running"'):
        assert part in selector["cel"]["expression"]


@pytest.mark.parametrize(
    ("annotations", "virtual", "capacity"),
    [
        (AMOUNTS, True, {"requests": {"virtual_tflops": "100", "virtual_vram": "16Gi"}}),
        ({"vram_request": "16Gi"}, False, {"requests": {"vram": "16Gi"}}),
        ({"dedicated_gpu": "true"}, False, None),
    ],
    ids=["oversubscribing pool", "unset amount is taken whole", "whole card"],
)
def test_requested_capacity(annotations: Any, capacity: Json | None, *, virtual: bool) -> None:
    found = filled(template_claim(), virtual=virtual, **annotations)

    assert exactly(found).get("capacity") == capacity


@pytest.mark.parametrize(
    ("existing", "annotations", "expected"),
    [
        (
            ["true"],
            {"gpu_model": "A100", "dra_cel_expression": 'device.attributes["model"] == "H100"\n'},
            ['device.attributes["tensor-fusion.ai.dra-driver"].model == "H100"'],
        ),
        (
            ["true", "device.driver != ''"],
            {"dra_cel_expression": "false"},
            ["device.driver != ''", "false"],
        ),
    ],
    ids=["pod's own is translated", "template's own stays, its placeholder does not"],
)
def test_selectors(existing: list[str], annotations: Any, expected: list[str]) -> None:
    found = filled(with_selectors(*existing), **AMOUNTS, **annotations)

    assert [each["cel"]["expression"] for each in exactly(found)["selectors"]] == expected
    assert exactly(found)["capacity"]["requests"] == {"tflops": "100", "vram": "16Gi"}


def test_each_gpu_has_its_own_request_and_a_constraint_gives_them_different_cards() -> None:
    devices = filled(template_claim(), **AMOUNTS, gpu_count="4")["spec"]["devices"]

    assert [request["name"] for request in devices["requests"]] == EVERY
    for request in devices["requests"]:
        assert request["exactly"] == devices["requests"][0]["exactly"]
        assert request["exactly"]["count"] == 1
    assert devices["constraints"] == [{"requests": EVERY, "distinctAttribute": UUID}]


NEAR = {"requests": ["nic", "gpu-request"], "matchAttribute": "example.com/root"}
OTHER = {"requests": ["other"], "distinctAttribute": UUID}


@pytest.mark.parametrize(
    ("constraint", "expected"),
    [
        ({"requests": ["gpu-request"], "distinctAttribute": UUID}, [UNIQUE]),
        ({"distinctAttribute": UUID}, [{"distinctAttribute": UUID}]),
        (OTHER, [OTHER, UNIQUE]),
        (NEAR, [{**NEAR, "requests": ["nic", *BOTH]}, UNIQUE]),
    ],
    ids=["of the request", "of all", "of another request", "with another request"],
)
def test_template_constraints_and_config_apply_to_every_gpu(
    constraint: Json, expected: list[Json]
) -> None:
    parameters = {"requests": ["gpu-request"], "opaque": {"driver": "d", "parameters": {}}}
    found = with_requests(NIC, constraints=[constraint], config=[parameters])

    devices = filled(found, **TWO)["spec"]["devices"]

    assert devices["constraints"] == expected
    assert devices["config"] == [{**parameters, "requests": BOTH}]


@pytest.mark.parametrize(
    ("found", "count", "error"),
    [
        (
            with_requests({**NIC, "name": "gpu-request-2"}),
            2,
            "found another request 'gpu-request-2', expected",
        ),
        (with_requests(name="g" * 62), 2, "must be no more than 63 bytes"),
        (with_requests(NIC), 32, "found 33 requests in the claim, 32 of them for one GPU"),
        (with_requests(requests=None), 1, "found no request with `exactly`"),
        (with_requests(requests=[]), 1, "found no request with `exactly`"),
        (
            with_requests(requests=[{"name": "gpu", "firstAvailable": [{"name": "a"}]}]),
            1,
            "found no request with `exactly`",
        ),
    ],
)
def test_claim_without_room_for_its_requests_is_refused(
    found: Json, count: int, error: str
) -> None:
    with pytest.raises(InputError, match=error):
        filled(found, **AMOUNTS, gpu_count=str(count))


def test_claim_has_at_most_32_requests() -> None:
    devices = filled(template_claim(), **AMOUNTS, gpu_count="32")["spec"]["devices"]

    assert len(devices["requests"]) == 32


@pytest.mark.parametrize(("device_class", "others"), [("tensor-fusion.ai", [NIC]), ("large", [])])
def test_request_of_this_drivers_class_is_filled_and_else_that_of_an_administrators_own(
    device_class: str, others: list[Json]
) -> None:
    found = template_claim()
    exactly(found)["deviceClassName"] = device_class
    found["spec"]["devices"]["requests"] = [*others, *found["spec"]["devices"]["requests"]]

    *first, last = filled(found, **AMOUNTS)["spec"]["devices"]["requests"]

    assert first == others
    assert last["exactly"]["capacity"]


def test_filled_claim_is_not_changed_again() -> None:
    found = with_selectors("true")
    before = copy.deepcopy(found)
    annotations: Any = {**AMOUNTS, "gpu_count": "4", "vram_limit": "32Gi", "qos": "low"}

    once = filled(found, **annotations)

    assert json_patch.between(once, filled(once, **annotations)) == []
    assert found == before


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        (
            {"tflops_limit": "200", "vram_limit": "32Gi", "qos": "high", "isolation": "hard"},
            ["200", "32Gi", "high", "hard"],
        ),
        ({}, ["None"] * 4),
    ],
    ids=["limits", "none, which the node need not read from the pod"],
)
def test_pods_limits_qos_and_isolation_are_read_from_the_claim(
    annotations: Any, expected: list[str]
) -> None:
    found = filled(template_claim(), **AMOUNTS, **annotations)
    stored = AllocatedClaim(
        ref=claim_ref("a"), allocations=(), annotations=found["metadata"]["annotations"]
    )

    share = share_policy.annotated(stored)

    assert share is not None
    shown = (share.tflops_limit, share.vram_limit, share.qos, share.isolation)
    assert [str(value) for value in shown] == expected


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


@pytest.mark.parametrize("owners", [None, [], [{"apiVersion": "apps/v1", "kind": "Pod"}]])
def test_owner_is_the_pod_that_the_claim_was_made_for(owners: Any) -> None:
    found = template_claim()
    expected = PodRef(namespace="team-a", name="train", uid="uid-train")
    assert claim_admission.owner(found, "team-a") == expected
    found["metadata"]["ownerReferences"] = owners

    with pytest.raises(InputError, match="found no owner of kind Pod"):
        claim_admission.owner(found, "team-a")


def test_only_labelled_claims_are_filled() -> None:
    other = template_claim()
    other["metadata"]["labels"] = {"tensor-fusion.ai/resource-claim-template": "false"}

    assert claim_admission.is_labelled(template_claim()) is True
    assert claim_admission.is_labelled(other) is False

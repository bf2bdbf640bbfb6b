"""Filling of a claim made from Tensor Fusion's template: its selector, and rules of parameters."""

import copy
import functools
import operator
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorfusion_dra.core.admission import claim_admission, pod_request
from tensorfusion_dra.core.admission.cards import Cards
from tensorfusion_dra.core.admission.claim_admission import selector
from tensorfusion_dra.core.cel.syntax import quoted
from tensorfusion_dra.core.claims import isolation, share_policy
from tensorfusion_dra.core.claims.claim import PodRef
from tensorfusion_dra.core.errors import InputError
from tensorfusion_dra.scheduling import cel_evaluation
from tensorfusion_dra.scheduling.devices import Attribute, DeviceId, PublishedDevice
from tests.support.admission import Json
from tests.support.builders.devices import NODE, published_devices
from tests.support.builders.gpus import gpu
from tests.support.builders.pods import pod_annotations
from tests.support.builders.stored_claims import template_claim
from tests.support.selecting import as_scheduled
from tests.support.tally import examples

UUID = "tensor-fusion.ai.dra-driver/uuid"
BOTH = ["gpu-request", "gpu-request-2"]
UNIQUE = {"requests": BOTH, "distinctAttribute": UUID}
NIC: Json = {"name": "nic", "exactly": {"deviceClassName": "nic.example.com"}}
AMOUNTS: Any = {"tflops_request": "100", "vram_request": "16Gi"}


def filled(found: Json, *, pool: str = "prod", virtual: bool = False, **annotations: str) -> Json:
    wanted = pod_request.parse(pod_annotations(**annotations))
    alternatives = pod_request.alternatives(wanted, Cards(), pool=pool)
    alternatives = pod_request.by_kind(alternatives, Cards(), pool=pool, virtual=virtual)
    return claim_admission.filled(found, alternatives, pool=pool)


def exactly(found: Json) -> Json:
    request: Json = found["spec"]["devices"]["requests"][0]["exactly"]
    return request


def with_exactly(**fields: Any) -> Json:
    """Return the template's claim with these fields of its request."""
    found = template_claim()
    exactly(found).update(fields)
    return found


def with_requests(*others: Json, name: str = "gpu-request", **devices: Any) -> Json:
    """Return the template's claim with this name of its request, further requests and fields."""
    first = {"name": name, "exactly": exactly(template_claim())}
    return template_claim(devices={"requests": [first, *others], **devices})


def selectors(*texts: str) -> list[Json]:
    return [{"cel": {"expression": text}} for text in texts]


def test_selector_and_amounts_come_from_the_pod() -> None:
    request = exactly(filled(template_claim(), **AMOUNTS, gpu_model="A100", qos="high"))

    assert request == {
        "deviceClassName": "tensor-fusion.ai",
        "allocationMode": "ExactCount",
        "count": 1,
        "capacity": {"requests": {"tflops": "100", "vram": "16Gi"}},
        "selectors": selectors(selector(model="A100", pool="prod", qos="high")),
    }


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
    found = filled(with_exactly(selectors=selectors(*existing)), **AMOUNTS, **annotations)

    assert exactly(found)["selectors"] == selectors(*expected)
    assert exactly(found)["capacity"]["requests"] == {"tflops": "100", "vram": "16Gi"}


COMPUTE = 'device.attributes["tensor-fusion.ai.dra-driver"].?enforcesCompute.orValue(false)'
MEMORY = 'device.attributes["tensor-fusion.ai.dra-driver"].?enforcesMemory.orValue(false)'


@pytest.mark.parametrize(
    ("annotations", "demand"),
    [
        (AMOUNTS, f"{COMPUTE} && {MEMORY}"),
        ({"vram_limit": "16Gi"}, MEMORY),
        ({"tflops_request": "100"}, COMPUTE),
        ({**AMOUNTS, "dra_cel_expression": "1 == 1"}, f"{COMPUTE} && {MEMORY}"),
        ({**AMOUNTS, "dedicated_gpu": "true"}, None),
        ({**AMOUNTS, "isolation": "shared"}, None),
    ],
)
def test_required_enforcement_selects_nodes_that_enforce_what_the_pod_limits(
    annotations: Any, demand: str | None
) -> None:
    plain = filled(template_claim(), **annotations)
    wanted = filled(template_claim(), require_enforcement="true", **annotations)

    added = selectors(demand) if demand else []
    assert exactly(wanted)["selectors"] == [*exactly(plain)["selectors"], *added]
    assert filled(wanted, require_enforcement="true", **annotations) == wanted
    assert filled(template_claim(), require_enforcement="false", **annotations) == plain


@pytest.mark.parametrize("count", [2, 4, 32])
def test_each_gpu_has_its_own_request_and_a_constraint_gives_them_different_cards(
    count: int,
) -> None:
    one = exactly(filled(template_claim(), **AMOUNTS))
    every = ["gpu-request", *(f"gpu-request-{number}" for number in range(2, count + 1))]

    assert filled(template_claim(), **AMOUNTS, gpu_count=str(count))["spec"]["devices"] == {
        "requests": [{"name": name, "exactly": one} for name in every],
        "constraints": [{"requests": every, "distinctAttribute": UUID}],
    }


def test_gpus_of_a_pod_have_the_attribute_in_common_that_it_names() -> None:
    island = "example.com/nvlink_island"

    devices = filled(template_claim(), **AMOUNTS, gpu_count="2", gpus_match=island)["spec"][
        "devices"
    ]
    alone = filled(template_claim(), **AMOUNTS, gpus_match=island)["spec"]["devices"]

    assert devices["constraints"] == [UNIQUE, {"requests": BOTH, "matchAttribute": island}]
    assert "constraints" not in alone


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

    devices = filled(found, **{**AMOUNTS, "gpu_count": "2"})["spec"]["devices"]

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


@pytest.mark.parametrize(("device_class", "others"), [("tensor-fusion.ai", [NIC]), ("large", [])])
def test_request_of_this_drivers_class_is_filled_and_else_that_of_an_administrators_own(
    device_class: str, others: list[Json]
) -> None:
    found = with_exactly(deviceClassName=device_class)
    found["spec"]["devices"]["requests"][:0] = others

    *first, last = filled(found, **AMOUNTS)["spec"]["devices"]["requests"]

    assert first == others
    assert last["exactly"]["capacity"]


def test_filled_claim_is_not_changed_again() -> None:
    found = with_exactly(selectors=selectors("true"))
    before = copy.deepcopy(found)
    annotations: Any = {**AMOUNTS, "gpu_count": "4", "vram_limit": "32Gi", "qos": "low"}

    once = filled(found, **annotations)

    assert filled(once, **annotations) == once
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
    found = filled(template_claim(), **AMOUNTS, **annotations)["metadata"]["annotations"]

    share = share_policy.of_annotations(found)

    shown = (share.tflops_limit, share.vram_limit, share.qos, share.isolation)
    assert [str(value) for value in shown] == expected


def test_pods_annotations_override_the_templates() -> None:
    found, own = template_claim(), pod_annotations(qos="low", vram_limit="8Gi", tflops_limit="50")
    found["metadata"]["annotations"] = {"other": "stays", **own}

    annotations = filled(found, **AMOUNTS, qos="high")["metadata"]["annotations"]

    assert annotations == {"other": "stays", **own, **pod_annotations(qos="high")}


@pytest.mark.parametrize("owners", [None, [], [{"apiVersion": "apps/v1", "kind": "Pod"}]])
def test_owner_is_the_pod_that_the_claim_was_made_for(owners: Any) -> None:
    found = template_claim()
    expected = PodRef(namespace="team-a", name="train", uid="uid-train")
    assert claim_admission.owner(found, "team-a") == expected

    found["metadata"]["ownerReferences"] = owners
    with pytest.raises(InputError, match="found no owner of kind Pod"):
        claim_admission.owner(found, "team-a")


GOOD = {"apiVersion": "tensor-fusion.ai/v1alpha1", "kind": "GpuShare", "limits": {"vram": "8Gi"}}
PATHS = {kind: ".".join(path) for kind, path in claim_admission.CONFIG_PATHS.items()}


def configured(kind: str, *parameters: Any, driver: str = "tensor-fusion.ai.dra-driver") -> Json:
    """Return an object of a kind with these parameters."""
    document: Any = [{"opaque": {"driver": driver, "parameters": each}} for each in parameters]
    for name in reversed(claim_admission.CONFIG_PATHS[kind]):
        document = {name: document}
    return dict(document)


def errors(kind: str, found: Json, *, hard_needs: str = isolation.HARD_NEEDS) -> list[str]:
    found_errors = claim_admission.errors(kind, found, {}, hard_needs=hard_needs)
    return [str(error) for error in found_errors]


@pytest.mark.parametrize(
    ("kind", "document"),
    [
        *((kind, configured(kind, GOOD)) for kind in PATHS),
        ("ResourceClaim", configured("ResourceClaim", {"kind": "Nic"}, driver="nic.example.com")),
        ("DeviceClass", {"spec": None}),
        ("DeviceClass", {"spec": []}),
        ("DeviceClass", {"spec": {"config": {}}}),
        ("DeviceClass", {"spec": {"config": [None, 1, {"opaque": 2}]}}),
    ],
)
def test_valid_absent_and_other_drivers_parameters_have_no_errors(
    kind: str, document: Json
) -> None:
    assert errors(kind, document) == []


@pytest.mark.parametrize("kind", PATHS)
def test_every_error_has_its_path(kind: str) -> None:
    bad = {**GOOD, "qos": "best", "limits": {"vram": "-1", "gpus": 2}}
    where = f"{PATHS[kind]}[1].opaque.parameters"

    assert errors(kind, configured(kind, GOOD, bad)) == [
        f"{where}.limits.gpus: found this field, expected one of tflops, vram",
        f"{where}.limits.vram: found '-1', expected more than 0",
        f"{where}.qos: found 'best', expected one of low, medium, high, critical",
    ]


OF_TENANTS = [kind for kind in PATHS if kind != "DeviceClass"]


def with_config_for(
    kind: str, parameters: Any, *requests: Json, to: list[str] | None = None
) -> Json:
    """Return an object with these parameters, for all its requests unless some are named."""
    document = configured(kind, parameters)
    *path, _ = claim_admission.CONFIG_PATHS[kind]
    devices: Any = functools.reduce(operator.getitem, path, document)
    devices["requests"] = list(requests)
    if to is not None:
        devices["config"][0]["requests"] = to
    return document


def amounts(**named: str) -> Json:
    return {"capacity": {"requests": named}}


HARD = {**GOOD, "isolation": "hard"}


@pytest.mark.parametrize("kind", OF_TENANTS)
def test_tenant_may_choose_hard_if_the_enforcer_brings_a_limiter_for_it(kind: str) -> None:
    assert errors(kind, configured(kind, HARD), hard_needs="") == []
    (found,) = errors(kind, configured(kind, HARD))

    assert found.startswith(
        f"{PATHS[kind]}[0].opaque.parameters.isolation: found hard, expected hard from an "
        "administrator: DeviceClass"
    )


TWO_CHOICES = {"firstAvailable": [{"name": "a"}, {"name": "b", **amounts(vram="1Gi")}]}


@pytest.mark.parametrize("kind", OF_TENANTS)
@pytest.mark.parametrize(
    ("request_of_it", "to", "refused"),
    [
        ({"exactly": amounts(vram="1Mi")}, None, "gpu"),
        ({"exactly": amounts(tflops="0")}, None, "gpu"),
        ({"exactly": amounts(virtual_vram="1Mi")}, None, "gpu"),
        ({"exactly": amounts(**{"tensor-fusion.ai.dra-driver/vram": "1Mi"})}, None, "gpu"),
        (TWO_CHOICES, None, "gpu/b"),
        ({"exactly": {"count": 2}}, None, ""),
        ({"exactly": {"adminAccess": True, **amounts(vram="1Mi")}}, None, ""),
        ({"exactly": amounts(bandwidth="1G")}, None, ""),
        ({"firstAvailable": [{"name": "a"}]}, None, ""),
        # Only the requests of the config are checked.
        (TWO_CHOICES, ["gpu"], "gpu/b"),
        (TWO_CHOICES, ["gpu/b"], "gpu/b"),
        (TWO_CHOICES, ["gpu/a"], ""),
        (TWO_CHOICES, ["other"], ""),
        (TWO_CHOICES, [], "gpu/b"),
    ],
)
def test_tenant_may_choose_shared_only_for_whole_cards(
    kind: str, request_of_it: Json, to: list[str] | None, refused: str
) -> None:
    found = errors(
        kind,
        with_config_for(
            kind, {**GOOD, "isolation": "shared"}, {"name": "gpu", **request_of_it}, to=to
        ),
    )

    where = f"{PATHS[kind]}[0].opaque.parameters.isolation"
    expected = f"{where}: found shared and amounts in request {refused}, expected the whole card"
    assert [text[: len(expected)] for text in found] == ([expected] if refused else [])


ALL = {"model": "A100", "pool": "prod-pool", "qos": "high"}
A100 = as_scheduled(
    published_devices(gpu(), node=replace(NODE, gpupool="prod-pool", qos="high"))[0]
)
FOREIGN = PublishedDevice(id=DeviceId("gpu.example.com", "pool", "gpu-0"))
LONG_NAME = ".".join(["production"] * 12)
OF_LONG_POOL = as_scheduled(published_devices(gpu(), node=replace(NODE, gpupool=LONG_NAME))[0])


def with_attributes(**values: str | bool) -> PublishedDevice:
    more = {
        key: Attribute("bool" if isinstance(value, bool) else "string", value)
        for key, value in values.items()
    }
    return replace(A100, attributes={**A100.attributes, **more})


@pytest.mark.parametrize(
    ("terms", "device", "is_selected"),
    [
        (ALL, A100, True),
        ({}, A100, True),
        ({**ALL, "model": "NVIDIA A100-SXM4-80GB"}, A100, True),
        ({**ALL, "model": "H100"}, A100, False),
        ({**ALL, "model": "NVIDIA A100-SXM4-40GB"}, A100, False),
        ({**ALL, "model": "a100"}, A100, False),
        ({**ALL, "pool": "other"}, A100, False),
        ({**ALL, "qos": "low"}, A100, False),
        ({}, with_attributes(phase="Pending"), False),
        (ALL, FOREIGN, False),
        ({}, FOREIGN, False),
        ({"pool": LONG_NAME}, OF_LONG_POOL, True),  # the attribute is truncated
        ({"model": 'x" || true || "" == "'}, A100, False),  # it cannot break out of its literal
    ],
)
def test_running_device_that_satisfies_every_term_is_selected(
    terms: Mapping[str, str], device: PublishedDevice, *, is_selected: bool
) -> None:
    assert cel_evaluation.selector(selector(**terms)).matches(device) is is_selected


# Without NUL, which terminates the evaluator's C strings.
@settings(max_examples=examples(40))  # each compiles two selectors
@given(st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=16))
def test_any_text_is_compared_literally(text: str) -> None:
    named = with_attributes(model=text)

    assert cel_evaluation.selector(selector(model=text)).matches(named)
    assert not cel_evaluation.selector(selector(model=text + "x")).matches(named)


def test_quoted_text_stays_on_one_line() -> None:
    assert quoted('a\n"\\\u2028\x00é') == r'"a\U0000000a\"\\\U00002028\U00000000é"'


@pytest.mark.parametrize(
    ("shown", "is_selected"),
    [
        ({"enforcesCompute": True, "enforcesMemory": True}, True),
        ({"enforcesCompute": True, "enforcesMemory": False}, False),
        ({}, False),  # of a node plugin of an earlier release
    ],
)
def test_device_whose_node_does_not_enforce_is_not_selected(
    shown: Mapping[str, bool], *, is_selected: bool
) -> None:
    device = with_attributes(**shown)
    known = {key: each for key, each in device.attributes.items() if shown or "nforces" not in key}

    enforces = cel_evaluation.selector(f"{COMPUTE} && {MEMORY}")
    assert enforces.matches(replace(device, attributes=known)) is is_selected

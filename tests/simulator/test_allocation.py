"""Which devices claims get."""

import copy
import re
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorfusion_dra.core import quantity
from tensorfusion_dra.core.quantity import Quantity
from tensorfusion_dra.simulator import allocation
from tensorfusion_dra.simulator.allocation import NoFitError, SchedulingError
from tests.simulator.objects import (
    DRIVER,
    NODE,
    Json,
    claim,
    device,
    device_class,
    exactly,
    expressions,
    node,
    resource_slice,
    shared,
)

HALF = {"tflops": "50", "vram": "20Gi"}
UUID4 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


def allocate(
    *claims: Json,
    slices: Sequence[Json],
    classes: Iterable[Json] = (),
    existing: Iterable[Json] = (),
) -> list[Json]:
    """The allocations of the claims of a pod on node-a."""
    cluster = allocation.cluster(
        slices=slices, classes=[device_class(), *classes], claims=[*existing, *claims]
    )
    return allocation.allocate(claims, cluster, node())


def allocated(document: Json, slices: Sequence[Json], existing: Iterable[Json] = ()) -> Json:
    """The claim with its allocation."""
    (found,) = allocate(document, slices=slices, existing=existing)
    return {**copy.deepcopy(document), "status": {"allocation": found}}


def devices(found: Json) -> list[str]:
    """The names of the allocated devices."""
    return [result["device"] for result in found["devices"]["results"]]


def test_the_first_device_that_matches_is_taken() -> None:
    gpus = resource_slice(device("gpu-0", model="V100"), device("gpu-1", model="A100"))
    wanted = exactly(selectors=expressions(f'device.attributes["{DRIVER}"].model == "A100"'))

    (found,) = allocate(claim(wanted), slices=[gpus])

    assert found == {
        "devices": {
            "results": [{"request": "gpu", "driver": DRIVER, "pool": NODE, "device": "gpu-1"}]
        },
        "nodeSelector": {
            "nodeSelectorTerms": [
                {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [NODE]}]}
            ]
        },
    }


def test_devices_are_tried_in_the_order_of_pool_slice_and_publication() -> None:
    slices = [
        resource_slice(device("d1"), device("d0"), name="z", pool="b", count=2),
        resource_slice(device("d2"), name="y", pool="b", count=2),
        resource_slice(device("d3"), name="x", pool="c"),
        resource_slice(device("d4"), name="w", pool="a"),
    ]

    (found,) = allocate(claim(exactly(count=5)), slices=slices)

    assert devices(found) == ["d4", "d2", "d1", "d0", "d3"]


def test_a_device_in_use_is_passed_over() -> None:
    gpus = [resource_slice(device("gpu-0"), device("gpu-1"))]
    first = allocated(claim(name="first"), gpus)

    (found,) = allocate(claim(), slices=gpus, existing=[first])

    assert devices(found) == ["gpu-1"]


def test_without_a_free_device_the_reason_names_each() -> None:
    gpus = [resource_slice(device("gpu-0"))]
    first = allocated(claim(name="first"), gpus)

    with pytest.raises(NoFitError, match="cannot allocate all claims") as caught:
        allocate(claim(), slices=gpus, existing=[first])

    assert caught.value.devices == {f"{DRIVER}/node-a/gpu-0": "in use"}


def test_a_share_has_an_id_of_its_own_and_says_what_it_consumes_of_everything() -> None:
    gpus = [resource_slice(shared("gpu-0"))]

    (found,) = allocate(claim(exactly(capacity={"tflops": "71.2"})), slices=gpus)

    (result,) = found["devices"]["results"]
    assert UUID4.fullmatch(result["shareID"])
    assert result["consumedCapacity"] == {"tflops": "71200m", "vram": "40Gi"}


def test_shares_fill_a_device_to_the_last_unit_and_then_the_next() -> None:
    gpus = [resource_slice(shared("gpu-0"), shared("gpu-1"))]
    existing: list[Json] = []

    for number in range(4):
        existing.append(allocated(claim(exactly(capacity=HALF), name=f"c{number}"), gpus, existing))

    found = [devices(document["status"]["allocation"])[0] for document in existing]
    assert found == ["gpu-0", "gpu-0", "gpu-1", "gpu-1"]
    with pytest.raises(NoFitError):
        allocate(claim(exactly(capacity={"tflops": "1m"})), slices=gpus, existing=existing)


def test_a_claim_that_names_no_capacity_gets_a_card_alone() -> None:
    gpus = [resource_slice(shared("gpu-0"), shared("gpu-1"))]
    first = allocated(claim(exactly(capacity=HALF), name="first"), gpus)

    (found,) = allocate(claim(), slices=gpus, existing=[first])

    assert devices(found) == ["gpu-1"]
    assert found["devices"]["results"][0]["consumedCapacity"] == {"tflops": "100", "vram": "40Gi"}


def test_a_capacity_that_no_device_has_is_refused() -> None:
    gpus = [resource_slice(shared("gpu-0"))]

    with pytest.raises(NoFitError) as caught:
        allocate(claim(exactly(capacity={"gpc": "1"})), slices=gpus)

    assert caught.value.devices == {f"{DRIVER}/node-a/gpu-0": "has no capacity gpc"}


def test_two_requests_may_share_a_device_but_one_request_gets_different_ones() -> None:
    gpus = [resource_slice(shared("gpu-0"), shared("gpu-1"))]
    two_requests = claim(exactly("a", capacity=HALF), exactly("b", capacity=HALF))
    one_request = claim(exactly(capacity=HALF, count=2))

    (same,) = allocate(two_requests, slices=gpus)
    (different,) = allocate(one_request, slices=gpus)

    assert devices(same) == ["gpu-0", "gpu-0"]
    assert devices(different) == ["gpu-0", "gpu-1"]
    assert len({result["shareID"] for result in same["devices"]["results"]}) == 2


def test_one_request_cannot_have_one_device_twice() -> None:
    gpus = [resource_slice(shared("gpu-0"))]

    with pytest.raises(NoFitError):
        allocate(claim(exactly(capacity=HALF, count=2)), slices=gpus)


def test_two_requests_on_one_device_are_counted_together() -> None:
    gpus = [resource_slice(shared("gpu-0"))]
    most = {"tflops": "60", "vram": "1Gi"}

    with pytest.raises(NoFitError):
        allocate(claim(exactly("a", capacity=most), exactly("b", capacity=most)), slices=gpus)


def test_all_claims_of_a_pod_are_allocated_or_none() -> None:
    gpus = [resource_slice(device("gpu-0", model="A"), device("gpu-1", model="B"))]
    only_a = exactly(selectors=expressions(f'device.attributes["{DRIVER}"].model == "A"'))

    anything, picky = allocate(claim(name="any"), claim(only_a, name="picky"), slices=gpus)

    assert (devices(anything), devices(picky)) == (["gpu-1"], ["gpu-0"])


def test_all_mode_takes_everything_that_matches() -> None:
    gpus = [resource_slice(device("gpu-0", model="A"), device("gpu-1"), device("gpu-2", model="A"))]
    selector = f'device.attributes["{DRIVER}"].?model.orValue("") == "A"'

    (found,) = allocate(
        claim(exactly(allocationMode="All", selectors=expressions(selector))), slices=gpus
    )

    assert devices(found) == ["gpu-0", "gpu-2"]


def test_all_mode_needs_every_device_free() -> None:
    gpus = [resource_slice(device("gpu-0"), device("gpu-1"))]
    first = allocated(claim(name="first"), gpus)

    with pytest.raises(NoFitError):
        allocate(claim(exactly(allocationMode="All")), slices=gpus, existing=[first])


def test_all_mode_needs_at_least_one_device() -> None:
    with pytest.raises(NoFitError):
        allocate(claim(exactly(allocationMode="All")), slices=[resource_slice()])


def test_all_mode_waits_for_a_pool_that_is_being_updated() -> None:
    gpus = [resource_slice(device("gpu-0"), count=2)]

    with pytest.raises(SchedulingError, match=f"{DRIVER}/node-a is currently being updated"):
        allocate(claim(exactly(allocationMode="All")), slices=gpus)


def test_an_incomplete_pool_gives_nothing() -> None:
    gpus = [resource_slice(device("gpu-0"), count=2)]

    with pytest.raises(NoFitError) as caught:
        allocate(claim(), slices=gpus)

    assert caught.value.devices == {f"{DRIVER}/node-a": "1 of 2 slices"}


def test_only_the_newest_generation_of_a_pool_counts() -> None:
    slices = [
        resource_slice(device("old"), name="a", generation=1),
        resource_slice(device("new"), name="b", generation=2),
    ]

    (found,) = allocate(claim(), slices=slices)

    assert devices(found) == ["new"]


def test_a_newer_generation_on_another_node_hides_the_pool_here() -> None:
    here = resource_slice(device("gpu-0"), name="a", pool="shared", generation=1, count=2)
    there = resource_slice(device("gpu-0"), name="b", pool="shared", generation=2)
    there["spec"]["nodeName"] = "node-b"

    with pytest.raises(NoFitError) as caught:
        allocate(claim(), slices=[here, there])

    assert caught.value.devices == {}


def test_a_pool_that_has_slices_on_other_nodes_is_complete_with_them() -> None:
    here = resource_slice(device("gpu-0"), name="a", pool="shared", count=2)
    there = resource_slice(device("gpu-1"), name="b", pool="shared", count=2)
    there["spec"]["nodeName"] = "node-b"

    (found,) = allocate(claim(), slices=[here, there])

    assert devices(found) == ["gpu-0"]


def test_a_pool_with_two_devices_of_one_name_gives_nothing() -> None:
    slices = [
        resource_slice(device("gpu-0"), name="a", count=2),
        resource_slice(device("gpu-0"), name="b", count=2),
    ]

    with pytest.raises(NoFitError) as caught:
        allocate(claim(), slices=slices)

    assert caught.value.devices == {f"{DRIVER}/node-a": "duplicate device name gpu-0"}


def test_the_class_is_asked_before_the_request() -> None:
    gpus = [resource_slice(device("gpu-0"))]
    other = device_class("other", f'device.attributes["{DRIVER}"].model == "A100"')
    wanted = exactly(deviceClassName="other", selectors=expressions("device.driver == 'never'"))

    with pytest.raises(
        SchedulingError, match="class other: selector #1: CEL runtime error: no such"
    ):
        allocate(claim(wanted), slices=gpus, classes=[other])


def test_a_selector_that_fails_on_one_device_stops_the_scheduling() -> None:
    gpus = [resource_slice(device("gpu-0"), device("gpu-1", model="A100"))]
    wanted = exactly(selectors=expressions(f'device.attributes["{DRIVER}"].model == "A100"'))

    with pytest.raises(
        SchedulingError, match="claim default/claim: selector #0: CEL runtime error"
    ):
        allocate(claim(wanted), slices=gpus)


def test_a_missing_class_stops_the_scheduling() -> None:
    with pytest.raises(SchedulingError, match="request gpu: device class none does not exist"):
        allocate(claim(exactly(deviceClassName="none")), slices=[])


def test_admin_access_neither_takes_a_device_nor_is_kept_from_one() -> None:
    gpus = [resource_slice(device("gpu-0"))]
    owner = allocated(claim(name="owner"), gpus)
    admin = allocated(claim(exactly(adminAccess=True), name="admin"), gpus, [owner])

    (result,) = admin["status"]["allocation"]["devices"]["results"]
    assert (result["device"], result["adminAccess"]) == ("gpu-0", True)
    (found,) = allocate(claim(), slices=gpus, existing=[admin])
    assert devices(found) == ["gpu-0"]


def test_admin_access_gets_each_device_once() -> None:
    gpus = [resource_slice(device("gpu-0"))]

    with pytest.raises(NoFitError) as caught:
        allocate(claim(exactly("a", adminAccess=True), exactly("b", adminAccess=True)), slices=gpus)

    assert caught.value.devices == {f"{DRIVER}/node-a/gpu-0": "in use by the same claim"}


def test_match_attribute_keeps_devices_together() -> None:
    gpus = [
        resource_slice(device("gpu-0", numa=0), device("gpu-1", numa=1), device("gpu-2", numa=1))
    ]
    together = [{"matchAttribute": f"{DRIVER}/numa"}]

    (found,) = allocate(claim(exactly(count=2), constraints=together), slices=gpus)

    assert devices(found) == ["gpu-1", "gpu-2"]


def test_a_constraint_concerns_the_requests_that_it_names() -> None:
    gpus = [resource_slice(device("gpu-0", numa=0), device("gpu-1", numa=1))]
    together = [{"matchAttribute": f"{DRIVER}/numa", "requests": ["a"]}]

    (found,) = allocate(claim(exactly("a"), exactly("b"), constraints=together), slices=gpus)

    assert devices(found) == ["gpu-0", "gpu-1"]


def test_a_device_without_the_attribute_satisfies_no_constraint() -> None:
    gpus = [resource_slice(device("gpu-0"))]
    together = [{"matchAttribute": f"{DRIVER}/numa"}]

    with pytest.raises(NoFitError) as caught:
        allocate(claim(constraints=together), slices=gpus)

    reason = f"does not satisfy matchAttribute {DRIVER}/numa"
    assert caught.value.devices == {f"{DRIVER}/node-a/gpu-0": reason}


def test_values_of_different_kinds_do_not_match() -> None:
    gpus = [resource_slice(device("gpu-0", numa=1), device("gpu-1", numa=True))]
    together = [{"matchAttribute": f"{DRIVER}/numa"}]

    with pytest.raises(NoFitError):
        allocate(claim(exactly(count=2), constraints=together), slices=gpus)


def test_distinct_attribute_keeps_requests_on_different_devices() -> None:
    gpus = [resource_slice(shared("gpu-0", uuid="a"), shared("gpu-1", uuid="b"))]
    apart = [{"distinctAttribute": f"{DRIVER}/uuid"}]

    (found,) = allocate(
        claim(exactly("a", capacity=HALF), exactly("b", capacity=HALF), constraints=apart),
        slices=gpus,
    )

    assert devices(found) == ["gpu-0", "gpu-1"]


def test_all_mode_and_a_constraint_that_some_device_breaks_is_an_error() -> None:
    gpus = [resource_slice(device("gpu-0", numa=0), device("gpu-1", numa=1))]
    together = [{"matchAttribute": f"{DRIVER}/numa"}]

    with pytest.raises(SchedulingError, match="a claim constraint would not be satisfied"):
        allocate(claim(exactly(allocationMode="All"), constraints=together), slices=gpus)


def tainted(effect: str, tolerations: list[Json]) -> tuple[Json, list[Json]]:
    """A claim with tolerations, and slices with nothing but a tainted device."""
    sick = {**device("gpu-0"), "taints": [{"key": "sick", "value": "xid", "effect": effect}]}
    wanted = exactly(tolerations=tolerations) if tolerations else exactly()
    return claim(wanted), [resource_slice(sick)]


@pytest.mark.parametrize(
    ("effect", "tolerations"),
    [
        ("NoSchedule", []),
        ("NoExecute", []),
        ("NoSchedule", [{"key": "sick", "operator": "Equal", "value": "ecc"}]),
        ("NoSchedule", [{"key": "other", "operator": "Exists"}]),
        ("NoSchedule", [{"key": "sick", "operator": "Exists", "effect": "NoExecute"}]),
    ],
)
def test_a_taint_keeps_a_claim_away_that_does_not_tolerate_it(
    effect: str, tolerations: list[Json]
) -> None:
    wanted, gpus = tainted(effect, tolerations)

    with pytest.raises(NoFitError) as caught:
        allocate(wanted, slices=gpus)

    assert caught.value.devices == {f"{DRIVER}/node-a/gpu-0": "taint sick is not tolerated"}


@pytest.mark.parametrize(
    ("effect", "tolerations"),
    [
        ("None", []),
        ("NoSchedule", [{"key": "sick", "operator": "Exists"}]),
        ("NoExecute", [{"operator": "Exists"}]),
        ("NoSchedule", [{"key": "sick", "operator": "Equal", "value": "xid"}]),
        ("NoSchedule", [{"key": "sick", "value": "xid"}]),
    ],
)
def test_a_taint_that_is_tolerated_or_without_effect_keeps_nobody_away(
    effect: str, tolerations: list[Json]
) -> None:
    wanted, gpus = tainted(effect, tolerations)

    (found,) = allocate(wanted, slices=gpus)

    assert found["devices"]["results"][0].get("tolerations", []) == tolerations


def first_available(*alternatives: Json) -> Json:
    """A request that one of these would do for."""
    subrequests = [
        {"name": alternative["name"], **alternative["exactly"]} for alternative in alternatives
    ]
    return {"name": "gpu", "firstAvailable": subrequests}


def test_the_first_subrequest_that_can_be_had_is_taken() -> None:
    gpus = [resource_slice(device("gpu-0", model="B"))]
    of_model = '{}"].model == "{}"'.format
    best = exactly("best", selectors=expressions('device.attributes["' + of_model(DRIVER, "A")))
    good = exactly("good", selectors=expressions('device.attributes["' + of_model(DRIVER, "B")))

    (found,) = allocate(claim(first_available(best, good)), slices=gpus)

    assert [result["request"] for result in found["devices"]["results"]] == ["gpu/good"]


def test_a_smaller_subrequest_does_if_the_larger_does_not_fit_beside_the_rest() -> None:
    gpus = [resource_slice(*(device(f"gpu-{number}") for number in range(33)))]
    many = first_available(exactly("many", count=32), exactly("few", count=1))

    (found,) = allocate(claim(exactly("other"), many), slices=gpus)

    requests = [result["request"] for result in found["devices"]["results"]]
    assert requests == ["other", "gpu/few"]


def test_configuration_of_the_class_comes_before_the_claims_and_names_its_requests() -> None:
    gpus = [resource_slice(device("gpu-0"), device("gpu-1"))]
    opaque = {"opaque": {"driver": DRIVER, "parameters": {"mode": "soft"}}}
    hard = {"opaque": {"driver": DRIVER, "parameters": {"mode": "hard"}}}
    classes = [device_class("configured", config=[opaque])]
    requests = [exactly(name, deviceClassName="configured") for name in ("a", "b")]
    config = [hard, {**hard, "requests": ["b"]}]

    (found,) = allocate(claim(*requests, config=config), slices=gpus, classes=classes)

    assert found["devices"]["config"] == [
        {**opaque, "source": "FromClass", "requests": ["a", "b"]},
        {**hard, "source": "FromClaim"},
        {**hard, "source": "FromClaim", "requests": ["b"]},
    ]


def test_configuration_of_a_subrequest_that_was_not_taken_is_left_out() -> None:
    gpus = [resource_slice(device("gpu-0"))]
    alternatives = first_available(exactly("big", count=2), exactly("small"))
    entry: Json = {"opaque": {"driver": DRIVER, "parameters": {}}}
    config = [{**entry, "requests": ["gpu/big"]}, {**entry, "requests": ["gpu/small"]}]

    (found,) = allocate(claim(alternatives, config=config), slices=gpus)

    requests = [entry["requests"] for entry in found["devices"]["config"]]
    assert requests == [["gpu/small"]]


def test_more_than_32_devices_of_a_claim_are_refused_before_the_search() -> None:
    with pytest.raises(SchedulingError, match="requested devices 33 exceeds the claim limit of 32"):
        allocate(claim(exactly(count=33)), slices=[])


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        ({"allNodes": True}, None),
        (
            {
                "nodeSelector": {
                    "nodeSelectorTerms": [
                        {"matchExpressions": [{"key": "zone", "operator": "Exists"}]}
                    ]
                }
            },
            {"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "Exists"}]}]},
        ),
    ],
)
def test_devices_beyond_one_node_are_available_where_their_slice_says(
    selection: Json, expected: Json | None
) -> None:
    wide = resource_slice(device("gpu-0"))
    del wide["spec"]["nodeName"]
    wide["spec"].update(selection)
    cluster = allocation.cluster(slices=[wide], classes=[device_class()], claims=[])

    (found,) = allocation.allocate([claim()], cluster, node("node-b", zone="east"))

    assert found.get("nodeSelector") == expected


def test_devices_of_other_nodes_are_not_seen() -> None:
    cluster = allocation.cluster(
        slices=[resource_slice(device("gpu-0"))], classes=[device_class()], claims=[]
    )

    with pytest.raises(NoFitError) as caught:
        allocation.allocate([claim()], cluster, node("node-b"))

    assert caught.value.devices == {}


def test_a_device_that_uses_an_unknown_feature_is_never_allocated() -> None:
    partition = {**device("gpu-0"), "consumesCounters": [{"counterSet": "a", "counters": {}}]}

    with pytest.raises(NoFitError) as caught:
        allocate(claim(), slices=[resource_slice(partition)])

    (reason,) = caught.value.devices.values()
    assert reason == "uses consumesCounters, which this scheduler does not know"


texts = st.sampled_from(["-100", "0", "1m", "25", "33.3", "71200m", "100", "101", "200"])
vrams = st.sampled_from(["-1Gi", "1", "20000000001", "16Gi", "40Gi", "41Gi"])
capacities = st.fixed_dictionaries({}, optional={"tflops": texts, "vram": vrams})
wanted_requests = st.lists(st.tuples(capacities, st.integers(1, 3)), min_size=1, max_size=3)


@settings(max_examples=60, deadline=None)
@given(st.lists(wanted_requests, max_size=8))
def test_no_sequence_of_claims_takes_more_of_a_device_than_there_is(
    sequence: list[list[tuple[dict[str, str], int]]],
) -> None:
    gpus = [resource_slice(shared("gpu-0"), shared("gpu-1", tflops="71.2", vram="24Gi"))]
    existing: list[Json] = []

    for number, requests in enumerate(sequence):
        entries = [
            exactly(f"r{index}", capacity=capacity, count=count)
            for index, (capacity, count) in enumerate(requests)
        ]
        try:
            existing.append(allocated(claim(*entries, name=f"c{number}"), gpus, existing))
        except NoFitError:
            continue

    sums: dict[tuple[str, str], Quantity] = {}
    for document in existing:
        results: list[dict[str, Any]] = document["status"]["allocation"]["devices"]["results"]
        for result in results:
            for name, text in result["consumedCapacity"].items():
                amount = quantity.parse(text)
                assert amount >= Quantity(0)
                key = (result["device"], name)
                sums[key] = sums.get(key, Quantity(0)) + amount
    limits = {("gpu-0", "tflops"): "100", ("gpu-0", "vram"): "40Gi"}
    limits |= {("gpu-1", "tflops"): "71.2", ("gpu-1", "vram"): "24Gi"}
    assert all(amount <= quantity.parse(limits[key]) for key, amount in sums.items())

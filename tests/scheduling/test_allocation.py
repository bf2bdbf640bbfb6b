"""Devices that claims get; no device is ever over-allocated."""

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorfusion_dra.core.kubernetes import quantity
from tensorfusion_dra.core.kubernetes.quantity import Quantity
from tensorfusion_dra.scheduling.allocation import NoFitError, SchedulingError
from tests.scheduling.allocating import HALF, allocate, allocated, devices
from tests.support.objects import (
    DRIVER,
    NODE,
    Json,
    claim,
    device,
    device_class,
    exactly,
    expressions,
    resource_slice,
    shared,
)
from tests.support.tally import examples

UUID4 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


def test_the_first_matching_device_is_allocated() -> None:
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


def test_a_device_in_use_is_skipped() -> None:
    gpus = [resource_slice(device("gpu-0"), device("gpu-1"))]
    first = allocated(claim(name="first"), gpus)

    (found,) = allocate(claim(), slices=gpus, existing=[first])

    assert devices(found) == ["gpu-1"]


def test_without_a_free_device_the_error_has_a_reason_for_each() -> None:
    gpus = [resource_slice(device("gpu-0"))]
    first = allocated(claim(name="first"), gpus)

    with pytest.raises(NoFitError, match="cannot allocate all claims") as caught:
        allocate(claim(), slices=gpus, existing=[first])

    assert caught.value.devices == {f"{DRIVER}/node-a/gpu-0": "in use"}


def test_a_share_has_its_own_id_and_consumes_every_capacity() -> None:
    gpus = [resource_slice(shared("gpu-0"))]

    (found,) = allocate(claim(exactly(capacity={"tflops": "71.2"})), slices=gpus)

    (result,) = found["devices"]["results"]
    assert UUID4.fullmatch(result["shareID"])
    assert result["consumedCapacity"] == {"tflops": "71200m", "vram": "40Gi"}


def test_shares_fill_a_device_completely_before_the_next() -> None:
    gpus = [resource_slice(shared("gpu-0"), shared("gpu-1"))]
    existing: list[Json] = []

    for number in range(4):
        existing.append(allocated(claim(exactly(capacity=HALF), name=f"c{number}"), gpus, existing))

    found = [devices(document["status"]["allocation"])[0] for document in existing]
    assert found == ["gpu-0", "gpu-0", "gpu-1", "gpu-1"]
    with pytest.raises(NoFitError):
        allocate(claim(exactly(capacity={"tflops": "1m"})), slices=gpus, existing=existing)


def test_a_claim_that_names_no_capacity_gets_a_whole_device() -> None:
    gpus = [resource_slice(shared("gpu-0"), shared("gpu-1"))]
    first = allocated(claim(exactly(capacity=HALF), name="first"), gpus)

    (found,) = allocate(claim(), slices=gpus, existing=[first])

    assert devices(found) == ["gpu-1"]
    assert found["devices"]["results"][0]["consumedCapacity"] == {"tflops": "100", "vram": "40Gi"}


def test_a_request_for_a_capacity_that_no_device_has_is_refused() -> None:
    gpus = [resource_slice(shared("gpu-0"))]

    with pytest.raises(NoFitError) as caught:
        allocate(claim(exactly(capacity={"gpc": "1"})), slices=gpus)

    assert caught.value.devices == {f"{DRIVER}/node-a/gpu-0": "has no capacity gpc"}


def test_two_requests_can_share_a_device_but_one_request_gets_distinct_devices() -> None:
    gpus = [resource_slice(shared("gpu-0"), shared("gpu-1"))]
    two_requests = claim(exactly("a", capacity=HALF), exactly("b", capacity=HALF))
    one_request = claim(exactly(capacity=HALF, count=2))

    (same,) = allocate(two_requests, slices=gpus)
    (different,) = allocate(one_request, slices=gpus)

    assert devices(same) == ["gpu-0", "gpu-0"]
    assert devices(different) == ["gpu-0", "gpu-1"]
    assert len({result["shareID"] for result in same["devices"]["results"]}) == 2


def test_one_request_cannot_get_the_same_device_twice() -> None:
    gpus = [resource_slice(shared("gpu-0"))]

    with pytest.raises(NoFitError):
        allocate(claim(exactly(capacity=HALF, count=2)), slices=gpus)


def test_two_requests_on_one_device_add_up() -> None:
    gpus = [resource_slice(shared("gpu-0"))]
    most = {"tflops": "60", "vram": "1Gi"}

    with pytest.raises(NoFitError):
        allocate(claim(exactly("a", capacity=most), exactly("b", capacity=most)), slices=gpus)


def test_the_search_backtracks_until_all_claims_of_a_pod_fit() -> None:
    gpus = [resource_slice(device("gpu-0", model="A"), device("gpu-1", model="B"))]
    only_a = exactly(selectors=expressions(f'device.attributes["{DRIVER}"].model == "A"'))

    anything, picky = allocate(claim(name="any"), claim(only_a, name="picky"), slices=gpus)

    assert (devices(anything), devices(picky)) == (["gpu-1"], ["gpu-0"])


def test_all_mode_takes_every_matching_device() -> None:
    gpus = [resource_slice(device("gpu-0", model="A"), device("gpu-1"), device("gpu-2", model="A"))]
    selector = f'device.attributes["{DRIVER}"].?model.orValue("") == "A"'

    (found,) = allocate(
        claim(exactly(allocationMode="All", selectors=expressions(selector))), slices=gpus
    )

    assert devices(found) == ["gpu-0", "gpu-2"]


def test_all_mode_fails_if_one_device_is_in_use() -> None:
    gpus = [resource_slice(device("gpu-0"), device("gpu-1"))]
    first = allocated(claim(name="first"), gpus)

    with pytest.raises(NoFitError):
        allocate(claim(exactly(allocationMode="All")), slices=gpus, existing=[first])


def test_all_mode_needs_at_least_one_device() -> None:
    with pytest.raises(NoFitError):
        allocate(claim(exactly(allocationMode="All")), slices=[resource_slice()])


def test_selectors_of_the_class_are_evaluated_before_those_of_the_request() -> None:
    gpus = [resource_slice(device("gpu-0"))]
    other = device_class("other", f'device.attributes["{DRIVER}"].model == "A100"')
    wanted = exactly(deviceClassName="other", selectors=expressions("device.driver == 'never'"))

    with pytest.raises(
        SchedulingError, match="class other: selector #1: CEL runtime error: no such"
    ):
        allocate(claim(wanted), slices=gpus, classes=[other])


def test_a_selector_error_on_one_device_stops_the_scheduling() -> None:
    gpus = [resource_slice(device("gpu-0"), device("gpu-1", model="A100"))]
    wanted = exactly(selectors=expressions(f'device.attributes["{DRIVER}"].model == "A100"'))

    with pytest.raises(
        SchedulingError, match="claim default/claim: selector #0: CEL runtime error"
    ):
        allocate(claim(wanted), slices=gpus)


def test_a_missing_class_stops_the_scheduling() -> None:
    with pytest.raises(SchedulingError, match="request gpu: device class none does not exist"):
        allocate(claim(exactly(deviceClassName="none")), slices=[])


def test_admin_access_shares_a_device_in_use_and_leaves_it_free_for_others() -> None:
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


def test_more_than_32_devices_of_a_claim_are_refused_before_the_search() -> None:
    with pytest.raises(SchedulingError, match="requested devices 33 exceeds the claim limit of 32"):
        allocate(claim(exactly(count=33)), slices=[])


texts = st.sampled_from(["-100", "0", "1m", "25", "33.3", "71200m", "100", "101", "200"])
vrams = st.sampled_from(["-1Gi", "1", "20000000001", "16Gi", "40Gi", "41Gi"])
capacities = st.fixed_dictionaries({}, optional={"tflops": texts, "vram": vrams})
wanted_requests = st.lists(st.tuples(capacities, st.integers(1, 3)), min_size=1, max_size=3)


@settings(max_examples=examples(60))
@given(st.lists(wanted_requests, max_size=8))
def test_no_sequence_of_claims_exceeds_the_capacity_of_a_device(
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

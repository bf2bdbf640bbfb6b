"""Constraints, taints, alternatives and configuration."""

import pytest

from tensorfusion_dra.scheduling.allocation import NoFitError, SchedulingError
from tests.scheduling.allocating import HALF, allocate, devices
from tests.support.objects import (
    DRIVER,
    Json,
    claim,
    device,
    device_class,
    exactly,
    expressions,
    resource_slice,
    shared,
)


def test_match_attribute_selects_devices_with_the_same_value() -> None:
    gpus = [
        resource_slice(device("gpu-0", numa=0), device("gpu-1", numa=1), device("gpu-2", numa=1))
    ]
    together = [{"matchAttribute": f"{DRIVER}/numa"}]

    (found,) = allocate(claim(exactly(count=2), constraints=together), slices=gpus)

    assert devices(found) == ["gpu-1", "gpu-2"]


def test_a_constraint_applies_only_to_the_requests_that_it_names() -> None:
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


def test_all_mode_with_a_device_that_violates_a_constraint_is_an_error() -> None:
    gpus = [resource_slice(device("gpu-0", numa=0), device("gpu-1", numa=1))]
    together = [{"matchAttribute": f"{DRIVER}/numa"}]

    with pytest.raises(SchedulingError, match="a claim constraint would not be satisfied"):
        allocate(claim(exactly(allocationMode="All"), constraints=together), slices=gpus)


def test_all_mode_checks_constraints_before_capacity() -> None:
    gpus = [resource_slice(shared("gpu-0", uuid="a"))]
    apart = [{"distinctAttribute": f"{DRIVER}/uuid"}]
    more_than_half = {"tflops": "60", "vram": "1Gi"}

    with pytest.raises(SchedulingError, match="a claim constraint would not be satisfied"):
        allocate(
            claim(
                exactly("one", capacity=HALF),
                exactly("every", allocationMode="All", capacity=more_than_half),
                constraints=apart,
            ),
            slices=gpus,
        )


def test_all_mode_keeps_a_device_that_lacks_capacity_in_its_constraints() -> None:
    gpus = [resource_slice(shared("gpu-0", uuid="a"), shared("gpu-1", uuid="b"))]
    apart = [{"distinctAttribute": f"{DRIVER}/uuid", "requests": ["choice"]}]
    every = {**exactly("every", allocationMode="All", capacity={"tflops": "60"})["exactly"]}
    one = {**exactly("one", capacity={"tflops": "1", "vram": "1Gi"})["exactly"]}
    choice = {
        "name": "choice",
        "firstAvailable": [{"name": "every", **every}, {"name": "one", **one}],
    }

    (found,) = allocate(
        claim(exactly("first", capacity=HALF), choice, constraints=apart), slices=gpus
    )

    assert devices(found) == ["gpu-0", "gpu-1"]


def tainted(effect: str, tolerations: list[Json]) -> tuple[Json, list[Json]]:
    """A claim with tolerations, and slices with only a tainted device."""
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
def test_a_taint_repels_a_claim_that_does_not_tolerate_it(
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
def test_a_tolerated_taint_and_one_without_effect_repel_no_claim(
    effect: str, tolerations: list[Json]
) -> None:
    wanted, gpus = tainted(effect, tolerations)

    (found,) = allocate(wanted, slices=gpus)

    assert found["devices"]["results"][0].get("tolerations", []) == tolerations


def first_available(*alternatives: Json) -> Json:
    """A request with these alternatives."""
    subrequests = [
        {"name": alternative["name"], **alternative["exactly"]} for alternative in alternatives
    ]
    return {"name": "gpu", "firstAvailable": subrequests}


def test_the_first_subrequest_that_fits_is_allocated() -> None:
    gpus = [resource_slice(device("gpu-0", model="B"))]
    of_model = '{}"].model == "{}"'.format
    best = exactly("best", selectors=expressions('device.attributes["' + of_model(DRIVER, "A")))
    good = exactly("good", selectors=expressions('device.attributes["' + of_model(DRIVER, "B")))

    (found,) = allocate(claim(first_available(best, good)), slices=gpus)

    assert [result["request"] for result in found["devices"]["results"]] == ["gpu/good"]


def test_a_smaller_subrequest_is_allocated_if_the_larger_exceeds_the_claim_limit() -> None:
    gpus = [resource_slice(*(device(f"gpu-{number}") for number in range(33)))]
    many = first_available(exactly("many", count=32), exactly("few", count=1))

    (found,) = allocate(claim(exactly("other"), many), slices=gpus)

    requests = [result["request"] for result in found["devices"]["results"]]
    assert requests == ["other", "gpu/few"]


def test_configuration_of_the_class_precedes_the_claims_and_names_its_requests() -> None:
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


def test_configuration_of_a_subrequest_that_was_not_allocated_is_left_out() -> None:
    gpus = [resource_slice(device("gpu-0"))]
    alternatives = first_available(exactly("big", count=2), exactly("small"))
    entry: Json = {"opaque": {"driver": DRIVER, "parameters": {}}}
    config = [{**entry, "requests": ["gpu/big"]}, {**entry, "requests": ["gpu/small"]}]

    (found,) = allocate(claim(alternatives, config=config), slices=gpus)

    requests = [entry["requests"] for entry in found["devices"]["config"]]
    assert requests == [["gpu/small"]]

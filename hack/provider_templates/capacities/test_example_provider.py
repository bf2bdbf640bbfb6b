"""The capacities, and the driver's rules for providers."""

from example_provider import capacities

from tensorfusion_dra import testing


def test_conforms() -> None:
    testing.check_capacities(capacities)


def test_claim_that_does_not_name_it_consumes_none() -> None:
    (capacity,) = capacities(testing.gpu(), testing.node()).values()

    assert str(capacity.value) == "16"
    assert str(capacity.default) == "0"

"""The attributes, and the driver's rules for providers."""

from example_provider import attributes

from tensorfusion_dra import testing


def test_conforms() -> None:
    testing.check_attributes(attributes)


def test_each_card_has_a_value_of_its_own() -> None:
    first, second = (attributes(testing.gpu(index), testing.node()) for index in (0, 1))

    assert first == {"example.com/example_provider": "node-01-0"}
    assert first != second

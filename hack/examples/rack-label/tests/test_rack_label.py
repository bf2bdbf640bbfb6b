"""The rack of a node, and the driver's rules for providers."""

from collections.abc import Mapping

import pytest
from rack_label import ATTRIBUTE, FRESH_SECONDS, LABEL, RackLabel

from tensorfusion_dra import testing


class Labels:
    """Labels of nodes, which a test sets; they count how often they are read."""

    def __init__(self, **labels: str) -> None:
        self.labels: Mapping[str, str] = labels
        self.reads = 0

    def __call__(self, name: str) -> Mapping[str, str]:
        self.reads += 1
        return self.labels


def test_conforms() -> None:
    testing.check_attributes(RackLabel(Labels(**{LABEL: "r12"})))


def test_every_card_has_the_rack_of_its_node() -> None:
    given = testing.check_attributes(RackLabel(Labels(**{LABEL: "r12"})))

    assert {each[ATTRIBUTE] for each in given.values()} == {"r12"}


def test_node_without_the_label_has_an_empty_rack() -> None:
    given = testing.check_attributes(RackLabel(Labels()))

    assert {each[ATTRIBUTE] for each in given.values()} == {""}


def test_node_is_read_again_only_after_a_while() -> None:
    seconds = [0.0]
    labels = Labels(**{LABEL: "r1"})
    provider = RackLabel(labels, clock=lambda: seconds[0])
    reading = testing.reading(testing.gpu())

    for _ in range(3):
        provider.begin(reading)
    seconds[0] = FRESH_SECONDS
    provider.begin(reading)

    assert labels.reads == 2


def test_outage_is_an_error_so_that_the_driver_keeps_the_last_answer() -> None:
    def away(name: str) -> Mapping[str, str]:
        raise OSError("no answer")

    with pytest.raises(AssertionError, match="no answer"):
        testing.check_attributes(RackLabel(away))

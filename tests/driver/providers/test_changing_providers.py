"""How often the answers of a provider may change."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import pytest

from tensorfusion_dra.core.devices.gpu import Gpu, Inventory
from tensorfusion_dra.core.devices.reading import Reading
from tensorfusion_dra.driver.providers.called import Outcome, State
from tensorfusion_dra.driver.providers.providers import OWN, Providers
from tensorfusion_dra.driver.providers.registered import Kind, Registered
from tensorfusion_dra.extend import Problem, consumable
from tests.support.builders.devices import NODE
from tests.support.builders.gpus import gpus
from tests.support.waiting import FOREVER

READING = Reading(inventory=Inventory(gpus=gpus(2)), node=NODE)
RACK = "example.com/rack"


def registered(provider: object, kind: Kind) -> Registered:
    return Registered(kind=kind, name="rack", package="example 1.0", load=lambda: provider)


def outcome_of(several: Providers) -> Outcome:
    (found,) = (each.outcome for each in several.reports() if each.registered.name == "rack")
    return found


@pytest.mark.parametrize("kind", [Kind.ATTRIBUTES, Kind.CAPACITIES])
def test_ten_changes_of_a_provider_count_within_an_hour(kind: Kind) -> None:
    now, reading = 0.0, 0

    def restless(gpu: Gpu, _node: object) -> Mapping[str, Any]:
        return {RACK: reading if kind is Kind.ATTRIBUTES else consumable(reading)}

    several = Providers(
        [*OWN, registered(restless, kind)], budget_seconds=FOREVER, clock=lambda: now
    )
    published = []
    for reading in range(1, 31):  # noqa: B007 - read by the provider
        published.append(several.devices(READING))
    outcome = outcome_of(several)
    now = 3600.0
    published.append(several.devices(READING))

    changes = [after != before for before, after in pairwise(published)]
    assert changes == [True] * 10 + [False] * 19 + [True]
    assert outcome.state is State.FAILED
    assert outcome.errors[""].startswith("answers changed 10 times within an hour")
    assert outcome_of(several).state is State.OK


def test_each_change_of_a_health_source_counts() -> None:
    is_sick = False

    def flapping(_gpu: Gpu) -> Sequence[Problem]:
        return [Problem(reason="fan", text="the fan stands still")] if is_sick else []

    several = Providers([registered(flapping, Kind.HEALTH)], budget_seconds=FOREVER)
    found = []
    for _ in range(30):
        is_sick = not is_sick
        found.append(any(several.troubles(READING.inventory).values()))

    assert found == [True, False] * 15

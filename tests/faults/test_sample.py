"""The sample of fault points in `make test`: few, always the same, some of every kind."""

import itertools

import pytest

from tests.faults import fault_points
from tests.faults.fault_points import FEWEST_POINTS, Point

POINTS = [
    Point("before mkdir /k", 1),
    Point("before create /k/plugins/x/ledger.sqlite3", 1),
    *(Point("before write /k/plugins/x/ledger.sqlite3-wal", n) for n in range(1, 60)),
    Point("before rename to /cdi/UID.json", 1),
    *(Point("before request PUT /api", n) for n in range(1, 40)),
    Point("after bind /k/plugins/x/dra.sock", 1),
]


def test_sample_has_the_first_point_of_every_kind() -> None:
    chosen = fault_points.sample(POINTS, share=0.0)

    assert [(point.kind, point.occurrence) for point in chosen] == [
        ("mkdir", 1),
        ("create of the ledger", 1),
        ("write of the ledger", 1),
        ("rename", 1),
        ("request", 1),
        ("bind", 1),
    ]


@pytest.mark.parametrize("share", [0.15, 0.5])
def test_remaining_points_of_a_sample_are_evenly_spread(share: float) -> None:
    places = [POINTS.index(point) for point in fault_points.sample(POINTS, share=share)]

    assert len(places) == round(len(POINTS) * share)
    assert places == sorted(set(places))
    assert max(b - a for a, b in itertools.pairwise(places)) <= 2 / share


def test_sample_has_at_least_the_minimum_of_points() -> None:
    same = [Point("before request PUT /api", n) for n in range(1, 40)]

    assert len(fault_points.sample(same, share=0.01)) == FEWEST_POINTS
    assert fault_points.sample(same[:4], share=0.01) == same[:4]


@pytest.mark.parametrize("share", [1.0, 20.0])
def test_full_effort_has_every_point(share: float) -> None:
    assert fault_points.sample(POINTS, share=share) == POINTS

"""Requests get workers in turn, whoever sends how many of them and when."""

from collections import Counter, defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorfusion_dra.webhook.turns import QueuedRequest, Turns

GROUPS = st.sampled_from([f"{address}/{namespace}" for address in "AB" for namespace in "abc"])
STEPS = st.lists(GROUPS | st.integers(-9, 9), max_size=60)
"""A request that comes, by address and namespace; or one that ends, or leaves while it waits."""


class Requests:
    """Requests that wait for a number of workers.

    Attributes:
        told: Those that have or had a worker or were refused one, in this order.
        waiting, working: The others, and those that have one now.
    """

    def __init__(self, workers: int, most_bytes: int = 0) -> None:
        self.turns = Turns(workers, most_bytes=most_bytes)
        self.told: list[QueuedRequest] = []
        self.waiting: list[QueuedRequest] = []
        self.working: list[QueuedRequest] = []

    def come(self, group: str, size: int = 0) -> QueuedRequest:
        """Add a request of an address and a namespace, such as A/a."""
        address, _, namespace = group.partition("/")
        place = QueuedRequest(
            address=address, namespace=namespace, size=size, on_turn=lambda: self.told.append(place)
        )
        self.waiting.append(place)
        self.turns.wait(place)
        return place

    def step(self, step: str | int) -> list[QueuedRequest]:
        """Have a request come, end or leave; return those that get a worker by that."""
        before = len(self.told)
        if isinstance(step, str):
            self.come(step)
        elif step < 0 and self.waiting:
            refused = self.waiting.pop(step % len(self.waiting))
            self.turns.refuse(refused)
            assert self.told.pop(before) is refused
        elif step >= 0 and self.working:
            self.turns.done(self.working.pop(step % len(self.working)))
        started = self.told[before:]
        self.working += started
        self.waiting = [each for each in self.waiting if each not in started]
        assert all(each.has_worker for each in started)
        assert not any(each.has_worker for each in self.waiting)
        return started


def name(place: QueuedRequest) -> str:
    return f"{place.address}/{place.namespace}"


@pytest.mark.parametrize(
    ("came", "expected"),
    [
        ("A/a A/a A/a B/a", "A/a B/a A/a A/a"),
        ("A/a A/a A/a A/b", "A/a A/b A/a A/a"),
        ("A/a A/a A/a A/b B/a", "A/a B/a A/b A/a A/a"),
        ("A/a A/b A/c A/d B/a B/a", "A/a B/a A/b B/a A/c A/d"),
    ],
)
def test_addresses_have_turns_and_there_their_namespaces(came: str, expected: str) -> None:
    requests = Requests(1)
    requests.step("another")
    for each in came.split():
        requests.step(each)

    while requests.working:
        requests.step(0)

    assert [*map(name, requests.told[1:])] == expected.split()


@given(STEPS)
def test_nobody_has_two_turns_while_another_waits(steps: list[str | int]) -> None:
    """One worker: between two turns of an address, each other one that waited had one."""
    requests = Requests(1)
    owed = defaultdict[str, set[str]](set)  # who has waited since the last turn of an address
    for step in steps:
        for each in requests.step(step):
            addresses = {other.address for other in requests.waiting}
            alike = [other for other in requests.waiting if other.address == each.address]
            for own, others in ((each.address, addresses), (name(each), {*map(name, alike)})):
                assert not owed[own]
                owed[own] = others - {own}
                for missing in owed.values():
                    missing.discard(own)
        present = {group for each in requests.waiting for group in (each.address, name(each))}
        for missing in owed.values():
            missing.intersection_update(present)


@given(STEPS)
def test_no_address_and_no_namespace_has_all_workers_and_none_is_idle(
    steps: list[str | int],
) -> None:
    requests = Requests(8)
    for step in steps:
        requests.step(step)
        of_address = Counter(each.address for each in requests.working)
        of_namespace = Counter(map(name, requests.working))

        assert len(requests.working) <= 8
        assert max(of_address.values(), default=0) <= 6
        assert max(of_namespace.values(), default=0) <= 2
        assert all(
            len(requests.working) == 8
            or of_address[each.address] == 6
            or of_namespace[name(each)] == 2
            for each in requests.waiting
        )


def test_an_address_with_many_namespaces_leaves_a_quarter_of_the_workers() -> None:
    requests = Requests(8)
    for namespace in "abcdefghij":
        requests.step(f"A/{namespace}")

    assert len(requests.working) == 6
    assert [name(each) for each in (*requests.step("B/a"), *requests.step("C/a"))] == ["B/a", "C/a"]


def test_sizes_in_work_are_bounded_together_and_a_large_one_has_its_turn() -> None:
    requests = Requests(4, most_bytes=6)
    first = requests.come("A/a", 4)
    large = requests.come("A/b", 5)
    small, other = requests.come("A/c", 1), requests.come("B/a", 2)
    assert requests.told == [first]  # nobody overtakes

    requests.turns.done(first)

    assert requests.told == [first, large]
    requests.turns.done(large)
    assert requests.told == [first, large, other, small]

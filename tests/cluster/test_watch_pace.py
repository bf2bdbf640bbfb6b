"""Request rate of a watch over hours of virtual time, against a scripted server."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from tensorfusion_dra.cluster import watch
from tensorfusion_dra.cluster.api import Api
from tensorfusion_dra.cluster.watch import Watch
from tensorfusion_dra.core.errors import RetryableError
from tests.support.virtual_time import VirtualTime

Events = Iterable[tuple[float, int]]
"""For each bookmark, the seconds before it arrives and its version."""


class ScriptedApi(Api):
    """API that answers lists at once and watches with the events of a script.

    Attributes:
        lists, watches: Times of the requests, in virtual seconds.
    """

    def __init__(self, time: VirtualTime, events: Callable[[int], Events]) -> None:
        super().__init__(None)
        self._time = time
        self._events = events
        self.lists: list[float] = []
        self.watches: list[float] = []

    def call(self, *_args: Any, **_more: Any) -> dict[str, Any]:
        self.lists.append(self._time.seconds)
        return {"metadata": {"resourceVersion": "1"}, "items": []}

    @contextmanager
    def watch(self, _path: str, *, query: Mapping[str, str], silent_seconds: float) -> Any:
        assert silent_seconds > 0
        self.watches.append(self._time.seconds)
        yield self._stream(self._events(int(query["resourceVersion"])))

    def _stream(self, events: Events) -> Iterator[dict[str, Any]]:
        for seconds, version in events:
            self._time.passed(seconds)
            yield {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": str(version)}}}


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> VirtualTime:
    virtual = VirtualTime(hours=6)
    monkeypatch.setattr(watch, "Event", virtual.event)
    return virtual


def followed(time: VirtualTime, events: Callable[[int], Events]) -> ScriptedApi:
    """Run a watch for six virtual hours and return the API with its requests."""
    api = ScriptedApi(time, events)
    Watch(
        api,
        lambda: "/path",
        selector="",
        on_list=lambda _items: None,
        on_event=lambda _type, _item: None,
        clock=lambda: time.seconds,
    ).run()
    return api


def test_watches_that_end_at_once_slow_down_and_each_follows_a_list(
    time: VirtualTime,
) -> None:
    api = followed(time, lambda _version: [])

    assert len(api.watches) <= 6 * 3600 / 15 + 10
    assert api.lists == api.watches


def test_watches_that_only_repeat_their_version_make_no_progress(time: VirtualTime) -> None:
    api = followed(time, lambda version: [(0.1, version)])

    assert len(api.watches) <= 6 * 3600 / 15 + 10
    assert len(api.lists) == len(api.watches)


def test_watches_with_progress_follow_closely_with_a_list_twice_an_hour(
    time: VirtualTime,
) -> None:
    api = followed(time, lambda version: [(60, version + number) for number in range(1, 6)])

    assert len(api.watches) >= 6 * 3600 / 301
    assert 9 <= len(api.lists) <= 12


def test_watch_that_the_server_never_ends_is_closed_by_the_client(
    time: VirtualTime,
) -> None:
    def endless(version: int) -> Events:
        return ((60, version + number) for number in itertools.count(1))

    api = followed(time, endless)

    assert 6 * 3600 / 730 <= len(api.watches) <= 6 * 3600 / 360 + 1
    assert 8 <= len(api.lists) <= 12


def test_progress_resets_the_delays(time: VirtualTime) -> None:
    made = itertools.count()

    def events(version: int) -> Events:
        return [(0.0, version + 1)] if next(made) == 20 else []

    api = followed(time, events)

    before = api.watches[20] - api.watches[19]
    after = api.watches[21] - api.watches[20]
    assert before >= 15
    assert after <= 0.5


def test_quiet_watch_that_breaks_after_minutes_does_not_slow_down(
    time: VirtualTime,
) -> None:
    def events(version: int) -> Events:
        yield 120, version
        raise RetryableError("connection reset")

    api = followed(time, events)

    assert len(api.watches) >= 6 * 3600 / 122

"""Request rate of a watch over hours of virtual time, against a scripted server."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from tensorfusion_dra.cluster import watch
from tensorfusion_dra.cluster.api import Api, StatusError
from tensorfusion_dra.cluster.watch import Watch
from tensorfusion_dra.core.errors import RetryableError
from tests.support.virtual_time import VirtualTime

Events = Iterable[tuple[float, int]]
"""For each bookmark, the seconds before it arrives and its version."""


class ScriptedApi(Api):
    """API that answers lists at once and watches with the events of a script.

    Attributes:
        lists, watches: Times of the requests, in virtual seconds.
        versions: What each list may be as old as, as in its resourceVersion.
        refusals: Errors of the next lists.
    """

    def __init__(self, time: VirtualTime, events: Callable[[int], Events]) -> None:
        super().__init__(None)
        self._time = time
        self._events = events
        self.lists: list[float] = []
        self.watches: list[float] = []
        self.versions: list[str] = []
        self.refusals: list[RetryableError] = []

    def call(
        self, *_args: Any, query: Mapping[str, str] | None = None, **_more: Any
    ) -> dict[str, Any]:
        self.lists.append(self._time.seconds)
        self.versions.append((query or {})["resourceVersion"])
        if self.refusals:
            raise self.refusals.pop(0)
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
    """Run a watch until the virtual time is over and return the API with its requests."""
    api = ScriptedApi(time, events)
    run(api, time)
    return api


def run(api: ScriptedApi, time: VirtualTime) -> None:
    Watch(
        api,
        lambda: "/path",
        selector="",
        on_list=lambda _items: None,
        on_event=lambda _type, _item: None,
        clock=lambda: time.seconds,
    ).run()


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


def watched(seconds: float, version: int) -> Events:
    """Events of a watch that a server ends after a time, with a bookmark each minute."""
    minutes = int(seconds // 60)
    yield from ((60, version + number) for number in range(1, minutes + 1))
    yield seconds - 60 * minutes, version + minutes + 1


def test_watches_with_progress_follow_closely_and_one_list_is_enough(
    time: VirtualTime,
) -> None:
    api = followed(time, lambda version: watched(300, version))

    assert len(api.watches) >= 6 * 3600 / 311
    assert len(api.lists) == 1


def test_progress_resets_the_delays(time: VirtualTime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "_RETURN_SECONDS", 0)
    made = itertools.count()

    def events(version: int) -> Events:
        return [(0.0, version + 1)] if next(made) == 20 else []

    api = followed(time, events)

    before = api.watches[20] - api.watches[19]
    after = api.watches[22] - api.watches[21]
    assert before >= 15
    assert after <= 1


def test_quiet_watch_that_breaks_after_minutes_does_not_slow_down(
    time: VirtualTime,
) -> None:
    def events(version: int) -> Events:
        yield 120, version
        raise RetryableError("connection reset")

    api = followed(time, events)

    assert len(api.watches) >= 6 * 3600 / 130


@pytest.mark.parametrize("age_seconds", [1, 100])
def test_watches_that_a_server_ends_together_begin_again_over_ten_seconds(
    monkeypatch: pytest.MonkeyPatch, age_seconds: float
) -> None:
    """Each of the nodes had its watch open for this long when the server was stopped."""
    returns = []
    for _ in range(200):
        virtual = VirtualTime(hours=0.05)
        monkeypatch.setattr(watch, "Event", virtual.event)
        api = followed(virtual, lambda version: watched(age_seconds, version))
        returns.append(api.watches[1] - age_seconds)
        assert len(api.lists) == 1

    assert min(returns) < 1
    assert 9 < max(returns) <= 10
    assert max(sum(at <= each < at + 1 for each in returns) for at in returns) <= 45


def test_watch_that_broke_continues_from_the_version_that_it_reached(time: VirtualTime) -> None:
    since: list[int] = []

    def events(version: int) -> Events:
        since.append(version)
        yield 60, version + 1
        raise RetryableError("connection reset")

    api = followed(time, events)

    assert since[:3] == [1, 2, 3]
    assert len(api.lists) == 1


def test_lists_are_as_old_as_what_is_known_and_newest_after_a_refusal(time: VirtualTime) -> None:
    reached = itertools.count(5)

    def events(_version: int) -> Events:
        yield 60, next(reached)
        raise StatusError("watch: too old resource version", 410)

    api = ScriptedApi(time, events)
    api.refusals = [
        StatusError("too many requests", 429, after_seconds=1),
        StatusError("too large resource version", 504, after_seconds=1),
    ]
    run(api, time)

    assert api.versions[:5] == ["0", "0", "", "5", "6"]


def test_watch_that_a_busy_server_refuses_continues_without_a_list(time: VirtualTime) -> None:
    opened = itertools.count()

    def events(version: int) -> Events:
        if next(opened) % 2:
            raise StatusError("too many requests", 429, after_seconds=1)
        return [(60, version + 1)]

    api = followed(time, events)

    assert len(api.watches) > 100
    assert len(api.lists) <= 2

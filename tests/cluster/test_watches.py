"""Watches: their pace over hours, what they survive, and what callers know without waiting."""

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Self

import pytest

from dra_simulator.api.faults import Action, Cut, Expire, Garble, HalfOpen, Refuse
from dra_simulator.apiserver import ApiServer
from dra_simulator.rest import GPUPOOLS, Client
from tensorfusion_dra.cluster import watch
from tensorfusion_dra.cluster.api import Api, Listed
from tensorfusion_dra.cluster.slices import ApiSlices
from tensorfusion_dra.cluster.watch import ObjectCache, Watch
from tensorfusion_dra.core.errors import InputError, RetryableError, StatusError
from tests.support.answers import nothing
from tests.support.builders.devices import NODE
from tests.support.builders.slices import new_slice
from tests.support.logs import capture_logs
from tests.support.threads import running
from tests.support.virtual_time import VirtualTime
from tests.support.waiting import eventually

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
        self._time, self._events = time, events
        self.lists: list[float] = []
        self.watches: list[float] = []
        self.versions: list[str] = []
        self.refusals: list[RetryableError] = []

    def listed(self, *_args: Any, query: Mapping[str, str] | None = None, **_more: Any) -> Listed:
        self.lists.append(self._time.seconds)
        self.versions.append((query or {})["resourceVersion"])
        if self.refusals:
            raise self.refusals.pop(0)
        return Listed([], "1")

    def watch(
        self, *_args: Any, query: Mapping[str, str], on_open: Any = None, **_more: Any
    ) -> Iterator[dict[str, Any]]:
        self.watches.append(self._time.seconds)
        events = self._events(int(query["resourceVersion"]))
        on_open(None)
        for seconds, version in events:
            self._time.passed(seconds)
            yield {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": str(version)}}}

    def followed(self) -> Self:
        """Run a watch until the virtual time is over."""
        Watch(
            self,
            "/path",
            dict,
            selector="",
            on_list=lambda _items: None,
            on_event=lambda _type, _item: None,
            clock=lambda: self._time.seconds,
        ).run()
        return self


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> VirtualTime:
    virtual = VirtualTime(hours=6)
    monkeypatch.setattr(watch, "Event", virtual.event)
    return virtual


def watched(seconds: float, version: int) -> Events:
    """Events of a watch that a server ends after a time, with a bookmark each minute."""
    minutes = int(seconds // 60)
    yield from ((60, version + number) for number in range(1, minutes + 1))
    yield seconds - 60 * minutes, version + minutes + 1


def quiet(seconds: float, version: int) -> Events:
    """Events of a watch that breaks without a change after a time."""
    yield seconds, version
    raise RetryableError("connection reset")


HOURS = 6 * 3600


@pytest.mark.parametrize(
    ("events", "least", "most", "lists"),
    [
        # Without progress, watches slow down and each follows a list.
        (lambda _version: [], 1, HOURS / 15 + 10, None),
        (lambda version: [(0.1, version)], 1, HOURS / 15 + 10, None),
        # With progress they follow closely, and one list is enough.
        (lambda version: watched(300, version), HOURS / 311, HOURS / 299, 1),
        # Quiet ones that break after minutes do not slow down either.
        (lambda version: quiet(120, version), HOURS / 130, HOURS / 119, None),
    ],
    ids=["end at once", "repeat their version", "with progress", "quiet"],
)
def test_watches_slow_down_only_without_progress(
    time: VirtualTime,
    events: Callable[[int], Events],
    least: float,
    most: float,
    *,
    lists: int | None,
) -> None:
    api = ScriptedApi(time, events).followed()

    assert least <= len(api.watches) <= most
    assert len(api.lists) == (lists or len(api.watches))


def test_watch_that_a_busy_server_refuses_continues_without_a_list(time: VirtualTime) -> None:
    opened = itertools.count()

    def events(version: int) -> Events:
        if next(opened) % 2:
            raise StatusError("too many requests", 429, after_seconds=1)
        return [(60, version + 1)]

    api = ScriptedApi(time, events).followed()

    assert len(api.watches) > 100
    assert len(api.lists) <= 2


def test_progress_resets_the_delays(time: VirtualTime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "_RETURN_SECONDS", 0)
    made = itertools.count()

    times = (
        ScriptedApi(time, lambda version: [(0.0, version + 1)] if next(made) == 20 else [])
        .followed()
        .watches
    )

    assert times[20] - times[19] >= 15
    assert times[22] - times[21] <= 1


@pytest.mark.parametrize("age_seconds", [1, 100])
def test_watches_that_a_server_ends_together_begin_again_over_ten_seconds(
    monkeypatch: pytest.MonkeyPatch, age_seconds: float
) -> None:
    """Each of the nodes had its watch open for this long when the server was stopped."""
    returns = []
    for _ in range(200):
        virtual = VirtualTime(hours=0.05)
        monkeypatch.setattr(watch, "Event", virtual.event)
        api = ScriptedApi(virtual, lambda version: watched(age_seconds, version)).followed()
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

    api = ScriptedApi(time, events).followed()

    assert since[:3] == [1, 2, 3]
    assert len(api.lists) == 1


def test_lists_are_as_old_as_what_is_known_and_newest_after_a_refusal(time: VirtualTime) -> None:
    reached = itertools.count(5)

    def events(_version: int) -> Events:
        yield 60, next(reached)
        raise StatusError("watch: too old resource version", 410)

    api = ScriptedApi(time, events)
    api.refusals = [StatusError("refused", status, after_seconds=1) for status in (429, 504)]
    api.followed()

    assert api.versions[:5] == ["0", "0", "", "5", "6"]


@contextmanager
def watching(slices: ApiSlices) -> Iterator[Counter[str]]:
    """Follow slices as their publisher does; count changes, and returns of the watch."""
    told = Counter[str]()

    def tell(what: str) -> None:
        slices.fetch()
        told[what] += 1

    watched = slices.watch(on_change=partial(tell, "change"), on_return=partial(tell, "return"))
    with running(watched.run, stop=watched.stop):
        assert eventually(lambda: told["return"] == 1)
        yield told


def test_bookmarks_are_not_changes(api: Api) -> None:
    with watching(ApiSlices(api, node_name=NODE.name)) as told:
        assert not eventually(lambda: told["change"] > 0, seconds=0.6)


@pytest.mark.parametrize(
    "fault", [Cut(carried_out=True), Expire(), Garble(), Refuse(500), HalfOpen()]
)
def test_watch_resumes_after_a_fault_and_reports_its_return(
    server: ApiServer, api: Api, monkeypatch: pytest.MonkeyPatch, fault: Action
) -> None:
    if isinstance(fault, HalfOpen):  # a silent connection, which is given up
        monkeypatch.setattr(watch, "_SILENT_SECONDS", 0.3)
    slices = ApiSlices(api, node_name=NODE.name)
    server.faults.add("watch", "resourceslices", fault, times=1)
    with watching(ApiSlices(api, node_name=NODE.name)) as told:
        created = slices.create(new_slice())

        assert eventually(lambda: told["return"] == 2)
        changes = told["change"]
        slices.delete(created)
        assert eventually(lambda: told["change"] > changes)


def test_what_a_watched_publisher_knows_is_listed_again_only_after_changes_of_others(
    server: ApiServer, api: Api
) -> None:
    own, other = (ApiSlices(api, node_name=NODE.name) for _ in range(2))
    with watching(own) as told:
        created = own.create(new_slice())
        assert own.fetch() == [created]
        lists = server.requests.count("list", "resourceslices")

        changed = other.replace({**created, "spec": new_slice(generation=2)["spec"]})
        assert eventually(lambda: told["change"] == 1)
        assert [item["spec"] for item in own.fetch()] == [changed["spec"]]
        own.delete(changed)
        assert own.fetch() == []
        other.create(new_slice())
        assert eventually(lambda: told["change"] == 2)

        assert len(own.fetch()) == 1
        assert server.requests.count("list", "resourceslices") == lists + 2


def test_late_deletion_of_an_object_that_was_created_again_is_no_news(api: Api) -> None:
    own, told = ApiSlices(api, node_name=NODE.name), Counter[str]()
    watch = own.watch(on_change=lambda: told.update(["change"]), on_return=nothing)
    first = own.create(new_slice())
    own.delete(first)
    second = own.create(new_slice())

    watch._on_event("DELETED", first)
    assert not told
    watch._on_event("DELETED", second)
    assert told["change"] == 1


@pytest.mark.parametrize("fault", [Refuse(409, "conflict"), Cut(carried_out=True), Refuse(500)])
def test_after_a_write_with_unknown_result_the_slices_are_listed_again(
    server: ApiServer, api: Api, fault: Action
) -> None:
    own = ApiSlices(api, node_name=NODE.name)
    with watching(own):
        created = own.create(new_slice())
        own.fetch()
        server.faults.add("update", "resourceslices", fault, times=1)
        lists = server.requests.count("list", "resourceslices")

        with pytest.raises(RetryableError):
            own.replace({**created, "spec": new_slice(generation=2)["spec"]})

        own.fetch()
        assert server.requests.count("list", "resourceslices") == lists + 1


POOL: dict[str, Any] = {
    "apiVersion": "tensor-fusion.ai/v1",
    "kind": "GPUPool",
    "metadata": {"name": "prod"},
    "spec": {"qosConfig": {"defaultQoS": "high"}, "more": {"kept": [1]}},
}
OTHER = {**POOL, "metadata": {"name": "other"}}


class Pools(ObjectCache):
    """The GPUPools of an API server; counts the changes."""

    def __init__(self, api: Api, name: str = "") -> None:
        self.changes = 0
        super().__init__(api, watch.GPUPOOLS, name=name, on_change=self._count)

    def _count(self) -> None:
        self.changes += 1

    @contextmanager
    def following(self, *expected: str) -> Iterator[Self]:
        """Follow the pools for the block, which begins once these are known."""
        with running(self.run, stop=self.stop):
            assert eventually(lambda: self.names() == [*expected])
            yield self

    def names(self) -> list[str] | None:
        """Return the names of the known pools; None if they are not known."""
        with suppress(RetryableError, InputError):
            return sorted(item["metadata"]["name"] for item in self.items())
        return None


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    """Yield a server whose watches begin again soon after their end."""
    monkeypatch.setattr(watch, "_RETURN_SECONDS", 0.2)
    with ApiServer(tensor_fusion=True, bookmark_seconds=0.2) as running:
        yield running


@pytest.fixture
def client(server: ApiServer) -> Client:
    return Client(server.url)


def test_cache_follows_additions_changes_and_deletions(api: Api, client: Client) -> None:
    stored = client.create(GPUPOOLS, POOL)
    with Pools(api).following("prod") as pools:
        assert pools.items()[0]["spec"] == POOL["spec"]
        client.create(GPUPOOLS, OTHER)
        assert eventually(lambda: pools.names() == ["other", "prod"])
        client.replace(GPUPOOLS, {**stored, "spec": {"qosConfig": {"defaultQoS": "low"}}})
        assert eventually(lambda: "low" in str(pools.items()))
        client.delete(GPUPOOLS, "other")

        assert eventually(lambda: pools.names() == ["prod"])
        assert pools.changes == 4


def test_cache_for_one_name_ignores_other_objects(api: Api, client: Client) -> None:
    client.create(GPUPOOLS, OTHER)
    with Pools(api, name="prod").following() as pools:
        client.create(GPUPOOLS, POOL)

        assert eventually(lambda: pools.names() == ["prod"])


def test_items_are_unavailable_before_the_first_list(api: Api) -> None:
    with pytest.raises(RetryableError, match="/gpupools: not listed by the API server yet"):
        Pools(api).items()


def test_object_deleted_while_the_watch_was_broken_is_removed(
    server: ApiServer, api: Api, client: Client
) -> None:
    client.create(GPUPOOLS, POOL)
    server.faults.add("watch", "gpupools", Cut(carried_out=True), times=1)
    with Pools(api).following("prod") as pools:
        client.delete(GPUPOOLS, "prod")

        assert eventually(lambda: pools.names() == [])


def test_cache_keeps_objects_while_the_server_fails(
    server: ApiServer, api: Api, client: Client
) -> None:
    client.create(GPUPOOLS, POOL)
    with Pools(api).following("prod") as pools:
        for verb in ("list", "watch"):
            server.faults.add(verb, "gpupools", Refuse(500))
        lists = server.requests.count("list", "gpupools")
        server.stop()
        server.start()
        assert eventually(lambda: server.requests.count("list", "gpupools") > lists)

        assert pools.names() == ["prod"]


def test_missing_resource_is_polled_with_growing_delays_and_no_warnings(
    time: VirtualTime, tmp_path: Path
) -> None:
    with ApiServer() as bare, capture_logs() as logs:
        pools = Pools(Api(bare.kubeconfig(tmp_path / "kubeconfig")))

        pools.run()

        with pytest.raises(InputError, match="gpupools: the API server has no such resource"):
            pools.items()
    assert time.seconds / 30 <= pools.changes <= time.seconds / 15 + 10
    assert logs == []


def test_a_kind_that_most_servers_lack_is_asked_for_seldom(
    time: VirtualTime, tmp_path: Path
) -> None:
    with ApiServer() as bare:
        api = Api(bare.kubeconfig(tmp_path / "kubeconfig"))
        pools = ObjectCache(api, watch.GPUPOOLS, absent_seconds=600)

        pools.run()

    asked = bare.requests.count("list", "gpupools")
    assert 0 < asked <= time.seconds / 600 + 2


def test_resource_that_appears_later_is_found(server: ApiServer, api: Api, client: Client) -> None:
    client.create(GPUPOOLS, POOL)
    absent, pools = server.faults.add("list", "gpupools", Refuse(404)), Pools(api)
    with running(pools.run, stop=pools.stop):
        assert eventually(lambda: pools.changes == 1)
        assert pools.names() is None

        server.faults.remove(absent)

        assert eventually(lambda: pools.names() == ["prod"])


def test_resource_that_appears_is_watched_at_the_pace_that_the_server_asks_for(
    time: VirtualTime,
) -> None:
    refused = iter([StatusError("not initialized", 429, after_seconds=1)] * 3)

    def events(version: int) -> Events:
        for error in refused:
            raise error
        return [(60, version + 1)]

    api = ScriptedApi(time, events)
    api.refusals = [StatusError("not found", 404)] * 20
    api.followed()

    first, *later = api.watches[:4]
    assert later[-1] - first <= 3 * 3, "1 to 3 s for each refusal, as 404 had made no delays"
    assert len(api.lists) == 21


def test_slices_of_other_drivers_on_this_node_are_known_and_are_no_changes_of_ours(
    api: Api,
) -> None:
    others: list[list[str]] = []
    slices = ApiSlices(api, node_name=NODE.name)
    watch = slices.watch(
        on_change=lambda: pytest.fail("another driver's slice was taken for ours"),
        on_return=nothing,
        on_others=lambda found: others.append([each["spec"]["driver"] for each in found]),
    )
    foreign = {**new_slice()["spec"], "driver": "gpu.nvidia.com"}
    nvidia = {**new_slice(), "metadata": {"name": "nvidia"}, "spec": foreign}
    elsewhere = {**nvidia, "metadata": {"name": "elsewhere"}}
    elsewhere["spec"] = {**foreign, "nodeName": "node-02"}
    with running(watch.run, stop=watch.stop):
        assert eventually(lambda: others == [[]])
        ApiSlices(api, node_name="node-02").create(elsewhere)
        created = slices.create(nvidia)
        assert eventually(lambda: others[1:] == [["gpu.nvidia.com"]])
        slices.delete(created)
        assert eventually(lambda: others[2:] == [[]])

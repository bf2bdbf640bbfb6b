"""Objects that a tenant makes large in any way: each costs itself, and no memory to speak of."""

import json
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from tensorfusion_dra.cluster import api as cluster_api
from tensorfusion_dra.cluster.api import Api
from tensorfusion_dra.cluster.objects import ApiClaims, ApiClaimStatus, ApiPods, ApiWorkerPods
from tensorfusion_dra.cluster.shared_reads import SharedReads
from tensorfusion_dra.core.claims import claim as claim_rules
from tensorfusion_dra.core.claims.claim import ClaimRef, PodRef
from tensorfusion_dra.core.errors import RetryableError, UnreadableError
from tensorfusion_dra.enforcers.tensor_fusion import marks
from tests.support import memory, raw_server
from tests.support.builders.stored_claims import allocation_result, stored_claim
from tests.support.logs import capture_logs
from tests.support.raw_server import RawServer, chunk, head
from tests.support.threads import running
from tests.support.waiting import eventually

pytestmark = pytest.mark.usefixtures("tracing")

MIB: Final = 2**20
AT_A_TIME: Final = 16
MAX_BYTES: Final = 24 * MIB
"""Of two objects that are decoded at a time, and 96 KiB for each call."""


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give reads as long as they take here, where memory is measured and the server is Python."""
    for name in ("_TRY_SECONDS", "_ALL_SECONDS"):
        monkeypatch.setattr(cluster_api, name, 60.0)


def shapes() -> dict[str, bytes]:
    """Return what an API server stores, as JSON: too much of something, each in another way."""
    found = {
        "empty objects": b'{"terms":[' + b",".join([b"{}"] * 150_000) + b"]}",
        "labels": json.dumps({f"l{n}": "" for n in range(60_000)}).encode(),
        "one text": b'"' + b"x" * 1_600_000 + b'"',
        "escaped text": b'"' + b"\\u003c" * 1_500_000 + b'"',
        "wide text": json.dumps("\U0001f600" * 390_000, ensure_ascii=False).encode(),
        "brackets in texts": json.dumps(['"]}\\'] * 200_000).encode(),
        "levels": b"[" * 120 + b"]" * 120,
        "deep": b"[" * 150_000 + b"]" * 150_000,
    }
    draw = random.Random(2026)
    for number in range(4):
        levels, count = draw.randint(1, 60), draw.randint(1, 5_000)
        width = draw.randint(0, 1_500_000 // count)
        each = b"[" * levels + json.dumps({"k": "v" * width}).encode() + b"]" * levels
        found[f"drawn {number}: {levels}, {count}, {width}"] = (
            b"[" + b",".join([each] * count) + b"]"
        )
    return found


SHAPES: Final = shapes()


def metadata(name: str, more: bytes = b"") -> bytes:
    of_whom = f'"name":"{name}","namespace":"team-a","uid":"uid-{name}"'.encode()
    return b'{"metadata":{' + of_whom + more + b"}"


def large(name: str, shape: bytes) -> bytes:
    return metadata(name) + b',"spec":{"theirs":' + shape + b"}}"


def small(name: str) -> bytes:
    return metadata(name) + b',"spec":{"containers":[]},"status":{"phase":"Pending"}}'


def listed(*items: bytes) -> list[bytes]:
    content = b'{"metadata":{"resourceVersion":"5"},"items":[' + b",".join(items) + b"]}"
    pieces = [content[at : at + 65_536] for at in range(0, len(content), 65_536)]
    return [head(f"Content-Length: {len(content)}"), *pieces]


def alone(content: bytes) -> list[bytes]:
    return [head(f"Content-Length: {len(content)}"), content]


@contextmanager
def bounded(server: RawServer, folder: Path) -> Iterator[Api]:
    """Yield a client of the server; check the memory that the block took."""
    api = Api(server.kubeconfig(folder))
    api.connect()
    with memory.at_most(MAX_BYTES):
        yield api


REF: Final = ClaimRef(namespace="team-a", name="a", uid="uid-a")


def claim_of(api: Api) -> object:
    return ApiClaims(api).fetch(REF, wait_seconds=60)


def pod_of(api: Api) -> object:
    return ApiPods(api).find(PodRef(namespace="team-a", name="a", uid="uid-a"), wait_seconds=60)


@pytest.mark.parametrize("read", [claim_of, pod_of])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_as_many_as_are_read_at_a_time_fit_into_memory(
    tmp_path: Path, shape: bytes, read: Callable[[Api], object]
) -> None:
    answer = alone(large("a", shape))

    def outcome(api: Api) -> str:
        try:
            return "kept" if read(api) else "gone"
        except UnreadableError as error:
            return str(error)

    with (
        raw_server.served(lambda: answer) as server,
        bounded(server, tmp_path) as api,
        ThreadPoolExecutor(AT_A_TIME) as pool,
    ):
        (found,) = set(pool.map(lambda _: outcome(api), range(AT_A_TIME)))

    assert found == "kept" or "found " in found


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_a_large_object_in_a_list_costs_only_itself(tmp_path: Path, shape: bytes) -> None:
    answer = listed(small("a"), large("b", shape), small("c"))
    with (
        raw_server.served(lambda: answer) as server,
        bounded(server, tmp_path) as api,
        capture_logs() as logs,
    ):
        found = ApiClaims(api).listed({"metadata!": {"name!": str}})

    names = [each["metadata"]["name"] for each in found]
    passed_over = [each["name"] for each in logs if each["event"] == "object_passed_over"]
    assert sorted(names + passed_over) == ["a", "b", "c"]
    assert {"a", "c"} <= {*names}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_a_large_object_does_not_end_a_watch(tmp_path: Path, shape: bytes) -> None:
    events = [
        b'{"type":"ADDED","object":' + each + b"}\n" for each in (large("b", shape), small("c"))
    ]
    answers = iter([listed(small("a")), [head("Transfer-Encoding: chunked"), *map(chunk, events)]])
    seen: list[Any] = []
    with raw_server.served(lambda: next(answers, [])) as server, bounded(server, tmp_path) as api:
        watch = ApiWorkerPods(api, node_name="n").watch(
            marks.WORKER_POD, seen.extend, lambda _kind, pod: seen.append(pod)
        )
        with running(watch.run, stop=watch.stop):
            assert eventually(lambda: "c" in {each["metadata"]["name"] for each in seen})


def test_what_is_kept_of_an_object_is_bounded_too(tmp_path: Path) -> None:
    containers = b",".join(b'{"name":"c","resources":{"limits":{}}}' for _ in range(4_000))
    answer = alone(metadata("a") + b',"spec":{"containers":[' + containers + b"]}}")
    with (
        raw_server.served(lambda: answer) as server,
        bounded(server, tmp_path) as api,
        pytest.raises(UnreadableError, match=r"pod team-a/a: .*fields that are read, exp"),
    ):
        pod_of(api)


def test_status_is_written_to_a_claim_of_any_size(tmp_path: Path) -> None:
    ref = ClaimRef(namespace="team-a", name="a", uid="uid-a")
    with raw_server.served(lambda: alone(large("a", SHAPES["labels"]))) as server:
        with bounded(server, tmp_path) as api:
            assert ApiClaimStatus(api).write(ref, [])
        assert ApiClaimStatus(api).write(ref, [])

    assert server.accepted == 1


def test_a_claim_that_cannot_be_read_keeps_its_namespace_from_being_counted(
    tmp_path: Path,
) -> None:
    answer = listed(small("a"), large("b", SHAPES["labels"]))
    with (
        raw_server.served(lambda: answer) as server,
        bounded(server, tmp_path) as api,
        pytest.raises(UnreadableError, match="claim team-a/b: found more than is read"),
    ):
        ApiClaims(api).of_namespace("team-a", {"metadata!": {"name!": str}}, wait_seconds=60)


@contextmanager
def large_worker(of_metadata: bytes) -> Iterator[RawServer]:
    """Yield a server that has a small worker and a large one, which has these fields as well."""
    workers = listed(
        small("a"), metadata("b", of_metadata) + b',"spec":' + SHAPES["empty objects"] + b"}"
    )
    with raw_server.served(
        lambda: (
            alone(metadata("b", of_metadata) + b"}")
            if "as=PartialObjectMetadata" in server.headers["accept"]
            else workers
        )
    ) as server:
        yield server


GIVEN: Final = b',"annotations":{"tensor-fusion.ai/gpu-ids":"gpu-1","x":"y"}'
MANAGED: Final = b',"managedFields":[{"fieldsV1":{"f:metadata":{"f:annotations":{}}}}]'


@pytest.mark.parametrize(
    ("of_metadata", "expected"),
    [
        (GIVEN, {"gpu-1"}),
        (b',"labels":' + SHAPES["labels"] + GIVEN, {"gpu-1"}),
        (b',"labels":' + SHAPES["labels"] + GIVEN + b',"more":' + SHAPES["one text"], {"gpu-1"}),
        (
            b',"annotations":{"tensor-fusion.ai/gpu-ids":"gpu-1",' + SHAPES["labels"][1:] + MANAGED,
            {"gpu-1"},
        ),
        (b',"labels":' + SHAPES["labels"] + MANAGED, set()),
        (b',"labels":{"annotations":"x"}' + GIVEN, {"gpu-1"}),
        (b',"annotations":{"a":"\\"annotations\\":{",' + GIVEN[16:], {"gpu-1"}),
    ],
    ids=[
        *("spec", "labels", "managed fields", "annotations", "no annotations", "label's name"),
        "quoted",
    ],
)
def test_cards_of_a_large_worker_are_read_whatever_is_large(
    tmp_path: Path, of_metadata: bytes, expected: set[str]
) -> None:
    with large_worker(of_metadata) as server, bounded(server, tmp_path) as api:
        pods = ApiWorkerPods(api, node_name="n")
        _, large_one = pods.of_node(marks.unfinished_pod, wait_seconds=60)

    kept = large_one["metadata"]
    assert {*kept["annotations"].values()} == expected
    assert (kept["namespace"], kept["name"], kept["uid"]) == ("team-a", "b", "uid-b")


def test_of_a_worker_with_thousands_of_indices_one_is_kept() -> None:
    indices = {f"tensor-fusion.ai/index_{number}": "1" for number in range(6_000)}
    containers = [{}, {"resources": {"limits": {"cpu": "1", **indices}}}] * 10
    about = {"namespace": "team-a", "name": "b", "uid": "uid-b"}

    kept = marks.unfinished_pod({"metadata": about, "spec": {"containers": containers}})

    index = {"tensor-fusion.ai/index_0": "1"}
    assert kept["spec"] == {"containers": [{"resources": {"limits": index}}]}


@pytest.mark.parametrize(
    "of_metadata",
    [
        b',"labels":{"a":"' + b"x" * 4 * MIB + b'"}' + GIVEN,
        b',"annotations":{"a":"' + b"x" * 4 * MIB + b'"}',
    ],
    ids=["labels", "annotations"],
)
def test_no_worker_is_left_out_whose_annotations_are_not_found(
    tmp_path: Path, of_metadata: bytes
) -> None:
    with large_worker(of_metadata) as server:
        pods = ApiWorkerPods(Api(server.kubeconfig(tmp_path)), node_name="n")
        with pytest.raises(RetryableError, match="pods/b: found"):
            pods.of_node(marks.unfinished_pod, wait_seconds=60)

    asked = server.requests[0]
    for phase in ("Succeeded", "Failed"):
        assert f"status.phase%21%3D{phase}" in asked


def listing(api: Api, keep: Callable[[object], Any]) -> None:
    api.listed("/api/v1/pods", lambda item: {"kept": keep(item)}, pages=False)


def watching(api: Api, keep: Callable[[object], Any]) -> None:
    for event in api.watch("/api/v1/pods", query={}, silent_seconds=60):
        keep(event)


@pytest.mark.parametrize("read", [listing, watching])
def test_two_large_objects_are_decoded_at_a_time_and_not_held_after_that(
    tmp_path: Path, read: Callable[[Api, Callable[[object], Any]], None]
) -> None:
    may_end, may_answer, begun = threading.Event(), threading.Event(), threading.Semaphore(0)
    item = large("a", b'"' + b"x" * 200_000 + b'"')

    lists = [b'{"items":[' + item + b" " * 400_000 + b",", small("b") + b"]}"]
    first, last = [item + b"\n", b"\n"] if read is watching else lists

    def answer() -> Iterator[bytes]:
        yield head(f"Content-Length: {len(first) + len(last)}")
        yield first
        may_end.wait(30)
        yield last

    def keep(_: object) -> dict[str, str]:
        begun.release()
        assert may_answer.wait(30)
        return {}

    with raw_server.served(answer) as server, ThreadPoolExecutor(5) as pool:
        api = Api(server.kubeconfig(tmp_path))
        reads = [pool.submit(read, api, keep) for _ in range(5)]
        assert all(begun.acquire(timeout=30) for _ in range(2))
        assert not begun.acquire(timeout=0.5)
        may_answer.set()
        assert all(begun.acquire(timeout=30) for _ in range(3))  # while no answer has ended
        may_end.set()
        for each in reads:
            each.result(30)


def test_pages_without_end_are_read_for_the_time_of_all(tmp_path: Path) -> None:
    content = b'{"metadata":{"continue":"t"},"items":[' + small("a") + b"]}"
    with raw_server.served(lambda: alone(content)) as server:
        api = Api(server.kubeconfig(tmp_path))
        api.connect()
        claims_of = ApiClaims(api)
        with pytest.raises(RetryableError, match="claims of namespace team-a"):
            claims_of.of_namespace("team-a", {"metadata!": {"name!": str}}, wait_seconds=1.0)

    assert len(server.requests) > 1


def test_answer_of_more_than_is_read_is_not_held(tmp_path: Path) -> None:
    def answer() -> Iterator[bytes]:
        yield head(f"Content-Length: {64 * MIB}")
        for _ in range(64):
            yield b" " * MIB

    with (
        raw_server.served(answer) as server,
        pytest.raises(UnreadableError, match="found more than 1048576 bytes"),
    ):
        Api(server.kubeconfig(tmp_path)).call("GET", "/api/v1/pods/a")

    assert server.bytes_sent < 32 * MIB


def test_line_of_a_watch_that_is_too_long_is_not_held(tmp_path: Path) -> None:
    item = large("a", SHAPES["one text"] + b" " * 18 * MIB)

    def answer() -> list[bytes]:
        return [head(f"Content-Length: {len(item) + 1}"), item, b"\n"]

    with raw_server.served(answer) as server, bounded(server, tmp_path) as api:
        assert [*api.watch("/api/v1/pods", query={}, silent_seconds=60)] == []


def test_who_waits_for_a_list_of_another_gives_up_alone_or_gets_a_later_one() -> None:
    reads = SharedReads()
    go_on, begun, lists = threading.Event(), threading.Event(), iter(["first", "later"])

    def read(_: float) -> str:
        begun.set()
        assert go_on.wait(30)
        return next(lists)

    asked = who_asked(reads)
    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(reads.get, "k", read, wait_seconds=30)
        assert begun.wait(30)
        patient = [pool.submit(reads.get, "k", read, wait_seconds=60) for _ in range(2)]
        with pytest.raises(RetryableError, match="found other reads"):
            reads.get("k", read, wait_seconds=0.5)
        assert eventually(lambda: len(asked) == 4)
        go_on.set()

        assert [first.result(30), *(each.result(30) for each in patient)] == [
            *("first", "later", "later")
        ]
    assert not reads._latest, "no list is in memory once nobody waits for one"


def test_failed_list_is_read_again_by_the_next_who_waits() -> None:
    reads, go_on, begun = SharedReads(), threading.Event(), threading.Event()

    def failing(_: float) -> str:
        begun.set()
        assert go_on.wait(30)
        raise RetryableError("refused")

    with ThreadPoolExecutor(2) as pool:
        failed = pool.submit(reads.get, "k", failing, wait_seconds=30)
        assert begun.wait(30)
        second = pool.submit(reads.get, "k", lambda _: "list", wait_seconds=30)
        go_on.set()

        assert second.result(30) == "list"
        with pytest.raises(RetryableError, match="refused"):
            failed.result(30)


def who_asked(reads: SharedReads) -> list[int]:
    """Return a list that gets an entry as soon as somebody has asked for a read."""
    asked: list[int] = []
    guard = reads._guard

    class Noting:
        def __enter__(self) -> None:
            guard.acquire()

        def __exit__(self, *_: object) -> None:
            asked.append(threading.get_ident())
            guard.release()

    reads._guard = Noting()  # type: ignore[assignment]
    return asked


def test_callers_of_one_path_share_a_list_that_began_after_they_asked(tmp_path: Path) -> None:
    begun, may_end = threading.Semaphore(0), threading.Semaphore(0)

    def answer() -> Iterator[bytes]:
        begun.release()
        assert may_end.acquire(timeout=30)
        yield from listed(small("a"))

    def read(api: Api) -> int:
        kept = {"metadata!": {"name!": str}}
        return len(ApiClaims(api).of_namespace("team-a", kept, wait_seconds=60))

    with raw_server.served(answer) as server, ThreadPoolExecutor(9) as pool:
        api = Api(server.kubeconfig(tmp_path))
        asked = who_asked(api._lists)
        first = pool.submit(read, api)
        assert begun.acquire(timeout=30)
        later = [pool.submit(read, api) for _ in range(8)]
        other = pool.submit(
            lambda: ApiClaims(api).of_namespace("team-b", {"metadata!": {}}, wait_seconds=60)
        )
        assert eventually(lambda: len(asked) == 9)
        for _ in range(3):
            may_end.release()

        assert [each.result(30) for each in (first, *later)] == [1] * 9
        other.result(30)

    listed_of = [request.split("?")[0].split("/")[-2] for request in server.requests]
    assert sorted(listed_of) == ["team-a", "team-a", "team-b"]


def test_pages_are_as_long_as_arrive_soon(tmp_path: Path) -> None:
    sizes: list[int] = []

    def answer() -> list[bytes]:
        size = int(server.requests[-1].split("limit=")[1].split("&")[0].split(" ")[0])
        sizes.append(size)
        items = b",".join([large("a", b'"' + b"x" * 400_000 + b'"')] * size)
        more = b',"continue":"t"' if len(sizes) < 4 else b""
        content = b'{"metadata":{"resourceVersion":"5"' + more + b'},"items":[' + items + b"]}"
        return alone(content)

    with raw_server.served(answer) as server:
        ApiClaims(Api(server.kubeconfig(tmp_path))).listed({"metadata!": {"name!": str}})

    assert sizes == [25, 10, 10, 10]


def test_a_claim_is_kept_with_all_that_prepare_reads(tmp_path: Path) -> None:
    stored = stored_claim("a", allocation_result("gpu-a", tflops="10", vram="1Gi"), uid="uid-a")
    stored["metadata"]["annotations"] = {
        "tensor-fusion.ai/vram-limit": "4Gi",
        "resource.kubernetes.io/pod-claim-name": "gpu",
    }
    stored["status"]["reservedFor"] = [{"resource": "pods", "name": "p", "uid": "uid-p"}]
    stored["status"]["allocation"]["devices"]["config"] = [
        {
            "source": "FromClaim",
            "requests": ["gpu"],
            "opaque": {"driver": "tensor-fusion.ai.dra-driver", "parameters": {"a": [1]}},
        },
        {"source": "FromClass", "opaque": {"driver": "other.example", "parameters": {}}},
    ]
    ref = ClaimRef(namespace=stored["metadata"]["namespace"], name="a", uid="uid-a")
    content = alone(json.dumps(stored).encode())
    with raw_server.served(lambda: content) as server:
        kept = ApiClaims(Api(server.kubeconfig(tmp_path))).fetch(ref, wait_seconds=30)

    assert claim_rules.allocated(ref, kept) == claim_rules.allocated(ref, stored)


@pytest.mark.parametrize(
    "annotations",
    [
        {"tensor-fusion.ai/x": "," * 40_000},
        {"resource.kubernetes.io/pod-claim-name": "," * 40_000},
        {f"tensor-fusion.ai/x{number}": "" for number in range(8_000)},
    ],
)
def test_a_claim_stays_readable_for_its_node_whatever_its_tenant_annotates(
    tmp_path: Path, annotations: dict[str, str]
) -> None:
    """A node that could not read it would keep a limit for which a quota charges it no more."""
    stored = stored_claim("a", allocation_result("gpu-a", tflops="10", vram="1Gi"), uid="uid-a")
    stored["metadata"]["annotations"] = {**annotations, "tensor-fusion.ai/vram-limit": "4Gi"}
    content = json.dumps(stored).encode()
    with raw_server.served(lambda: alone(content)) as server:
        kept = ApiClaims(Api(server.kubeconfig(tmp_path))).fetch(REF, wait_seconds=30)

    assert kept["metadata"]["annotations"]["tensor-fusion.ai/vram-limit"] == "4Gi"


def as_stored(labels: int, text: str) -> bytes:
    """Return a claim with many labels and with text of its tenant, as a list has it."""
    stored = stored_claim("a", allocation_result("gpu-a", tflops="10", vram="1Gi"), uid="uid-a")
    stored["metadata"] |= {"namespace": "team-a", "annotations": {"theirs": text}}
    stored["metadata"]["labels"] = {f"l{number}": "" for number in range(labels)}
    return json.dumps(
        {key: stored[key] for key in stored if key not in OF_KIND}, ensure_ascii=False
    ).encode()


OF_KIND: Final = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim"}


@pytest.mark.parametrize(
    ("labels", "text"),
    [
        *((24_971, ""), (24_968, ""), (24_960, "")),
        *((0, "x" * (MIB - 500)), (0, "x" * (MIB - 5_000))),
        (0, "\u4e2d" * 400_000),
    ],
)
def test_what_a_list_reads_of_a_claim_its_node_reads_too(
    tmp_path: Path, labels: int, text: str
) -> None:
    """A quota counts claims of a list. It must not miss what a node does not see and keeps."""
    item = as_stored(labels, text)
    one = json.dumps(OF_KIND).encode()[:-1] + b"," + item[1:]
    answers = {
        "limit=": listed(item),
        "watch=": alone(b'{"type":"MODIFIED","object":' + one + b"}\n"),
    }

    def answer() -> list[bytes]:
        asked = server.requests[-1]
        return next((each for key, each in answers.items() if key in asked), alone(one))

    keep = {"metadata!": {"name!": str}}
    with raw_server.served(answer) as server:
        api = Api(server.kubeconfig(tmp_path))
        is_listed = bool(ApiClaims(api).listed(keep))
        events = len([*api.watch("/api/v1/pods", query={}, silent_seconds=60)])
        try:
            is_read = bool(claim_of(api))
        except UnreadableError:
            is_read = False

    assert (is_read, bool(events)) == (True, True) or not is_listed
    assert is_listed or labels > 24_900 or len(item) > MIB - 5_000


def test_a_pod_is_kept_with_what_tells_its_containers_apart(tmp_path: Path) -> None:
    spec = {
        "shareProcessNamespace": True,
        "initContainers": [{"name": "side", "restartPolicy": "Always"}],
        "containers": [{"name": "main"}],
    }
    pod = {"metadata": {"name": "a", "namespace": "team-a", "uid": "uid-a"}, "spec": spec}
    content = alone(json.dumps(pod).encode())
    with raw_server.served(lambda: content) as server:
        kept = pod_of(Api(server.kubeconfig(tmp_path)))

    assert kept == pod

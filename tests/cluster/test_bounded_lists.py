"""Lists of what tenants write: however large, reading them takes the room of one object."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from tensorfusion_dra.cluster.api import Api
from tensorfusion_dra.cluster.objects import ApiClaims, ApiPods, ApiWorkerPods
from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims.claim import PodRef
from tensorfusion_dra.driver.resize import ResizeFollower
from tensorfusion_dra.enforcers.tensor_fusion import marks
from tensorfusion_dra.webhook.quota_admission import QuotaAdmission
from tests.support import memory, raw_server
from tests.support.admission import ObjectsInMemory, QuotasInMemory, review_of
from tests.support.builders.quotas import quota_document
from tests.support.builders.stored_claims import template_claim
from tests.support.ports import EventsInMemory
from tests.support.prepared_node import Setup
from tests.support.raw_server import RawServer, chunk, head
from tests.support.threads import running
from tests.support.waiting import eventually

pytestmark = pytest.mark.usefixtures("tracing")

OBJECTS: Final = 30
OBJECT_BYTES: Final = 600_000
MAX_BYTES: Final = 6 * 2**20
"""Of the 18 MB: the piece that has arrived, an object as text and decoded, and the next one."""


def foreign(name: str, **fields: Any) -> dict[str, Any]:
    """Return an object of a tenant with as much as the API server accepts in places of its own."""
    padding = "x" * (OBJECT_BYTES // 2)
    of_whom = {"name": name, "namespace": "team-a", "uid": f"uid-{name}"}
    metadata = {**of_whom, "annotations": {"example.com/mine": padding}}
    return {"metadata": metadata, **fields, "theirs": {"more": padding}}


def pod(name: str) -> dict[str, Any]:
    return foreign(name, spec={"containers": [{"name": "a"}]}, status={"phase": "Pending"})


def claim(name: str) -> dict[str, Any]:
    document = template_claim()
    requests = {"requests": {"tflops": "10", "vram": "1Gi"}}
    document["spec"]["devices"]["requests"][0]["exactly"]["capacity"] = requests
    return foreign(name, spec=document["spec"])


def served(make: Callable[[str], dict[str, Any]]) -> Callable[[], Iterator[bytes]]:
    """Return a server's answer: a list of objects, each made when it is sent."""

    def answer() -> Iterator[bytes]:
        yield head("Transfer-Encoding: chunked")
        yield chunk(b'{"metadata": {"resourceVersion": "5"}, "items": [')
        for number in range(OBJECTS):
            yield chunk(json.dumps(make(f"o{number}")).encode())
            yield chunk(b"," if number < OBJECTS - 1 else b"]}")
        yield b"0\r\n\r\n"

    return answer


@contextmanager
def bounded(server: RawServer, folder: Path) -> Iterator[Api]:
    """Yield a client of the server; check the memory that all threads took during the block."""
    api = Api(server.kubeconfig(folder))
    api.connect()  # the libraries for it are not what is measured
    with memory.at_most(MAX_BYTES):
        yield api
    # The server counts what it has sent after the client may have read it.
    assert eventually(lambda: server.bytes_sent > OBJECTS * OBJECT_BYTES)


def of_node(api: Api) -> int:
    return len(ApiWorkerPods(api, node_name="n").of_node(marks.unfinished_pod, wait_seconds=60))


def watched(api: Api) -> int:
    found: list[Any] = []
    watch = ApiWorkerPods(api, node_name="n").watch(
        marks.WORKER_POD, found.extend, lambda _kind, _pod: None
    )
    with running(watch.run, stop=watch.stop):
        assert eventually(lambda: len(found) >= OBJECTS)
    return OBJECTS


def waiting(api: Api) -> int:
    return len(ApiClaims(api).listed({"metadata!": {"uid!": str}}))


def labelled(name: str) -> dict[str, Any]:
    """Return a claim with the label of a node, as anybody may write it, and large limits."""
    document = claim(name)
    document["metadata"]["labels"] = {names.LABEL_NODE: "node-01"}
    document["metadata"]["annotations"] |= {names.ANNOTATION_VRAM_LIMIT: "1" * 100_000}
    return document


def test_claims_with_the_label_of_a_node_take_the_room_of_one(tmp_path: Path) -> None:
    node = Setup(tmp_path / "node")
    follower = ResizeFollower(
        node.claims,
        node.store,
        node.upkeep(),
        node.status,
        label="node-01",
        catalog=node.catalog,
        rules=node.rules,
        events=EventsInMemory(),
    )
    lists: list[int] = []
    with raw_server.served(served(labelled)) as server, bounded(server, tmp_path) as api:
        watch = ApiClaims(api).watch(
            "", follower.keep, lambda items: lists.append(len(items)), follower.on_event
        )
        with running(watch.run, stop=watch.stop):
            assert eventually(lambda: bool(lists))

    assert lists[0] == 0


@pytest.mark.parametrize(
    ("make", "read"),
    [(pod, of_node), (pod, watched), (claim, waiting)],
    ids=["list of workers", "watch of workers", "list of claims"],
)
def test_a_list_takes_the_room_of_one_object(
    tmp_path: Path, make: Callable[[str], dict[str, Any]], read: Callable[[Api], int]
) -> None:
    with raw_server.served(served(make)) as server, bounded(server, tmp_path) as api:
        assert read(api) == OBJECTS


def test_claims_of_a_namespace_with_a_quota_take_the_room_of_one(tmp_path: Path) -> None:
    asked = {**template_claim(), "spec": claim("new")["spec"]}
    with raw_server.served(served(claim)) as server, bounded(server, tmp_path) as api:
        quotas = QuotasInMemory(quota_document(tflops="300"))
        verdict = QuotaAdmission(
            quotas, quotas, ApiClaims(api), ApiPods(api), ObjectsInMemory(), trusts_clients=True
        ).claim(review_of(asked))

    (error,) = verdict.errors
    assert "found 10, expected at most 0: 300 of 300 are taken" in str(error)


def test_pods_of_one_claim_are_kept_without_what_is_not_read(tmp_path: Path) -> None:
    content = json.dumps(pod("shared")).encode()
    whole = head(f"Content-Length: {len(content)}") + content
    ref = PodRef(namespace="team-a", name="shared", uid="uid-shared")
    with raw_server.served(lambda: [whole]) as server, bounded(server, tmp_path) as api:
        kept = [ApiPods(api).find(ref, wait_seconds=60) for _ in range(OBJECTS)]

    assert len(json.dumps(kept)) < OBJECTS * 300

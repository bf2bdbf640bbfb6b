"""Requests and bytes by which a node follows changes of limits, in an hour.

The hour is a minute: bookmarks and ends of watches come 60 times as often as at a real API server.
The node's watch and reads are the node plugin's own; its claims are stored at the simulated one,
and a proxy counts the bytes in both directions, without TLS. Other nodes' claims are stored there
too, labelled and changed, but the watch brings none of them.
"""

import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final
from urllib.parse import urlsplit

from dra_simulator.apiserver import ApiServer
from dra_simulator.rest import CLAIMS, Client
from tensorfusion_dra.cluster import watch
from tensorfusion_dra.cluster.api import USER_AGENT, Api
from tensorfusion_dra.cluster.objects import ApiClaims
from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims.claim import ClaimRef

_FASTER: Final = 60
_HOUR_SECONDS: Final = 3600 // _FASTER
_SHARES: Final = 16
_CASES: Final = (
    "nothing",
    "one share every 15 minutes",
    "all shares every 15 minutes",
)


def measured(*, nodes: int) -> list[Mapping[str, Any]]:
    """Return a row for each case: requests and bytes of one node, and of this many nodes."""
    watch._WATCH_SECONDS //= _FASTER  # type: ignore[misc]
    found: list[Mapping[str, Any]] = []
    for case, changed in zip(_CASES, (0, 1, _SHARES), strict=True):
        requests, count = _hour(changed)
        found.append(
            {
                "resized": case,
                "requests": requests,
                "bytes": count,
                "requests_a_second": round(requests * nodes / 3600, 1),
                "kib_a_second": round(count * nodes / 3600 / 1024, 1),
            }
        )
    return found


def text(rows: list[Mapping[str, Any]], nodes: int) -> str:
    """Return the rows for a terminal."""
    return "\n".join(
        f"resized: {row['resized']}: {row['requests']} requests and {row['bytes'] / 1024:.1f} KiB "
        f"an hour on a node; {row['requests_a_second']} requests and {row['kib_a_second']} KiB a "
        f"second on {nodes} nodes"
        for row in rows
    )


def _hour(changed: int) -> tuple[int, int]:
    """Return requests and bytes of a node in an hour in which some shares change four times."""
    with (
        TemporaryDirectory() as folder,
        ApiServer(bookmark_seconds=60 / _FASTER) as server,
        _counting(server) as (kubeconfig, count),
    ):
        client = Client(server.url)
        for node in ("node-0", "node-1"):
            for number in range(_SHARES):
                client.create(CLAIMS, _claim(f"{node}-{number}", node))
        seen: dict[str, Any] = {}
        claims = ApiClaims(Api(kubeconfig(Path(folder))))

        def follow(event: str, item: Mapping[str, Any]) -> None:
            about = dict(item["metadata"])
            if (asked := about.pop("annotations", None)) != seen.get(about["uid"]):
                seen[about["uid"]] = asked
                claims.fetch(ClaimRef(**about), wait_seconds=5)

        def follow_all(items: Any) -> None:
            for item in items:
                follow("ADDED", item)

        texts = dict.fromkeys(("namespace!", "name!", "uid!"), str)
        kept: dict[str, Any] = {
            "metadata!": {**texts, "annotations": {names.ANNOTATION_VRAM_LIMIT: str}}
        }
        label = f"{names.LABEL_NODE}=node-0"
        loop = claims.watch(label, kept, follow_all, follow)
        thread = threading.Thread(target=loop.run)
        thread.start()
        for quarter in range(4):
            for node in ("node-0", "node-1"):
                for number in range(changed):
                    _change(client, f"{node}-{number}", node, f"{20 + quarter}Gi")
            time.sleep(_HOUR_SECONDS / 4)
        loop.stop()
        thread.join()
        return server.requests.received(USER_AGENT), count[0]


def _claim(name: str, node: str) -> dict[str, Any]:
    exactly = {"deviceClassName": names.DEVICE_CLASS, "capacity": {"requests": {"vram": "4Gi"}}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default", "annotations": {"node": node}},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
    }


def _change(client: Client, name: str, node: str, limit: str) -> None:
    claim = client.get(CLAIMS, name, "default")
    claim["metadata"]["labels"] = {names.LABEL_NODE: node}
    claim["metadata"]["annotations"][names.ANNOTATION_VRAM_LIMIT] = limit
    client.replace(CLAIMS, claim)


@contextmanager
def _counting(server: ApiServer) -> Iterator[tuple[Any, list[int]]]:
    """Yield a function that writes a kubeconfig, and the number of bytes of its clients."""
    target, count, guard = urlsplit(server.url), [0], threading.Lock()
    listener = socket.create_server(("127.0.0.1", 0))

    def pump(source: socket.socket, to: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                with guard:
                    count[0] += len(data)
                to.sendall(data)
            to.shutdown(socket.SHUT_WR)
        except OSError:
            to.close()

    def accept() -> None:
        try:
            while True:
                client, _ = listener.accept()
                upstream = socket.create_connection((target.hostname or "", target.port or 0))
                for pair in ((client, upstream), (upstream, client)):
                    threading.Thread(target=pump, args=pair, daemon=True).start()
        except OSError:
            return

    threading.Thread(target=accept, daemon=True).start()

    def kubeconfig(folder: Path) -> Path:
        path = server.kubeconfig(folder / "kubeconfig")
        here = f"{target.hostname}:{listener.getsockname()[1]}"
        path.write_text(path.read_text().replace(target.netloc, here))
        return path

    try:
        yield kubeconfig, count
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()

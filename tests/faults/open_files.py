"""Check for leaked files and threads of a node plugin."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from tensorfusion_dra.kubelet.dra import MAX_STREAMS
from tests.faults.node import Node
from tests.support.kubelet import PluginClient
from tests.support.waiting import eventually

_OTHER_WORKERS: Final = 32 - MAX_STREAMS
"""Threads that serve calls other than streams; a new one starts when all are busy."""
_SAME_READINGS: Final = 15
"""Number of equal readings in a row that count as settled."""


@contextmanager
def nothing_left_open(node: Node) -> Iterator[None]:
    """Check that the block leaves the number of open files equal and adds only worker threads."""
    with ExitStack() as kubelets:
        streams = [
            kubelets.enter_context(PluginClient(node.dra_socket)).watch_health()
            for _ in range(MAX_STREAMS)
        ]
        # The first reports are empty while the cards have not been read.
        assert all(any(report.devices for report in stream) for stream in streams)
    files, threads = _settled(node)
    yield
    files_after, threads_after = _settled(node)
    assert len(files_after) == len(files), (
        f"open files: {len(files_after)}, before {len(files)}; "
        f"more: {sorted(files_after - files)}, fewer: {sorted(files - files_after)}"
    )
    assert threads <= threads_after <= threads + _OTHER_WORKERS


def _settled(node: Node) -> tuple[frozenset[str], int]:
    """Return open files and number of threads, once closed connections are gone."""
    seen: list[tuple[frozenset[str], int]] = []

    def is_settled() -> bool:
        seen.append((_files(node.pid), len([*Path(f"/proc/{node.pid}/task").iterdir()])))
        return len(seen) > _SAME_READINGS and len(set(seen[-_SAME_READINGS:])) == 1

    assert eventually(is_settled), seen
    return seen[-1]


def _files(pid: int) -> frozenset[str]:
    """Return each open file as descriptor and target.

    Connections to the API server are left out, because a pool keeps as many as were ever in use at
    the same time.
    """
    process = Path(f"/proc/{pid}")
    tcp = (process / "net" / "tcp").read_text().splitlines()[1:]
    connections = {f"socket:[{line.split()[9]}]" for line in tcp}
    targets = {link.name: _target(link) for link in (process / "fd").iterdir()}
    return frozenset(
        f"{name} {target}"
        for name, target in targets.items()
        if target and target not in connections
    )


def _target(link: Path) -> str:
    """Return the target of an open file; "" if it was closed in the meantime."""
    try:
        return str(link.readlink())
    except FileNotFoundError:
        return ""

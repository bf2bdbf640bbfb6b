"""What a process has open, before and after something that is to leave nothing open."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from tensorfusion_dra.kubelet.health import MOST_STREAMS
from tensorfusion_dra.state.ledger_file import FILE_NAME
from tests.faults.node import Node
from tests.support.kubelet import PluginClient
from tests.support.waiting import eventually

_OTHER_WORKERS: Final = 32 - MOST_STREAMS
"""Threads that serve calls beside the streams; each is started when all others are busy."""
_LOOKS: Final = 15
"""That find the same, before it is believed."""


@contextmanager
def nothing_left_open(node: Node) -> Iterator[None]:
    """After the block the plugin has as many files open, and no threads but workers more."""
    with ExitStack() as kubelets:
        streams = [
            kubelets.enter_context(PluginClient(node.dra_socket)).watch_health()
            for _ in range(MOST_STREAMS)
        ]
        assert all(next(stream).devices for stream in streams)
    files, threads = _settled(node)
    yield
    files_after, threads_after = _settled(node)
    assert len(files_after) == len(files), (
        f"open files: {len(files_after)}, before {len(files)}; "
        f"more: {sorted(files_after - files)}, fewer: {sorted(files - files_after)}"
    )
    assert threads <= threads_after <= threads + _OTHER_WORKERS


def _settled(node: Node) -> tuple[frozenset[str], int]:
    """Open files and how many threads, once connections that were closed are gone."""
    seen: list[tuple[frozenset[str], int]] = []

    def is_settled() -> bool:
        seen.append((_files(node.pid), len([*Path(f"/proc/{node.pid}/task").iterdir()])))
        return len(seen) > _LOOKS and len(set(seen[-_LOOKS:])) == 1

    assert eventually(is_settled), seen
    return seen[-1]


def _files(pid: int) -> frozenset[str]:
    """Each open file as descriptor and target.

    Without connections to the API server: a pool keeps as many as were once used at once. And
    with the ledger once: the check of its pages opens it a second time, and SQLite keeps that
    descriptor for the next check, because closing it would end the locks of the first.
    """
    process = Path(f"/proc/{pid}")
    tcp = (process / "net" / "tcp").read_text().splitlines()[1:]
    connections = {f"socket:[{line.split()[9]}]" for line in tcp}
    targets = {link.name: _target(link) for link in (process / "fd").iterdir()}
    ledgers = [name for name, target in targets.items() if target.endswith(f"/{FILE_NAME}")]
    for second in ledgers[1:2]:
        del targets[second]
    return frozenset(
        f"{name} {target}"
        for name, target in targets.items()
        if target and target not in connections
    )


def _target(link: Path) -> str:
    """What an open file is; "" if it was closed meanwhile."""
    try:
        return str(link.readlink())
    except FileNotFoundError:
        return ""

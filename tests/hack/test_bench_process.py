"""CPU time and memory of a measured process."""

import os
import socket
from pathlib import Path

from benchmark import figures, process
from benchmark.figures import CALLS, Measured, Sample

SAMPLE = Sample(milliseconds=[1.0], seconds=1.0, claims=1)


def test_process_that_was_unknown_in_one_round_has_no_figures() -> None:
    one = Measured(calls=dict.fromkeys(CALLS, SAMPLE), cpu_seconds=1.0, rss_mib=1.0)
    other = Measured(calls=dict.fromkeys(CALLS, SAMPLE))

    found = figures.process_summary([one, other])

    assert found == {"cpu_ms_per_claim": None, "rss_mib": None}


def test_process_of_a_socket_is_the_one_that_listens(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        found = process.usage_at_rest(path)

    assert found is not None
    assert found.pid == os.getpid()
    assert found.cpu_seconds > 0
    assert found.rss_mib > 1
    assert process.usage_at_rest(path) is None  # nobody listens any more

"""The node plugin with counters: ``python -m benchmark.counted_plugin node-plugin FLAGS``.

The driver's own code runs unchanged, in a process that was started like its own. Before it starts,
two functions get a wrapper that counts and then calls them:

- ``sqlite3.connect``: every connection reports its statements (SQLite's own trace), and each BEGIN
  is a transaction, whoever started it.
- ``PreparedClaim.from_json``: each call is a decoded record.
"""

import os
import runpy
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmark.counters import DECODED_RECORD, TRANSACTION, Counters
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tests.faults import fault_points


def count_transactions(counters: Counters) -> None:
    """Count the transactions of every connection that is opened from now on."""
    connect = sqlite3.connect

    def traced(statement: str) -> None:
        if statement.startswith("BEGIN"):
            counters.add(TRANSACTION)

    def counted(*arguments: Any, **named: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*arguments, **named)
        connection.set_trace_callback(traced)
        return connection

    sqlite3.connect = counted  # type: ignore[assignment]


def count_decoded_records(counters: Counters) -> None:
    """Count the records that are decoded from now on."""
    decode = PreparedClaim.from_json

    def counted(_: type[PreparedClaim], kept: Mapping[str, Any]) -> PreparedClaim:
        counters.add(DECODED_RECORD)
        return decode(kept)

    PreparedClaim.from_json = classmethod(counted)  # type: ignore[assignment]


def main() -> None:
    counters = Counters(fault_points.trace_of(Path(os.environ[fault_points.VARIABLE])))
    count_transactions(counters)
    count_decoded_records(counters)
    runpy.run_module("tensorfusion_dra", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()

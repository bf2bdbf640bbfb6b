"""The node plugin with counters: ``python -m benchmark.counted_plugin node-plugin FLAGS``.

The driver's own code runs unchanged, in a process that was started like its own. Before it starts,
two functions get a wrapper that counts and then calls them:

- ``ClaimStore.transaction``: each call is a transaction.
- ``PreparedClaim.from_json``: each call is a decoded record.
"""

import os
import runpy
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from benchmark.counters import DECODED_RECORD, TRANSACTION, Counters
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.state.claim_store import ClaimStore, Transaction
from tests.faults import fault_points


def count_transactions(counters: Counters) -> None:
    """Count the transactions that begin from now on."""
    transaction = ClaimStore.transaction

    def counted(store: ClaimStore) -> AbstractContextManager[Transaction]:
        counters.add(TRANSACTION)
        return transaction(store)

    ClaimStore.transaction = counted  # type: ignore[assignment, method-assign]


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

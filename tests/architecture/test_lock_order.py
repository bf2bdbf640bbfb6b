"""The order of locks in docs/architecture.md, observed while claims are prepared and removed."""

import json
from pathlib import Path
from typing import Final

import pytest

from tests.support import wheels
from tests.support.sources import ROOT

ORDER: Final = ("driver/prepare.py", "driver/publish.py", "state/claim_store.py")
"""Files whose locks are taken before all others, in this order."""
PROGRAM: Final = """
import json, sys
from pathlib import Path
from tests.support import noted_locks
noted_locks.install()
from tests.support.prepared_node import GPU_0, Setup, put_claim, share_result, simulated_inventory

setup = Setup(Path(sys.argv[1]))
a, b = (put_claim(setup, name, share_result(GPU_0)) for name in ("a", "b"))
for ref in (a, b, a):
    setup.prepared(ref)
setup.use_cards(*simulated_inventory().gpus[:1])
setup.divide()
setup.recover()
setup.refresh(a)
setup.unprepare(a, b)
print(json.dumps(sorted(noted_locks.nested)))
"""


def rank(file: str) -> int:
    return ORDER.index(file) if file in ORDER else len(ORDER)


@pytest.mark.process
def test_locks_are_taken_in_the_documented_order(tmp_path: Path) -> None:
    folder = str(tmp_path / "node")
    ended = wheels.python("-c", PROGRAM, folder, home=tmp_path, path=str(ROOT))
    nested = [tuple(each) for each in json.loads(ended.stdout.splitlines()[-1])]

    assert {*nested} >= {(ORDER[0], ORDER[2]), (ORDER[1], f"{ORDER[1]}*")}
    assert [pair for pair in nested if rank(pair[0]) >= rank(pair[1])] == []

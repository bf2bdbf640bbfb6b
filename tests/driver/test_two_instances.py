"""Two instances on one node, as in a rolling update, and many claims beside a new one."""

import io
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tests.faults import invariants
from tests.support.prepared_node import GPU_0, GPU_1, Setup, put_annotated_claim

WANTS = {"tensor-fusion.ai/vram-limit": "80Gi"}
HELD = 50


def test_ten_prepares_and_unprepares_through_each_of_two_instances(tmp_path: Path) -> None:
    one = Setup(tmp_path)
    two = Setup(tmp_path, one.claims)
    # Each claim is one instance's; both have claims on both cards.
    refs = [
        put_annotated_claim(
            one,
            f"c{number}",
            WANTS,
            device=GPU_0 if number < 10 else GPU_1,
            tflops="1",
            vram="2Gi",
        )
        for number in range(20)
    ]

    def use(node: Setup, part: int) -> None:
        for ref in refs[part::2]:
            node.prepared(ref)
        for ref in refs[part::4]:
            assert node.unprepare(ref) == {ref.uid: None}

    with ThreadPoolExecutor(2) as instances:
        list(instances.map(use, (one, two), (0, 1)))

    assert one.store.claims() == two.store.claims()
    assert {claim.ref for claim in one.store.claims()} == {*refs} - {*refs[0::4], *refs[1::4]}
    assert list(invariants.over_capacity({c.ref.uid: c for c in one.store.claims()})) == []
    # The one ends; the other has all claims, and frees those of both.
    one.store.close()
    two.unprepare(*refs)
    assert two.store.claims() == []


def counted(patch: pytest.MonkeyPatch, folder: Path) -> list[str]:
    """Return a list that gets each call that opens, stats or lists something in the folder."""
    found: list[str] = []

    def counting(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counts(path: Any, *arguments: Any, **more: Any) -> Any:
            if str(path).startswith(str(folder)):
                found.append(f"{name} {Path(path).name}")
            return call(path, *arguments, **more)

        return counts

    for module, names in ((os, ("open", "stat", "lstat", "listdir", "scandir")), (io, ("open",))):
        for name in names:
            patch.setattr(module, name, counting(name, getattr(module, name)))
    return found


def test_prepare_beside_many_records_reads_none_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Setup(tmp_path)
    refs = [
        put_annotated_claim(node, f"c{n}", {}, device=(GPU_0, GPU_1)[n % 2], tflops="0", vram="1Mi")
        for n in range(HELD + 1)
    ]
    node.prepare(*refs[:HELD])
    last = refs[HELD]
    monkeypatch.setattr(PreparedClaim, "from_json", None)

    with monkeypatch.context() as patch:
        found = counted(patch, tmp_path / "plugin")
        node.prepared(last)
        first = [each for each in found if ".tmp" not in each]
        found.clear()
        node.prepared(last)
        again = list(found)
        node.unprepare(last)

    # To write and flush the file, flush its folder, and see that nobody has replaced it meanwhile.
    new = f"{last.uid}.new"
    assert first == [f"open {new}", f"open {new}", "open claims", f"stat {new}"]
    assert (again, found) == ([], ["open claims"])

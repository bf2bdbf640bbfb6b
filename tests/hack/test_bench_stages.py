"""Stages of measured calls."""

import json
from pathlib import Path

from benchmark import figures
from benchmark.figures import Sample
from benchmark.stages import Marks, Span


def test_stages_of_a_claim_are_read_call_by_call(tmp_path: Path) -> None:
    marks = Marks(tmp_path / "marks")
    lines = [
        {"uid": "a", "began": 0.5, "ended": 0.9},
        {"uid": "b", "began": 2.0, "ended": 3.0, "api": 0.25},
        {"uid": "a", "began": 5.0, "ended": 6.0, "ledger": 0.5, "other": 0.5},
    ]
    (tmp_path / "marks").write_text("".join(json.dumps(line) + "\n" for line in lines[:1]))
    marks.skip()
    with (tmp_path / "marks").open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines[1:])

    found = marks.take(
        [Span(uid="a", began=4.5, ended=8.0), Span(uid="b", began=1.75, ended=3.125)]
    )

    assert found == {
        "queue": [500.0, 250.0],
        "api": [0.0, 250.0],
        "ledger": [500.0, 0.0],
        "cdi": [0.0, 0.0],
        "other": [500.0, 0.0],
        "answer": [2000.0, 125.0],
    }


def test_joined_samples_keep_their_stages() -> None:
    one = Sample(milliseconds=[1.0], seconds=1.0, claims=1, stages={"api": [1.0]})
    other = Sample(milliseconds=[3.0], seconds=1.0, claims=1, stages={"api": [2.0]})

    found = figures.summary(figures.joined([one, other]))

    assert found["stages"] == {"api": {"p50_ms": 1.5, "p95_ms": 1.95, "p99_ms": 1.99}}
    assert found["claims_per_s"] == 1.0

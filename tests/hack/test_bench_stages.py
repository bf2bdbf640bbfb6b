"""Stages of measured calls."""

import json
from pathlib import Path

from benchmark import figures
from benchmark.figures import Sample
from benchmark.stages import NAMES, Marks, Span


def closing(uid: str, **stages_ms: float) -> str:
    facts = {"event": "claim_prepared", "claim_uid": uid, "stages_ms": stages_ms}
    return json.dumps(facts) + "\n"


def test_stages_of_a_claim_are_read_call_by_call(tmp_path: Path) -> None:
    log = tmp_path / "log"
    marks = Marks(log)
    log.write_text(closing("a", queue=1))
    marks.skip()
    with log.open("a") as file:
        file.write(closing("b", queue=2, read=250))
        file.write('{"event": "slices_published"}\n')
        file.write(closing("a", queue=0.5, flush=499.5) + '{"event": "half')

    found = marks.take(
        [Span(uid="a", began=4.5, ended=8.0), Span(uid="b", began=1.75, ended=3.125)]
    )

    assert {name: found[name] for name in ("grpc", "queue", "read", "flush")} == {
        "grpc": [3000.0, 1123.0],
        "queue": [0.5, 2],
        "read": [0.0, 250],
        "flush": [499.5, 0.0],
    }
    assert list(found) == list(NAMES)
    assert found["admit"] == [0.0, 0.0]


def test_joined_samples_keep_their_stages() -> None:
    one = Sample(milliseconds=[1.0], seconds=1.0, claims=1, stages={"api": [1.0]})
    other = Sample(milliseconds=[3.0], seconds=1.0, claims=1, stages={"api": [2.0]})

    found = figures.summary(figures.joined([one, other]))

    assert found["stages"] == {"api": {"p50_ms": 1.5, "p95_ms": 1.95, "p99_ms": 1.99}}
    assert found["claims_per_s"] == 1.0

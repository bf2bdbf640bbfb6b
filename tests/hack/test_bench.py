"""Settings, statistics and comparison of hack/bench."""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmark import cells, compare, figures, target
from benchmark.cells import Cell
from benchmark.figures import CALLS, PROCESS, Measured, Sample
from benchmark.recorded import Recorded
from benchmark.target import TargetError
from tests.guard import sitecustomize as path_guard
from tests.support.waiting import PATIENCE_SECONDS

ROOT = Path(__file__).parents[2]


def cell(held: int = 10, **other: float) -> Cell:
    settings: dict[str, Any] = {"api_ms": 0, "devices": 1, "claims_per_call": 1, "at_a_time": 1}
    return Cell(held=held, **{**settings, **other})


def sample(*milliseconds: float, errors: tuple[str, ...] = ()) -> Sample:
    count = len(milliseconds)
    return Sample(milliseconds=milliseconds, seconds=2.0, claims=count, errors=errors)


class Fixed:
    """Driver whose calls always take the same time; implements Subject."""

    def __init__(self, name: str, milliseconds: float, log: list[str]) -> None:
        self.name = name
        self.facts: dict[str, Any] = {"driver": name}
        self._milliseconds = milliseconds
        self._log = log

    def measure(self, cell: Cell, calls: int) -> Measured:
        self._log.append(f"{self.name} {cell.held} {calls}")
        return Measured(
            calls=dict.fromkeys(CALLS, sample(*[self._milliseconds] * calls)),
            cpu_seconds=self._milliseconds * calls / 1000,
            rss_mib=self._milliseconds * 10,
        )


def flags(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    cells.add_flags(parser)
    return parser.parse_args(arguments)


def test_every_combination_of_settings_is_a_cell_with_held_claims_ascending() -> None:
    found = cells.of_flags(flags("--held", "100", "10", "--at-a-time", "1", "8"))

    assert [(each.held, each.at_a_time) for each in found] == [(10, 1), (10, 8), (100, 1), (100, 8)]


@pytest.mark.parametrize(
    ("flag", "value", "expected"),
    [
        ("--held", "10001", "--held: found 10001, expected 0 to 10000"),
        ("--devices", "17", "--devices: found 17, expected 1 to 16"),
        ("--claims-per-call", "0", "--claims-per-call: found 0, expected 1 to 32"),
        ("--at-a-time", "65", "--at-a-time: found 65, expected 1 to 64"),
        ("--api-ms", "-1", "--api-ms: found -1, expected 0 to 1000"),
    ],
)
def test_setting_out_of_range_is_rejected(flag: str, value: str, expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        cells.of_flags(flags(flag, value))


def test_driver_class_service_and_capacity_can_be_named() -> None:
    found = target.parsed("/s,driver=d,class=c,service=v1beta1.DRAPlugin,tflops=1,vram=16Mi")

    assert (found.driver, found.device_class) == ("d", "c")
    assert found.service == "v1beta1.DRAPlugin"
    assert found.capacity == {"tflops": "1", "vram": "16Mi"}


@pytest.mark.parametrize("text", ["", "/s,driver", "/s,driver=", "/s,=x", "/s,service=v2"])
def test_driver_in_another_form_is_rejected(text: str) -> None:
    with pytest.raises(TargetError):
        target.parsed(text)


def test_share_consumes_the_wanted_amount_or_the_default_of_each_capacity() -> None:
    policy = {"default": "2"}
    device = {
        "capacity": {
            "a": {"value": "8", "requestPolicy": policy},
            "b": {"value": "8", "requestPolicy": policy},
            "c": {"value": "8"},
        }
    }

    assert target.consumed(device, {"a": "1"}) == {"a": "1", "b": "2", "c": "8"}


def test_percentiles_are_interpolated() -> None:
    assert figures.percentile([4.0, 1.0, 3.0, 2.0], 50) == pytest.approx(2.5)
    assert figures.percentile([1.0, 2.0], 95) == pytest.approx(1.95)
    assert figures.percentile([7.0], 99) == pytest.approx(7.0)
    assert figures.percentile([], 50) is None


def test_summary_has_percentiles_rate_and_the_first_error() -> None:
    found = figures.summary(sample(1.0, 3.0, errors=("gone", "late")))

    assert found == {
        "p50_ms": 2.0,
        "p95_ms": 2.9,
        "p99_ms": 2.98,
        "claims_per_s": 1.0,
        "calls": 2,
        "errors": 2,
        "first_error": "gone",
    }


def test_ratio_is_taken_pair_by_pair() -> None:
    first = [{"p50_ms": 1.0}, {"p50_ms": 6.0}, {"p50_ms": 4.0}]
    second = [{"p50_ms": 2.0}, {"p50_ms": 2.0}, {"p50_ms": 4.0}]

    found = figures.ratios(first, second, "p50_ms")

    assert found == {"median": 1.0, "min": 0.5, "max": 3.0}


def test_two_drivers_take_turns_and_the_order_changes_each_round() -> None:
    log: list[str] = []
    subjects = [Fixed("a", 3.0, log), Fixed("b", 2.0, log)]

    found = compare.row(subjects, cell(), calls=9, rounds=3)

    assert log == ["a 10 3", "b 10 3", "b 10 3", "a 10 3", "a 10 3", "b 10 3"]
    assert found["figures"]["a"]["prepare"]["calls"] == 9
    assert found["ratios"]["prepare"]["p50_ms"] == {"median": 1.5, "min": 1.5, "max": 1.5}
    assert found["figures"]["a"][PROCESS] == {"cpu_ms_per_claim": 3.0, "rss_mib": 30.0}
    assert found["ratios"][PROCESS]["rss_mib"] == {"median": 1.5, "min": 1.5, "max": 1.5}


def recorded(file: Path, milliseconds: float, *held: int) -> Recorded:
    """Write the file of a run with one driver and read it."""
    subject = Fixed("old", milliseconds, [])
    rows = compare.rows(
        [subject], [cell(count) for count in held], calls=2, rounds=1, progress=lambda _: None
    )
    content = {"conditions": {"cores": 2}, "subjects": {"old": subject.facts}, "rows": rows}
    file.write_text(json.dumps(content), encoding="utf-8")
    return Recorded(file)


def test_driver_is_compared_with_the_file_of_an_earlier_run(tmp_path: Path) -> None:
    old = recorded(tmp_path / "old.json", 4.0, 10, 20)

    found = compare.row([Fixed("new", 1.0, []), old], old.cells[1], calls=2, rounds=2)

    assert found["held"] == 20
    assert found["ratios"]["again"]["p50_ms"]["median"] == 0.25
    assert old.facts["conditions"] == {"cores": 2}


def test_file_without_these_settings_or_of_another_kind_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match=r"old.json: found no figures for .*'held': 30"):
        recorded(tmp_path / "old.json", 4.0, 10).figures(cell(30))

    (tmp_path / "counts.json").write_text('{"counts": {}}')
    with pytest.raises(TargetError, match=r"counts.json: expected the JSON of a run"):
        Recorded(tmp_path / "counts.json")


def test_node_plugin_is_compared_with_itself_under_the_simulator() -> None:
    ended = subprocess.run(
        [
            *(sys.executable, ROOT / "hack" / "bench", "--compare", "simulated", "simulated"),
            *("--held", "1", "--calls", "2", "--rounds", "2", "--at-a-time", "2", "-o", "json"),
        ],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
        env=path_guard.environment(),
    )

    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert list(found) == ["conditions", "subjects", "rows"]
    assert list(found["subjects"]) == ["simulated-1", "simulated-2"]
    (row,) = found["rows"]
    assert {name: row[name] for name in cell().as_json()} == cell(1, at_a_time=2).as_json()
    for each in row["figures"].values():
        assert all(each[call]["calls"] == 2 for call in CALLS)
        assert all(each[call]["errors"] == 0 for call in CALLS)
        assert all(value > 0 for value in each[PROCESS].values())
    assert all(row["ratios"][call]["p50_ms"]["median"] > 0 for call in CALLS)

"""Counts of the work for one claim, by hack/bench."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmark import counts
from benchmark.counters import Counters
from benchmark.figures import CALLS
from tests.guard import sitecustomize as path_guard
from tests.support.compiler import compiler
from tests.support.waiting import PATIENCE_SECONDS

ROOT = Path(__file__).parents[2]


def test_one_claim_costs_the_real_process_this_work_and_no_more() -> None:
    compiler("the counts of hack/bench")

    ended = subprocess.run(
        [
            *(sys.executable, ROOT / "hack" / "bench"),
            *("--counts", "--claims", "2", "--held", "10", "-o", "json"),
        ],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
        env=path_guard.environment(),
    )

    assert (ended.returncode, ended.stderr) == (0, "")
    found = json.loads(ended.stdout)
    assert list(found) == ["counts"]
    assert list(found["counts"]) == ["prepare", "again", "unprepare"]
    assert all(tuple(each) == counts.FIGURES for each in found["counts"].values())
    assert {
        call: {name: value for name, value in each.items() if name != "cpu_ms"}
        for call, each in found["counts"].items()
    } == {
        "prepare": {
            "flushes": 1,
            "api_requests_before_answer": 1,  # the claim
            "api_requests": 2,  # and its status, after the answer
            "transactions": 2,  # the second reads the limits that the status reports
            "records_decoded": 0,
            "files_written": 3,  # CDI spec, limits document and the copy of the record
        },
        "again": {
            "flushes": 0,
            "api_requests_before_answer": 1,
            "api_requests": 1,
            "transactions": 2,
            "records_decoded": 2,
            "files_written": 0,
        },
        "unprepare": {
            "flushes": 1,
            "api_requests_before_answer": 0,
            "api_requests": 0,
            "transactions": 1,
            "records_decoded": 1,
            "files_written": 0,
        },
    }
    assert all(each["cpu_ms"] > 0 for each in found["counts"].values())


def test_missing_compiler_is_an_error_that_names_it() -> None:
    ended = subprocess.run(
        [sys.executable, ROOT / "hack" / "bench", "--counts"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
        env={**path_guard.environment(), "PATH": os.fspath(ROOT / "docs")},
    )

    assert (ended.returncode, ended.stdout) == (1, "")
    assert "found no C compiler cc" in ended.stderr


def test_mean_of_equal_counts_is_an_integer_and_of_others_a_ratio() -> None:
    one = dict.fromkeys(counts.FIGURES, 3.0)

    means = counts.mean([one, {**one, "flushes": 4.0}])

    assert means["transactions"] == 3
    assert isinstance(means["transactions"], int)
    assert isinstance(means["cpu_ms"], float)
    assert means["flushes"] == pytest.approx(3.5)


def test_table_has_a_line_for_each_figure() -> None:
    each = dict.fromkeys(counts.FIGURES, 2)

    lines = counts.text(dict.fromkeys(CALLS, each)).splitlines()

    assert lines[0].split() == ["per", "claim", "prepare", "again", "unprepare"]
    assert lines[2].split() == ["api", "requests", "before", "answer", "2", "2", "2"]
    assert len(lines) == 1 + len(counts.FIGURES)


def test_counters_are_shared_by_all_that_open_the_page(tmp_path: Path) -> None:
    outside, inside = Counters(tmp_path / "page"), Counters(tmp_path / "page")

    inside.add_transaction()
    inside.add_decoded_record()
    inside.add_decoded_record()

    assert (outside.work().transactions, outside.work().records_decoded) == (1, 2)
    assert outside.work().flushes == 0

"""Settings, statistics, comparison and counts of hack/bench."""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmark import cells, compare, figures, memory, subject, target
from benchmark.cells import Cell
from benchmark.figures import CALLS, PROCESS, Measured, Sample
from benchmark.recorded import Recorded
from benchmark.target import Claims, Target, TargetError
from dra_simulator.api.faults import Refuse
from dra_simulator.apiserver import ApiServer
from dra_simulator.node.plugin import ClaimRef, PluginError
from dra_simulator.rest import CLAIMS, PODS, SLICES, Client
from tensorfusion_dra.core.errors import RetryableError
from tests.guard import sitecustomize as path_guard
from tests.support import objects
from tests.support.compiler import compiler
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

    assert found == Target(
        socket=Path("/s"),
        driver="d",
        device_class="c",
        service="v1beta1.DRAPlugin",
        capacity={"tflops": "1", "vram": "16Mi"},
    )


@pytest.mark.parametrize("text", ["", "/s,driver", "/s,driver=", "/s,=x", "/s,service=v2"])
def test_driver_in_another_form_is_rejected(text: str) -> None:
    with pytest.raises(TargetError):
        target.parsed(text)


def test_share_consumes_the_wanted_amount_or_the_default_of_each_capacity() -> None:
    capacity = {"value": "8", "requestPolicy": {"default": "2"}}
    device = {"capacity": {"a": capacity, "b": capacity, "c": {"value": "8"}}}

    assert target.consumed(device, {"a": "1"}) == {"a": "1", "b": "2", "c": "8"}


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [
        ([4.0, 1.0, 3.0, 2.0], 50, pytest.approx(2.5)),
        ([1.0, 2.0], 95, pytest.approx(1.95)),
        ([7.0], 99, pytest.approx(7.0)),
        ([], 50, None),
    ],
)
def test_percentiles_are_interpolated(values: list[float], percent: int, expected: Any) -> None:
    assert figures.percentile(values, percent) == expected


def test_summary_has_percentiles_rate_and_the_first_error() -> None:
    assert figures.summary(sample(1.0, 3.0, errors=("gone", "late"))) == {
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

    (tmp_path / "old.json").write_text('{"counts": {}}')
    with pytest.raises(TargetError, match=r"old.json: expected the JSON of a run"):
        Recorded(tmp_path / "old.json")


def run(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Run hack/bench."""
    return subprocess.run(
        [sys.executable, ROOT / "hack" / "bench", *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
        env={**path_guard.environment(), **environment},
    )


def bench(*arguments: str) -> Any:
    """Run hack/bench and return its JSON."""
    ended = run(*arguments, "-o", "json")
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


@pytest.mark.sweep
def test_node_plugin_is_compared_with_itself_under_the_simulator() -> None:
    found = bench(
        *("--compare", "simulated", "simulated", "--held", "1"),
        *("--calls", "2", "--rounds", "2", "--at-a-time", "2"),
    )

    assert list(found) == ["conditions", "subjects", "rows"]
    assert list(found["subjects"]) == ["simulated-1", "simulated-2"]
    (row,) = found["rows"]
    assert row.items() >= cell(1, at_a_time=2).as_json().items()
    for each in row["figures"].values():
        assert [(each[call]["calls"], each[call]["errors"]) for call in CALLS] == [(2, 0)] * 3
        assert min(each[PROCESS].values()) > 0
    assert min(row["ratios"][call]["p50_ms"]["median"] for call in CALLS) > 0


@pytest.mark.sweep
def test_one_claim_costs_the_real_process_this_work_and_no_more() -> None:
    compiler("the counts of hack/bench")

    found = bench("--counts", "--claims", "2", "--held", "10")

    assert list(found) == ["counts"]
    assert min(each.pop("cpu_ms") for each in found["counts"].values()) > 0
    assert found["counts"] == {
        "prepare": {
            "flushes": 2,  # the record and its folder
            "api_requests_before_answer": 1,  # the claim
            "api_requests": 2,  # and its status, after the answer
            "transactions": 2,  # for the record, and for its files
            "records_decoded": 0,
            "files_written": 3,  # record, CDI spec and limits document
        },
        "again": {
            "flushes": 0,
            "api_requests_before_answer": 1,
            "api_requests": 1,
            "transactions": 0,
            "records_decoded": 0,
            "files_written": 0,
        },
        "unprepare": {
            "flushes": 1,
            "api_requests_before_answer": 0,
            "api_requests": 0,
            "transactions": 1,
            "records_decoded": 0,
            "files_written": 0,
        },
    }


@pytest.mark.process
def test_missing_compiler_is_an_error_that_names_it() -> None:
    ended = run("--counts", PATH=os.fspath(ROOT / "docs"))

    assert (ended.returncode, ended.stdout) == (1, "")
    assert "found no C compiler cc" in ended.stderr


def line(module: str, importer: str = "", **weights: float) -> dict[str, Any]:
    usual = {"kib": 0, "ms": 0.0, "began_kib": 0, "began_ms": 0.0}
    return {"module": module, "importer": importer, **usual, **weights}


def test_weights_are_summed_by_package_and_ours_by_folder() -> None:
    rows = memory.by_package(
        [
            line("grpc._channel", "grpc", kib=5, ms=1.04),
            line("grpc", "tensorfusion_dra.kubelet.dra", kib=10, ms=2.0),
            line("tensorfusion_dra.kubelet.dra", "tensorfusion_dra.app.process", kib=1, ms=1.0),
            line("tensorfusion_dra.kubelet", "tensorfusion_dra.app.process", kib=2, ms=1.0),
            line("email.utils", "http.client", kib=3, ms=1.0),
        ]
    )

    columns = ("package", "modules", "kib", "ms", "importer", "standard_library")
    assert [tuple(row[name] for name in columns) for row in rows] == [
        ("grpc", 2, 15, 3.0, "tensorfusion_dra.kubelet.dra", False),
        ("email", 1, 3, 1.0, "http.client", True),
        ("tensorfusion_dra.kubelet", 2, 3, 2.0, "tensorfusion_dra.app.process", False),
    ]


@pytest.mark.sweep
def test_memory_of_the_real_process_has_every_import_and_moment() -> None:
    found = bench("--memory", "--claims", "2", "--held", "1")["memory"]

    weights = {row["package"]: row["kib"] for row in found["imports"]}
    assert weights["grpc"] > 1000
    start = found["starts"]
    assert start["interpreter"]["rss_kib"] < start["the kubelet can call"]["rss_kib"]
    assert list(found["moments"]) == [
        "idle",
        *(f"after 2 claims, {callers} at a time" for callers in (1, 8, 64)),
    ]
    for moment in found["moments"].values():
        # What imports added is most of what the process has.
        assert sum(weights.values()) > moment["rss_kib"] / 2
        assert moment["private_dirty_kib"] < moment["rss_kib"]


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer() as started:
        Client(started.url).create(SLICES, objects.resource_slice({"name": "gpu-0"}))
        yield started


def stored(server: ApiServer) -> int:
    """Return the number of claims and pods."""
    client = Client(server.url)
    return sum(len(client.list(kind, namespace="default").items) for kind in (CLAIMS, PODS))


def test_deleted_claims_leave_nothing_also_those_of_a_creation_that_failed(
    server: ApiServer, tmp_path: Path
) -> None:
    api = target.api_of(server.kubeconfig(tmp_path / "kubeconfig"))
    at = Target(socket=tmp_path / "s", driver=objects.DRIVER, device_class="class")
    claims = Claims(api, at)

    refs = claims.create(3)
    assert stored(server) == 6
    claims.delete(refs)
    assert stored(server) == 0

    server.faults.add("update", "resourceclaims/status", Refuse(409), times=1)
    with pytest.raises(RetryableError, match="409"):
        claims.create(3)
    assert stored(server) > 0
    claims.delete_rest()
    assert stored(server) == 0


def test_calls_that_fail_are_repeated_and_the_errors_of_the_rest_returned() -> None:
    calls: list[str] = []

    def act(refs: Sequence[ClaimRef]) -> None:
        (ref,) = refs
        calls.append(ref.name)
        if ref.name == "never" or calls.count(ref.name) == 1:
            raise PluginError(f"{ref.name}: refused")

    found = subject.tried(act, [ClaimRef("default", name, name) for name in ("later", "never")])

    assert found == ["never: refused"]
    assert sorted(calls) == ["later", "later", "never", "never", "never"]

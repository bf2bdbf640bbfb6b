"""A node plugin with bad providers: it publishes, runs pods and stops as without them."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tensorfusion_dra.app.simulate import plugin_process
from tensorfusion_dra.app.simulate.cluster import SimulatedCluster
from tests.app.node_plugin.test_node_plugin_process import cluster_with, log_lines, run_pod, start
from tests.support.installed_packages import install

CODE = """
import threading

def forever(*_):
    threading.Event().wait()

if __name__ == "hang_import":
    forever()
"""


@contextmanager
def node_with_pod(site: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimulatedCluster]:
    """Yield a node whose plugin finds the packages in a folder, with a pod that runs."""
    with cluster_with() as cluster:
        monkeypatch.setattr(plugin_process, "spawn", plugin_process.spawn_command)
        monkeypatch.setenv("PYTHONPATH", str(site), prepend=":")
        start(cluster)
        run_pod(cluster, "a")
        yield cluster


def test_hanging_providers_delay_nothing_but_what_they_give(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = {
        f"tensorfusion_dra.{kind}": {"hangs": "hang_calls:forever"}
        for kind in ("attributes", "capacities", "health_sources")
    }
    install(tmp_path, "hang-calls", groups, CODE)
    install(tmp_path, "hang-import", {"tensorfusion_dra.attributes": {"h": "hang_import:f"}}, CODE)
    with node_with_pod(tmp_path, monkeypatch) as cluster:
        late = log_lines(cluster, "provider_failed")
        code = cluster.stop_plugin()

    assert sorted((line["kind"], line["provider"]) for line in late) == [
        ("attributes", "h"),
        ("attributes", "hangs"),
        ("capacities", "hangs"),
        ("health", "hangs"),
    ]
    (error,) = {line["error"] for line in late}
    assert error == "no answer within 2 s; the last good answers remain in use"
    assert code == 0


BAD = """
import enum, sys
from tensorfusion_dra.extend import Capacity, Quantity

class Number(enum.IntEnum):
    ONE = 1

def raises(*_):
    raise KeyboardInterrupt

def exits(*_):
    sys.exit(0)

def number(gpu, node):
    return {"example.com/number": Number.ONE}

def nan(gpu, node):
    none = Quantity(float("nan"))
    return {"example.com/nan": Capacity(value=none, default=none, minimum=none)}

def rack(gpu, node):
    print("a line on standard output")
    return {"example.com/rack": "r1"}
"""


def test_bad_providers_end_neither_the_process_nor_what_others_give(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attributes = {name: f"bad_calls:{name}" for name in ("exits", "number", "rack")}
    groups = {
        "tensorfusion_dra.attributes": attributes,
        "tensorfusion_dra.capacities": {"nan": "bad_calls:nan"},
        "tensorfusion_dra.health_sources": {"raises": "bad_calls:raises"},
    }
    install(tmp_path, "bad-calls", groups, BAD)
    install(
        tmp_path, "exit-import", {"tensorfusion_dra.attributes": {"e": "exit_import:f"}}, "exit(1)"
    )
    with node_with_pod(tmp_path, monkeypatch) as cluster:
        # On a busy machine any of them may be late at first.
        cluster.until("attributes", lambda: given(cluster) == [{"rack": "r1", "number": 1}] * 2)
        failures = {
            ("bad-calls 1.0", "exits"),
            ("bad-calls 1.0", "raises"),
            ("exit-import 1.0", "e"),
        }
        cluster.until("failures", lambda: failed(cluster) == failures)
        cluster.until("refusals", lambda: bool(log_lines(cluster, "attribute_left_out")))
        refused = log_lines(cluster, "attribute_left_out")
        code = cluster.stop_plugin()

    assert {(line["package"], line["attribute"]) for line in refused} == {
        ("bad-calls 1.0", "example.com/nan")
    }
    assert code == 0


def given(cluster: SimulatedCluster) -> list[dict[str, object]]:
    """Return the attributes of example.com in each published device."""
    return [
        {
            name.removeprefix("example.com/"): next(iter(value.values()))
            for name, value in device["attributes"].items()
            if name.startswith("example.com/")
        }
        for item in cluster.slices()
        for device in item["spec"]["devices"]
    ]


def failed(cluster: SimulatedCluster) -> set[tuple[str, str]]:
    """Return package and name of the providers that failed, without those that were only late."""
    return {
        (line["package"], line["provider"])
        for line in log_lines(cluster, "provider_failed")
        if not line["error"].startswith("no answer within")
    }

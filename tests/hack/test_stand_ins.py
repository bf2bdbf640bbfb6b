"""The libraries that stand in for a machine with GPUs, as a program that uses a GPU sees them."""

import json
import os
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from stand_ins import libraries
from stand_ins.libraries import Card, Machine
from tests.support.compiler import compiler
from tests.support.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.process

OUT_OF_MEMORY: Final = 2

SMALL = Card(
    uuid="GPU-00000000-aaaa-bbbb-cccc-dddddddddddd",
    pci_bus_id="00000000:3A:00.0",
    minor=0,
    mib=1024,
    multiprocessors=100,
)
LARGE = Card(
    uuid="GPU-00000001-aaaa-bbbb-cccc-dddddddddddd",
    pci_bus_id="00000000:3B:00.0",
    minor=1,
    mib=2048,
    multiprocessors=108,
)


@dataclass
class Tenants:
    """Processes on one machine."""

    program: Path
    env: dict[str, str]

    def run(self, *words: str, by: str = "link", **env: str) -> list[dict[str, Any]]:
        with self.start("--by", by, *words, **env) as process:
            printed, error = process.communicate(timeout=PATIENCE_SECONDS)
        assert error == b""
        return [json.loads(line) for line in printed.splitlines()]

    def start(self, *words: str, **env: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [self.program, *words],
            env={**os.environ, **self.env, **env},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )


@pytest.fixture(scope="module")
def tenants(tmp_path_factory: pytest.TempPathFactory) -> Tenants:
    """Processes on a machine with both cards."""
    compiler("the stand-in libraries")
    root = tmp_path_factory.mktemp("stand-ins")
    driver = libraries.build_driver(root)
    cards = Machine(cards=[SMALL, LARGE], block_ns=20_000).write(root / "gpus")
    env = {libraries.VARIABLE: str(cards), "LD_LIBRARY_PATH": str(driver)}
    return Tenants(libraries.build_tenant(root / "bin", driver), env)


def results(printed: Sequence[dict[str, Any]]) -> list[int]:
    return [each["result"] for each in printed]


@pytest.mark.parametrize("by", ["link", "dlsym", "getproc"])
def test_every_way_to_find_functions_reaches_the_same_card(tenants: Tenants, by: str) -> None:
    printed = tenants.run("device", "0", "alloc", "0", "2048", "alloc", "0", "1", by=by)

    assert printed[0]["bus"] == LARGE.pci_bus_id
    assert results(printed) == [0, 0, OUT_OF_MEMORY]


@pytest.mark.parametrize("kind", ["alloc", "managed", "pitch", "async", "create"])
def test_every_kind_of_memory_counts_on_the_card(tenants: Tenants, kind: str) -> None:
    printed = tenants.run(kind, "0", "2000", "alloc", "0", "49", "alloc", "0", "48")

    assert results(printed) == [0, OUT_OF_MEMORY, 0]


def test_processes_share_the_memory_of_a_card_and_a_killed_one_gives_it_back(
    tenants: Tenants,
) -> None:
    with tenants.start("alloc", "0", "2000", "wait") as other:
        assert other.stdout is not None
        while json.loads(other.stdout.readline())["command"] != "wait":
            pass
        assert results(tenants.run("alloc", "0", "49", "alloc", "1", "1024")) == [OUT_OF_MEMORY, 0]
        assert [each["used_mib"] for each in tenants.run("nvml", "0", "nvml", "1")] == [0, 2000]

        other.send_signal(signal.SIGKILL)

    assert results(tenants.run("alloc", "0", "2048")) == [0]


@pytest.mark.parametrize("how", ["launch", "graph"])
@pytest.mark.parametrize("by", ["link", "getproc"])
def test_a_kernel_takes_its_time_on_the_card(tenants: Tenants, how: str, by: str) -> None:
    in_order = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    (launched,) = tenants.run(how, "0", "0.3", "1000", by=by, **in_order)

    assert 0 < launched["count"] * 0.02 <= launched["seconds"]

"""Processes that use the cards: NVML's lists, and the containers that /proc names."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pynvml
import pytest

from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.discovery.nvml.processes import ProcessReader
from tensorfusion_dra.discovery.recording import Refusal
from tests.discovery.nvml.nvml_machine import Machine, answers, card
from tests.support.logs import capture_logs

COMPUTE: Final = pynvml.nvmlDeviceGetComputeRunningProcesses_v3
GRAPHICS: Final = pynvml.nvmlDeviceGetGraphicsRunningProcesses_v3
MPS: Final = pynvml.nvmlDeviceGetMPSComputeRunningProcesses_v3
UTILIZATION: Final = pynvml.nvmlDeviceGetProcessUtilization
HOST: Final = "pid:[4026531836]"
ID: Final = "4f" * 32
UID: Final = "8b0f8e6a-0a6f-4c39-9f0f-3f3b7a2f6c11"


class Node:
    """A /proc in a folder, and NVML's answers by function."""

    def __init__(self, proc: Path) -> None:
        self.proc = proc
        self.namespace(HOST)
        self.reader = ProcessReader(proc)
        self.lists: dict[Callable[..., Any], Any] = {COMPUTE: [], GRAPHICS: [], MPS: []}
        self.samples: Any = Refusal("NVML_ERROR_NOT_FOUND")
        self.asked_since: list[int] = []

    def namespace(self, text: str) -> None:
        link = self.proc / "self/ns/pid"
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(text)

    def start(self, pid: int, *, pod: str = UID, name: str = "python") -> None:
        folder = self.proc / str(pid)
        folder.mkdir()
        cgroups = f"0::/kubepods/burstable/pod{pod}/{ID}\n" if pod else "0::/init.scope\n"
        (folder / "cgroup").write_text(cgroups, encoding="utf-8")
        (folder / "comm").write_text(f"{name}\n", encoding="utf-8")

    def query(self, _name: str, function: Callable[..., Any], _handle: object, *since: int) -> Any:
        self.asked_since += since
        return self.samples if function is UTILIZATION else self.lists[function]

    def read(self) -> list[tuple[int, int, int, str]]:
        """Return the first card's processes: PID, bytes, percent, and pod or name."""
        found = self.reader.read({"GPU-0": object()}, self.query).get("GPU-0", ())
        return [
            (
                each.pid,
                each.vram_bytes,
                each.sm_percent,
                each.container.pod_uid if each.container else each.name,
            )
            for each in found
        ]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """Return a node with the processes 7, of a container, and 8."""
    made = Node(tmp_path / "proc")
    made.start(7)
    made.start(8, pod="", name="Xorg")
    return made


def used(pid: int, vram_bytes: int | None) -> SimpleNamespace:
    return SimpleNamespace(pid=pid, usedGpuMemory=vram_bytes)


def sample(pid: int, at: int, percent: int) -> SimpleNamespace:
    return SimpleNamespace(pid=pid, timeStamp=at, smUtil=percent)


@pytest.mark.parametrize(
    ("lists", "found"),
    [
        (
            {COMPUTE: [used(7, 1000)], GRAPHICS: [used(8, 50)]},
            [(7, 1000, 0, UID), (8, 50, 0, "Xorg")],
        ),
        (
            {COMPUTE: [used(7, 1000)], MPS: [used(7, 900)], GRAPHICS: [used(7, None)]},
            [(7, 1000, 0, UID)],
        ),
        ({COMPUTE: [used(7, 1000), used(9, 2000)]}, [(7, 1000, 0, UID)]),
    ],
    ids=["by list", "in several lists", "ended meanwhile"],
)
def test_process_has_its_memory_and_its_container(
    node: Node, lists: dict[Callable[..., Any], Any], found: list[tuple[int, int, int, str]]
) -> None:
    node.lists |= lists

    assert node.read() == found


def test_utilization_is_the_mean_of_new_samples(node: Node) -> None:
    node.lists[COMPUTE] = [used(7, 1000), used(8, 2000)]
    percents = []
    for samples in (
        [sample(7, 100, 20), sample(7, 200, 40), sample(8, 150, 60)],
        [sample(7, 200, 40), sample(7, 300, 90)],
    ):
        node.samples = samples
        percents.append([percent for _, _, percent, _ in node.read()])

    assert (percents, node.asked_since) == ([[30, 60], [90, 0]], [0, 200])


@pytest.mark.parametrize(
    "error",
    ["NVML_ERROR_NOT_SUPPORTED", "NVML_ERROR_NO_PERMISSION", "NVML_ERROR_FUNCTION_NOT_FOUND"],
)
def test_refused_call_costs_one_line_in_the_log(node: Node, error: str) -> None:
    node.lists |= {COMPUTE: [used(7, 1000)], GRAPHICS: Refusal(error)}
    node.samples = Refusal(error)

    with capture_logs() as logs:
        found = [node.read() for _ in range(3)]

    assert found == [[(7, 1000, 0, UID)]] * 3
    assert [(each["query"], each["error"]) for each in logs] == [
        ("graphics processes", f"NVML answered {error}"),
        ("utilization by process", f"NVML answered {error}"),
    ]


def test_card_that_refuses_every_list_is_missing(node: Node) -> None:
    node.lists = dict.fromkeys(node.lists, Refusal("NVML_ERROR_GPU_IS_LOST"))

    assert node.reader.read({"GPU-0": object()}, node.query) == {}


@pytest.mark.parametrize("found", ["pid:[4026532221]", "/nowhere"])
def test_pid_namespace_of_its_own_is_refused(node: Node, found: str) -> None:
    node.reader.check()
    node.namespace(found)

    with pytest.raises(
        RetryableError, match=r"expected pid:\[4026531836\]: NVML's PIDs are the hos"
    ):
        node.reader.check()


@pytest.mark.process
def test_library_without_the_calls_costs_the_use_and_not_the_cards(
    machine: Machine, old_library: Path
) -> None:
    machine.library = old_library
    Node(machine.folder / "proc").start(7)

    found, inventory = machine.run(answers(card(0)), ["processes"], ["read"])

    assert (found, len(inventory["gpus"])) == ({}, 1)


@pytest.mark.process
@pytest.mark.parametrize(
    ("refusal", "percents", "graphics"),
    [
        ({}, True, True),
        ({"graphics": "!3", "mps": "!4"}, True, False),
        ({"utilization": "!4"}, False, True),
    ],
)
def test_100_processes_of_the_compiled_library_keep_what_no_call_refuses(
    machine: Machine, refusal: dict[str, str], *, percents: bool, graphics: bool
) -> None:
    node = Node(machine.folder / "proc")
    pids = range(1, 101)
    for pid in pids[:-1]:  # the last one has ended meanwhile
        node.start(pid)
    node.start(501, pod="", name="Xorg")
    lines = [
        *(f"0 compute {pid} {pid * 1000}" for pid in pids),
        *(f"0 utilization {pid} {pid % 100}" for pid in pids),
        *("0 mps 1 900", "0 graphics 501 50", "1 compute 1 5"),
    ]
    machine.folder.joinpath("answers.processes").write_text("\n".join(lines), encoding="ascii")
    refusing = [card(0, **refusal), card(1, compute="!3", graphics="!3", mps="!4")]

    ((of_card,),) = (found.values() for found in machine.run(answers(*refusing), ["processes"]))

    assert [(each["pid"], each["vram_bytes"], each["sm_percent"]) for each in of_card] == [
        *((pid, pid * 1000, pid % 100 * percents) for pid in pids[:-1]),
        *([(501, 50, 0)] * graphics),
    ]
    assert of_card[0]["container"] == {"pod_uid": UID, "id": ID}

"""Memory limits by the NVIDIA driver, against the stand-in for NVML and folders for cgroups."""

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from stand_ins import libraries
from tensorfusion_dra.enforcers.nvidia import NO_LIMIT
from tests.discovery.nvml.nvml_machine import answers, card, uuid
from tests.support import forks

pytestmark = pytest.mark.process

POD = "1b4e28ba-2fa1-11d2-883f-0016d3cca427"
SLICE = POD.replace("-", "_")
GIB = 2**30
NEW = {"driver": "615.71.09", "threads": "16"}
FORMS = [
    f"kubepods.slice/kubepods-pod{SLICE}.slice",
    f"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{SLICE}.slice",
    f"kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{SLICE}.slice",
    f"kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/"
    f"kubelet-kubepods-burstable-pod{SLICE}.slice",
    f"kubepods/pod{POD}",
    f"kubepods/burstable/pod{POD}",
    f"kubelet/kubepods/besteffort/pod{POD}",
]


@dataclass
class Node:
    """A machine with cards and cgroups; the limits of its driver outlive a process."""

    folder: Path
    library: Path

    def __post_init__(self) -> None:
        self.cgroups = self.folder / "cgroup"
        self.pod = self.cgroups / FORMS[1]
        self.pod.mkdir(parents=True)
        (self.cgroups / "cgroup.controllers").touch()
        self.answers_file = self.folder / "answers"

    def run(self, first: str, *steps: list[Any]) -> list[Any]:
        self.answers_file.write_text(first, encoding="utf-8")
        script = {"library": str(self.library), "cgroups": str(self.cgroups), "steps": steps}
        child = forks.run(
            module="tests.discovery.nvml.limits_child",
            stdin=json.dumps(script).encode(),
            environment={**os.environ, libraries.VARIABLE: str(self.answers_file)},
        )
        assert child.returncode == 0, child.stderr
        printed: list[Any] = json.loads(child.stdout)
        return printed


@pytest.fixture
def node(tmp_path: Path, library: Path) -> Node:
    return Node(tmp_path, library)


def machine(*cards: dict[str, str], **system: str) -> str:
    return answers(*(cards or (limiting(),)), **{**NEW, **system})


def limiting(index: int = 0, accounting: str = "dmem", **more: str) -> dict[str, str]:
    return card(index, accounting=accounting, persistence="1", **more)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("accounting", ["dmem", "misc"])
def test_limit_is_set_on_the_cgroup_of_the_pod_and_read_back(
    node: Node, form: str, accounting: str
) -> None:
    node.pod.rmdir()
    folder = node.cgroups / form
    folder.mkdir(parents=True, exist_ok=True)

    set_, again, got, removed, none = node.run(
        machine(limiting(accounting=accounting)),
        ["set", POD, {uuid(0): 20 * GIB}, {}],
        ["set", POD, {uuid(0): 20 * GIB}, {}],
        ["get", POD, [uuid(0)]],
        ["set", POD, {uuid(0): NO_LIMIT}, {}],
        ["get", POD, [uuid(0)]],
    )

    assert (set_, again, removed) == ([uuid(0)], [], [uuid(0)])
    assert got == {uuid(0): [20 * GIB, 0]}
    without = f"{uuid(0)}: {folder}: found no memory limit, expected one"
    assert none[uuid(0)] == (without if accounting == "dmem" else [NO_LIMIT, 0])
    book = node.answers_file.with_name("answers.limits").read_text()
    assert book == f"0 {20 * GIB} {folder}\n0 {NO_LIMIT} {folder}\n"


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("2", "INVALID_ARGUMENT: found a limit that it refuses, expected at most the card's"),
        ("3", "NOT_SUPPORTED: found no accounting of this cgroup's memory on this card, expected"),
        ("4", "NO_PERMISSION: found too few rights, expected root with CAP_SYS_ADMIN"),
        ("13", "FUNCTION_NOT_FOUND: found no such function in NVML, expected NVIDIA driver 615"),
        ("17", "OPERATING_SYSTEM: found that it cannot open the cgroup, expected the host's"),
        ("999", "UNKNOWN: found an error that NVML does not explain"),
    ],
)
@pytest.mark.parametrize("call", ["set", "get"])
def test_every_code_of_nvml_is_an_error_and_never_no_limit(
    node: Node, call: str, code: str, text: str
) -> None:
    refusing = limiting() | {f"{call}_limits": f"!{code}"}

    set_, got = node.run(
        machine(refusing), ["set", POD, {uuid(0): GIB}, {}], ["get", POD, [uuid(0)]]
    )

    expected = f"{uuid(0)}: {call} memory limit of {node.pod}: NVML_ERROR_{text}"
    assert set_.startswith(f"RetryableError: {expected}")
    assert got[uuid(0)].startswith(expected) == (call == "get")


def test_cgroup_that_nvml_does_not_account_is_an_error_and_never_no_limit(node: Node) -> None:
    found = node.run(
        machine(limiting(set_limits="!6")),
        ["set", POD, {uuid(0): GIB}, {}],
        ["set", POD, {uuid(0): NO_LIMIT}, {}],
    )

    text = f"{uuid(0)}: set memory limit of {node.pod}: NVML_ERROR_NOT_FOUND: found no limits of "
    assert all(each.startswith(f"RetryableError: {text}") for each in found)


@pytest.mark.parametrize("accounting", ["misc", "dmem"])
def test_limit_goes_down_to_the_use_and_further_once_the_use_falls(
    node: Node, accounting: str
) -> None:
    container = node.pod / "container"
    container.mkdir()
    book = str(node.answers_file.with_name("answers.used"))
    lower = ["set", POD, {uuid(0): GIB}, {}]

    _, _, lowered, kept, _, again, got = node.run(
        machine(limiting(accounting=accounting)),
        ["set", POD, {uuid(0): 8 * GIB}, {}],
        ["write", book, f"0 {3 * GIB} {container}\n0 {GIB} {node.pod}\n1 {GIB} {node.pod}\n"],
        lower,
        ["get", POD, [uuid(0)]],
        ["write", book, f"0 {GIB} {container}\n0 {GIB} {node.pod}-other\n"],
        lower,
        ["get", POD, [uuid(0)]],
    )

    assert lowered == (
        f"RetryableError: {uuid(0)}: {node.pod}: found {4 * GIB} bytes in use, expected at most "
        f"{GIB}: this pod still uses memory that was lent to it"
    )
    assert kept == {uuid(0): [4 * GIB, 4 * GIB]}
    assert again == [uuid(0)]
    assert got == {uuid(0): [GIB, GIB]}


def test_no_limit_grows_before_others_on_the_card_were_lowered(node: Node) -> None:
    later = node.pod.with_name(node.pod.name.replace("1b4e28ba", "2b4e28ba"))
    later.mkdir()
    gone, other = "3" + POD[1:], "2" + POD[1:]
    book = node.answers_file.with_name("answers.limits")
    used = str(node.answers_file.with_name("answers.used"))
    swap = ["set", other, {uuid(0): 52 * GIB}, {POD: {uuid(0): 28 * GIB}, gone: {uuid(0): GIB}}]

    _, _, waiting, same, _, set_ = node.run(
        machine(),
        ["set", POD, {uuid(0): 60 * GIB}, {}],
        ["write", used, f"0 {50 * GIB} {node.pod}\n"],
        swap,
        ["set", POD, {uuid(0): 50 * GIB}, {other: {uuid(0): 70 * GIB}}],
        ["write", used, ""],
        swap,
    )

    assert f"{node.pod}: found {50 * GIB} bytes in use, expected at most {28 * GIB}" in waiting
    assert (same, set_) == ([], [uuid(0)])
    steps = [(60, node.pod), (50, node.pod), (28, node.pod), (52, later)]
    assert book.read_text().splitlines() == [f"0 {size * GIB} {pod}" for size, pod in steps]


def test_limits_above_the_card_and_of_missing_pods_are_refused(node: Node) -> None:
    above, gone, cleared, path = node.run(
        machine(),
        ["set", POD, {uuid(0): 81 * GIB}, {}],
        ["set", "no-pod", {uuid(0): GIB}, {}],
        ["set", "no-pod", {uuid(0): NO_LIMIT}, {}],
        ["set", "../..", {uuid(0): GIB}, {}],
    )

    assert "INVALID_ARGUMENT" in above
    assert gone == (
        "_NoCgroupError: pod no-pod: found no cgroup below kubepods in "
        f"{node.cgroups}, expected one"
    )
    assert cleared == []
    assert path == "RetryableError: pod '../..': expected a UID"


def test_node_that_can_limit_has_no_trouble_but_hints(node: Node) -> None:
    off = limiting(1, "dmem") | {"persistence": "0"}
    mig = limiting(2) | {"mig": "1 1"}

    (found,) = node.run(machine(limiting(), off, mig), ["check"])

    assert found[0] == ""
    assert found[1] == f"{uuid(2)}: MIG mode: found on, expected off"
    assert found[2].startswith(
        f"{uuid(1)}: persistence mode: found off, expected on: limits vanish"
    )
    assert len(found) == 3
    assert not (node.cgroups / "kubepods.slice" / "tensorfusion-dra-check").exists()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (machine(driver="580.95.05"), "NVIDIA driver: found 580.95.05, expected 615 or later"),
        (machine(init="!9"), "NVML: NVML_ERROR_DRIVER_NOT_LOADED"),
        (machine(limiting() | {"mig": "1 1"}), f"{uuid(0)}: MIG mode: found on, expected off"),
        (machine(card(0)), "NVML_ERROR_NOT_SUPPORTED: found no accounting of this cgroup's"),
        (machine(limiting(set_limits="!4")), "NVML_ERROR_NO_PERMISSION: found too few rights"),
    ],
)
def test_node_that_cannot_limit_says_why(node: Node, text: str, found: str) -> None:
    (reason,) = node.run(text, ["check"])

    assert len(reason) == 1
    assert found in reason[0]


def test_check_needs_the_functions_cgroup2_and_kubepods(
    node: Node, old_library: Path, library: Path
) -> None:
    node.library = old_library
    (symbols,) = node.run(machine(), ["check"])
    node.library = library
    node.pod.rmdir()
    node.pod.parent.rmdir()
    (node.cgroups / "kubepods.slice").rmdir()
    (kubepods,) = node.run(machine(), ["check"])
    (node.cgroups / "cgroup.controllers").unlink()
    (cgroup2,) = node.run(machine(), ["check"])

    assert "NVML_ERROR_FUNCTION_NOT_FOUND: found no such function" in symbols[0]
    assert kubepods == [f"{node.cgroups}: found no cgroup kubepods, expected one"]
    assert cgroup2 == [f"{node.cgroups}: found no cgroup2, expected the host's"]


def test_container_gets_its_own_limit_only_where_the_pods_holds_beside_it(node: Node) -> None:
    plain, counted = node.pod / "plain", node.pod / "counted"
    for folder in (plain, counted):
        folder.mkdir()
    (counted / "dmem.max").touch()
    limits = {uuid(0): 8 * GIB}
    at = {folder: f"/{folder.relative_to(node.cgroups)}" for folder in (plain, counted)}

    unlimited, _, without, with_, other, climbing = node.run(
        machine(),
        ["set_container", POD, at[plain], limits],
        ["set", POD, limits, {}],
        ["set_container", POD, at[plain], limits],
        ["set_container", POD, at[counted], limits],
        ["set_container", POD, "/kubepods.slice/other", limits],
        ["set_container", POD, f"{at[plain]}/../../other", limits],
    )

    assert unlimited.endswith(f"{node.pod}: found no memory limit, expected one")
    assert (without, with_) == (None, None)
    for refused in (other, climbing):
        assert "found a container outside pod" in refused
    book = node.answers_file.with_name("answers.limits")
    assert book.read_text().splitlines() == [f"0 {8 * GIB} {each}" for each in (node.pod, counted)]

    node.run(
        machine(),
        ["set", POD, {uuid(0): 12 * GIB}, {}],  # more is lent to the claim
        ["set_container", POD, at[counted], {uuid(0): 20 * GIB}],  # a spec from before a change
        ["set", POD, {uuid(0): NO_LIMIT}, {}],
    )
    more = [(12, node.pod), (12, counted), (12, counted)]
    assert book.read_text().splitlines()[2:] == [
        *(f"0 {size * GIB} {folder}" for size, folder in more),
        f"0 {NO_LIMIT} {node.pod}",
    ]


def test_driver_that_was_replaced_ends_the_process(node: Node) -> None:
    first, lost = node.run(
        machine(),
        ["set", POD, {uuid(0): GIB}, {}],
        ["set", POD, {uuid(0): 2 * GIB}, {}],
    )[:1] + node.run(machine(limiting(get_limits="!18")), ["set", POD, {uuid(0): 3 * GIB}, {}])

    assert first == [uuid(0)]
    assert lost.startswith("FatalError: ")


def test_card_alone_that_speaks_of_a_replaced_driver_does_not_end_the_process(node: Node) -> None:
    broken = limiting(get_limits="!18")

    lost, other, again = node.run(
        machine(broken, limiting(1)),
        ["set", POD, {uuid(0): GIB}, {}],
        ["set", POD, {uuid(1): GIB}, {}],
        ["set", POD, {uuid(0): GIB}, {}],
    )
    (ended,) = node.run(
        machine(broken, limiting(1, memory="!18")), ["set", POD, {uuid(0): GIB}, {}]
    )

    assert lost == again
    assert lost.startswith(f"RetryableError: {uuid(0)}: get memory limit of")
    assert "LIB_RM_VERSION_MISMATCH" in lost
    assert other == [uuid(1)]
    assert ended.startswith("FatalError: ")


def test_card_that_hangs_costs_the_others_two_seconds_once(node: Node) -> None:
    hanging = limiting(get_limits=f"~{node.folder}/go 0")
    cards = [uuid(0), uuid(1)]

    started = time.monotonic()
    hung, other, got, *again = node.run(
        machine(hanging, limiting(1)),
        ["set", POD, {uuid(0): GIB}, {}],
        ["set", POD, {uuid(1): GIB}, {}],
        *[["get", POD, cards]] * 20,
    )

    text = f"{uuid(0)}: found no answer of NVML within 2 s, expected one; it is asked again after"
    assert hung.startswith(f"RetryableError: {text}")
    assert other == [uuid(1)]
    assert got[uuid(0)].startswith(text)
    assert got[uuid(1)] == [GIB, 0]
    assert again == [got] * 19
    assert time.monotonic() - started < 20


def test_nvml_is_not_opened_while_the_driver_is_being_replaced(node: Node) -> None:
    sign = str(node.cgroups / "sign")
    check = ["check_driver"]

    setting = ["set", POD, {uuid(0): GIB}, {}]
    (_, _, fresh) = node.run(machine(), ["write", sign, ""], setting, check)
    (node.cgroups / "sign").unlink()
    assert not (node.folder / "answers.nvidiactl").exists()
    (_, before, _, opened) = node.run(machine(), setting, check, ["write", sign, ""], check)

    text = "the NVIDIA driver is being replaced"
    assert fresh == f"RetryableError: {text}"
    assert before is None
    assert opened == f"FatalError: {text}; this process ends, which closes NVML"

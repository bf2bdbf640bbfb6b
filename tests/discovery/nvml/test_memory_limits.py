"""Memory limits by the NVIDIA driver, against the stand-in for NVML and folders for cgroups."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tensorfusion_dra.core.devices.gpu import UNLIMITED
from tests.discovery.nvml.nvml_machine import Machine, answers, card, uuid

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


class Node(Machine):
    """A machine with cards and cgroups; the limits of its driver outlive a process."""

    def __init__(self, folder: Path, library: Path) -> None:
        super().__init__(folder=folder, library=library)
        self.cgroups = self.folder / "cgroup"
        self.pod = self.cgroups / FORMS[1]
        self.pod.mkdir(parents=True)
        (self.cgroups / "cgroup.controllers").touch()

    def act(self, first: str, *steps: list[Any]) -> list[Any]:
        """Call methods of the limits, or take other steps, in a process; return what they do."""
        others = {"write", "returned", "later"}
        every = (step if step[0] in others else ["limits", *step] for step in steps)
        return [
            f"{found['error']}: {found['text']}"
            if isinstance(found, dict) and "error" in found
            else found
            for found in self.run(first, *every)
        ]

    def use(self, text: str) -> list[Any]:
        """Return a step that changes the use: lines with card, bytes and cgroup."""
        return ["write", str(self.folder / "answers.used"), text]

    def book(self) -> list[str]:
        """Return the limits that were set: card, bytes and cgroup."""
        return self.answers_file.with_name("answers.limits").read_text().splitlines()


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
    setting = ["set", POD, {uuid(0): 20 * GIB}, {}]
    getting = ["get", POD, [uuid(0)]]

    *found, none = node.act(
        machine(limiting(accounting=accounting)),
        setting,
        setting,
        getting,
        ["set", POD, {uuid(0): UNLIMITED}, {}],
        getting,
    )

    assert found == [[uuid(0)], [], {uuid(0): [20 * GIB, 0]}, [uuid(0)]]
    without = f"{uuid(0)}: {folder}: found no memory limit, expected one"
    assert none[uuid(0)] == (without if accounting == "dmem" else [UNLIMITED, 0])
    assert node.book() == [f"0 {20 * GIB} {folder}", f"0 {UNLIMITED} {folder}"]


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
    set_, got = node.act(
        machine(limiting() | {f"{call}_limits": f"!{code}"}),
        ["set", POD, {uuid(0): GIB}, {}],
        ["get", POD, [uuid(0)]],
    )

    expected = f"{uuid(0)}: {call} memory limit of {node.pod}: NVML_ERROR_{text}"
    assert set_.startswith(f"RetryableError: {expected}")
    assert got[uuid(0)].startswith(expected) == (call == "get")


def test_cgroup_that_nvml_does_not_account_is_an_error_and_never_no_limit(node: Node) -> None:
    found = node.act(
        machine(limiting(set_limits="!6")),
        *(["set", POD, {uuid(0): limit}, {}] for limit in (GIB, UNLIMITED)),
    )

    text = f"{uuid(0)}: set memory limit of {node.pod}: NVML_ERROR_NOT_FOUND: found no limits of "
    assert all(each.startswith(f"RetryableError: {text}") for each in found)


@pytest.mark.parametrize("accounting", ["misc", "dmem"])
def test_limit_goes_down_to_the_use_and_further_once_the_use_falls(
    node: Node, accounting: str
) -> None:
    container = node.pod / "container"
    container.mkdir()
    lower, getting = ["set", POD, {uuid(0): GIB}, {}], ["get", POD, [uuid(0)]]

    _, _, *found = node.act(
        machine(limiting(accounting=accounting)),
        ["set", POD, {uuid(0): 8 * GIB}, {}],
        node.use(f"0 {3 * GIB} {container}\n0 {GIB} {node.pod}\n1 {GIB} {node.pod}\n"),
        lower,
        getting,
        node.use(f"0 {GIB} {container}\n0 {GIB} {node.pod}-other\n"),
        lower,
        getting,
    )

    del found[2]  # of the write
    assert found == [
        f"RetryableError: {uuid(0)}: {node.pod}: found {4 * GIB} bytes in use, expected at most "
        f"{GIB}: this pod still uses memory that was lent to it",
        {uuid(0): [4 * GIB, 4 * GIB]},
        [uuid(0)],
        {uuid(0): [GIB, GIB]},
    ]


def test_no_limit_grows_before_others_on_the_card_were_lowered(node: Node) -> None:
    later = node.pod.with_name(node.pod.name.replace("1b4e28ba", "2b4e28ba"))
    later.mkdir()
    gone, other = "3" + POD[1:], "2" + POD[1:]
    swap = ["set", other, {uuid(0): 52 * GIB}, {POD: {uuid(0): 28 * GIB}, gone: {uuid(0): GIB}}]

    _, _, waiting, same, _, set_ = node.act(
        machine(),
        ["set", POD, {uuid(0): 60 * GIB}, {}],
        node.use(f"0 {50 * GIB} {node.pod}\n"),
        swap,
        ["set", POD, {uuid(0): 50 * GIB}, {other: {uuid(0): 70 * GIB}}],
        node.use(""),
        swap,
    )

    assert f"{node.pod}: found {50 * GIB} bytes in use, expected at most {28 * GIB}" in waiting
    assert (same, set_) == ([], [uuid(0)])
    steps = [(60, node.pod), (50, node.pod), (28, node.pod), (52, later)]
    assert node.book() == [f"0 {size * GIB} {pod}" for size, pod in steps]


def test_limits_above_the_card_and_of_missing_pods_are_refused(node: Node) -> None:
    above, *found = node.act(
        machine(),
        ["set", POD, {uuid(0): 81 * GIB}, {}],
        ["set", "no-pod", {uuid(0): GIB}, {}],
        ["set", "no-pod", {uuid(0): UNLIMITED}, {}],
        ["set", "../..", {uuid(0): GIB}, {}],
    )

    assert "INVALID_ARGUMENT" in above
    assert found == [
        "_NoCgroupError: pod no-pod: found no cgroup below kubepods in "
        f"{node.cgroups}, expected one",
        [],
        "RetryableError: pod '../..': expected a UID",
    ]


def test_node_that_can_limit_has_no_trouble_but_hints(node: Node) -> None:
    off = limiting(1, "dmem") | {"persistence": "0"}
    mig = limiting(2) | {"mig": "1 1"}

    ((*found, hint),) = node.act(machine(limiting(), off, mig), ["check"])

    assert found == ["", f"{uuid(2)}: MIG mode: found on, expected off"]
    assert hint.startswith(f"{uuid(1)}: persistence mode: found off, expected on: limits vanish")
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
    ((reason,),) = node.act(text, ["check"])

    assert found in reason


def test_check_needs_the_functions(node: Node, old_library: Path) -> None:
    node.library = old_library

    ((reason, *_),) = node.act(machine(), ["check"])

    assert "NVML_ERROR_FUNCTION_NOT_FOUND: found no such function" in reason


def test_check_needs_kubepods_and_cgroup2(node: Node) -> None:
    shutil.rmtree(node.cgroups / "kubepods.slice")
    (kubepods,) = node.act(machine(), ["check"])
    (node.cgroups / "cgroup.controllers").unlink()
    (cgroup2,) = node.act(machine(), ["check"])

    assert kubepods == [f"{node.cgroups}: found no cgroup kubepods, expected one"]
    assert cgroup2 == [f"{node.cgroups}: found no cgroup2, expected the host's"]


def test_container_gets_its_own_limit_only_where_the_pods_holds_beside_it(node: Node) -> None:
    plain, counted = node.pod / "plain", node.pod / "counted"
    for folder in (plain, counted):
        folder.mkdir()
    (counted / "dmem.max").touch()
    limits = {uuid(0): 8 * GIB}
    at = {folder: f"/{folder.relative_to(node.cgroups)}" for folder in (plain, counted)}

    unlimited, _, without, with_, other, climbing = node.act(
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
    assert all("found a container outside pod" in refused for refused in (other, climbing))
    node.act(
        machine(),
        ["set", POD, {uuid(0): 12 * GIB}, {}],  # more is lent to the claim
        ["set_container", POD, at[counted], {uuid(0): 20 * GIB}],  # a spec from before a change
        ["set", POD, {uuid(0): UNLIMITED}, {}],
    )
    steps = [(8, node.pod), (8, counted), (12, node.pod), (12, counted), (12, counted)]
    assert node.book() == [
        *(f"0 {size * GIB} {folder}" for size, folder in steps),
        f"0 {UNLIMITED} {node.pod}",
    ]


def test_driver_that_was_replaced_ends_the_process(node: Node) -> None:
    setting = ["set", POD, {uuid(0): GIB}, {}]

    (lost,) = node.act(machine(limiting(get_limits="!18")), setting)

    assert lost.startswith("FatalError: ")


def test_card_alone_that_speaks_of_a_replaced_driver_does_not_end_the_process(node: Node) -> None:
    broken = limiting(get_limits="!18")
    setting = ["set", POD, {uuid(0): GIB}, {}]

    lost, other, again = node.act(
        machine(broken, limiting(1)), setting, ["set", POD, {uuid(1): GIB}, {}], setting
    )
    (ended,) = node.act(machine(broken, limiting(1, memory="!18")), setting)

    assert (again, other) == (lost, [uuid(1)])
    expected = f"RetryableError: {uuid(0)}: get memory limit of .*LIB_RM_VERSION_MISMATCH"
    assert re.match(expected, lost)
    assert ended.startswith("FatalError: ")


def test_card_that_hangs_costs_the_others_two_seconds_and_is_asked_again_after_30(
    node: Node,
) -> None:
    go = f"{node.folder}/go"
    getting = ["get", POD, [uuid(0), uuid(1)]]

    hung, other, got, _, returned, again, _, late = node.act(
        machine(limiting(get_limits=f"~{go} 0"), limiting(1)),
        ["set", POD, {uuid(0): GIB}, {}],
        ["set", POD, {uuid(1): GIB}, {}],
        getting,
        ["write", go, ""],
        ["returned", uuid(0)],
        getting,
        ["later", 30],
        getting,
    )

    text = f"{uuid(0)}: found no answer of NVML within 2 s, expected one; it is asked again after"
    assert hung.startswith(f"RetryableError: {text}")
    assert (other, got[uuid(1)]) == ([uuid(1)], [GIB, 0])
    assert got[uuid(0)].startswith(text)
    assert (returned, again) == (True, got)  # it would answer now, but is not asked yet
    assert late[uuid(0)].endswith(": found no memory limit, expected one")


def test_nvml_is_not_opened_while_the_driver_is_being_replaced(node: Node) -> None:
    sign = node.folder / "sign"
    put = ["write", str(sign), ""]
    setting = ["set", POD, {uuid(0): GIB}, {}]

    (_, _, fresh) = node.act(machine(), put, setting, ["check_driver"])
    sign.unlink()
    assert not (node.folder / "answers.nvidiactl").exists()
    found = node.act(machine(), setting, ["check_driver"], put, ["check_driver"])

    text = "the NVIDIA driver is being replaced"
    assert fresh == f"RetryableError: {text}"
    assert (found[1], found[3]) == (
        None,
        f"FatalError: {text}; this process ends, which closes NVML",
    )

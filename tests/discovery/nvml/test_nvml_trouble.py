"""Missing libraries, drivers that are unloaded or replaced, and calls that hang."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.discovery.nvml.nvml_machine import Machine, answers, card, uuid
from tests.support.compiler import compiler
from tests.support.waiting import PATIENCE_SECONDS

DRIVER_NOT_LOADED = "!9"
NO_PERMISSION = "!4"
LIB_RM_VERSION_MISMATCH = "!18"


def uuids(inventory: Any) -> list[str]:
    return [gpu["uuid"] for gpu in inventory["gpus"]]


def test_missing_library_is_a_retryable_error_with_its_path(machine: Machine) -> None:
    machine.library = Path("/nowhere/libnvidia-ml.so.1")

    error = machine.read(answers())

    assert error["error"] == "RetryableError"
    assert error["text"].startswith("NVML: /nowhere/libnvidia-ml.so.1: cannot open")
    assert error["text"].endswith("waiting for the NVIDIA driver's libnvidia-ml.so.1")


def test_loader_searches_if_the_driver_root_has_no_library(machine: Machine) -> None:
    machine.library, machine.driver_root = None, machine.folder

    error = machine.read(answers())

    assert error["error"] == "RetryableError"
    assert error["text"].startswith("NVML: libnvidia-ml.so.1: cannot open shared object file")


@pytest.mark.parametrize("folder", ["usr/lib64", "usr/lib/x86_64-linux-gnu", "lib"])
def test_library_is_found_under_the_driver_root(machine: Machine, folder: str) -> None:
    assert machine.library is not None
    found = machine.folder / "root" / folder / "libnvidia-ml.so.1"
    found.parent.mkdir(parents=True)
    shutil.copy(machine.library, found)
    machine.library, machine.driver_root = None, machine.folder / "root"

    (raw,) = machine.run(answers(card(0)), ["raw"])

    assert raw["library"] == str(found)


def test_file_that_is_not_a_library_is_skipped(machine: Machine) -> None:
    assert machine.library is not None
    root = machine.folder / "root"
    for folder in ("usr/lib64", "lib64"):
        (root / folder).mkdir(parents=True)
    (root / "usr/lib64/libnvidia-ml.so.1").write_bytes(b"a text")
    shutil.copy(machine.library, root / "lib64/libnvidia-ml.so.1")
    machine.library, machine.driver_root = None, root

    (raw,) = machine.run(answers(card(0)), ["raw"])

    assert raw["library"] == str(root / "lib64/libnvidia-ml.so.1")


def test_library_without_nvml_functions_is_refused(machine: Machine) -> None:
    library = machine.folder / "libother.so.1"
    build = ["-shared", "-o", str(library), "-x", "c", "/dev/null"]
    subprocess.run([compiler("the NVML tests"), *build], check=True, timeout=PATIENCE_SECONDS)
    machine.library = library

    error = machine.read(answers())

    assert error["error"] == "RetryableError"
    assert f"{library}: found no function nvmlInitWithFlags, expected NVML" in error["text"]


def test_library_that_appears_later_is_loaded(machine: Machine) -> None:
    assert machine.library is not None
    later = machine.folder / "libnvidia-ml.so.1"
    built, machine.library = machine.library, later

    missing, _, inventory = machine.run(
        answers(card(0)), ["read"], ["link", str(later), str(built)], ["read"]
    )

    assert missing["error"] == "RetryableError"
    assert uuids(inventory) == [uuid(0)]


@pytest.mark.parametrize(
    ("init", "waited_for"),
    [
        (DRIVER_NOT_LOADED, "waiting for the NVIDIA kernel driver to be loaded"),
        (NO_PERMISSION, "waiting for access to /dev/nvidiactl"),
        (LIB_RM_VERSION_MISMATCH, "waiting for library and kernel driver of the same version"),
        ("!77", "answered NVML_ERROR_77, waiting for NVML to answer"),
    ],
)
def test_failed_initialisation_is_a_retryable_error_with_its_cause(
    machine: Machine, init: str, waited_for: str
) -> None:
    error = machine.read(answers(card(0), init=init))

    assert error["error"] == "RetryableError"
    assert str(machine.library) in error["text"]
    assert error["text"].endswith(waited_for)


def test_driver_that_is_loaded_later_is_found_by_the_next_reading(machine: Machine) -> None:
    waiting, _, inventory = machine.run(
        answers(card(0), init=DRIVER_NOT_LOADED),
        ["read"],
        machine.rewrite(answers(card(0))),
        ["read"],
    )

    assert waiting["error"] == "RetryableError"
    assert uuids(inventory) == [uuid(0)]


def test_driver_unloaded_during_a_reading_fails_the_whole_reading(
    machine: Machine,
) -> None:
    gone, _, inventory = machine.run(
        answers(card(0), card(1, uuid=DRIVER_NOT_LOADED)),
        ["read"],
        machine.rewrite(answers(card(0), card(1))),
        ["read"],
    )

    assert gone["error"] == "RetryableError"
    assert "uuid of GPU 1" in gone["text"]
    assert uuids(inventory) == [uuid(0), uuid(1)]


def test_replaced_library_is_a_fatal_error(machine: Machine) -> None:
    assert machine.library is not None
    installed = machine.folder / "libnvidia-ml.so.1"
    shutil.copy(machine.library, installed)
    machine.library = installed

    first, _, _, error = machine.run(
        answers(card(0)),
        ["read"],
        machine.rewrite(answers(card(0), init=LIB_RM_VERSION_MISMATCH)),
        ["replace", str(installed), "the next version"],
        ["read"],
    )

    assert uuids(first) == [uuid(0)]
    assert error["error"] == "FatalError"
    assert "the library was replaced, only a new process can load it" in error["text"]


def test_replacement_of_a_library_found_by_the_loader_is_noticed(
    machine: Machine,
) -> None:
    assert machine.library is not None
    installed = machine.folder / "libnvidia-ml.so.1"
    shutil.copy(machine.library, installed)
    machine.library, machine.loader_path = None, str(machine.folder)

    raw, _, _, error = machine.run(
        answers(card(0)),
        ["raw"],
        machine.rewrite(answers(card(0), init=LIB_RM_VERSION_MISMATCH)),
        ["replace", str(installed), "the next version"],
        ["read"],
    )

    assert raw["library"] == str(installed)
    assert error["error"] == "FatalError"


def test_hanging_call_ends_the_reading_with_an_error_that_names_it(machine: Machine) -> None:
    machine.wait_seconds = 0.3
    hang = f"~{machine.folder}/go {uuid(1)}"

    first, second, threads = machine.run(
        answers(card(0), card(1, uuid=hang)), ["read"], ["read"], ["threads"]
    )

    assert first["error"] == second["error"] == "HungError"
    assert re.match(r"NVML: uuid of GPU 1: found no answer after \d+ s", first["text"])
    assert "expected one within 0.3 s" in first["text"]
    assert threads == ["nvml"]


def test_readings_work_again_after_a_hanging_call_returns(machine: Machine) -> None:
    machine.wait_seconds = 2.0
    hang = f"~{machine.folder}/go {uuid(0)}"

    hung, _, _, inventory, threads = machine.run(
        answers(card(0, uuid=hang)),
        ["read"],
        machine.rewrite(answers(card(0), card(1))),
        ["write", f"{machine.folder}/go", ""],
        ["read again"],
        ["threads"],
    )

    assert hung["error"] == "HungError"
    assert uuids(inventory) == [uuid(0), uuid(1)]
    assert threads == ["nvml"]


def test_close_ends_the_thread(machine: Machine) -> None:
    _, _, threads, error = machine.run(answers(card(0)), ["read"], ["close"], ["threads"], ["read"])

    assert threads == []
    assert error == {"error": "RetryableError", "text": "NVML: closed, expected to be open"}


def test_close_does_not_wait_for_a_hanging_call(machine: Machine) -> None:
    machine.wait_seconds = 0.2
    hang = f"~{machine.folder}/go {uuid(0)}"

    _, _, threads = machine.run(answers(card(0, uuid=hang)), ["read"], ["close"], ["threads"])

    assert threads == ["nvml"]

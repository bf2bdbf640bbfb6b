"""A process with NVML discovery: reads steps as JSON from stdin, prints the result of each.

``["read"]``, ``["processes"]`` and ``["raw"]`` call the discovery, and
``["limits", method, *arguments]`` the memory limits. ``["returned", uuid]`` waits for the limits'
last call for a card, and ``["later", seconds]`` moves their clock on.
``["read again"]`` repeats until a reading succeeds. ``["write", path, text]`` writes a file,
``["replace", path, text]`` replaces one, and ``["link", path, target]`` creates a link.
``["threads"]`` lists NVML's threads. ``["events", uuid]`` waits for a card's events in the
background and returns once NVML has opened the card; ``["reopened"]`` returns once NVML has opened
it again.
"""

import dataclasses
import json
import os
import sys
import threading
import time
import warnings
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tensorfusion_dra.core.errors import DriverError, RetryableError
from tensorfusion_dra.discovery import models
from tensorfusion_dra.discovery.nvml import memory_limits
from tensorfusion_dra.discovery.nvml.memory_limits import CgroupLimits
from tensorfusion_dra.discovery.nvml.nvml_discovery import NvmlDiscovery
from tests.support.waiting import eventually


def step(discovery: NvmlDiscovery, limits: CgroupLimits, name: str, *details: Any) -> Any:
    steps: Any = {
        "read": lambda: dataclasses.asdict(discovery.read()),
        "read again": lambda: read_again(discovery),
        "processes": lambda: {
            uuid: [dataclasses.asdict(each) for each in found]
            for uuid, found in discovery.processes().items()
        },
        "raw": lambda: dataclasses.asdict(discovery.raw()),
        "limits": lambda method, *arguments: getattr(limits, method)(*arguments),
        "returned": lambda uuid: eventually(lambda: limits._threads[uuid].submit(int) is not None),
        "later": later,
        "threads": lambda: [each.name for each in threading.enumerate() if each.name == "nvml"],
        "write": lambda path, text: Path(path).write_text(text, encoding="utf-8"),
        "link": lambda path, target: Path(path).symlink_to(target),
        "replace": replace,
        "events": lambda uuid: await_events(discovery, uuid),
        "reopened": lambda: opened(discovery),
    }
    return steps[name](*details)


def await_events(discovery: NvmlDiscovery, uuid: str) -> bool:
    discovery.events.watch(frozenset({uuid}))
    run = discovery.events.run
    threading.Thread(target=run, args=(lambda _: None,), daemon=True).start()
    return opened(discovery)


def opened(discovery: NvmlDiscovery) -> bool:
    file = Path(os.environ["STAND_IN_GPUS"] + ".open")
    return eventually(
        lambda: discovery.events._is_open and file.exists() and bool(file.read_text())
    )


def later(seconds: float) -> None:
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + seconds)
    vars(memory_limits)["time"] = clock


def replace(path: str, text: str) -> None:
    fresh = Path(path + ".new")
    fresh.write_text(text, encoding="utf-8")
    fresh.replace(path)


def read_again(discovery: NvmlDiscovery) -> Any:
    while True:  # the test ends a process that takes too long
        with suppress(RetryableError):
            return dataclasses.asdict(discovery.read())
        time.sleep(0.02)


def main() -> None:
    warnings.simplefilter("error")
    script = json.load(sys.stdin)
    library = None if script["library"] is None else Path(script["library"])
    folder = Path(script["folder"])
    driver_root = Path(script["driver_root"])
    discovery = NvmlDiscovery(
        models.load(),
        library=library,
        driver_root=driver_root,
        sysfs_root=folder / "sys",
        proc_root=folder / "proc",
        wait_seconds=script["wait_seconds"],
    )
    limits = CgroupLimits(
        library, driver_root, cgroups=folder / "cgroup", replacement_marker=folder / "sign"
    )
    printed: list[Any] = []
    for name, *details in script["steps"]:
        try:
            printed.append(step(discovery, limits, name, *details))
        except DriverError as error:
            printed.append({"error": type(error).__name__, "text": str(error)})
    print(json.dumps(printed))  # noqa: T201  the answer to the test


if __name__ == "__main__":
    main()

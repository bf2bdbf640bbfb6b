"""A process with NVML discovery: reads steps as JSON from stdin, prints the result of each.

``["read"]``, ``["processes"]`` and ``["raw"]`` call the discovery.
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
from pathlib import Path
from typing import Any

from tensorfusion_dra.core.errors import DriverError, RetryableError
from tensorfusion_dra.discovery import models
from tensorfusion_dra.discovery.nvml.nvml_discovery import NvmlDiscovery
from tests.support.waiting import PATIENCE_SECONDS


def step(discovery: NvmlDiscovery, name: str, *details: str) -> Any:
    steps: Any = {
        "read": lambda: dataclasses.asdict(discovery.read()),
        "read again": lambda: read_again(discovery),
        "processes": lambda: {
            uuid: [dataclasses.asdict(each) for each in found]
            for uuid, found in discovery.processes().items()
        },
        "raw": lambda: dataclasses.asdict(discovery.raw()),
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
    pause = threading.Event()
    deadline = time.monotonic() + PATIENCE_SECONDS
    file = Path(os.environ["STAND_IN_GPUS"] + ".open")
    while not (discovery.events._is_open and file.exists() and file.read_text()):
        if time.monotonic() > deadline:
            return False
        pause.wait(0.02)
    return True


def replace(path: str, text: str) -> None:
    fresh = Path(path + ".new")
    fresh.write_text(text, encoding="utf-8")
    fresh.replace(path)


def read_again(discovery: NvmlDiscovery) -> Any:
    pause = threading.Event()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return dataclasses.asdict(discovery.read())
        except RetryableError:
            if time.monotonic() > deadline:
                raise
        pause.wait(0.02)


def main() -> None:
    warnings.simplefilter("error")
    script = json.load(sys.stdin)
    discovery = NvmlDiscovery(
        models.load(),
        library=None if script["library"] is None else Path(script["library"]),
        driver_root=Path(script["driver_root"]),
        sysfs_root=Path(script["sysfs_root"]),
        proc_root=Path(script["proc_root"]),
        wait_seconds=script["wait_seconds"],
    )
    printed: list[Any] = []
    for name, *details in script["steps"]:
        try:
            printed.append(step(discovery, name, *details))
        except DriverError as error:
            printed.append({"error": type(error).__name__, "text": str(error)})
    print(json.dumps(printed))  # noqa: T201  the answer to the test


if __name__ == "__main__":
    main()

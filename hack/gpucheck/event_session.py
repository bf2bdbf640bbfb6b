"""One session of card events, by the node plugin's own code, in a process of its own.

usage: python event_session.py DRIVER_ROOT SECONDS

Prints one JSON object: the cards, the types of events that each supports, the warnings, the events,
and how long the end of the session took. A call into the NVIDIA driver that hangs hangs here only.
"""

import json
import sys
import threading
import time
from pathlib import Path

import pynvml
from structlog.testing import capture_logs

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from typing import TYPE_CHECKING

from tensorfusion_dra.core.errors import DriverError
from tensorfusion_dra.discovery import models
from tensorfusion_dra.discovery.nvml.nvml_discovery import NvmlDiscovery

if TYPE_CHECKING:
    from tensorfusion_dra.core.devices.health import CardEvent


def main() -> int:
    """Read the cards, wait for their events for some time, and end."""
    driver_root, seconds = Path(sys.argv[1]), float(sys.argv[2])
    discovery = NvmlDiscovery(models.load(None), driver_root=driver_root)
    events: list[CardEvent] = []
    with capture_logs() as logs:
        try:
            cards = frozenset(gpu.uuid for gpu in discovery.read().gpus)
        except DriverError as error:
            sys.stderr.write(f"{error}\n")
            return 1
        discovery.events.watch(cards)
        session = threading.Thread(target=discovery.events.run, args=(events.append,))
        session.start()
        time.sleep(seconds)
        stopped = time.monotonic()
        discovery.events.stop()
        session.join()
        end_ms = (time.monotonic() - stopped) * 1000
    found = {
        "cards": len(cards),
        "event_types": _supported(),
        "warnings": [f"{log['event']}: {log.get('error', '')}" for log in logs],
        "events": [f"{event.kind}: {event.code}" for event in events],
        "end_ms": round(end_ms, 1),
    }
    discovery.close()
    sys.stdout.write(json.dumps(found) + "\n")
    return 0


def _supported() -> list[int]:
    """Return the mask of supported event types of each card; 0 if NVML refuses to answer."""
    masks = []
    pynvml.nvmlInitWithFlags(pynvml.NVML_INIT_FLAG_NO_GPUS)
    try:
        for index in range(pynvml.nvmlDeviceGetCount()):
            try:
                card = pynvml.nvmlDeviceGetHandleByIndex(index)
                masks.append(int(pynvml.nvmlDeviceGetSupportedEventTypes(card)))
            except pynvml.NVMLError:
                masks.append(0)
    finally:
        pynvml.nvmlShutdown()
    return masks


if __name__ == "__main__":
    sys.exit(main())

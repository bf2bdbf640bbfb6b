"""The API server's own metrics, in the text format of Prometheus."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

_LINE: Final = re.compile(r"(?P<name>[a-zA-Z_:][\w:]*)(?:\{(?P<labels>.*)\})? (?P<value>\S+)")
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, slots=True)
class Sample:
    """One value.

    Attributes:
        labels: Values of the labels by name.
    """

    labels: Mapping[str, str]
    value: float


class Metrics:
    """The values of one moment."""

    def __init__(self, text: str) -> None:
        """Parse the text; lines of an unknown form are left out."""
        self._samples: dict[str, list[Sample]] = {}
        for line in text.splitlines():
            found = _LINE.match(line)
            if found:
                labels = dict(_LABEL.findall(found["labels"] or ""))
                self._samples.setdefault(found["name"], []).append(
                    Sample(labels, float(found["value"]))
                )

    def sum(self, name: str, **labels: str) -> float:
        """Return the sum of the values that have these labels; 0 if there are none."""
        return sum(
            sample.value
            for sample in self._samples.get(name, ())
            if all(sample.labels.get(key) == value for key, value in labels.items())
        )


def counters(metrics: Metrics) -> dict[str, float]:
    """Return what the server has done since its start.

    The bytes are those of bodies, uncompressed and without TLS. The server counts those of answers
    only for reads.
    """
    slices = {"resource": "resourceslices"}
    return {
        "requests": metrics.sum("apiserver_request_total"),
        "rejected": metrics.sum("apiserver_flowcontrol_rejected_requests_total"),
        "read_bytes": metrics.sum("apiserver_response_sizes_sum"),
        "slice_events": metrics.sum("apiserver_watch_events_sizes_count", **slices),
        "slice_event_bytes": metrics.sum("apiserver_watch_events_sizes_sum", **slices),
        "etcd_requests": metrics.sum("etcd_requests_total"),
        "cpu_seconds": metrics.sum("process_cpu_seconds_total"),
    }


def gauges(metrics: Metrics) -> dict[str, float]:
    """Return the server's present state, its own watches included. The heap is without garbage."""
    watches = {"verb": "WATCH"}
    name = "apiserver_longrunning_requests"
    return {
        "watches": metrics.sum(name, **watches),
        "slice_watches": metrics.sum(name, **watches, resource="resourceslices"),
        "goroutines": metrics.sum("go_goroutines"),
        "heap_mib": metrics.sum("go_gc_heap_live_bytes") / 2**20,
        "rss_mib": metrics.sum("process_resident_memory_bytes") / 2**20,
    }

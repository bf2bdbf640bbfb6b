"""Metrics in Prometheus' formats: negotiation, the process's own figures, and text.

This module and the families load prometheus_client. Import it at the first scrape, not before:
a process that nobody scrapes does without the library.
"""

import platform
import re
from collections.abc import Iterable, Iterator
from typing import Final

from prometheus_client.exposition import (
    CONTENT_TYPE_PLAIN_0_0_4,
    choose_encoder,
    generate_latest,
)
from prometheus_client.metrics_core import Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from tensorfusion_dra.metrics import families

_CONTENT_TYPE: Final = re.compile(r"[A-Za-z0-9/;=., _-]+")
_PROCESS: Final = ProcessCollector(namespace=families.NAMESPACE, registry=None)


class _Collected(Collector):
    """The metrics of one scrape, in the form that the library's encoders read."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics: Final = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics


def written(metrics: Iterable[Metric], *, accept: str) -> tuple[str, bytes]:
    """Return the metrics as text, with its content type.

    Args:
        metrics: In the order in which they are written.
        accept: The Accept header of the request. OpenMetrics is written if it names that, else
            Prometheus' text format.
    """
    try:
        encode, content_type = choose_encoder(accept)
    except (TypeError, ValueError):  # the client's version is no version
        return CONTENT_TYPE_PLAIN_0_0_4, generate_latest(_Collected(metrics))
    # The library repeats the client's version in the content type.
    if _CONTENT_TYPE.fullmatch(content_type) is None:
        return CONTENT_TYPE_PLAIN_0_0_4, generate_latest(_Collected(metrics))
    return content_type, encode(_Collected(metrics))


def of_process(version: str) -> Iterator[Metric]:
    """Yield what is known of this process: its version, memory, processor time and files."""
    labels = {"version": version, "python_version": platform.python_version()}
    yield families.info(
        "build", "Versions of this process.", tuple(labels), [tuple(labels.values())]
    )
    yield from _PROCESS.collect()

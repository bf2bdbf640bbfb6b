"""Metrics in Prometheus' formats: negotiation, the process's own figures, and text.

This module and the families load prometheus_client. Import it at the first scrape, not before:
a process that nobody scrapes does without the library.
"""

import platform
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Final

from prometheus_client.exposition import (
    CONTENT_TYPE_PLAIN_0_0_4,
    choose_encoder,
    generate_latest,
)
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.exposition import ALLOWUTF8
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from tensorfusion_dra.metrics import families

_PAUSE_SECONDS: Final = 0.0001
_CONTENT_TYPE: Final = re.compile(r"[A-Za-z0-9/;=., _-]+")
_PROCESS: Final = ProcessCollector(namespace=families.NAMESPACE, registry=None)


class _Collected(Collector):
    """The metrics of one scrape, in the form that the library's encoders read."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics: Final = metrics

    def collect(self) -> Iterable[Metric]:
        """Yield each metric after a pause, in which calls of the kubelet get the interpreter.

        Writing holds the interpreter's lock. Without pauses, a call that runs at the same time
        would wait for up to 5 ms each time that it comes back from input or output.
        """
        for metric in self._metrics:
            time.sleep(_PAUSE_SECONDS)
            yield metric


def written(metrics: Iterable[Metric], *, accept: str) -> tuple[str, bytes]:
    """Return the metrics as text, with its content type.

    Args:
        metrics: In the order in which they are written.
        accept: The Accept header of the request. OpenMetrics is written if it names that, else
            Prometheus' text format.
    """
    content_type = CONTENT_TYPE_PLAIN_0_0_4
    encode: Callable[..., bytes] = generate_latest
    with suppress(TypeError, ValueError):  # the client's version may be no version
        encode, content_type = choose_encoder(accept)
    # The library repeats the client's version in the content type.
    if _CONTENT_TYPE.fullmatch(content_type) is None:
        encode, content_type = generate_latest, CONTENT_TYPE_PLAIN_0_0_4
    # All our names are legal in every escaping scheme, so the text is the same with each. Only with
    # this one does the library not go through each name character by character.
    return content_type, encode(_Collected(metrics), escaping=ALLOWUTF8)


def of_process(version: str) -> Iterator[Metric]:
    """Yield what is known of this process: its version, memory, processor time and files."""
    labels = {"version": version, "python_version": platform.python_version()}
    yield families.info(
        "build", "Versions of this process.", tuple(labels), [tuple(labels.values())]
    )
    yield from _PROCESS.collect()

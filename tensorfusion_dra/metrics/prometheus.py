"""Metrics by prometheus_client: what is counted, what is computed at a scrape, and their text.

Every known combination of label values exists from the start at 0. Otherwise a counter would begin
with its first event, and a rate over it would miss that event.

Label values come from outside: names of pods and claims, for example. So each is made printable
and cut to a length that no legal name has.
"""

import platform
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

from prometheus_client import Counter, Histogram, disable_created_metrics
from prometheus_client.exposition import (
    CONTENT_TYPE_PLAIN_0_0_4,
    choose_encoder,
    generate_latest,
)
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.openmetrics.exposition import ALLOWUTF8
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from tensorfusion_dra.core import printable
from tensorfusion_dra.core.observed import NO_ANSWER

LabelValues = tuple[str, ...]
Kind = TypeVar("Kind", Counter, Histogram)

NAMESPACE: Final = "tensorfusion_dra"
"""Prefix of every metric's name, without its underscore."""
CALL_SECONDS: Final = (
    *(0.0005, 0.001, 0.002, 0.003, 0.004, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05),
    *(0.075, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
)
"""Bounds for whole calls: most take 2 to 20 ms, and the kubelet gives up after 45 s."""
STAGE_SECONDS: Final = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0015, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.02, 0.05),
    *(0.1, 0.25, 1.0, 5.0, 30.0),
)
"""Bounds for parts of calls, some of which take less than a millisecond."""
_MAX_CHARACTERS: Final = 300
"""The longest names in Kubernetes have 253."""
_CONTENT_TYPE: Final = re.compile(r"[A-Za-z0-9/;=., _-]+")
NODE_PLUGIN: Final = (
    ("get", "groups"),
    *((verb, "resourceslices") for verb in ("list", "watch", "create", "update", "delete")),
    ("get", "resourceclaims"),
    ("patch", "resourceclaims/status"),
    ("get", "nodes"),
    ("get", "pods"),
    ("create", "events"),
)
"""Requests of every node plugin. Some settings need more, which are counted when they are sent."""
WEBHOOK: Final = (
    ("get", "groups"),
    ("list", "resourceslices"),
    ("get", "pods"),
    *((verb, "gpupools") for verb in ("list", "watch")),
    *((verb, "schedulingconfigtemplates") for verb in ("list", "watch")),
)
"""Requests of the webhook."""
_CODES: Final = ("401", "403", "404", "409", "429", "500", "503", NO_ANSWER)
"""Codes of every kind of request that exist from the start, besides that of success."""
_PROCESS: Final = ProcessCollector(namespace=NAMESPACE, registry=None)

disable_created_metrics()  # type: ignore[no-untyped-call] # a series more for each counter


def new(
    kind: type[Kind],
    name: str,
    about: str,
    labels: Sequence[str],
    known: Iterable[LabelValues],
    **options: Any,
) -> Kind:
    """Return a metric at 0.

    Args:
        name: Of a counter without its ending _total.
        known: Combinations of label values that exist from the start.
        options: For a histogram, its buckets: their upper bounds in seconds and in order; one
            without a bound comes after them.
    """
    made = kind(name, about, labels, namespace=NAMESPACE, registry=None, **options)
    for values in known:
        made.labels(*values)
    return made


def label(text: str) -> str:
    """Return a label's value for text from outside."""
    return printable.one_line(text[:_MAX_CHARACTERS])


def counter(
    name: str, about: str, labels: Sequence[str], values: Iterable[tuple[LabelValues, int]]
) -> Metric:
    """Return the family of a counter; its name ends with _total, which is not given here."""
    return _filled(CounterMetricFamily(f"{NAMESPACE}_{name}", about, labels=labels), values)


def gauge(
    name: str, about: str, labels: Sequence[str], values: Iterable[tuple[LabelValues, float]]
) -> Metric:
    """Return the family of a gauge."""
    return _filled(GaugeMetricFamily(f"{NAMESPACE}_{name}", about, labels=labels), values)


def single(name: str, about: str, value: float) -> Metric:
    """Return the family of a gauge without labels."""
    return GaugeMetricFamily(f"{NAMESPACE}_{name}", about, value=value)


def states(
    name: str,
    about: str,
    labels: Sequence[str],
    present: Iterable[tuple[LabelValues, str]],
    *,
    known: Sequence[str],
) -> Metric:
    """Return the family of a gauge that is 1 for the present one of the known states, else 0.

    Args:
        labels: Names of the labels before `state`.
        present: The state by label values.
        known: All states.
    """
    is_state = (((*key, each), each == state) for key, state in present for each in known)
    return gauge(name, about, (*labels, "state"), is_state)


def info(name: str, about: str, labels: Sequence[str], each: Iterable[LabelValues]) -> Metric:
    """Return the family of facts that are only labels; its name ends with _info."""
    family = InfoMetricFamily(f"{NAMESPACE}_{name}", about, labels=labels)
    return _filled(family, ((values, {}) for values in each))


def _filled(
    family: CounterMetricFamily | GaugeMetricFamily | InfoMetricFamily,
    samples: Iterable[tuple[LabelValues, Any]],
) -> Metric:
    for values, value in samples:
        family.add_metric(values, value)
    return family


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
    yield info("build", "Versions of this process.", tuple(labels), [tuple(labels.values())])
    yield from _PROCESS.collect()


def api_requests(
    known: Iterable[tuple[str, str]], counted: Mapping[tuple[str, str, str], int]
) -> Metric:
    """Return the family of the requests to the API server.

    Args:
        known: Verb and resource of the requests that exist from the start.
        counted: The requests so far by verb, resource and code.
    """
    values = {
        (verb, resource, code): 0
        for verb, resource in known
        for code in ("201" if verb == "create" else "200", *_CODES)
    }
    return counter(
        "api_requests",
        "Requests to the API server; the code is none if there was no complete answer.",
        ("verb", "resource", "code"),
        {**values, **counted}.items(),
    )

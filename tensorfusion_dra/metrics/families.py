"""Metric families of prometheus_client, from counts and from values by label values.

Label values come from outside: names of pods and claims, for example. So each is made printable
and cut to a length that no legal name has.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)

from tensorfusion_dra.core import printable
from tensorfusion_dra.metrics.counts import Counter, Histogram, LabelValues

NAMESPACE: Final = "tensorfusion_dra"
"""Prefix of every metric's name, without its underscore."""
_MOST_CHARACTERS: Final = 300
"""The longest names in Kubernetes have 253."""


def label(text: str) -> str:
    """Return a label's value for text from outside."""
    return printable.one_line(text[:_MOST_CHARACTERS])


def counter(
    name: str, about: str, labels: Sequence[str], counted: Mapping[LabelValues, int]
) -> Metric:
    """Return the family of a counter; its name ends with _total, which is not given here."""
    family = CounterMetricFamily(f"{NAMESPACE}_{name}", about, labels=labels)
    for values, number in counted.items():
        family.add_metric(values, number)
    return family


def histogram(name: str, about: str, labels: Sequence[str], found: Histogram) -> Metric:
    """Return the family of a histogram."""
    family = HistogramMetricFamily(f"{NAMESPACE}_{name}", about, labels=labels)
    bounds = (*map(str, found.bounds), "+Inf")
    for values, distribution in found.read().items():
        buckets = list(zip(bounds, distribution.cumulative, strict=True))
        family.add_metric(values, buckets, distribution.seconds)
    return family


def gauge(
    name: str, about: str, labels: Sequence[str], values: Iterable[tuple[LabelValues, float]]
) -> Metric:
    """Return the family of a gauge."""
    family = GaugeMetricFamily(f"{NAMESPACE}_{name}", about, labels=labels)
    for each, value in values:
        family.add_metric(each, value)
    return family


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
    family = GaugeMetricFamily(f"{NAMESPACE}_{name}", about, labels=(*labels, "state"))
    for values, state in present:
        for each in known:
            family.add_metric((*values, each), float(each == state))
    return family


def info(name: str, about: str, labels: Sequence[str], each: Iterable[LabelValues]) -> Metric:
    """Return the family of facts that are only labels; its name ends with _info."""
    family = InfoMetricFamily(f"{NAMESPACE}_{name}", about, labels=labels)
    for values in each:
        family.add_metric(values, {})
    return family


def api_requests(requests: Counter) -> Metric:
    """Return the family of the requests to the API server."""
    return counter(
        "api_requests",
        "Requests to the API server; the code is none if there was no complete answer.",
        ("verb", "resource", "code"),
        requests.read(),
    )

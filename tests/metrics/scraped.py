"""What a scrape of metrics says, read by prometheus_client's own parsers."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

OPENMETRICS: Final = "application/openmetrics-text;version=1.0.0"
PREFIX: Final = "tensorfusion_dra_"


@dataclass(frozen=True)
class Scraped:
    """The metrics of one scrape."""

    families: tuple[Metric, ...]

    def value(self, name: str, **labels: str) -> float:
        """Return the value of the one sample with this name and these among its labels."""
        (found,) = self.each(name, **labels)
        return found[1]

    def values(self, name: str, label: str, **labels: str) -> dict[str, float]:
        """Return the values of samples with this name, by one of their labels."""
        return {found[label]: value for found, value in self.each(name, **labels)}

    def each(self, name: str, **labels: str) -> list[tuple[Mapping[str, str], float]]:
        """Return labels and value of the samples with this name and these among their labels."""
        return [
            (sample.labels, sample.value)
            for family in self.families
            for sample in family.samples
            if sample.name in (PREFIX + name, name) and labels.items() <= sample.labels.items()
        ]

    def samples(self) -> set[tuple[str, frozenset[tuple[str, str]], float]]:
        """Return all samples but those of the process, which differ from scrape to scrape."""
        return {
            (sample.name, frozenset(sample.labels.items()), sample.value)
            for family in self.families
            for sample in family.samples
            if not sample.name.startswith("process_")
        }

    def kinds(self) -> dict[str, str]:
        """Return the type of each family by the name that its samples have in queries."""
        return dict(self._kinds())

    def label_names(self) -> dict[str, set[str]]:
        """Return the names of all labels by the same name; without those of buckets."""
        return {
            name: {label for sample in family.samples for label in sample.labels} - {"le"}
            for family, (name, _) in zip(self.families, self._kinds(), strict=True)
        }

    def _kinds(self) -> Iterator[tuple[str, str]]:
        suffixes = {"counter": "_total", "info": "_info"}
        for family in self.families:
            yield family.name + suffixes.get(family.type, ""), family.type


def from_openmetrics(body: bytes) -> Scraped:
    """Return the metrics of an answer in the OpenMetrics format.

    Raises:
        ValueError: It breaks a rule of the format, such as two samples with the same labels.
    """
    families = openmetrics.text_string_to_metric_families(body.decode())  # type: ignore[no-untyped-call]
    return Scraped(tuple(families))


def from_text(body: bytes) -> Scraped:
    """Return the metrics of an answer in Prometheus' text format."""
    return Scraped(tuple(text_string_to_metric_families(body.decode())))

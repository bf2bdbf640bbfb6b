"""Dependencies that all parts of one kubelet share."""

from dataclasses import dataclass

from dra_simulator.node.journal import Journal
from dra_simulator.node.timings import Timings
from dra_simulator.rest import Client


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeletContext:
    """Node, API client, timings and journal of one kubelet."""

    node_name: str
    client: Client
    timings: Timings
    journal: Journal

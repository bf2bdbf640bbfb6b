"""Dependencies that all parts of one kubelet share."""

from dataclasses import dataclass

from tensorfusion_dra.simulator.node.journal import Journal
from tensorfusion_dra.simulator.node.timings import Timings
from tensorfusion_dra.simulator.rest import Client


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeletContext:
    """Node, API client, timings and journal of one kubelet."""

    node_name: str
    client: Client
    timings: Timings
    journal: Journal

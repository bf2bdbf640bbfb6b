"""What all parts of one kubelet share."""

from dataclasses import dataclass

from tensorfusion_dra.simulator.node.journal import Journal
from tensorfusion_dra.simulator.node.timings import Timings
from tensorfusion_dra.simulator.rest import Client


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Whose kubelet it is, and where it reads, writes and tells."""

    node_name: str
    client: Client
    timings: Timings
    journal: Journal

"""Options of the verb `doctor`, beside the node plugin's settings."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path


class Place(StrEnum):
    """What kind of machine this is."""

    NODE = "node"
    WORKSTATION = "workstation"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of one examination.

    Attributes:
        place: None to find out.
        host_root: Where the host's root folder is seen.
        runtime_config: The runtime's configuration file; None searches for it.
        namespace: For the writes on trial.
        service_account: Namespace and name of whose rights are asked for; None to find out.
    """

    place: Place | None = None
    host_root: Path = Path("/")
    runtime_config: Path | None = None
    namespace: str = "default"
    service_account: tuple[str, str] | None = None

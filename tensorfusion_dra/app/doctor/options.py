"""Options of the verb `doctor`; it takes the node plugin's settings as well."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path


class Place(StrEnum):
    """Kind of machine that the doctor runs on."""

    NODE = "node"
    WORKSTATION = "workstation"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of one run.

    Attributes:
        place: None detects it.
        host_root: Folder where the host's root is mounted.
        runtime_config: The runtime's configuration file; None searches the usual paths.
        namespace: Namespace of the dry-run writes.
        service_account: Namespace and name of the account whose rights are checked. None takes
            the pod's own, or outside of a pod the DaemonSet's.
    """

    place: Place | None = None
    host_root: Path = Path("/")
    runtime_config: Path | None = None
    namespace: str = "default"
    service_account: tuple[str, str] | None = None

"""Host paths in a container."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A host path in the container, bind-mounted without devices and setuid programs."""

    host_path: str
    container_path: str
    read_only: bool = True

    def as_cdi(self) -> dict[str, Any]:
        """The mount of a CDI spec."""
        return {
            "hostPath": self.host_path,
            "containerPath": self.container_path,
            "options": ["ro" if self.read_only else "rw", "nosuid", "nodev", "bind"],
        }

"""Mounts of host paths into a container."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A host path that is bind-mounted into a container, without devices and setuid programs."""

    host_path: str
    container_path: str
    read_only: bool = True

    def as_cdi(self) -> dict[str, Any]:
        """Return the mount as a CDI spec has it."""
        return {
            "hostPath": self.host_path,
            "containerPath": self.container_path,
            "options": ["ro" if self.read_only else "rw", "nosuid", "nodev", "bind"],
        }

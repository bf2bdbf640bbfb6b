"""Two ways to load a limiter's library into every process of a container.

- `file`: the container gets a /etc/ld.so.preload with the library. The dynamic linker reads it for
  every program, also for one that is started without environment or with an LD_PRELOAD of its own,
  and it loads the libraries of both. So an image and an entrypoint keep their LD_PRELOAD. An
  /etc/ld.so.preload of the image is hidden.
- `env`: the variable LD_PRELOAD. It replaces the LD_PRELOAD of an image, and a process that sets
  its own runs without the limiter. An /etc/ld.so.preload of the image stays.

The driver writes the file itself: a file with another content would mean no limits.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims.enforcers.enforcer import Edits, TextFile
from tensorfusion_dra.core.claims.prepared import Mount

PRELOAD_IN_CONTAINER: Final = "/etc/ld.so.preload"


class Way(StrEnum):
    """How a container loads its limiter."""

    FILE = "file"
    ENV = "env"


@dataclass(frozen=True, slots=True, kw_only=True)
class Preload:
    """Loading of one library.

    Attributes:
        library: Its path in the container.
        folder: Host folder in which the driver writes the file.
    """

    way: Way
    library: str
    folder: str

    def files(self) -> tuple[TextFile, ...]:
        """Return the files that the driver has to write."""
        if self.way is Way.ENV:
            return ()
        return (TextFile(path=self._file(), text=f"{self.library}\n"),)

    def edits(self) -> Edits:
        """Return the additions that load the library, without the mount of the library itself."""
        if self.way is Way.ENV:
            return Edits(env={names.ENV_LD_PRELOAD: self.library})
        return Edits(mounts=(Mount(host_path=self._file(), container_path=PRELOAD_IN_CONTAINER),))

    def _file(self) -> str:
        return f"{self.folder}/ld.so.preload"

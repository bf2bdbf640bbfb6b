"""Ways in which processes of a container load the library that limits them."""

import os
import stat
from enum import StrEnum
from pathlib import Path
from typing import Final

from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims.enforcer import Edits, TextFile
from tensorfusion_dra.core.claims.prepared import Mount

PRELOAD_IN_CONTAINER: Final = "/etc/ld.so.preload"
_ELF: Final = b"\x7fELF"


class PreloadMethod(StrEnum):
    """Way in which a container loads its limiter."""

    FILE = "file"
    ENV = "env"


def preload_files(method: PreloadMethod, library: str, file: str) -> tuple[TextFile, ...]:
    """Return the files that the driver has to write for containers that load a limiter.

    Args:
        method: How they load it.
        library: Its path in the container.
        file: Path on the host of the file that names the library.
    """
    return (TextFile(path=file, text=f"{library}\n"),) if method is PreloadMethod.FILE else ()


def preload_edits(method: PreloadMethod, library: str, file: str) -> Edits:
    """Return the additions that load the library, without the mount of the library itself.

    Args:
        method: How the container loads it.
        library: Its path in the container.
        file: As in preload_files().
    """
    if method is PreloadMethod.ENV:
        return Edits(env={names.ENV_LD_PRELOAD: library})
    return Edits(mounts=(Mount(host_path=file, container_path=PRELOAD_IN_CONTAINER),))


def library_reason(library: str) -> str:
    """Return why no process can load the library on the host, with its path; "" if one can."""
    try:
        if not stat.S_ISREG(Path(library).stat().st_mode):
            return f"{library}: found something else, expected a file"
        with Path(library).open("rb") as file:
            beginning = os.read(file.fileno(), len(_ELF))
    except FileNotFoundError:
        return f"{library}: not found"
    except OSError as error:
        return f"{library}: {error.strerror or error}"
    return "" if beginning == _ELF else f"{library}: found no shared library"

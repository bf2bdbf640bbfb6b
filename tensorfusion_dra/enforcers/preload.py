"""Ways in which processes of a container load the library that limits them."""

import os
import stat
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Final

from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims.enforcer import Advice, Edits, TextFile
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


def advice(library: str) -> tuple[Advice, ...]:
    """Return the advice about a library on the host that only some users can read, and so load.

    The dynamic linker ignores a library that it cannot open, whatever names it.
    """
    with suppress(OSError):
        mode = stat.S_IMODE(Path(library).stat().st_mode)
        if not mode & stat.S_IROTH:
            found = (
                f"mode {mode:04o}: processes of other users than root cannot load it, and run "
                "without limits"
            )
            return (
                Advice(
                    subject=f"library {library}",
                    found=found,
                    expected="readable by all users, as containers run as any",
                    remedy=f"chmod a+r {library} on the node, then start the pods again",
                ),
            )
    return ()


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

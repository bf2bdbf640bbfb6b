"""The files of a kubeconfig, read within a bound."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tensorfusion_dra.core.errors import InputError

_MOST_BYTES: Final = 4 * 2**20
"""One cluster with its certificates takes 10 KB."""


def texts(kubeconfig: Path) -> Iterator[bytes]:
    """Yield the text of each file; a file that cannot be opened is left out.

    Args:
        kubeconfig: One path or, as in $KUBECONFIG, several with colons in between.

    Raises:
        InputError: A file has no end, like a device, or is too large.
    """
    for part in filter(None, str(kubeconfig).split(os.pathsep)):
        try:
            file = Path(part).expanduser()
            if not stat.S_ISREG(file.stat().st_mode):
                text = "found no regular file, expected a kubeconfig"
                raise InputError(f"kubeconfig {file}: {text}")
            with file.open("rb") as opened:
                found = opened.read(_MOST_BYTES + 1)
        except (OSError, RuntimeError):
            continue
        if len(found) > _MOST_BYTES:
            text = f"found more than {_MOST_BYTES} bytes, expected a kubeconfig"
            raise InputError(f"kubeconfig {file}: {text}")
        yield found

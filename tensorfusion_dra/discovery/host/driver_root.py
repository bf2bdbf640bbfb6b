"""Folders below the root of an NVIDIA driver, and links within that root."""

from pathlib import Path
from typing import Final

# 64-bit folders first, because /usr/lib has 32-bit libraries on some distributions. The last three
# are for Talos, GKE's driver installer and WSL.
LIBRARY_FOLDERS: Final = (
    "usr/lib64",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "lib64",
    "lib/x86_64-linux-gnu",
    "lib/aarch64-linux-gnu",
    "usr/lib",
    "lib",
    "usr/local/glibc/usr/lib",
    "home/kubernetes/bin/nvidia/lib64",
    "usr/lib/wsl/lib",
)
PROGRAM_FOLDERS: Final = ("usr/bin", "usr/local/bin", "bin", "home/kubernetes/bin/nvidia/bin")

_MOST_LINKS: Final = 40
"""The kernel's limit."""


def target(path: Path, root: Path) -> Path | None:
    """Return the file at a path with links resolved within this root; None if there is none.

    Otherwise an absolute link, such as one to /etc/alternatives, would lead out of the root.
    """
    for _ in range(_MOST_LINKS):
        if not path.is_symlink():
            return path if path.is_file() else None
        link = path.readlink()
        path = root / link.relative_to("/") if link.is_absolute() else path.parent / link
    return None

"""Which folder a pod was registered with, so that a new one of the same name is not taken for it.

A note has the folder's device and inode, which tmpfs gives to no other folder until a reboot, and
behind it why the pod's limits do not hold, as far as the driver knows.
"""

from pathlib import Path


def present(folder: str) -> str:
    """Return the identity of the folder at this path; "" if there is none."""
    try:
        found = Path(folder).lstat()
    except OSError:
        return ""
    return f"{found.st_dev} {found.st_ino}"


def noted(note: str) -> tuple[str, str]:
    """Return the identity and the trouble in a note; empty if there is no note, or a broken one."""
    try:
        folder, _, trouble = Path(note).read_text("utf-8").partition("\n")
    except (OSError, ValueError):
        return "", ""
    return folder, trouble

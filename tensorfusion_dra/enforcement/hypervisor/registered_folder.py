"""Which folder a pod was registered with, so that a new one of the same name is not taken for it.

A folder is known by its device and inode, which tmpfs gives to no other folder until a reboot.
"""

from pathlib import Path


def present(folder: str) -> str:
    """Return the identity of the folder at this path; "" if there is none."""
    try:
        found = Path(folder).lstat()
    except OSError:
        return ""
    return f"{found.st_dev} {found.st_ino}"


def noted(note: str) -> str:
    """Return the identity in a note; "" if there is no note, or an unreadable one."""
    try:
        return Path(note).read_text("ascii")
    except (OSError, ValueError):
        return ""


def is_replaced(note: str, folder: str) -> bool:
    """Return True if the note names another folder than the one that is at the path now."""
    found = noted(note)
    return found != "" and found != present(folder)

"""Forms that the values of some settings have."""

import re
from pathlib import Path
from typing import Final

from tensorfusion_dra.core.errors import InputError

LONGEST_POOL: Final = 253

_SUBDOMAIN: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_XIDS: Final = re.compile(r"([0-9]{1,9}(,[0-9]{1,9})*)?")
_NAMES: Final = re.compile(r"([a-z0-9-]{1,63}(,[a-z0-9-]{1,63})*)?")


def check_names(name: str, value: str) -> None:
    """Check that a value is a list of names.

    Raises:
        InputError: It is not.
    """
    if _NAMES.fullmatch(value) is None:
        raise InputError(f"{name}: found {value!r}, expected names with commas, as rack,fans")


def check_xids(name: str, value: str) -> None:
    """Check that a value is a list of XIDs.

    Raises:
        InputError: It is not.
    """
    if _XIDS.fullmatch(value) is None:
        raise InputError(f"{name}: found {value!r}, expected numbers with commas, as 13,31")


def check_subdomain(name: str, value: str) -> None:
    """Check that a value is a DNS subdomain.

    Raises:
        InputError: It is not.
    """
    if len(value) > LONGEST_POOL or _SUBDOMAIN.fullmatch(value) is None:
        raise InputError(f"{name}: found {value!r}, expected a DNS subdomain in lower case")


def check_path(name: str, value: str, *, optional: bool = False) -> None:
    """Check that a value is an absolute path; an optional one may be empty.

    Raises:
        InputError: It is not.
    """
    if not (optional and not value) and not Path(value).is_absolute():
        raise InputError(f"{name}: found {value!r}, expected an absolute path")

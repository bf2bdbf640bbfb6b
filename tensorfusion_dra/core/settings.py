"""A setting: its default, its text for users, and the values that it may have.

The settings of a process are the fields of one class (`app/shared/setting_sources.py` reads them).
Enforcers declare theirs in a form of their own, from which fields of that class are made.
"""

from collections.abc import Sequence
from dataclasses import field
from typing import Any, Final

PORT: Final = r"(?!6553[6-9]|655[4-9].|65[6-9]..|6[6-9]...|[7-9]....)[0-9]{1,5}"
LISTENING: Final = (
    rf"((\[[0-9a-fA-F:.]+\]|[^\s:\[\]]*):{PORT})?",
    "an address and a port, as :8081 or [::1]:8081, or nothing",
)
"""The form of an address to listen on; without a host it is all addresses."""


def setting(
    default: str | float | int | bool,
    about: str,
    *,
    env: str = "",
    choices: Sequence[str] = (),
    span: tuple[float, float] | None = None,
    form: tuple[str, str] | None = None,
    is_path: bool = False,
) -> Any:
    """Return a field of a settings class, with what setting_sources.check() expects of its value.

    Args:
        about: Text for --help and the pages.
        env: Its environment variable, if it is not TENSORFUSION_DRA_ and the name in capitals.
        choices: The values that it can have; empty for any.
        span: The least and the greatest number.
        form: A regular expression, and words for it.
        is_path: It is an absolute path, or empty if that is the default.
    """
    return field(
        default=default,
        metadata={
            "about": about,
            "env": env,
            "choices": choices,
            "span": span,
            "form": form,
            "is_path": is_path,
        },
    )

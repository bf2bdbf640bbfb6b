"""What servers and networks say, made fit for one line of a log: short, printable, no secrets."""

import re
from collections.abc import Iterable
from typing import Final

from tensorfusion_dra.core import printable

_MAX_TEXT: Final = 300
_HIDDEN: Final = "<hidden>"
_LEAST_SECRET: Final = 8
"""Characters; what is shorter is no token, and would be found in every other word."""
_CREDENTIAL: Final = re.compile(
    r"(?i:\b(bearer|basic)[\s:=\"']+)[^\s\"',;]+|\beyJ[\w-]{8,}\.[\w-]+(\.[\w-]*)?"
)


def one_line(text: object, secrets: Iterable[str] = ()) -> str:
    """The beginning of the text.

    A server or a proxy may echo the request's headers in what it answers.

    Args:
        secrets: Left out wherever they stand, like whatever looks like a credential.
    """
    line = " ".join(str(text).split())
    for secret in secrets:
        if len(secret) >= _LEAST_SECRET:
            line = line.replace(secret, _HIDDEN)
    # Before it is cut: of a token that is cut in two, nothing would be recognised.
    line = _CREDENTIAL.sub(_HIDDEN, line)
    line = printable.one_line(line)
    return line if len(line) <= _MAX_TEXT else f"{line[: _MAX_TEXT - 3]}..."

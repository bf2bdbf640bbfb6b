"""The TLS context that new connections share, made again when one of its files has changed."""

import ssl
from collections.abc import Sequence
from pathlib import Path
from threading import Lock
from typing import Final, NoReturn

from urllib3.util.ssl_ import create_urllib3_context

_PROTOCOLS: Final = ("http/1.1",)
_REPEATED: Final = ("load_verify_locations", "load_cert_chain", "set_alpn_protocols")
"""Methods that urllib3 calls for each connection, although the context has their effect already."""

_State = tuple[tuple[int, int, int] | None, ...]


class Tls:
    """Settings for TLS with one server. Any thread may ask for the context.

    urllib3 loads the certificates into the context for each connection. If two threads do that at a
    time, OpenSSL frees what the other one is using, and the process crashes. Therefore nothing
    changes a context here once it is in use: a changed file makes a new one.
    """

    def __init__(
        self,
        *,
        authority: str | bytes | None,
        authority_file: str | None,
        certificate_file: str | None,
        key_file: str | None,
        verifies: bool,
    ) -> None:
        """Store the arguments; no file is read yet.

        Args:
            authority, authority_file: Certificates that certify the server, in PEM.
            certificate_file, key_file: The client's own; None if it does not need them.
            verifies: False accepts every server.
        """
        self._authority = authority
        self._authority_file = authority_file
        self._certificate_file = certificate_file
        self._key_file = key_file
        self._verifies = verifies
        self._making = Lock()  # guards all below
        self._context: ssl.SSLContext | None = None
        self._state: _State = ()

    def context(self) -> ssl.SSLContext:
        """Return the context for a new connection.

        Raises:
            OSError: A file cannot be read, or has no certificate or key.
        """
        with self._making:
            state = _state((self._authority_file, self._certificate_file, self._key_file))
            if self._context is None or state != self._state:
                self._context, self._state = self._new(), state
            return self._context

    def _new(self) -> ssl.SSLContext:
        wanted = ssl.CERT_REQUIRED if self._verifies else ssl.CERT_NONE
        context = create_urllib3_context(cert_reqs=wanted)
        # From Python 3.13 on, certificates must follow RFC 5280 strictly by default. Cluster CAs
        # need not: every Go client accepts one without key usage, and so does this one. Chain,
        # names and dates are still verified.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if self._authority_file or self._authority:
            context.load_verify_locations(cafile=self._authority_file, cadata=self._authority)
        if self._certificate_file:
            context.load_cert_chain(self._certificate_file, self._key_file, password=_refuse)
        context.set_alpn_protocols(_PROTOCOLS)
        for repeated in _REPEATED:
            setattr(context, repeated, _ignored)
        return context


def _state(files: Sequence[str | None]) -> _State:
    """Return what differs after a file was changed or replaced."""
    return tuple(_stamp(Path(file)) if file else None for file in files)


def _stamp(file: Path) -> tuple[int, int, int]:
    found = file.stat()
    return found.st_mtime_ns, found.st_size, found.st_ino


def _refuse() -> NoReturn:
    # Without a password function, OpenSSL asks for one at the terminal.
    raise ValueError("client key: found one with a password, expected one without")


def _ignored(*_arguments: object) -> None:
    """Leave the context as it is."""

"""The server's certificate and key, read again whenever their files change."""

import ssl
from pathlib import Path
from threading import Lock
from typing import Final

import structlog

from tensorfusion_dra.core.errors import InputError

log = structlog.get_logger()

Signature = tuple[tuple[int, int, int, int], ...]


class Certificates:
    """Gives each new connection what the files say; connections that are open keep theirs.

    A Secret's files are changed by a switch of a link, cert-manager's and others' one by one: what
    does not go together is left alone, and looked at again with the next connection.
    """

    def __init__(self, certificate: Path, key: Path) -> None:
        """Reads the files.

        Raises:
            InputError: They cannot be used.
        """
        self._files: Final = (certificate, key)
        self._lock: Final = Lock()  # guards all below
        self._signature, self._context = self._read()
        self._complained_of: Signature | None = None

    def context(self) -> ssl.SSLContext:
        """For a connection that begins now."""
        with self._lock:
            try:
                if self._stamp() != self._signature:
                    self._signature, self._context = self._read()
                    self._complained_of = None
                    log.info("certificate_read", file=str(self._files[0]))
            except InputError as error:
                self._complain(str(error))
            return self._context

    def _complain(self, text: str) -> None:
        """Once for each state of the files."""
        try:
            found: Signature = self._stamp()
        except InputError:
            found = ()
        if found != self._complained_of:
            self._complained_of = found
            log.warning("certificate_kept", error=text)

    def _read(self) -> tuple[Signature, ssl.SSLContext]:
        # The stamp first: files that change meanwhile are read once more.
        signature = self._stamp()
        certificate, key = self._files
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        try:
            # Without the password, OpenSSL would ask whoever sits at the terminal.
            context.load_cert_chain(certificate, key, password="")
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            raise InputError(f"{certificate}, {key}: {error}") from error
        return signature, context

    def _stamp(self) -> Signature:
        try:
            found = [path.stat() for path in self._files]
        except OSError as error:
            raise InputError(f"{error.filename}: {error.strerror}") from error
        return tuple((s.st_dev, s.st_ino, s.st_mtime_ns, s.st_size) for s in found)

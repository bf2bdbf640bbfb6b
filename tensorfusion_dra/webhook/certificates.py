"""The server's certificate and key, and its clients' CA, reloaded when their files change."""

import ssl
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from typing import Final

import structlog

from tensorfusion_dra.core.errors import InputError
from tensorfusion_dra.runtime.loops import LogThrottle

log = structlog.get_logger()

_ANY_TIME: Final = 0x200000
"""OpenSSL's X509_V_FLAG_NO_CHECK_TIME, which Python's ssl has no name for."""

Signature = tuple[tuple[int, int, int, int], ...]


class Certificates:
    """Source of the TLS context for new connections; open connections keep theirs.

    The files of a Secret change together, by the switch of a symlink. Other tools, such as
    cert-manager's, replace them one by one. While certificate and key do not match, the previous
    pair stays in use, and the files are read again at the next connection.
    """

    def __init__(self, certificate: Path, key: Path, client_ca: Path | None = None) -> None:
        """Read the files.

        Args:
            client_ca: CA certificates. Clients have to show a certificate that one of them signed;
                without the file, every client is accepted.

        Raises:
            InputError: They cannot be read, or do not belong together.
        """
        self._files: Final = (certificate, key, *((client_ca,) if client_ca else ()))
        self._lock: Final = Lock()  # guards all below
        self._signature, self._context = self._read()
        self._expires_at = _end_of_validity(self._context, certificate)
        self._log_throttle: Final = LogThrottle()

    def context(self) -> ssl.SSLContext:
        """Return the TLS context for a new connection, reloaded if the files have changed."""
        with self._lock:
            try:
                if self._stamp() != self._signature:
                    self._signature, self._context = self._read()
                    self._expires_at = _end_of_validity(self._context, self._files[0])
                    self._log_throttle.over()
                    log.info("certificate_reloaded", file=str(self._files[0]))
            except InputError as error:
                if self._log_throttle.is_new(str(error)):
                    log.warning("certificate_reload_failed", error=str(error))
            return self._context

    def expires_at(self) -> datetime | None:
        """Return when the certificate in use expires; None if that is unknown."""
        self.context()
        with self._lock:
            return self._expires_at

    def _read(self) -> tuple[Signature, ssl.SSLContext]:
        # Stat the files before reading: if they change in between, the next call reads them again.
        signature = self._stamp()
        certificate, key, *client_ca = self._files
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        try:
            # Without a password argument, OpenSSL would prompt for one on the terminal.
            context.load_cert_chain(certificate, key, password="")
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            raise InputError(f"{certificate}, {key}: {error}") from error
        for file in client_ca:
            context.verify_mode = ssl.CERT_REQUIRED
            try:
                context.load_verify_locations(file)
            except OSError as error:
                raise InputError(f"{file}: {error}, expected CA certificates in PEM") from error
        return signature, context

    def _stamp(self) -> Signature:
        try:
            found = [path.stat() for path in self._files]
        except OSError as error:
            raise InputError(f"{error.filename}: {error.strerror}") from error
        return tuple((s.st_dev, s.st_ino, s.st_mtime_ns, s.st_size) for s in found)


def _end_of_validity(server: ssl.SSLContext, certificate: Path) -> datetime | None:
    """Return when the certificate of a server's context expires.

    Python's ssl reads a certificate only for the other side of a connection. So this connects to
    the server in memory, as a client that trusts this one certificate at any time.
    """
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags = ssl.VerifyFlags(ssl.VERIFY_X509_PARTIAL_CHAIN | _ANY_TIME)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    try:
        client.load_verify_locations(certificate)
        asking = client.wrap_bio(to_client, to_server)
        answering = server.wrap_bio(to_server, to_client, server_side=True)
        for side in (asking, answering, asking):
            with suppress(ssl.SSLWantReadError):
                side.do_handshake()
        found = ssl.cert_time_to_seconds(str((asking.getpeercert() or {})["notAfter"]))
    except (OSError, ValueError, KeyError):
        return None
    return datetime.fromtimestamp(found, UTC)

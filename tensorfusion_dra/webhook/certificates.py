"""The server's certificate and key, and its clients' CA, reloaded when their files change."""

import ssl
from datetime import datetime
from pathlib import Path
from threading import Lock
from typing import Final

import structlog

from tensorfusion_dra.core.errors import InputError
from tensorfusion_dra.webhook import certificate_dates

log = structlog.get_logger()

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
        self._expires_at = self._end_of_validity()
        self._logged_for: Signature | None = None

    def context(self) -> ssl.SSLContext:
        """Return the TLS context for a new connection, reloaded if the files have changed."""
        with self._lock:
            try:
                if self._stamp() != self._signature:
                    self._signature, self._context = self._read()
                    self._expires_at = self._end_of_validity()
                    self._logged_for = None
                    log.info("certificate_reloaded", file=str(self._files[0]))
            except InputError as error:
                self._log_failure(str(error))
            return self._context

    def expires_at(self) -> datetime | None:
        """Return when the certificate in use expires; None if its file does not say."""
        self.context()
        with self._lock:
            return self._expires_at

    def _end_of_validity(self) -> datetime | None:
        """Return the end of the first certificate in the file, which is the server's own."""
        try:
            text = self._files[0].read_text(encoding="ascii", errors="replace")
            first = text[text.index(ssl.PEM_HEADER) :].partition(ssl.PEM_FOOTER)
            return certificate_dates.not_after(ssl.PEM_cert_to_DER_cert("".join(first[:2])))
        except (OSError, ValueError):
            return None

    def _log_failure(self, text: str) -> None:
        """Log that the files cannot be used, once for each state of the files."""
        try:
            found: Signature = self._stamp()
        except InputError:
            found = ()
        if found != self._logged_for:
            self._logged_for = found
            log.warning("certificate_reload_failed", error=text)

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
                text = f"{file}: {error}, expected CA certificates in PEM"
                raise InputError(text) from error
        return signature, context

    def _stamp(self) -> Signature:
        try:
            found = [path.stat() for path in self._files]
        except OSError as error:
            raise InputError(f"{error.filename}: {error.strerror}") from error
        return tuple((s.st_dev, s.st_ino, s.st_mtime_ns, s.st_size) for s in found)

"""The certificate is reloaded when its files change, and its end is known."""

import socket
import ssl
import subprocess
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path

import pytest
import trustme

from tensorfusion_dra.core.errors import InputError
from tensorfusion_dra.runtime.http_server import Request, Response
from tensorfusion_dra.webhook.certificates import Certificates
from tensorfusion_dra.webhook.server import ReviewServer
from tests.support.https import HOST, Files, connection, posted, serving
from tests.support.waiting import PATIENCE_SECONDS


def ok(_: Request) -> Response:
    return Response(status=HTTPStatus.OK, body=b"ok")


def presented(port: int, files: Files) -> bytes:
    """Return the certificate that a new connection receives."""
    with (
        socket.create_connection((HOST, port), timeout=PATIENCE_SECONDS) as plain,
        files.trusting().wrap_socket(plain, server_hostname=HOST) as secured,
    ):
        found = secured.getpeercert(binary_form=True)
        assert found is not None
        return found


def leaf(file: Path) -> bytes:
    """Return the first certificate of a PEM file, in DER."""
    text = file.read_text()
    end = "-----END CERTIFICATE-----"
    return ssl.PEM_cert_to_DER_cert(text[: text.index(end) + len(end)])


def test_renewed_certificate_is_for_new_connections_and_old_ones_go_on(files: Files) -> None:
    with serving(ok, files) as server, closing(connection(server.port, files.trusting())) as old:
        before = presented(server.port, files)
        posted(old, "/", b"")

        files.renew()

        assert presented(server.port, files) == leaf(files.certificate) != before
        assert posted(old, "/", b"") == (200, b"ok")


def test_certificate_without_its_new_key_is_not_used_yet(files: Files) -> None:
    issued = files.authority.issue_cert(HOST)
    with serving(ok, files) as server:
        before = presented(server.port, files)

        files.certificate.write_bytes(issued.cert_chain_pems[0].bytes())
        assert presented(server.port, files) == before

        files.key.write_bytes(issued.private_key_pem.bytes())
        assert presented(server.port, files) == leaf(files.certificate) != before


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_text("no PEM")])
def test_unreadable_files_keep_the_previous_certificate(
    files: Files, damage: Callable[[Path], object]
) -> None:
    with serving(ok, files) as server:
        before = presented(server.port, files)

        damage(files.certificate)

        assert presented(server.port, files) == before


def test_symlink_switch_of_a_secret_is_detected(files: Files, tmp_path: Path) -> None:
    for version in ("1", "2"):
        (folder := tmp_path / f"..version_{version}").mkdir()
        files.renew()
        files.certificate.rename(folder / "tls.crt")
        files.key.rename(folder / "tls.key")
    (tmp_path / "..data").symlink_to("..version_1")
    for path in (files.certificate, files.key):
        path.symlink_to(f"..data/{path.name}")

    with serving(ok, files) as server:
        before = presented(server.port, files)
        (tmp_path / "..data_tmp").symlink_to("..version_2")
        (tmp_path / "..data_tmp").replace(tmp_path / "..data")

        assert presented(server.port, files) == leaf(files.certificate) != before


ENCRYPTED = (
    "-----BEGIN ENCRYPTED PRIVATE KEY-----\n"
    "MIGjMF8GCSqGSIb3DQEFDTBSMDEGCSqGSIb3DQEFDDAkBBBkAAAAAAAAAAAAAAAA\n"
    "-----END ENCRYPTED PRIVATE KEY-----\n"
)


@pytest.mark.parametrize(
    ("file", "text", "error"),
    [
        ("certificate", None, r"tls\.crt: No such file or directory"),
        ("key", None, r"tls\.key: No such file or directory"),
        ("key", trustme.CA().issue_cert(HOST).private_key_pem.bytes(), "KEY_VALUES_MISMATCH"),
        ("key", ENCRYPTED.encode(), r"tls\.key: "),  # without a prompt for its password
        ("client_ca", None, r"clients\.crt: "),
        ("client_ca", b"", r"clients\.crt: "),
        ("client_ca", b"no certificate", r"clients\.crt: "),
    ],
)
def test_file_that_cannot_be_used_is_an_input_error(
    files: Files, tmp_path: Path, file: str, text: bytes | None, error: str
) -> None:
    files.client_ca = tmp_path / "clients.crt"
    files.authority.cert_pem.write_to_path(str(files.client_ca))
    path: Path = getattr(files, file)
    path.unlink()
    if text is not None:
        path.write_bytes(text)

    with pytest.raises(InputError, match=error):
        Certificates(files.certificate, files.key, files.client_ca)


def status(server: ReviewServer, files: Files, authority: trustme.CA | None) -> int:
    """Return the status for a client with a certificate of this authority; 0 if it is cut off."""
    context = files.trusting()
    if authority is not None:
        authority.issue_cert("api-server").configure_cert(context)
    with closing(connection(server.port, context)) as client:
        try:
            return posted(client, "/", b"")[0]
        except OSError:
            return 0


def test_only_clients_with_a_certificate_of_the_client_ca_are_served(
    files: Files, tmp_path: Path
) -> None:
    first, second = trustme.CA(), trustme.CA()
    files.client_ca = tmp_path / "clients.crt"
    first.cert_pem.write_to_path(str(files.client_ca))

    with serving(ok, files) as server:
        every = (first, second, files.authority, None)
        assert [status(server, files, each) for each in every] == [200, 0, 0, 0]
        second.cert_pem.write_to_path(str(files.client_ca))
        assert [status(server, files, each) for each in (first, second)] == [0, 200]


def renew(files: Files, not_after: datetime) -> None:
    """Replace certificate and key by new ones with this end."""
    issued = files.authority.issue_cert(
        "localhost", not_before=datetime(2000, 1, 1, tzinfo=UTC), not_after=not_after
    )
    issued.private_key_pem.write_to_path(str(files.key))
    files.certificate.write_bytes(b"".join(pem.bytes() for pem in issued.cert_chain_pems))


@pytest.mark.parametrize(
    "not_after",
    [
        datetime(2001, 2, 28, 23, 59, 58, tzinfo=UTC),  # long ago
        datetime(2049, 12, 31, 23, 59, 59, tzinfo=UTC),  # the last UTCTime
        datetime(2050, 1, 1, tzinfo=UTC),  # the first GeneralizedTime
        datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC),  # no end (RFC 5280, 4.1.2.5)
    ],
)
@pytest.mark.parametrize("needs_client_certificate", [False, True])
def test_end_of_the_certificate_in_use_follows_the_files(
    files: Files, tmp_path: Path, not_after: datetime, needs_client_certificate: bool
) -> None:
    client_ca = tmp_path / "ca.crt"
    files.authority.cert_pem.write_to_path(str(client_ca))
    used = client_ca if needs_client_certificate else None
    certificates = Certificates(files.certificate, files.key, used)
    assert certificates.expires_at() not in (None, not_after)

    renew(files, not_after)

    assert certificates.expires_at() == not_after


@pytest.mark.process
def test_end_of_a_certificate_that_signed_itself(tmp_path: Path) -> None:
    files = [tmp_path / "tls.crt", tmp_path / "tls.key"]
    names = ("-subj", "/CN=webhook", "-days", "30", "-out", str(files[0]), "-keyout", str(files[1]))
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-noenc")
    subprocess.run(["openssl", "req", "-x509", *key, *names], check=True, capture_output=True)

    shown = subprocess.check_output(["openssl", "x509", "-noout", "-enddate", "-in", files[0]])
    seconds = ssl.cert_time_to_seconds(shown.decode().strip().removeprefix("notAfter="))

    assert Certificates(*files).expires_at() == datetime.fromtimestamp(seconds, UTC)

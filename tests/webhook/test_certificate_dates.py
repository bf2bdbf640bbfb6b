"""The date at which the certificate in use expires."""

import ssl
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tensorfusion_dra.webhook.certificates import Certificates
from tests.support.https import Files

YEAR = timedelta(days=365)


def renew(files: Files, not_after: datetime) -> None:
    """Replace certificate and key by new ones with this end."""
    issued = files.authority.issue_cert(
        "localhost", not_before=datetime(2000, 1, 1, tzinfo=UTC), not_after=not_after
    )
    issued.private_key_pem.write_to_path(str(files.key))
    files.certificate.write_bytes(b"".join(pem.bytes() for pem in issued.cert_chain_pems))


@pytest.mark.parametrize("needs_client_certificate", [False, True])
@pytest.mark.parametrize(
    "not_after",
    [
        datetime(2001, 2, 28, 23, 59, 58, tzinfo=UTC),  # long ago
        datetime(2049, 12, 31, 23, 59, 59, tzinfo=UTC),  # the last UTCTime
        datetime(2050, 1, 1, tzinfo=UTC),  # the first GeneralizedTime
        datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC),  # no end (RFC 5280, 4.1.2.5)
    ],
)
def test_end_of_a_certificate(
    tmp_path: Path, not_after: datetime, needs_client_certificate: bool
) -> None:
    files = Files(tmp_path)
    renew(files, not_after)
    client_ca = tmp_path / "ca.crt"
    files.authority.cert_pem.write_to_path(str(client_ca))
    used = client_ca if needs_client_certificate else None

    assert Certificates(files.certificate, files.key, used).expires_at() == not_after


def test_end_of_a_certificate_that_signed_itself(tmp_path: Path) -> None:
    files = [tmp_path / "tls.crt", tmp_path / "tls.key"]
    names = ("-subj", "/CN=webhook", "-days", "30", "-out", str(files[0]), "-keyout", str(files[1]))
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-noenc")
    subprocess.run(["openssl", "req", "-x509", *key, *names], check=True, capture_output=True)

    shown = subprocess.check_output(["openssl", "x509", "-noout", "-enddate", "-in", files[0]])
    seconds = ssl.cert_time_to_seconds(shown.decode().strip().removeprefix("notAfter="))

    assert Certificates(*files).expires_at() == datetime.fromtimestamp(seconds, UTC)


def test_end_of_the_certificate_in_use_follows_the_files(tmp_path: Path) -> None:
    files = Files(tmp_path)
    certificates = Certificates(files.certificate, files.key)
    before = certificates.expires_at()
    soon = datetime.now(UTC).replace(microsecond=0) + YEAR
    renew(files, soon)

    assert before is not None
    assert before != soon
    assert certificates.expires_at() == soon


def test_while_new_files_do_not_match_the_end_is_that_of_the_old_certificate(
    tmp_path: Path,
) -> None:
    files = Files(tmp_path)
    certificates = Certificates(files.certificate, files.key)
    before = certificates.expires_at()

    other = files.authority.issue_cert("localhost", not_after=datetime.now(UTC) + YEAR)
    other.cert_chain_pems[0].write_to_path(str(files.certificate))

    assert certificates.expires_at() == before

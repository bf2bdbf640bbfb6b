"""The date at which the certificate in use expires."""

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme

from tensorfusion_dra.webhook import certificate_dates
from tensorfusion_dra.webhook.certificates import Certificates
from tests.support.https import Files

YEAR = timedelta(days=365)


def certificate(not_after: datetime) -> bytes:
    """Return a certificate with this end, in DER."""
    issued = trustme.CA().issue_cert(
        "localhost", not_before=datetime(2000, 1, 1, tzinfo=UTC), not_after=not_after
    )
    return ssl.PEM_cert_to_DER_cert(issued.cert_chain_pems[0].bytes().decode())


@pytest.mark.parametrize(
    "not_after",
    [
        datetime(2027, 2, 28, 23, 59, 58, tzinfo=UTC),
        datetime(2049, 12, 31, 23, 59, 59, tzinfo=UTC),  # the last UTCTime
        datetime(2050, 1, 1, tzinfo=UTC),  # the first GeneralizedTime
        datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC),  # no end (RFC 5280, 4.1.2.5)
    ],
)
def test_end_of_a_certificate(not_after: datetime) -> None:
    assert certificate_dates.not_after(certificate(not_after)) == not_after


def test_utc_time_with_a_year_above_49_is_of_the_last_century() -> None:
    der = certificate(datetime(2027, 2, 28, tzinfo=UTC))
    past = der.replace(b"270228000000Z", b"990228000000Z")

    assert certificate_dates.not_after(past) == datetime(1999, 2, 28, tzinfo=UTC)


def test_cut_or_changed_certificates_have_no_end_or_another_one() -> None:
    der = certificate(datetime(2027, 2, 28, tzinfo=UTC))

    ends = [certificate_dates.not_after(der[:length]) for length in range(len(der))]
    for at in range(200):
        certificate_dates.not_after(der[:at] + bytes([der[at] ^ 0xFF]) + der[at + 1 :])

    assert set(ends) == {None}


@pytest.mark.parametrize("der", [b"", b"\x30", b"\x30\x84\xff\xff\xff\xff", b"text" * 100])
def test_other_bytes_have_no_end(der: bytes) -> None:
    assert certificate_dates.not_after(der) is None


def test_end_of_the_certificate_in_use_follows_the_files(tmp_path: Path) -> None:
    files = Files(tmp_path)
    certificates = Certificates(files.certificate, files.key)
    before = certificates.expires_at()
    soon = datetime.now(UTC).replace(microsecond=0) + YEAR
    issued = files.authority.issue_cert("localhost", not_after=soon)
    issued.private_key_pem.write_to_path(str(files.key))
    issued.cert_chain_pems[0].write_to_path(str(files.certificate))

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

"""Records as stored on disk: a JSON text and a checksum that reveals damage to it."""

import hashlib
import json
from dataclasses import dataclass

from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.kubernetes.quantity import QuantityError


class DamageError(Exception):
    """Stored data differs from what was written; caught where the ledger is repaired."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A claim's record.

    Attributes:
        text: JSON.
        checksum: SHA-256 over UID and text, in hex; the database column is named ``seal``.
    """

    uid: str
    text: str
    checksum: str


def of_claim(claim: PreparedClaim) -> Record:
    """Return the record of a claim."""
    return checksummed(claim.ref.uid, json.dumps(claim.as_json()))


def checksummed(uid: str, text: str) -> Record:
    """Return the record of this text, with its checksum."""
    return Record(uid=uid, text=text, checksum=_checksum(uid.encode(), text.encode()))


def read(uid: bytes, text: bytes | None, checksum: bytes | None) -> Record:
    """Return the record after comparing it with its checksum.

    Args:
        checksum: None for a record of version 1, which has none; then the text is parsed instead.

    Raises:
        DamageError: The record is missing or differs from what was written.
    """
    if text is None:
        raise DamageError(f"record of {uid!r}: found none")
    expected = _checksum(uid, text)
    if checksum is not None and checksum != expected.encode():
        raise DamageError(f"record of {uid!r}: found a text that does not match its checksum")
    try:
        found = Record(uid=uid.decode(), text=text.decode(), checksum=expected)
    except UnicodeDecodeError as error:
        raise DamageError(f"record of {uid!r}: {error}") from error
    if checksum is None:
        claim(found)
    return found


def claim(record: Record) -> PreparedClaim:
    """Return the claim in a record.

    Raises:
        DamageError: The text is not a claim, or has another UID.
    """
    try:
        found = PreparedClaim.from_json(json.loads(record.text))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, QuantityError) as e:
        raise DamageError(f"record of {record.uid!r}: {record.text[:80]!r}: {e!r}") from e
    if found.ref.uid != record.uid:
        raise DamageError(
            f"record of {record.uid!r}: found UID {found.ref.uid!r}, expected the same one"
        )
    return found


def _checksum(uid: bytes, text: bytes) -> str:
    return hashlib.sha256(b"%b\n%b" % (uid, text)).hexdigest()

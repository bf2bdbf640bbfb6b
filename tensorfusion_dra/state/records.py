"""Records as they lie on the disk: a text, and the seal by which damage to it is noticed."""

import hashlib
import json
from dataclasses import dataclass

from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.kubernetes.quantity import QuantityError


class DamageError(Exception):
    """What was read is not what was written; caught where the ledger is put right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A claim's record.

    Attributes:
        text: JSON.
        seal: Over UID and text.
    """

    uid: str
    text: str
    checksum: str


def of_claim(claim: PreparedClaim) -> Record:
    """The record of a claim."""
    return checksummed(claim.ref.uid, json.dumps(claim.as_json()))


def checksummed(uid: str, text: str) -> Record:
    """The record with the seal that belongs to it."""
    return Record(uid=uid, text=text, checksum=_checksum(uid.encode(), text.encode()))


def read(uid: bytes, text: bytes | None, checksum: bytes | None) -> Record:
    """The record that was written.

    Args:
        seal: None for a record of version 1, which had none; only what it says vouches for it.

    Raises:
        DamageError: It is not what was written.
    """
    if text is None:
        raise DamageError(f"record of {uid!r}: found none")
    expected = _checksum(uid, text)
    if checksum is not None and checksum != expected.encode():
        raise DamageError(f"record of {uid!r}: found another text than was written")
    try:
        found = Record(uid=uid.decode(), text=text.decode(), checksum=expected)
    except UnicodeDecodeError as error:
        raise DamageError(f"record of {uid!r}: {error}") from error
    if checksum is None:
        claim(found)
    return found


def claim(record: Record) -> PreparedClaim:
    """The claim in a record.

    Raises:
        DamageError: There is none in it, or another one.
    """
    try:
        found = PreparedClaim.from_json(json.loads(record.text))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, QuantityError) as e:
        raise DamageError(f"record of {record.uid!r}: {record.text[:80]!r}: {e!r}") from e
    if found.ref.uid != record.uid:
        raise DamageError(f"record of {record.uid!r}: found the UID {found.ref.uid!r} in it")
    return found


def _checksum(uid: bytes, text: bytes) -> str:
    return hashlib.sha256(b"%b\n%b" % (uid, text)).hexdigest()

"""Records of prepared claims as files: `<data>/claims/<claim UID>.json`, and how they are read.

A file is one JSON object:

    {"format": 1, "checksum": "<SHA-256 in hex>", "claim": {...}}

The checksum is that of format and claim as canonical JSON (keys sorted, no spaces). This envelope
never changes, so every release can tell a newer format from damage. From format 1 on every release
reads the formats of the releases before it, and refuses newer ones.

A record is first `<claim UID>.new`, which counts instead of the `.json` beside it, and becomes the
`.json` once the disk has it (claim_store.py). A `.new` that cannot be read was cut off by a power
cut: nobody was told of it, so it does not count. A `.json` that cannot be read is damaged.
"""

import errno
import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tensorfusion_dra.core.claims import claim as claim_rules
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.errors import FatalError
from tensorfusion_dra.core.kubernetes.quantity import QuantityError

READERS: Final[dict[int, Callable[[Mapping[str, Any]], PreparedClaim]]] = {
    1: PreparedClaim.from_json
}
"""Reader of the claim in each format; the highest is the one that is written."""
WRITTEN: Final = ".json"
NEW: Final = ".new"
_BROKEN: Final = frozenset({errno.EIO, errno.EBADMSG, errno.EUCLEAN, errno.EISDIR, errno.ELOOP})
"""Errors of reading a file that mean damage, and are no matter of permissions or load."""


class DamageError(Exception):
    """A file is no record, or differs from what was written."""


@dataclass(slots=True, kw_only=True)
class FoundRecords:
    """The records in a folder.

    Attributes:
        claims: By UID; their limits are to be computed (core/claims/lending.py).
        unflushed: UIDs of claims whose record is a `.new`.
        damaged: Why the record cannot be read, by the UID of the claim.
        partial: Files of `.new` that cannot be read.
    """

    claims: dict[str, PreparedClaim] = field(default_factory=dict)
    unflushed: set[str] = field(default_factory=set)
    damaged: dict[str, str] = field(default_factory=dict)
    partial: list[Path] = field(default_factory=list)


def content(claim: PreparedClaim) -> bytes:
    """Return the content of the claim's file."""
    number, written = max(READERS), claim.as_json()
    document = {"format": number, "checksum": checksum(number, written), "claim": written}
    return f"{json.dumps(document)}\n".encode()


def checksum(number: object, claim: object) -> str:
    """Return the checksum of a claim in this format."""
    text = json.dumps([number, claim], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def read(path: Path) -> PreparedClaim:
    """Return the claim in a file.

    Raises:
        DamageError: It is no record of this claim, or differs from what was written.
        FatalError: A newer release wrote it.
        OSError: It cannot be read for another reason.
    """
    try:
        document = json.loads(path.read_bytes())
        number, written = document["format"], document["claim"]
        if document["checksum"] != checksum(number, written):
            raise DamageError("found another content than its checksum is of")
        if number not in READERS:
            raise FatalError(
                f"claim record {path}: found format {number}, expected at most {max(READERS)}: a "
                "newer release of this driver wrote the file, so it is left unchanged"
            )
        claim = READERS[number](written)
        if claim.ref.uid != path.stem:
            raise DamageError(f"found the record of claim {claim.ref.uid}")
    except OSError as error:
        if error.errno not in _BROKEN:
            raise
        raise DamageError(str(error.strerror)) from error
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        RecursionError,
        QuantityError,
    ) as error:
        raise DamageError(f"found no record: {error!r}"[:200]) from error
    return claim


def read_folder(folder: Path) -> FoundRecords:
    """Return what is in the folder, sorted by UID; call it while nobody changes it.

    Raises:
        FatalError: A newer release wrote one of the files.
        OSError: The folder or a file cannot be read; a damaged file is no error.
    """
    found = FoundRecords()
    files = sorted(os.listdir(folder)) if folder.exists() else []  # noqa: PTH208 - many names
    # A claim's .new comes after its .json.
    for path in (folder / name for name in files if name.endswith((WRITTEN, NEW))):
        uid, is_new = path.stem, path.suffix == NEW
        if not claim_rules.is_uid(uid):
            continue
        try:
            found.claims[uid] = read(path)
        except DamageError as error:
            if is_new:
                found.partial.append(path)
            else:
                found.damaged[uid] = str(error)
            continue
        if is_new:
            found.unflushed.add(uid)
            found.damaged.pop(uid, None)
    return found

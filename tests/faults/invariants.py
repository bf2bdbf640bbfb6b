"""What holds on a node at every moment at which its plugin serves."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Protocol

from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims import cdi, limits_document
from tensorfusion_dra.core.claims.enforcers.tensor_fusion import TensorFusion
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.kubernetes.quantity import GIB, NANO
from tensorfusion_dra.state.ledger import Ledger


class Disk(Protocol):
    """Where a node keeps what follows from its records."""

    @property
    def data_folder(self) -> Path:
        """The ledger's."""
        ...

    @property
    def cdi_folder(self) -> Path:
        """Of the specs."""
        ...

    @property
    def limits_folder(self) -> Path:
        """Of the limits documents."""
        ...

    @property
    def tensor_fusion_root(self) -> Path:
        """The hypervisor's, as the specs name it."""
        ...


_VRAM: Final = 80 * GIB * NANO
_TFLOPS: Final = 312 * NANO


def records(data_folder: Path) -> dict[str, PreparedClaim]:
    """What the ledger holds, by UID."""
    ledger = Ledger(data_folder)
    try:
        return {claim.ref.uid: claim for claim in ledger.claims()}
    finally:
        ledger.close()


def violations(node: Disk) -> list[str]:
    """What does not hold of records and files; empty if all does."""
    return list(_violations(node, records(node.data_folder)))


def _violations(node: Disk, held: Mapping[str, PreparedClaim]) -> Iterator[str]:
    enforcer = TensorFusion(root=str(node.tensor_fusion_root))
    specs = {uid: cdi.spec(claim, enforcer) for uid, claim in held.items()}
    yield from _differences(
        node.cdi_folder,
        {
            f"{names.CDI_FILE_PREFIX}{uid}.json": _as_file(spec)
            for uid, spec in specs.items()
            if spec is not None
        },
    )
    limits = {uid: limits_document.document(claim) for uid, claim in held.items()}
    yield from _differences(
        node.limits_folder,
        {f"{uid}.json": _as_file(told) for uid, told in limits.items() if told is not None},
    )
    yield from over_capacity(held)


def _differences(folder: Path, expected: Mapping[str, bytes]) -> Iterator[str]:
    """Every file of the folder, hidden ones too, is one of these with this very content."""
    found = {path.name: path.read_bytes() for path in folder.iterdir()} if folder.exists() else {}
    for name in sorted(found.keys() | expected.keys()):
        if name not in expected:
            yield f"{folder.name}: left over: {name}"
        elif name not in found:
            yield f"{folder.name}: missing: {name}"
        elif found[name] != expected[name]:
            yield f"{folder.name}: not what follows from the record: {name}"


def over_capacity(held: Mapping[str, PreparedClaim]) -> Iterator[str]:
    """Cards of 312 TFLOPS and 80Gi that are given out more than once, or lent beyond their size."""
    vram: Counter[str] = Counter()
    tflops: Counter[str] = Counter()
    lent: Counter[str] = Counter()
    for claim in held.values():
        for share in claim.shares:
            vram[share.device] += share.consumed["vram"].nano
            tflops[share.device] += share.consumed["tflops"].nano
            lent[share.device] += share.limit.vram_bytes * NANO if share.limit else 0
    for what, taken, total in (("vram", vram, _VRAM), ("tflops", tflops, _TFLOPS)):
        yield from (f"{card}: {what} {n} of {total}" for card, n in taken.items() if n > total)
    yield from (f"{card}: limits of {n} over {_VRAM}" for card, n in lent.items() if n > _VRAM)


def _as_file(document: Mapping[str, Any]) -> bytes:
    return (json.dumps(document, indent=2) + "\n").encode()


def leftovers(node: Disk) -> list[str]:
    """What is there of claims after all of them were unprepared."""
    shm = node.tensor_fusion_root / "shm" / "default"
    left = [*node.cdi_folder.iterdir(), *(shm.iterdir() if shm.exists() else ())]
    if node.limits_folder.exists():
        left += node.limits_folder.iterdir()
    return [str(path) for path in left] + list(records(node.data_folder))

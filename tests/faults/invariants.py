"""Invariants of a node at every moment at which its plugin serves."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Protocol

from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims import cdi, device_metadata, lending, prepared
from tensorfusion_dra.core.claims.lending import LendingRules
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.kubernetes.quantity import GIB, NANO
from tensorfusion_dra.enforcers.tensor_fusion.enforcer import TensorFusion
from tensorfusion_dra.state import claim_store


class Disk(Protocol):
    """Folders of a node with its records and the files derived from them."""

    @property
    def data_folder(self) -> Path:
        """Folder of the records."""
        ...

    @property
    def cdi_folder(self) -> Path:
        """Folder of the CDI specs."""
        ...

    @property
    def limits_folder(self) -> Path:
        """Folder of the limits documents."""
        ...

    @property
    def metadata_folder(self) -> Path:
        """Folder of the files with devices' metadata."""
        ...

    @property
    def tensor_fusion_root(self) -> Path:
        """Folder of the hypervisor, as in the specs."""
        ...


_VRAM: Final = 80 * GIB * NANO
_TFLOPS: Final = 312 * NANO


def records(data_folder: Path) -> dict[str, PreparedClaim]:
    """Return the recorded claims by UID."""
    found = claim_store.read(data_folder)
    assert found.damaged == {}
    claims = lending.divided(list(found.claims.values()), LendingRules())
    return {claim.ref.uid: claim for claim in claims}


def violations(node: Disk) -> list[str]:
    """Return the violated invariants of records and files; empty if there are none."""
    return list(_violations(node, records(node.data_folder)))


def _violations(node: Disk, held: Mapping[str, PreparedClaim]) -> Iterator[str]:
    enforcer = TensorFusion(root=str(node.tensor_fusion_root))
    folder = str(node.metadata_folder)
    specs = {uid: cdi.spec(claim, enforcer, metadata_folder=folder) for uid, claim in held.items()}
    yield from _differences(
        node.cdi_folder,
        {f"{names.CDI_FILE_PREFIX}{uid}.json": _as_file(spec) for uid, spec in specs.items()},
    )
    limits = {uid: prepared.limits_document(claim) for uid, claim in held.items()}
    yield from _differences(
        node.limits_folder,
        {f"{uid}.json": _as_file(found) for uid, found in limits.items()},
    )
    described = (
        device_metadata.documents(claim, claim.metadata)
        for claim in held.values()
        if claim.metadata
    )
    yield from _differences(
        node.metadata_folder,
        {
            f"{name}.json": b"".join(map(_as_file, found))
            for documents in described
            for name, found in documents.items()
        },
    )
    yield from over_capacity(held)


def _differences(folder: Path, expected: Mapping[str, bytes]) -> Iterator[str]:
    """Yield the differences between a folder, with hidden files, and its expected content."""
    found = {path.name: path.read_bytes() for path in folder.iterdir()} if folder.exists() else {}
    for name in sorted(found.keys() | expected.keys()):
        if name not in expected:
            yield f"{folder.name}: left over: {name}"
        elif name not in found:
            yield f"{folder.name}: missing: {name}"
        elif found[name] != expected[name]:
            yield f"{folder.name}: differs from the record: {name}"


def over_capacity(held: Mapping[str, PreparedClaim]) -> Iterator[str]:
    """Yield cards (312 TFLOPS, 80Gi) with more shares, or higher limits, than their size."""
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
    return (json.dumps(document) + "\n").encode()


def leftovers(node: Disk) -> list[str]:
    """Return the files and records that remain after all claims were unprepared."""
    shm = node.tensor_fusion_root / "shm" / "default"
    left = [*node.cdi_folder.iterdir(), *(shm.iterdir() if shm.exists() else ())]
    for folder in (node.limits_folder, node.metadata_folder):
        if folder.exists():
            left += folder.iterdir()
    return [str(path) for path in left] + list(records(node.data_folder))

"""Invariants of a node at every moment at which its plugin serves."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
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


_SIZES: Final = {"vram": 80 * GIB * NANO, "limits": 80 * GIB * NANO, "tflops": 312 * NANO}


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
    specs = {
        f"{names.CDI_FILE_PREFIX}{uid}": [cdi.spec(claim, enforcer, metadata_folder=folder)]
        for uid, claim in held.items()
    }
    limits = {uid: [prepared.limits_document(claim)] for uid, claim in held.items()}
    described = {
        name: documents
        for claim in held.values()
        if claim.metadata
        for name, documents in device_metadata.documents(claim, claim.metadata).items()
    }
    yield from _differences(node.cdi_folder, specs)
    yield from _differences(node.limits_folder, limits)
    yield from _differences(node.metadata_folder, described)
    yield from over_capacity(held)


def _differences(
    folder: Path, documents: Mapping[str, Iterable[Mapping[str, Any]]]
) -> Iterator[str]:
    """Yield the differences between a folder, with hidden files, and its expected documents."""
    found = {path.name: path.read_bytes() for path in folder.iterdir()} if folder.exists() else {}
    expected = {
        f"{name}.json": "".join(f"{json.dumps(each)}\n" for each in lines).encode()
        for name, lines in documents.items()
    }
    for name in sorted(found.keys() | expected.keys()):
        if name not in expected:
            yield f"{folder.name}: left over: {name}"
        elif name not in found:
            yield f"{folder.name}: missing: {name}"
        elif found[name] != expected[name]:
            yield f"{folder.name}: differs from the record: {name}"


def over_capacity(held: Mapping[str, PreparedClaim]) -> Iterator[str]:
    """Yield cards (312 TFLOPS, 80Gi) with more shares, or higher limits, than their size."""
    used: Counter[tuple[str, str]] = Counter()
    for claim in held.values():
        for share in claim.shares:
            limit = share.limit.vram_bytes * NANO if share.limit else 0
            taken = {name: share.consumed[name].nano for name in ("vram", "tflops")}
            for name, amount in {**taken, "limits": limit}.items():
                used[name, share.device] += amount
    for (name, card), amount in used.items():
        if amount > _SIZES[name]:
            yield f"{card}: {name} of {amount}, expected at most {_SIZES[name]}"


def leftovers(node: Disk) -> list[str]:
    """Return the files and records that remain after all claims were unprepared."""
    shm = node.tensor_fusion_root / "shm" / "default"
    folders = (node.cdi_folder, node.limits_folder, node.metadata_folder, shm)
    left = [str(path) for folder in folders if folder.exists() for path in folder.iterdir()]
    return left + list(records(node.data_folder))

"""Flipped bits and truncation in all files of the ledger: no claim with a sound copy is lost."""

import random
import shutil
from pathlib import Path

import pytest

from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.errors import FatalError
from tensorfusion_dra.state.ledger_file import FILE_NAME, VERSION
from tests.support.stores import GPU_0, holders, opened, put, recorded_claim
from tests.support.tally import EFFORT

CLAIMS = [recorded_claim(f"{number:02}", number=number) for number in range(8)]
HEADER_BYTES = 100
VERSION_BYTES = range(60, 64)
"""Field user_version of the header. A higher version is that of a newer release: refused."""
SAMPLES = 120


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a closed ledger, whose log is merged into its file."""
    folder = tmp_path_factory.mktemp("closed")
    with opened(folder) as ledger:
        put(ledger, *CLAIMS)
    return folder


@pytest.fixture(scope="module")
def after_power_cut(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a ledger as after a power cut: half of its claims are only in the log."""
    running = tmp_path_factory.mktemp("running")
    with opened(running) as ledger:
        put(ledger, *CLAIMS[:4])
    with opened(running) as ledger:
        for claim in CLAIMS[4:]:
            put(ledger, claim)
        folder = tmp_path_factory.mktemp("cut") / "ledger"
        shutil.copytree(running, folder)
    (folder / f"{FILE_NAME}-shm").unlink()
    return folder


def sampled(content: bytes, whole: int, seed: int) -> list[int]:
    """Return the effort's share of these offsets: all first bytes, and one in each later region."""
    chance = random.Random(seed)
    width = max(1, (len(content) - whole) // SAMPLES)
    regions = range(whole, len(content), width)
    others = (min(len(content) - 1, region + chance.randrange(width)) for region in regions)
    return [*range(whole), *others][:: max(1, round(1 / EFFORT))]


def claims_after(damaged: Path, name: str, content: bytes, scratch: Path) -> list[PreparedClaim]:
    """Return the claims of a copy of the ledger in which this file has this content."""
    shutil.rmtree(scratch, ignore_errors=True)
    shutil.copytree(damaged, scratch)
    (scratch / name).write_bytes(content)
    with opened(scratch) as ledger:
        claims = list(ledger.claims())
        assert holders(ledger, GPU_0) == [claim.ref.name for claim in claims]
        return claims


def flipped(content: bytes, offset: int, mask: int) -> bytes:
    return content[:offset] + bytes([content[offset] ^ mask]) + content[offset + 1 :]


@pytest.mark.parametrize("mask", [0x01, 0x80, 0xFF])
def test_flipped_bit_in_the_database_loses_no_claim(
    closed: Path, tmp_path: Path, mask: int
) -> None:
    content = (closed / FILE_NAME).read_bytes()

    for offset in sampled(content, HEADER_BYTES, seed=mask):
        damaged = flipped(content, offset, mask)
        version = int.from_bytes(bytes(damaged[each] for each in VERSION_BYTES), signed=True)
        if version > VERSION:
            with pytest.raises(FatalError, match=r"found version \d+, expected at most \d+:"):
                claims_after(closed, FILE_NAME, damaged, tmp_path / "ledger")
        else:
            found = claims_after(closed, FILE_NAME, damaged, tmp_path / "ledger")
            assert found == CLAIMS, f"byte {offset}"


def test_flipped_bit_in_the_log_loses_no_claim(after_power_cut: Path, tmp_path: Path) -> None:
    name = f"{FILE_NAME}-wal"
    content = (after_power_cut / name).read_bytes()

    for offset in sampled(content, 56, seed=1):
        damaged = flipped(content, offset, 0x10)
        assert claims_after(after_power_cut, name, damaged, tmp_path / "ledger") == CLAIMS, (
            f"byte {offset}"
        )


@pytest.mark.parametrize("end", ["", "-wal"], ids=["database", "log"])
def test_truncation_loses_no_claim(after_power_cut: Path, tmp_path: Path, end: str) -> None:
    name = FILE_NAME + end
    content = (after_power_cut / name).read_bytes()

    for length in sampled(content, 33, seed=2):
        found = claims_after(after_power_cut, name, content[:length], tmp_path / "ledger")
        assert found == CLAIMS, f"{length} bytes"


def test_damaged_copy_loses_no_claim_and_is_rewritten(closed: Path, tmp_path: Path) -> None:
    name = "records/uid-03.record"
    content = (closed / name).read_bytes()

    for offset in sampled(content, 0, seed=3):
        for damaged in (flipped(content, offset, 0x04), content[:offset]):
            assert claims_after(closed, name, damaged, tmp_path / "ledger") == CLAIMS
            assert (tmp_path / "ledger" / name).read_bytes() == content


def test_damaged_copy_and_damaged_database_lose_only_the_claim_of_the_copy(
    closed: Path, tmp_path: Path
) -> None:
    ledger = tmp_path / "ledger"
    name = "records/uid-03.record"
    content = (closed / name).read_bytes()
    others = [claim for claim in CLAIMS if claim.ref.uid != "uid-03"]

    for offset in sampled(content, 0, seed=4)[::5]:
        shutil.rmtree(ledger, ignore_errors=True)
        shutil.copytree(closed, ledger)
        (ledger / FILE_NAME).write_bytes(b"garbage")
        assert claims_after(ledger, name, flipped(content, offset, 0x04), tmp_path / "x") == others

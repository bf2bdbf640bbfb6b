"""Damage to records: it never frees a share, and is repaired from memory or by the next put."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tensorfusion_dra.core.claims.lending import Devices
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.core.kubernetes.quantity import GIB
from tensorfusion_dra.state import claim_records, claim_store
from tensorfusion_dra.state.claim_records import DamageError
from tensorfusion_dra.state.claim_store import ClaimStore
from tests.support.builders.allocations import allocation
from tests.support.builders.claims import allocated_claim, claim_admission
from tests.support.builders.policies import share_policy
from tests.support.stores import (
    GPU_0,
    GPU_1,
    NODE,
    file_of,
    opened,
    put,
    recorded_claim,
    remove,
    uids,
)
from tests.support.tally import portion


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A store of two claims on the same card."""
    with opened(tmp_path) as store:
        put(store, recorded_claim("a"), recorded_claim("b", number=2))
    return tmp_path


def make_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


DAMAGES = pytest.mark.parametrize(
    "damage",
    [
        lambda file: file.write_bytes(b""),
        lambda file: file.write_bytes(b"garbage"),
        lambda file: file.write_bytes(b"\0" * 3000),
        lambda file: file.write_bytes(b"[" * 100_000),
        lambda file: file.write_bytes(file.read_bytes()[:-200]),
        lambda file: file.write_bytes(file.read_bytes().replace(b"80", b"81", 1)),
        lambda file: file.write_bytes(file.with_name("uid-b.json").read_bytes()),
        make_folder,
    ],
    ids=["empty", "text", "zeros", "deep", "cut", "another amount", "another's", "folder"],
)


@DAMAGES
def test_damaged_record_counts_with_its_devices_until_it_is_removed(
    folder: Path, damage: Callable[[Path], object]
) -> None:
    damage(file_of(folder, "uid-a"))

    with opened(folder, devices_of=lambda _: {GPU_0}) as store:
        assert (uids(store), store.damaged()) == (["uid-b"], {"uid-a": {GPU_0}})
        assert list(claim_store.read(folder).damaged) == ["uid-a"]
        if file_of(folder, "uid-a").is_file():
            remove(store, "uid-a")
            assert store.damaged() == {}


@DAMAGES
def test_check_writes_again_what_this_process_knows(
    folder: Path, damage: Callable[[Path], object]
) -> None:
    with opened(folder) as store:
        before = file_of(folder, "uid-a").read_bytes()
        damage(file_of(folder, "uid-a"))
        if file_of(folder, "uid-a").is_dir():
            file_of(folder, "uid-a").rmdir()

        store.check()
        store.check()

        assert file_of(folder, "uid-a").read_bytes() == before
        assert (uids(store), store.restored) == (["uid-a", "uid-b"], 1)


def limits(store: ClaimStore) -> list[float]:
    shares = [share for claim in store.claims() for share in claim.shares]
    return [share.limit.vram_bytes / GIB for share in shares if share.limit]


@pytest.mark.parametrize(
    ("devices", "lent"), [({GPU_0}, [10, 60]), ({GPU_1}, [60, 10]), (None, [10, 10])]
)
def test_nothing_is_lent_beside_a_damaged_record_until_it_is_put_again(
    tmp_path: Path, devices: Devices, lent: list[float]
) -> None:
    policy = share_policy(vram="60Gi")
    with opened(tmp_path) as store:
        for number, device in enumerate((GPU_0, GPU_1)):
            wanted = allocation(device, number, tflops="1", vram="10Gi")
            claim = allocated_claim(f"a{number}", wanted)
            put(store, claim_admission(claim, on=NODE, policy=policy))
        put(store, recorded_claim("b", number=7))
    file_of(tmp_path, "uid-b").write_text("{")

    with opened(tmp_path, devices_of=lambda _: devices) as store:
        assert limits(store) == lent
        with store.transaction() as records:
            remove_and_put = recorded_claim("c", device=GPU_1, number=9)
            records.put(remove_and_put)
            records.remove("uid-c")
        assert limits(store) == lent

        put(store, recorded_claim("b", number=7))
        assert limits(store)[:2] == [60, 60]
        assert (store.damaged(), store.restored) == ({}, 1)


@pytest.mark.parametrize("devices", [{GPU_0}, None])
def test_new_claim_is_refused_beside_a_damaged_record_but_not_the_claim_of_one(
    devices: Devices,
) -> None:
    damaged = {"uid-b": devices, "uid-a": {GPU_0}}

    with pytest.raises(RetryableError, match=rf"{GPU_0}: found the record of claim uid-b damaged"):
        claim_admission(
            allocated_claim("c", allocation(GPU_0, 1)), on=NODE, damaged={"uid-b": devices}
        )
    admitted = claim_admission(allocated_claim("a", allocation(GPU_0, 1)), on=NODE, damaged=damaged)

    assert admitted.ref.uid == "uid-a"


def test_unanswered_record_that_a_power_cut_left_in_part_does_not_count(folder: Path) -> None:
    whole = file_of(folder, "uid-a").read_bytes()
    for name, content in (("uid-a.new", whole[:100]), ("uid-c.new", b"")):
        file_of(folder, "uid-a").with_name(name).write_bytes(content)

    with opened(folder) as store:
        assert (uids(store), store.damaged()) == (["uid-a", "uid-b"], {})

    assert sorted(path.name for path in file_of(folder, "uid-a").parent.iterdir()) == [
        "uid-a.json",
        "uid-b.json",
    ]


def test_no_flipped_bit_makes_another_record_or_a_newer_format(folder: Path) -> None:
    file = file_of(folder, "uid-a")
    content, claim = file.read_bytes(), claim_records.read(file)
    chance = random.Random(1)
    found = {"same": 0, "damaged": 0}

    for _ in range(portion(10_000, least=1_000)):
        damaged = bytearray(content)
        damaged[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        file.write_bytes(damaged)
        try:
            assert claim_records.read(file) == claim
            found["same"] += 1  # the case of a \\u escape, or whitespace
        except DamageError:
            found["damaged"] += 1

    assert found["damaged"] > 100 * found["same"]

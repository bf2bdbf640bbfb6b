"""The record of a prepared claim: what the ledger keeps and what a reboot changes."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorfusion_dra.core.prepared import PreparedClaim
from tests.support.claims import COMMON_NODES, alone, local, prepared, share
from tests.support.gpus import cards, gpu, published

NODE = local(*cards(3))
GPU_0, GPU_1, GPU_2 = NODE.devices
RECORD = prepared(
    "a",
    share(GPU_0, 1, tflops="71.2", request="main"),
    alone(GPU_1, request="whole"),
    alone(GPU_2, request="watch", admin_access=True),
    on=NODE,
)


def reread(record: PreparedClaim) -> PreparedClaim:
    return PreparedClaim.from_json(json.loads(json.dumps(record.as_json())))


def test_shares_devices_given_alone_and_admin_access_survive_the_ledger() -> None:
    assert reread(RECORD) == RECORD


def test_a_claim_without_our_devices_survives_the_ledger() -> None:
    empty = PreparedClaim(ref=RECORD.ref, shares=())

    assert reread(empty) == empty


amounts = st.tuples(st.integers(0, 312 * 10**9), st.integers(0, 10**12))


@given(st.lists(amounts, max_size=4))
def test_every_amount_survives_the_ledger_to_the_last_billionth(
    given_amounts: list[tuple[int, int]],
) -> None:
    shares = [
        replace(
            RECORD.shares[0],
            share_id=str(number),
            consumed={
                "tflops": replace(RECORD.shares[0].consumed["tflops"], nano=tflops),
                "vram": replace(RECORD.shares[0].consumed["vram"], nano=vram),
            },
        )
        for number, (tflops, vram) in enumerate(given_amounts)
    ]
    record = replace(RECORD, shares=tuple(shares))

    assert reread(record) == record


@pytest.mark.parametrize("field", ["namespace", "name", "uid", "shares", "commonNodes"])
def test_a_record_without_one_of_its_fields_is_not_taken(field: str) -> None:
    kept = RECORD.as_json()
    del kept[field]

    with pytest.raises(KeyError, match=field):
        PreparedClaim.from_json(kept)


def test_after_a_reboot_the_nodes_are_todays_and_all_else_stays() -> None:
    today = RECORD.with_nodes(
        {GPU_0: ("/dev/nvidia7",), GPU_1: ("/dev/nvidia6",)}, ("/dev/nvidiactl",)
    )

    assert [item.device_nodes for item in today.shares] == [
        ("/dev/nvidia7",),
        ("/dev/nvidia6",),
        ("/dev/nvidia2",),
    ]
    assert today.common_nodes == ("/dev/nvidiactl",)
    assert (
        replace(
            today,
            shares=tuple(
                replace(new, device_nodes=old.device_nodes)
                for new, old in zip(today.shares, RECORD.shares, strict=True)
            ),
            common_nodes=COMMON_NODES,
        )
        == RECORD
    )


def test_the_same_nodes_give_the_same_record() -> None:
    nodes = {item.device: item.device_nodes for item in RECORD.shares}

    assert RECORD.with_nodes(nodes, COMMON_NODES) == RECORD


def test_a_claim_on_simulated_cards_needs_no_common_nodes() -> None:
    simulated = gpu(minor=None)
    (device,) = published(simulated)
    record = prepared("a", share(device.name, 1), on=local(simulated))

    assert record.common_nodes == ()
    assert record.with_nodes({device.name: ()}, COMMON_NODES).common_nodes == ()

"""Generated claims: exactly those that fit beside the recorded ones are admitted."""

from hypothesis import given
from hypothesis import strategies as st

from tensorfusion_dra.core.claims.claim import AllocatedClaim
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.errors import ClaimError
from tests.support.builders.allocations import allocation, exclusive_allocation
from tests.support.builders.claims import allocated_claim, claim_fit
from tests.support.builders.gpus import gpus
from tests.support.builders.nodes import node_offer

NODE = node_offer(*gpus(2))
GPU_0, GPU_1 = NODE.devices
VRAM = st.integers(1, 90).map(lambda gib: f"{gib}Gi")
TFLOPS = st.integers(0, 330_000).map(lambda milli: f"{milli}m")
DEVICES = st.sampled_from([GPU_0, GPU_1])
SHARES = st.builds(
    lambda device, number, tflops, vram: allocation(device, number, tflops=tflops, vram=vram),
    DEVICES,
    st.integers(0, 9),
    TFLOPS,
    VRAM,
)
EXCLUSIVE = st.builds(
    lambda device, admin: exclusive_allocation(device, admin_access=admin), DEVICES, st.booleans()
)
CLAIMS = st.builds(
    lambda name, allocations: allocated_claim(name, *allocations),
    st.sampled_from("abcdef"),
    st.lists(st.one_of(SHARES, SHARES, SHARES, EXCLUSIVE), min_size=1, max_size=3),
)


def fits(claim: AllocatedClaim, others: list[PreparedClaim]) -> bool:
    """Return True if a claim fits, computed by device instead of by share."""
    for name, device in NODE.devices.items():
        mine = [item for item in claim.allocations if item.device == name]
        mine = [item for item in mine if not item.admin_access]
        theirs = [item for other in others for item in other.shares if item.device == name]
        theirs = [item for item in theirs if not item.admin_access]
        ids = [item.share_id for item in mine] + [item.share_id for item in theirs]
        exclusive_here = any(number is None for number in ids)
        if mine and ((len(ids) > 1 and exclusive_here) or len(set(ids)) < len(ids)):
            return False
        for capacity, entry in device.capacity.items():
            taken = sum(item.consumed[capacity].nano for item in mine if item.share_id)
            taken += sum(item.consumed[capacity].nano for item in theirs)
            if mine and taken > entry.value.nano:
                return False
    return True


@given(st.lists(st.tuples(CLAIMS, st.booleans()), max_size=12))
def test_exactly_the_claims_that_fit_are_admitted(
    steps: list[tuple[AllocatedClaim, bool]],
) -> None:
    records: dict[str, PreparedClaim] = {}
    for claim, leaves in steps:
        others = [record for uid, record in records.items() if uid != claim.ref.uid]
        try:
            records[claim.ref.uid] = claim_fit(claim, on=NODE, beside=records.values()).claim
            fitted = True
        except ClaimError:
            fitted = False

        assert fitted == fits(claim, others)
        assert_within_every_capacity(list(records.values()))
        if leaves:
            records.pop(claim.ref.uid, None)


def assert_within_every_capacity(records: list[PreparedClaim]) -> None:
    for name, device in NODE.devices.items():
        shares = [item for record in records for item in record.shares if item.device == name]
        users = [item for item in shares if not item.admin_access]
        ids = [item.share_id for item in users]
        assert len(ids) == len(set(ids))
        assert len(users) == 1 or not any(item.exclusive for item in users)
        for capacity, entry in device.capacity.items():
            amounts = [item.consumed[capacity].nano for item in users]
            assert all(nano >= 0 for nano in amounts)
            assert sum(amounts) <= entry.value.nano

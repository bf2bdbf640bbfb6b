"""Properties of the CDI spec of every claim, whatever shares of the node's cards it has."""

import json
from dataclasses import replace

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tensorfusion_dra.core.claims import cdi
from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.claims.device_metadata import DeviceMetadata
from tensorfusion_dra.core.claims.limits import Limit
from tensorfusion_dra.core.claims.prepared import PreparedClaim, PreparedShare
from tensorfusion_dra.core.devices.sharing import Isolation, Qos
from tensorfusion_dra.core.kubernetes.quantity import MIB, Quantity
from tests.support.builders.allocations import share_id
from tests.support.builders.gpus import gpu
from tests.support.cdi_rules import env, injected, spec_of, violations
from tests.support.tally import examples

REQUESTS = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,8}[a-z0-9])?", fullmatch=True)


LIMITS = st.builds(
    Limit, sm_percent=st.integers(1, 100), vram_bytes=st.integers(1, 80 * 1024).map(MIB.__mul__)
)


@st.composite
def claims(draw: st.DrawFn) -> PreparedClaim:
    """Return claims with shares, whole devices and admin access, on several cards and requests."""
    requests = draw(st.lists(REQUESTS, min_size=1, max_size=3, unique=True))
    watching = draw(st.booleans())
    isolation = draw(st.sampled_from(Isolation))
    limited = isolation is not Isolation.SHARED and draw(st.integers(0, 9)) > 0
    shares = []
    for number in range(draw(st.integers(1, 6))):
        card = gpu(draw(st.integers(0, 3)), minor=draw(st.sampled_from([None, 0])))
        shared = draw(st.booleans())
        shares.append(
            PreparedShare(
                request=draw(st.sampled_from(requests)),
                pool="default/node-01",
                # no other share is on a device that is allocated exclusively
                device=card.uuid.lower() if shared else f"gpu-{number}",
                gpu_uuid=card.uuid if shared else f"GPU-{number}",
                share_id=share_id(number) if shared else None,
                consumed={"vram": Quantity.of_bytes(MIB)},
                exclusive=not shared,
                admin_access=False,
                device_nodes=() if card.minor is None else ("/dev/nvidia0",),
                isolation=isolation,
                qos=Qos.MEDIUM,
                toolkit_device=draw(st.sampled_from([None, f"nvidia.com/gpu={card.uuid}"])),
                pci_bus_id="",
                wanted_vram_bytes=MIB,
                limit=draw(LIMITS) if limited else None,
            )
        )
    if watching:
        shares.append(replace(shares[0], request="watch", admin_access=True, limit=None))
    metadata = DeviceMetadata(attributes={}, pod_claim_name=draw(st.sampled_from(["", "gpu"])))
    return PreparedClaim(
        ref=ClaimRef(namespace="default", name="a", uid=str(draw(st.uuids()))),
        shares=tuple(shares),
        metadata=draw(st.sampled_from([None, metadata])),
    )


@settings(max_examples=examples(50))
@given(claims())
def test_every_claim_has_a_spec_that_runtimes_load(claim: PreparedClaim) -> None:
    spec = spec_of(claim)

    assert violations(spec) == []
    assert json.loads(json.dumps(spec)) == spec
    assert all(device["name"].startswith(claim.ref.uid) for device in spec["devices"])


@settings(max_examples=examples(50))
@given(claims())
def test_every_id_is_defined_in_the_spec_and_returned_once(claim: PreparedClaim) -> None:
    answer = cdi.ids_by_share(claim)
    ids = [name for names in answer for name in names]
    of_requests = [
        (item.request, name)
        for item, names in zip(claim.shares, answer, strict=True)
        for name in names
    ]

    assert len(answer) == len(claim.shares)
    assert len(of_requests) == len(set(of_requests))
    assert all(names[0].partition("=")[2].count(":") == 0 for names in answer)
    defined = {f"tensor-fusion.ai/vgpu={device['name']}" for device in spec_of(claim)["devices"]}
    assert {name for name in ids if name.startswith("tensor-fusion.ai/")} == defined


@settings(max_examples=examples(50))
@given(claims())
def test_container_of_one_request_has_no_duplicate_variables(claim: PreparedClaim) -> None:
    for request in {item.request for item in claim.shares}:
        ids = [
            name
            for item, names in zip(claim.shares, cdi.ids_by_share(claim), strict=True)
            for name in names
            if item.request == request
        ]
        variables = [
            variable.partition("=")[0]
            for edits in injected(spec_of(claim), ids)
            for variable in edits.get("env", [])
        ]

        assert len(variables) == len(set(variables))


@settings(max_examples=examples(50))
@given(claims(), st.data())
def test_every_card_has_a_limit_for_any_requests_that_a_container_uses(
    claim: PreparedClaim, data: st.DataObject
) -> None:
    limited = [(item, item.limit) for item in claim.shares if item.limit]
    assume(limited)
    chosen = data.draw(st.sets(st.sampled_from([item.request for item, _ in limited]), min_size=1))

    variables = env(claim, *chosen)

    percents = json.loads(variables["TENSOR_FUSION_CUDA_UP_LIMIT"])
    amounts = json.loads(variables["TENSOR_FUSION_CUDA_MEM_LIMIT"])
    for uuid in {item.gpu_uuid for item, _ in limited if item.request in chosen}:
        of_card = [limit for item, limit in limited if item.gpu_uuid == uuid]
        assert 1 <= percents[uuid] <= sum(limit.sm_percent for limit in of_card)
        assert 0 < amounts[uuid] <= sum(limit.vram_bytes for limit in of_card)
    assert 1 <= int(variables["TF_CUDA_SM_PERCENT_LIMIT"]) <= max(percents.values())
    assert 0 < int(variables["TF_GPU_MEMORY_LIMIT"]) * MIB <= max(amounts.values())

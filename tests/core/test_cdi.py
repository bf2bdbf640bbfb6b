"""The CDI spec of a claim: loaded by every runtime, with a limit for every card."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorfusion_dra.core import cdi
from tensorfusion_dra.core.claim import ClaimRef
from tensorfusion_dra.core.limits import Limit
from tensorfusion_dra.core.prepared import PreparedClaim, PreparedShare
from tensorfusion_dra.core.quantity import GIB, MIB, Quantity
from tests.support.cdi_rules import injected, violations
from tests.support.claims import alone, local, prepared, share, share_id
from tests.support.gpus import cards, gpu, published

NODE = local(*cards(3))
GPU_0, GPU_1, GPU_2 = NODE.devices
UUID_0, UUID_1, UUID_2 = (card.uuid for card in cards(3))
LETTER_FIRST = ClaimRef(namespace="default", name="a", uid="fa0b0c0d-0000-4000-8000-000000000001")
DIGIT_FIRST = replace(LETTER_FIRST, uid="0a0b0c0d-0000-4000-8000-000000000001")


def spec_of(claim: PreparedClaim) -> dict[str, Any]:
    spec = cdi.spec(claim)
    assert spec is not None
    return spec


def env(claim: PreparedClaim, *requests: str) -> dict[str, str]:
    """The variables of a container that uses these requests; all of the claim if none is named."""
    ids = [
        name
        for item, names in zip(claim.shares, cdi.ids_by_share(claim), strict=True)
        for name in names
        if item.request in requests or not requests
    ]
    variables: dict[str, str] = {}
    for edits in injected(spec_of(claim), ids):
        for variable in edits.get("env", []):
            name, _, value = variable.partition("=")
            variables[name] = value
    return variables


def test_one_share_gives_its_nodes_its_limits_and_what_every_card_needs() -> None:
    claim = replace(
        prepared("a", share(GPU_0, 1, tflops="78", vram="20Gi"), on=NODE), ref=LETTER_FIRST
    )

    told = (
        f'{{"uuid":"{UUID_0}","request":"gpu","smPercent":25,"vramBytes":21474836480,'
        '"tflops":"78","vram":"20Gi"}'
    )
    assert cdi.spec(claim) == {
        "cdiVersion": "0.3.0",
        "kind": "tensor-fusion.ai/vgpu",
        "devices": [
            {
                "name": f"{LETTER_FIRST.uid}-gpu-{GPU_0}-{share_id(1)}",
                "containerEdits": {
                    "env": [f"TENSOR_FUSION_SHARE_5A5A5A5A_0000_4000_8000_000000000001={told}"],
                    "deviceNodes": [{"path": "/dev/nvidia0"}],
                },
            },
            {
                "name": f"{LETTER_FIRST.uid}-gpu:limits",
                "containerEdits": {
                    "env": [
                        "TF_CUDA_SM_PERCENT_LIMIT=25",
                        "TF_GPU_MEMORY_LIMIT=20480",
                        "TF_CUDA_MEMORY_LIMIT=20480",
                        f'TENSOR_FUSION_CUDA_UP_LIMIT={{"{UUID_0}":25}}',
                        f'TENSOR_FUSION_CUDA_MEM_LIMIT={{"{UUID_0}":21474836480}}',
                    ]
                },
            },
        ],
        "containerEdits": {
            "env": ["NVIDIA_VISIBLE_DEVICES=void"],
            "deviceNodes": [{"path": "/dev/nvidiactl"}, {"path": "/dev/nvidia-uvm"}],
        },
    }


def test_a_claim_without_our_devices_has_no_spec_and_no_ids() -> None:
    claim = prepared("a", on=NODE)

    assert cdi.spec(claim) is None
    assert cdi.ids_by_share(claim) == ()


@pytest.mark.parametrize(("ref", "version"), [(LETTER_FIRST, "0.3.0"), (DIGIT_FIRST, "0.5.0")])
def test_the_lowest_version_is_written_that_allows_the_names(ref: ClaimRef, version: str) -> None:
    claim = replace(prepared("a", share(GPU_0, 1), on=NODE), ref=ref)

    assert spec_of(claim)["cdiVersion"] == version
    assert violations(spec_of(claim)) == []


def test_a_device_given_alone_has_the_whole_card_as_its_limit() -> None:
    variables = env(prepared("a", alone(GPU_0), on=NODE))

    assert variables["TF_CUDA_SM_PERCENT_LIMIT"] == "100"
    assert variables["TF_GPU_MEMORY_LIMIT"] == "81920"


def test_admin_access_shows_the_card_without_limits() -> None:
    claim = prepared("a", alone(GPU_0, admin_access=True), on=NODE)

    (ids,) = cdi.ids_by_share(claim)
    assert len(ids) == 1
    assert not any(name.startswith(("TF_", "TENSOR_FUSION_CUDA")) for name in env(claim))
    assert injected(spec_of(claim), list(ids))[0]["deviceNodes"] == [{"path": "/dev/nvidia0"}]


def test_a_simulated_card_has_edits_but_no_nodes() -> None:
    simulated = gpu(minor=None)
    (device,) = published(simulated)
    claim = prepared("a", alone(device.name, admin_access=True), on=local(simulated))

    spec = spec_of(claim)

    assert violations(spec) == []
    assert "deviceNodes" not in json.dumps(spec)


def test_a_container_of_one_request_sees_only_its_card_and_limits_for_all() -> None:
    claim = prepared(
        "a",
        share(GPU_0, 1, tflops="31.2", vram="1Gi", request="small"),
        share(GPU_1, 2, tflops="156", vram="40Gi", request="large"),
        on=NODE,
    )

    small = env(claim, "small")

    assert small["TF_CUDA_SM_PERCENT_LIMIT"] == "10"
    assert small["TF_GPU_MEMORY_LIMIT"] == "1024"
    assert json.loads(small["TENSOR_FUSION_CUDA_UP_LIMIT"]) == {UUID_0: 10, UUID_1: 50}
    by_request = dict(zip(("small", "large"), cdi.ids_by_share(claim), strict=True))
    nodes = [
        edits["deviceNodes"] for edits in injected(spec_of(claim), list(by_request["small"]))[:1]
    ]
    assert nodes == [[{"path": "/dev/nvidia0"}]]


def test_several_requests_on_one_card_have_their_own_amounts() -> None:
    claim = prepared(
        "a",
        share(GPU_0, 1, tflops="31.2", vram="1Gi", request="small"),
        share(GPU_0, 2, tflops="156", vram="40Gi", request="large"),
        on=NODE,
    )

    assert json.loads(env(claim, "small")["TENSOR_FUSION_CUDA_UP_LIMIT"]) == {UUID_0: 10}
    assert json.loads(env(claim, "large")["TENSOR_FUSION_CUDA_UP_LIMIT"]) == {UUID_0: 50}
    assert json.loads(env(claim, "large")["TENSOR_FUSION_CUDA_MEM_LIMIT"]) == {UUID_0: 40 * GIB}


def test_several_shares_of_one_card_in_one_request_add_up() -> None:
    claim = prepared(
        "a",
        share(GPU_0, 1, tflops="156", vram="1Gi"),
        share(GPU_0, 2, tflops="155.9", vram="2Gi"),
        on=NODE,
    )

    variables = env(claim)

    assert json.loads(variables["TENSOR_FUSION_CUDA_UP_LIMIT"]) == {UUID_0: 100}
    assert variables["TF_GPU_MEMORY_LIMIT"] == "3072"


def test_the_scalar_limits_of_a_request_are_those_of_its_smallest_card() -> None:
    claim = prepared(
        "a",
        share(GPU_0, 1, tflops="156", vram="1Gi"),
        share(GPU_1, 2, tflops="31.2", vram="40Gi"),
        on=NODE,
    )

    variables = env(claim)

    assert variables["TF_CUDA_SM_PERCENT_LIMIT"] == "10"
    assert variables["TF_GPU_MEMORY_LIMIT"] == "1024"
    assert variables["TF_CUDA_MEMORY_LIMIT"] == "1024"


def test_each_share_has_a_variable_of_its_own() -> None:
    claim = prepared(
        "a",
        share(GPU_0, 1),
        share(GPU_0, 2),
        alone(GPU_1),
        alone(GPU_2, request="watch", admin_access=True),
        on=NODE,
    )

    told = [
        json.loads(value)
        for name, value in env(claim).items()
        if name.startswith("TENSOR_FUSION_SHARE_")
    ]

    assert [(item["uuid"], item.get("vram")) for item in told] == [
        (UUID_0, "16Gi"),
        (UUID_0, "16Gi"),
        (UUID_1, "80Gi"),
        (UUID_2, None),
    ]


def test_the_legacy_runtime_hook_adds_no_card() -> None:
    assert env(prepared("a", share(GPU_0, 1), on=NODE))["NVIDIA_VISIBLE_DEVICES"] == "void"


def test_the_file_of_a_claim_is_found_again_by_its_name() -> None:
    assert cdi.file_name("uid-1") == "tensor-fusion.ai-vgpu_uid-1.json"
    assert cdi.claim_uid_of("tensor-fusion.ai-vgpu_uid-1.json") == "uid-1"


@pytest.mark.parametrize(
    "file",
    [
        "nvidia.yaml",
        "tensor-fusion.ai-vgpu_uid-1.yaml",
        "tensor-fusion.ai-vgpu_uid-1.json.tmp",
        "tensor-fusion.ai-other_uid-1.json",
        ".abc.tmp",
    ],
)
def test_other_files_are_not_taken_for_ours(file: str) -> None:
    assert cdi.claim_uid_of(file) is None


REQUESTS = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,8}[a-z0-9])?", fullmatch=True)


@st.composite
def claims(draw: st.DrawFn) -> PreparedClaim:
    """Claims with shares, whole devices and admin access over several cards and requests."""
    requests = draw(st.lists(REQUESTS, min_size=1, max_size=3, unique=True))
    watching = draw(st.booleans())
    shares = []
    for number in range(draw(st.integers(1, 6))):
        card = gpu(draw(st.integers(0, 3)), minor=draw(st.sampled_from([None, 0])))
        shared = draw(st.booleans())
        shares.append(
            PreparedShare(
                request=draw(st.sampled_from(requests)),
                pool="default/node-01",
                # a device given alone is on no second share
                device=card.uuid.lower() if shared else f"gpu-{number}",
                gpu_uuid=card.uuid if shared else f"GPU-{number}",
                share_id=share_id(number) if shared else None,
                consumed={"vram": Quantity.of_bytes(MIB)},
                exclusive=not shared,
                admin_access=False,
                device_nodes=() if card.minor is None else ("/dev/nvidia0",),
                limit=Limit(
                    sm_percent=draw(st.integers(1, 100)),
                    vram_bytes=MIB * draw(st.integers(1, 80 * 1024)),
                ),
            )
        )
    if watching:
        shares.append(replace(shares[0], request="watch", admin_access=True, limit=None))
    uid = str(draw(st.uuids()))
    return PreparedClaim(ref=ClaimRef(namespace="default", name="a", uid=uid), shares=tuple(shares))


@settings(max_examples=50, deadline=None)
@given(claims())
def test_every_claim_has_a_spec_that_runtimes_load(claim: PreparedClaim) -> None:
    spec = spec_of(claim)

    assert violations(spec) == []
    assert json.loads(json.dumps(spec)) == spec
    assert all(device["name"].startswith(claim.ref.uid) for device in spec["devices"])


@settings(max_examples=50, deadline=None)
@given(claims())
def test_every_id_is_in_the_spec_and_none_is_given_twice(claim: PreparedClaim) -> None:
    answer = cdi.ids_by_share(claim)
    ids = [name for names in answer for name in names]

    assert len(answer) == len(claim.shares)
    assert len(ids) == len(set(ids))
    assert all(names[0].partition("=")[2].count(":") == 0 for names in answer)
    defined = {f"tensor-fusion.ai/vgpu={device['name']}" for device in spec_of(claim)["devices"]}
    assert set(ids) == defined


@settings(max_examples=50, deadline=None)
@given(claims())
def test_no_variable_meets_itself_in_a_container_of_one_request(claim: PreparedClaim) -> None:
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


@settings(max_examples=50, deadline=None)
@given(claims(), st.data())
def test_no_card_is_without_a_limit_whatever_requests_a_container_uses(
    claim: PreparedClaim, data: st.DataObject
) -> None:
    limited = [(item, item.limit) for item in claim.shares if item.limit]
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


@settings(max_examples=50, deadline=None)
@given(claims())
def test_the_scalar_limits_of_one_request_exceed_no_card_of_it(claim: PreparedClaim) -> None:
    for request in {item.request for item in claim.shares if item.limit}:
        variables = env(claim, request)
        uuids = {item.gpu_uuid for item in claim.shares if item.request == request}

        percents = json.loads(variables["TENSOR_FUSION_CUDA_UP_LIMIT"])
        amounts = json.loads(variables["TENSOR_FUSION_CUDA_MEM_LIMIT"])
        assert int(variables["TF_CUDA_SM_PERCENT_LIMIT"]) == min(percents[uuid] for uuid in uuids)
        assert int(variables["TF_GPU_MEMORY_LIMIT"]) * MIB == min(amounts[uuid] for uuid in uuids)


def test_device_nodes_of_another_folder_are_under_dev_in_the_container() -> None:
    record = replace(
        prepared("a", share(GPU_0, 1), on=NODE), common_nodes=("/run/host/dev/nvidiactl",)
    )

    document = cdi.spec(record)

    assert document is not None
    assert document["cdiVersion"] == "0.5.0"
    assert document["containerEdits"]["deviceNodes"] == [
        {"path": "/dev/nvidiactl", "hostPath": "/run/host/dev/nvidiactl"}
    ]

"""What is claimed, what the pod says, and what the container gets."""

import json
from dataclasses import dataclass, replace
from typing import Any, Final

import pytest

from tensorfusion_dra.core.claims import cdi, fit, share_policy
from tensorfusion_dra.core.claims.claim import AllocatedClaim, OpaqueConfig, PodRef
from tensorfusion_dra.core.claims.enforcers.tensor_fusion import TensorFusion
from tensorfusion_dra.core.claims.fit import NodeOffer
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.devices.gpu import HostResources
from tensorfusion_dra.core.devices.oversubscription import Oversubscription
from tensorfusion_dra.core.errors import ClaimError
from tensorfusion_dra.core.kubernetes import quantity
from tensorfusion_dra.core.kubernetes.quantity import GIB, MIB
from tests.support.cdi_rules import environment, injected, violations
from tests.support.claims import DEFAULTS, RULES, allocated, exclusive, node_offer, prepared, share
from tests.support.gpus import NODE, cards, gpu

ENFORCER: Final = TensorFusion(hypervisor_ip="192.0.2.7")
POD: Final = PodRef(namespace="default", name="p", uid="uid-of-p")
UUIDS: Final = [card.uuid for card in cards(2)]

TWO_A100: Final = node_offer(*cards(2))  # 312 TFLOPS and 80Gi each
WITH_HARD_LIMITER: Final = replace(TWO_A100, enforces_hard=True)
OVERCOMMITTED: Final = replace(TWO_A100, rules=replace(RULES, overcommit_limits=True))
OVERSUBSCRIBED: Final = node_offer(  # 312 TFLOPS and 80Gi, handed out as 468 and 120Gi
    gpu(0),
    node=replace(
        NODE,
        oversubscription=Oversubscription(
            tflops_percent=150, host_memory_percent=50, host_disk_percent=0
        ),
    ),
    host=HostResources(memory_bytes=80 * GIB),
)

BYPASSES_EMPTIED: Final = {
    "DISABLE_GPU_LIMITER": "",
    "TF_ENABLE_DISPATCH_FORWARD": "",
    "TF_DISABLE_MEMORY_MANAGER": "",
    "TF_SKIP_HOOKS_IF_NO_LIMIT": "",
    "ENABLE_NVML_HOOKS": "",
    "ENABLE_CUDA_HOOKS": "",
}
LIMITER: Final = {
    "LD_PRELOAD": "/tensor-fusion-limiter/libcuda_limiter.so",
    "TF_SHM_PATH": "/run/tensor-fusion/shm/shm",
    "SHM_PATH": "/run/tensor-fusion/shm",
    "POD_NAMESPACE": "default",
    "POD_NAME": "p",
    "HYPERVISOR_IP": "192.0.2.7",
    "HYPERVISOR_PORT": "8001",
}
LIMITER_MOUNTS: Final = {
    "/tensor-fusion-limiter/libcuda_limiter.so": "ro",
    "/run/tensor-fusion/shm": "rw",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """Amounts on each card of one request, on a node where others have theirs."""

    cards: tuple[tuple[str, str], ...]
    node: NodeOffer = TWO_A100
    beside: tuple[str, ...] = ()
    of_class: dict[str, Any] | None = None
    of_claim: dict[str, Any] | None = None

    def claim(self) -> AllocatedClaim:
        """As allocated, for the pod."""
        devices = zip(self.node.devices, self.cards, strict=False)
        shares = [
            _share(self.node, device, index, amounts)
            for index, (device, amounts) in enumerate(devices)
        ]
        configs = [
            OpaqueConfig(
                trusted=trusted,
                requests=(),
                parameters={
                    "apiVersion": "tensor-fusion.ai/v1alpha1",
                    "kind": "GpuShare",
                    **fields,
                },
            )
            for trusted, fields in ((True, self.of_class), (False, self.of_claim))
            if fields is not None
        ]
        return allocated("a", *shares, configs=tuple(configs), pods=(POD,))

    def others(self) -> list[PreparedClaim]:
        """Who has this much of the first card already."""
        device = next(iter(self.node.devices))
        return [
            prepared(f"b{n}", _share(self.node, device, 50 + n, ("1", vram)), on=self.node)
            for n, vram in enumerate(self.beside)
        ]


def _share(node: NodeOffer, device: str, number: int, amounts: tuple[str, str]) -> Any:
    if node is not OVERSUBSCRIBED:
        return share(device, number, tflops=amounts[0], vram=amounts[1])
    names = ("tflops", "vram", "virtual_tflops", "virtual_vram")
    values = dict(zip(names, ("0", "0", *amounts), strict=True))
    return share(
        device, number, consumed={key: quantity.parse(text) for key, text in values.items()}
    )


def one(tflops: str = "78", vram: str = "20Gi", **more: Any) -> Claimed:
    return Claimed(cards=((tflops, vram),), **more)


def pod(**said: str) -> dict[str, str]:
    return {f"tensor-fusion.ai/{key.replace('_', '-')}": value for key, value in said.items()}


def admitted(claimed: Claimed, *pods: dict[str, str]) -> PreparedClaim:
    claim = claimed.claim()
    said = share_policy.of_pods(claim, {f"default/p{n}": found for n, found in enumerate(pods)})
    holding = [share_policy.of_share(claim, item, said, DEFAULTS) for item in claim.allocations]
    return fit.fit(claim, holding, claimed.node, claimed.others()).claim


def container(claim: PreparedClaim) -> tuple[dict[str, str], dict[str, str]]:
    """The variables that the claim's container gets of us, and how its mounts may be used."""
    spec = cdi.spec(claim, ENFORCER)
    assert spec is not None
    assert violations(spec) == []
    ids = [name for names in cdi.ids_by_share(claim) for name in names]
    variables = environment(spec, ids)
    mounts = [mount for edits in injected(spec, ids) for mount in edits.get("mounts", [])]
    told = {name: value for name, value in variables.items() if "_SHARE_" not in name}
    return told, {mount["containerPath"]: mount["options"][0] for mount in mounts}


def limits(mib: int, *percent_and_gib: tuple[int, float]) -> dict[str, str]:
    """The limits of a container: MiB of its smallest card, then each card's percent and GiB."""
    by_uuid = list(zip(UUIDS, percent_and_gib, strict=False))
    percents = {uuid: percent for uuid, (percent, _) in by_uuid}
    amounts = {uuid: int(gib * GIB) for uuid, (_, gib) in by_uuid}
    assert min(amounts.values()) == mib * MIB
    return {
        "TF_CUDA_SM_PERCENT_LIMIT": str(min(percents.values())),
        "TF_GPU_MEMORY_LIMIT": str(mib),
        "TF_CUDA_MEMORY_LIMIT": str(mib),
        "TENSOR_FUSION_CUDA_UP_LIMIT": json.dumps(percents, separators=(",", ":")),
        "TENSOR_FUSION_CUDA_MEM_LIMIT": json.dumps(amounts, separators=(",", ":")),
        **BYPASSES_EMPTIED,
    }


EVERYWHERE: Final = {"NVIDIA_VISIBLE_DEVICES": "void", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def soft(mib: int, *percent_and_gib: tuple[int, float]) -> tuple[dict[str, str], dict[str, str]]:
    env = {"TF_ISOLATION_MODE": "soft", **limits(mib, *percent_and_gib), **LIMITER}
    return EVERYWHERE | env, LIMITER_MOUNTS


def hard(mib: int, *percent_and_gib: tuple[int, float]) -> tuple[dict[str, str], dict[str, str]]:
    return EVERYWHERE | {"TF_ISOLATION_MODE": "hard", **limits(mib, *percent_and_gib)}, {}


def no_limits(mode: str) -> tuple[dict[str, str], dict[str, str]]:
    return EVERYWHERE | {"TF_ISOLATION_MODE": mode}, {}


TWO: Final = Claimed(cards=(("78", "20Gi"), ("156", "10Gi")))
NO_POD: Final[tuple[dict[str, str], ...]] = ()
HARD: Final = pod(isolation="hard")
SHARED: Final = pod(isolation="shared")
OF_HARD_CLASS: Final = {"isolation": "hard"}
OF_SHARED_CLASS: Final = {"isolation": "shared"}
WHOLE: Final = one("312", "80Gi")

# What is claimed, what the pods say, what the container gets.
TABLE: Final[list[tuple[Claimed, tuple[dict[str, str], ...], Any]]] = [
    # Soft isolation
    (one(), NO_POD, soft(20480, (25, 20))),
    (one(), (pod(),), soft(20480, (25, 20))),
    (one(), (pod(isolation="soft"),), soft(20480, (25, 20))),
    (one(), (pod(qos="critical"),), soft(20480, (25, 20))),
    (one(), (pod(tflops_limit="156"),), soft(20480, (50, 20))),
    (one(), (pod(vram_limit="30Gi"),), soft(30720, (25, 30))),
    (one(), (pod(tflops_limit="156.001", vram_limit="30Gi"),), soft(30720, (51, 30))),
    (one("0", "1Mi"), NO_POD, soft(1, (1, 1 / 1024))),
    (one("312", "80Gi"), NO_POD, soft(81920, (100, 80))),
    # A limit that is its request; 0 says nothing; one of several pods says less
    (one(), (pod(tflops_limit="78", vram_limit="20Gi"),), soft(20480, (25, 20))),
    (one(), (pod(tflops_limit="0", vram_limit="0"),), soft(20480, (25, 20))),
    (one(), (pod(vram_limit="40Gi"), pod(vram_limit="30Gi"), pod()), soft(30720, (25, 30))),
    # Several cards
    (TWO, NO_POD, soft(10240, (25, 20), (50, 10))),
    (TWO, (pod(vram_limit="30Gi"),), soft(30720, (25, 30), (50, 30))),
    (TWO, (pod(tflops_limit="312"),), soft(10240, (100, 20), (100, 10))),
    # Above the card
    (one(), (pod(tflops_limit="1000"),), soft(20480, (100, 20))),
    (one(), (pod(vram_limit="100Gi"),), soft(81920, (25, 80))),
    # Clamped to what others left, never below the request
    (one(beside=("30Gi",)), (pod(vram_limit="60Gi"),), soft(51200, (25, 50))),
    (one(beside=("30Gi", "30Gi")), (pod(vram_limit="60Gi"),), soft(20480, (25, 20))),
    (one(beside=("30Gi",), node=OVERCOMMITTED), (pod(vram_limit="60Gi"),), soft(61440, (25, 60))),
    # More handed out than the card has: percents are of the card itself
    (one(node=OVERSUBSCRIBED), NO_POD, soft(20480, (25, 20))),
    (one("400", "100Gi", node=OVERSUBSCRIBED), NO_POD, soft(102400, (100, 100))),
    (one(node=OVERSUBSCRIBED), (pod(vram_limit="110Gi"),), soft(112640, (25, 110))),
    (one(node=OVERSUBSCRIBED), (pod(vram_limit="200Gi"),), soft(122880, (25, 120))),
    (
        one(node=OVERSUBSCRIBED, beside=("50Gi",)),
        (pod(vram_limit="200Gi"),),
        soft(71680, (25, 70)),
    ),
    # Claim and class go over the pod
    (one(of_claim={"limits": {"vram": "25Gi"}}), (pod(vram_limit="30Gi"),), soft(25600, (25, 25))),
    (
        one(of_class={"limits": {"vram": "25Gi"}, "overridable": False}),
        (pod(vram_limit="30Gi"),),
        soft(25600, (25, 25)),
    ),
    (one(of_class={"isolation": "soft"}), (HARD,), soft(20480, (25, 20))),
    # Hard isolation by a tenant, where the node's enforcer brings a limiter for it
    (one(node=WITH_HARD_LIMITER), (HARD,), hard(20480, (25, 20))),
    (one(of_claim=OF_HARD_CLASS, node=WITH_HARD_LIMITER), NO_POD, hard(20480, (25, 20))),
    # Hard isolation by a class: a limit that could not be taken back is not granted above requests
    (one(of_class=OF_HARD_CLASS), NO_POD, hard(20480, (25, 20))),
    (one(of_class=OF_HARD_CLASS), (HARD,), hard(20480, (25, 20))),
    (one(of_class=OF_HARD_CLASS), (pod(tflops_limit="156"),), hard(20480, (25, 20))),
    (
        one(of_class=OF_HARD_CLASS, node=OVERCOMMITTED),
        (pod(tflops_limit="156"),),
        hard(20480, (50, 20)),
    ),
    (one(of_class=OF_HARD_CLASS), (pod(vram_limit="30Gi"),), hard(20480, (25, 20))),
    (
        one(of_class=OF_HARD_CLASS, node=OVERCOMMITTED),
        (pod(vram_limit="30Gi"),),
        hard(30720, (25, 30)),
    ),
    (replace(TWO, of_class=OF_HARD_CLASS), NO_POD, hard(10240, (25, 20), (50, 10))),
    (
        one("400", "100Gi", of_class=OF_HARD_CLASS, node=OVERSUBSCRIBED),
        NO_POD,
        hard(102400, (100, 100)),
    ),
    # A tenant may ask for more than its class does
    (one(of_class=OF_HARD_CLASS), (pod(isolation="soft"),), hard(20480, (25, 20))),
    (one(of_class=OF_HARD_CLASS, of_claim={"isolation": "soft"}), NO_POD, soft(20480, (25, 20))),
    # Shared isolation: the card, and nothing else. By a tenant for whole cards
    (WHOLE, (SHARED,), no_limits("shared")),
    (replace(WHOLE, of_claim=OF_SHARED_CLASS), (pod(isolation="soft"),), no_limits("shared")),
    (replace(TWO, cards=(("312", "80Gi"),) * 2), (SHARED,), no_limits("shared")),
    (one("468", "120Gi", node=OVERSUBSCRIBED), (SHARED,), no_limits("shared")),
    # Shared isolation by a class, of whatever amounts
    (one(of_class=OF_SHARED_CLASS), NO_POD, no_limits("shared")),
    (one(of_class=OF_SHARED_CLASS), (SHARED,), no_limits("shared")),
    (one(of_class=OF_SHARED_CLASS), (pod(vram_limit="30Gi"),), no_limits("shared")),
    (replace(TWO, of_class=OF_SHARED_CLASS), NO_POD, no_limits("shared")),
    # A class that is not overridable goes over a tenant's choice
    (
        one(of_class={"isolation": "soft", "overridable": False}, of_claim=OF_HARD_CLASS),
        (SHARED,),
        soft(20480, (25, 20)),
    ),
    # Only an administrator's class turns the limiter off
    (one(of_class={"limiter": False}), NO_POD, no_limits("soft")),
    (
        one(of_class={"limiter": False, "isolation": "hard"}),
        (pod(vram_limit="30Gi"),),
        no_limits("hard"),
    ),
]


@pytest.mark.parametrize(("claimed", "pods", "gets"), TABLE)
def test_what_the_container_gets(
    claimed: Claimed,
    pods: tuple[dict[str, str], ...],
    gets: tuple[dict[str, str], dict[str, str]],
) -> None:
    assert container(admitted(claimed, *pods)) == gets


LIMIT: Final = "pod default/p0: annotation tensor-fusion.ai/vram-limit: found"

NO_HARD_LIMITER: Final = "isolation hard: found no limiter for it on this node, expected an enf"

# What is claimed, what the pod says, why it is refused.
REFUSED: Final[list[tuple[Claimed, dict[str, str], str]]] = [
    # Below the request
    (one(), pod(vram_limit="19Gi"), "vram limit: found 19Gi, expected at least its request 20Gi"),
    (one(), pod(tflops_limit="77.9"), "tflops limit: found 77900m, expected at least its request"),
    (TWO, pod(vram_limit="19Gi"), "vram limit: found 19Gi, expected at least its request 20Gi"),
    (one(of_class=OF_HARD_CLASS), pod(vram_limit="1Mi"), "vram limit: found 1Mi"),
    (WHOLE, pod(isolation="shared", vram_limit="1Mi"), "vram limit: found 1Mi"),
    (one("400", "100Gi", node=OVERSUBSCRIBED), pod(vram_limit="80Gi"), "request 100Gi"),
    # Malformed
    (one(), pod(vram_limit="-1"), f"{LIMIT} -1, expected 0 or more"),
    (one(), pod(vram_limit=""), f"{LIMIT} '', expected a quantity"),
    (one(), pod(vram_limit="1_000"), f"{LIMIT} '1_000', expected a quantity"),
    (one(), pod(vram_limit="1e999999999"), "vram-limit: found exponent 'e999999999'"),
    (one(), pod(vram_limit="２０Gi"), f"{LIMIT} '２０Gi'"),  # noqa: RUF001 - full-width digits
    (one(), pod(vram_limit="20 GB"), f"{LIMIT} '20 GB', expected a quantity"),
    (one(), pod(isolation="none"), "isolation: found 'none', expected one of soft, hard, shared"),
    (one(), pod(isolation="Soft"), "isolation: found 'Soft'"),
    (one(), pod(isolation=""), "isolation: found ''"),
    (one(), pod(qos="best"), "qos: found 'best', expected one of low, medium, high, critical"),
    (one(), pod(tflops_limit="x", qos="best"), "tflops-limit: found 'x', .*; .*qos: found 'best'"),
    # Parameters
    (one(of_claim={"limiter": False}), {}, "parameters of the claim: limiter: found this field"),
    (one(of_claim={"overridable": True}), {}, "claim: overridable: found this field"),
    (one(of_claim={"limits": {"vram": "0"}}), {}, "limits.vram: found '0', expected more than 0"),
    (one(of_claim={"limits": {"vram": "1Gi"}}), {}, "vram limit: found 1Gi, expected at least"),
    (one(of_claim={"limit": {}}), {}, "limit: found this field, expected one of apiVersion"),
    (one(of_class={"isolation": "none"}), {}, "parameters of the class: isolation: found 'none'"),
    # What is claimed itself
    (one("-1"), {}, "tflops: found -1, expected at least 0"),
    (one("1", "0"), {}, "vram: found 0, expected at least 1Mi"),
    (one("313"), {}, "tflops: found 313 plus 0 in use, expected at most 312"),
    (one(beside=("61Gi",)), {}, "vram: found 20Gi plus 61Gi in use, expected at most 80Gi"),
    # What would weaken enforcement, by a tenant's own word
    (one(), HARD, NO_HARD_LIMITER),
    (one(of_claim=OF_HARD_CLASS), {}, NO_HARD_LIMITER),
    (WHOLE, HARD, NO_HARD_LIMITER),
    (one(of_class={"qos": "low", "overridable": False}), HARD, NO_HARD_LIMITER),
    (one(of_class={"limiter": False}), HARD, NO_HARD_LIMITER),
    (one(of_class=OF_SHARED_CLASS, of_claim=OF_HARD_CLASS), {}, NO_HARD_LIMITER),
    (one("0", "1Mi"), SHARED, "isolation shared: found 0 of 312 tflops and 1Mi of 80Gi vram, exp"),
    (one(), SHARED, "isolation shared: found 78 of 312 tflops and 20Gi of 80Gi vram, expected the"),
    (one("312", "79Gi"), SHARED, "isolation shared: found 312 of 312 tflops and 79Gi of 80Gi"),
    (one("311", "80Gi"), SHARED, "isolation shared: found 311 of 312 tflops"),
    (one(of_claim=OF_SHARED_CLASS), {}, "isolation shared: found 78 of 312 tflops"),
    (one(of_class={"limiter": False}), SHARED, "isolation shared: found 78 of 312 tflops"),
    (one(of_class=OF_HARD_CLASS, of_claim=OF_SHARED_CLASS), {}, "isolation shared: found 78 of"),
    (one("312", "80Gi", node=OVERSUBSCRIBED), SHARED, "isolation shared: found 312 of 468 tflops"),
    (replace(TWO, cards=(("312", "80Gi"), ("78", "20Gi"))), SHARED, "isolation shared: found 78"),
    # Another mode on the card
    (
        one(of_class=OF_HARD_CLASS, beside=("1Gi",)),
        {},
        "isolation hard: found the card in isolation soft by default/b0",
    ),
    (one(of_class=OF_SHARED_CLASS, beside=("1Gi",)), {}, "expected no other tenant"),
]


@pytest.mark.parametrize(("claimed", "said", "why"), REFUSED)
def test_what_is_refused(claimed: Claimed, said: dict[str, str], why: str) -> None:
    with pytest.raises(ClaimError, match=f"^claim default/a: .*{why}"):
        admitted(claimed, said)


def test_the_host_folder_and_the_limiter_of_a_soft_claim_are_there_before_its_container() -> None:
    claim = admitted(one())
    spec = cdi.spec(claim, ENFORCER)
    assert spec is not None

    needs = ENFORCER.needs(claim)

    mounts = spec["devices"][1]["containerEdits"]["mounts"]
    needed = [*needs.files, *(folder.path for folder in needs.folders)]
    assert [mount["hostPath"] for mount in mounts] == needed
    assert needed == ["/run/tensor-fusion/libcuda_limiter.so", "/run/tensor-fusion/shm/default/p"]


@pytest.mark.parametrize(
    ("claimed", "said"),
    [(one(of_class=OF_HARD_CLASS), {}), (WHOLE, SHARED), (one(of_class={"limiter": False}), {})],
    ids=["hard", "shared", "no limiter"],
)
def test_a_claim_without_a_limiter_in_its_container_needs_nothing(
    claimed: Claimed, said: dict[str, str]
) -> None:
    needs = ENFORCER.needs(admitted(claimed, said))

    assert (needs.files, needs.folders) == ((), ())


def test_a_simulated_card_has_the_limits_and_nothing_of_the_host() -> None:
    claimed = one(node=node_offer(gpu(0, minor=None)))

    claim = admitted(claimed)

    told, mounts = container(claim)
    assert told["TF_GPU_MEMORY_LIMIT"] == "20480"
    assert "LD_PRELOAD" not in told
    assert mounts == {}
    assert ENFORCER.needs(claim).files == ()


def test_an_administrator_sees_the_card_and_is_not_limited() -> None:
    claim = prepared("a", exclusive(next(iter(TWO_A100.devices)), admin_access=True), on=TWO_A100)

    assert container(claim) == (EVERYWHERE, {})
    assert ENFORCER.needs(claim).files == ()

"""The environment and mounts that a container gets for its claim, and claims that are refused."""

import json
import re
from dataclasses import dataclass, replace
from typing import Any, Final

import pytest

from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims import cdi
from tensorfusion_dra.core.claims.admit import ClaimFacts
from tensorfusion_dra.core.claims.claim import AllocatedClaim, Allocation, OpaqueConfig, PodRef
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.devices.capacity import Oversubscription
from tensorfusion_dra.core.devices.gpu import HostResources
from tensorfusion_dra.core.errors import ClaimError
from tensorfusion_dra.core.kubernetes import quantity
from tensorfusion_dra.core.kubernetes.quantity import GIB, MIB
from tensorfusion_dra.enforcers.tensor_fusion.enforcer import TensorFusion
from tests.support import markdown
from tests.support.builders.allocations import allocation, exclusive_allocation
from tests.support.builders.claims import admitted, allocated_claim, claim_record
from tests.support.builders.devices import NODE
from tests.support.builders.gpus import gpu, gpus
from tests.support.builders.nodes import RULES, node_facts
from tests.support.builders.pods import pod_annotations
from tests.support.builders.policies import policies_of
from tests.support.cdi_rules import environment, injected, violations
from tests.support.markdown import ROOT

ENFORCER: Final = TensorFusion(hypervisor_ip="192.0.2.7")
TWO_A100: Final = node_facts(*gpus(2))  # 312 TFLOPS and 80Gi each
WITH_HARD_LIMITER: Final = replace(TWO_A100, hard_needs="")
OVERCOMMITTED: Final = replace(TWO_A100, rules=replace(RULES, overcommit_limits=True))
OVERSUBSCRIBED: Final = node_facts(  # 312 TFLOPS and 80Gi, handed out as 468 and 120Gi
    gpu(0),
    node=replace(
        NODE,
        oversubscription=Oversubscription(
            tflops_percent=150, host_memory_percent=50, host_disk_percent=0
        ),
    ),
    host=HostResources(memory_bytes=80 * GIB),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """A claim of one request: its amounts on each card, on a node with other claims.

    Attributes:
        cards: TFLOPS and memory on each card.
        beside: Memory of each other claim on the first card.
        of_class: Parameters of the DeviceClass.
        of_claim: Parameters of the claim.
    """

    cards: tuple[tuple[str, str], ...]
    node: ClaimFacts = TWO_A100
    beside: tuple[str, ...] = ()
    of_class: dict[str, Any] | None = None
    of_claim: dict[str, Any] | None = None

    def claim(self) -> AllocatedClaim:
        """Return the claim as allocated, reserved for the pod."""
        devices = zip(self.node.devices, self.cards, strict=False)
        shares = [
            _share(self.node, device, index, amounts)
            for index, (device, amounts) in enumerate(devices)
        ]
        given = ((True, self.of_class), (False, self.of_claim))
        configs = tuple(
            OpaqueConfig(
                trusted=trusted,
                requests=(),
                parameters={
                    "apiVersion": "tensor-fusion.ai/v1alpha1",
                    "kind": "GpuShare",
                    **fields,
                },
            )
            for trusted, fields in given
            if fields is not None
        )
        return allocated_claim(
            "a",
            *shares,
            configs=configs,
            pods=(PodRef(namespace="default", name="p", uid="uid-of-p"),),
        )

    def existing(self) -> list[PreparedClaim]:
        """Return the other claims, which have shares of the first card already."""
        device = next(iter(self.node.devices))
        return [
            claim_record(f"b{n}", _share(self.node, device, 50 + n, ("1", vram)), on=self.node)
            for n, vram in enumerate(self.beside)
        ]


def _share(node: ClaimFacts, device: str, number: int, amounts: tuple[str, str]) -> Allocation:
    given = dict(zip(("tflops", "vram"), amounts, strict=True))
    if node is OVERSUBSCRIBED:
        virtual = {f"virtual_{name}": text for name, text in given.items()}
        given = {"tflops": "0", "vram": "0", **virtual}
    consumed = {name: quantity.parse(text) for name, text in given.items()}
    return allocation(device, number, consumed=consumed)


def one_card(tflops: str = "78", vram: str = "20Gi", **more: Any) -> Claimed:
    return Claimed(cards=((tflops, vram),), **more)


def admitted_claim(claimed: Claimed, *pods: dict[str, str]) -> PreparedClaim:
    claim = claimed.claim()
    policies = policies_of(claim, lambda: {f"default/p{n}": pod for n, pod in enumerate(pods)})
    return admitted(claim, replace(claimed.node, policies=policies), claimed.existing())


def container_edits(claim: PreparedClaim) -> tuple[dict[str, str], dict[str, str]]:
    """Return the environment of the claim's container, and the mode of its mounts by path.

    The variables that describe shares are left out.
    """
    spec = cdi.spec(claim, ENFORCER) or {}
    assert violations(spec) == []
    ids = [name for names in cdi.ids_by_share(claim) for name in names]
    mounts = [mount for edits in injected(spec, ids) for mount in edits.get("mounts", [])]
    env = {n: text for n, text in environment(spec, ids).items() if "_SHARE_" not in n}
    return env, {mount["containerPath"]: mount["options"][0] for mount in mounts}


TWO: Final = Claimed(cards=(("78", "20Gi"), ("156", "10Gi")))
HARD: Final = pod_annotations(isolation="hard")
SHARED: Final = pod_annotations(isolation="shared")
OF_HARD_CLASS: Final = {"isolation": "hard"}
OF_SHARED_CLASS: Final = {"isolation": "shared"}
WHOLE: Final = one_card("312", "80Gi")

BYPASSES_EMPTIED: Final = {
    "DISABLE_GPU_LIMITER": "",
    "TF_ENABLE_DISPATCH_FORWARD": "",
    "TF_DISABLE_MEMORY_MANAGER": "",
    "TF_SKIP_HOOKS_IF_NO_LIMIT": "",
    "ENABLE_NVML_HOOKS": "",
    "ENABLE_CUDA_HOOKS": "",
}
LIMITER: Final = {
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
    "/etc/ld.so.preload": "ro",
}
COMMON: Final = {"NVIDIA_VISIBLE_DEVICES": "void", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}

NO_POD: Final[tuple[dict[str, str], ...]] = ()


def limits(mib: int, *percent_and_gib: tuple[int, float]) -> dict[str, str]:
    """Return the limit variables: MiB of the smallest card, then each card's percent and GiB."""
    by_uuid = list(zip([card.uuid for card in gpus(2)], percent_and_gib, strict=False))
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


def hard(mib: int, *percent_and_gib: tuple[int, float]) -> tuple[dict[str, str], dict[str, str]]:
    return COMMON | {"TF_ISOLATION_MODE": "hard", **limits(mib, *percent_and_gib)}, {}


def soft(mib: int, *percent_and_gib: tuple[int, float]) -> tuple[dict[str, str], dict[str, str]]:
    env, _ = hard(mib, *percent_and_gib)
    return env | {"TF_ISOLATION_MODE": "soft", **LIMITER}, LIMITER_MOUNTS


def no_limits(mode: str) -> tuple[dict[str, str], dict[str, str]]:
    return COMMON | {"TF_ISOLATION_MODE": mode}, {}


# Claim, annotations of its pods, environment and mounts of the container.
TABLE: Final[list[tuple[Claimed, tuple[dict[str, str], ...], Any]]] = [
    # Soft isolation
    (one_card(), NO_POD, soft(20480, (25, 20))),
    (one_card(), (pod_annotations(),), soft(20480, (25, 20))),
    (one_card(), (pod_annotations(isolation="soft"),), soft(20480, (25, 20))),
    (one_card(), (pod_annotations(qos="critical"),), soft(20480, (25, 20))),
    (one_card(), (pod_annotations(tflops_limit="156"),), soft(20480, (50, 20))),
    (one_card(), (pod_annotations(vram_limit="30Gi"),), soft(30720, (25, 30))),
    (
        one_card(),
        (pod_annotations(tflops_limit="156.001", vram_limit="30Gi"),),
        soft(30720, (51, 30)),
    ),
    (one_card("0", "1Mi"), NO_POD, soft(1, (1, 1 / 1024))),
    # Requests of 1G and 1.00055 consume this
    (
        one_card("1001m", "954Mi"),
        (pod_annotations(tflops_limit="1.00055", vram_limit="1G"),),
        soft(954, (1, 954 / 1024)),
    ),
    (one_card("312", "80Gi"), NO_POD, soft(81920, (100, 80))),
    # A limit equal to its request; 0 counts as absent; the smallest limit of several pods
    (one_card(), (pod_annotations(tflops_limit="78", vram_limit="20Gi"),), soft(20480, (25, 20))),
    (one_card(), (pod_annotations(tflops_limit="0", vram_limit="0"),), soft(20480, (25, 20))),
    (
        one_card(),
        (pod_annotations(vram_limit="40Gi"), pod_annotations(vram_limit="30Gi"), pod_annotations()),
        soft(30720, (25, 30)),
    ),
    # Several cards
    (TWO, NO_POD, soft(10240, (25, 20), (50, 10))),
    (TWO, (pod_annotations(vram_limit="30Gi"),), soft(30720, (25, 30), (50, 30))),
    (TWO, (pod_annotations(tflops_limit="312"),), soft(10240, (100, 20), (100, 10))),
    # Above the card
    (one_card(), (pod_annotations(tflops_limit="1000"),), soft(20480, (100, 20))),
    (one_card(), (pod_annotations(vram_limit="100Gi"),), soft(81920, (25, 80))),
    # Clamped to what other tenants left, never below the request
    (one_card(beside=("30Gi",)), (pod_annotations(vram_limit="60Gi"),), soft(51200, (25, 50))),
    (
        one_card(beside=("30Gi", "30Gi")),
        (pod_annotations(vram_limit="60Gi"),),
        soft(20480, (25, 20)),
    ),
    (
        one_card(beside=("30Gi",), node=OVERCOMMITTED),
        (pod_annotations(vram_limit="60Gi"),),
        soft(61440, (25, 60)),
    ),
    # Oversubscription: percentages are of the physical card
    (one_card(node=OVERSUBSCRIBED), NO_POD, soft(20480, (25, 20))),
    (one_card("400", "100Gi", node=OVERSUBSCRIBED), NO_POD, soft(102400, (100, 100))),
    (
        one_card(node=OVERSUBSCRIBED),
        (pod_annotations(vram_limit="110Gi"),),
        soft(112640, (25, 110)),
    ),
    (
        one_card(node=OVERSUBSCRIBED),
        (pod_annotations(vram_limit="200Gi"),),
        soft(122880, (25, 120)),
    ),
    (
        one_card(node=OVERSUBSCRIBED, beside=("50Gi",)),
        (pod_annotations(vram_limit="200Gi"),),
        soft(71680, (25, 70)),
    ),
    # Claim and class precede the pod
    (
        one_card(of_claim={"limits": {"vram": "25Gi"}}),
        (pod_annotations(vram_limit="30Gi"),),
        soft(25600, (25, 25)),
    ),
    (
        one_card(of_class={"limits": {"vram": "25Gi"}, "overridable": False}),
        (pod_annotations(vram_limit="30Gi"),),
        soft(25600, (25, 25)),
    ),
    (one_card(of_class={"isolation": "soft"}), (HARD,), soft(20480, (25, 20))),
    # Hard isolation by a tenant, where the node's enforcer brings a limiter for it
    (one_card(node=WITH_HARD_LIMITER), (HARD,), hard(20480, (25, 20))),
    (one_card(of_claim=OF_HARD_CLASS, node=WITH_HARD_LIMITER), NO_POD, hard(20480, (25, 20))),
    # Hard isolation by a class: a limit that could not be taken back is the request
    (one_card(of_class=OF_HARD_CLASS), NO_POD, hard(20480, (25, 20))),
    (one_card(of_class=OF_HARD_CLASS), (HARD,), hard(20480, (25, 20))),
    (
        one_card(of_class=OF_HARD_CLASS),
        (pod_annotations(tflops_limit="156"),),
        hard(20480, (25, 20)),
    ),
    (
        one_card(of_class=OF_HARD_CLASS, node=OVERCOMMITTED),
        (pod_annotations(tflops_limit="156"),),
        hard(20480, (50, 20)),
    ),
    (
        one_card(of_class=OF_HARD_CLASS),
        (pod_annotations(vram_limit="30Gi"),),
        hard(20480, (25, 20)),
    ),
    (
        one_card(of_class=OF_HARD_CLASS, node=OVERCOMMITTED),
        (pod_annotations(vram_limit="30Gi"),),
        hard(30720, (25, 30)),
    ),
    (replace(TWO, of_class=OF_HARD_CLASS), NO_POD, hard(10240, (25, 20), (50, 10))),
    (
        one_card("400", "100Gi", of_class=OF_HARD_CLASS, node=OVERSUBSCRIBED),
        NO_POD,
        hard(102400, (100, 100)),
    ),
    # The claim's mode precedes that of its class, the pod's does not
    (one_card(of_class=OF_HARD_CLASS), (pod_annotations(isolation="soft"),), hard(20480, (25, 20))),
    (
        one_card(of_class=OF_HARD_CLASS, of_claim={"isolation": "soft"}),
        NO_POD,
        soft(20480, (25, 20)),
    ),
    # Shared isolation, without limits: a tenant may choose it for whole cards
    (WHOLE, (SHARED,), no_limits("shared")),
    (
        replace(WHOLE, of_claim=OF_SHARED_CLASS),
        (pod_annotations(isolation="soft"),),
        no_limits("shared"),
    ),
    (replace(TWO, cards=(("312", "80Gi"),) * 2), (SHARED,), no_limits("shared")),
    (one_card("468", "120Gi", node=OVERSUBSCRIBED), (SHARED,), no_limits("shared")),
    # Shared isolation by a class, for any amounts
    (one_card(of_class=OF_SHARED_CLASS), NO_POD, no_limits("shared")),
    (one_card(of_class=OF_SHARED_CLASS), (SHARED,), no_limits("shared")),
    (
        one_card(of_class=OF_SHARED_CLASS),
        (pod_annotations(vram_limit="30Gi"),),
        no_limits("shared"),
    ),
    (replace(TWO, of_class=OF_SHARED_CLASS), NO_POD, no_limits("shared")),
    # A class that is not overridable precedes a tenant's choice
    (
        one_card(of_class={"isolation": "soft", "overridable": False}, of_claim=OF_HARD_CLASS),
        (SHARED,),
        soft(20480, (25, 20)),
    ),
    # Only an administrator's class turns the limiter off
    (one_card(of_class={"limiter": False}), NO_POD, no_limits("soft")),
    (
        one_card(of_class={"limiter": False, "isolation": "hard"}),
        (pod_annotations(vram_limit="30Gi"),),
        no_limits("hard"),
    ),
]


@pytest.mark.parametrize(("claimed", "pods", "expected"), TABLE)
def test_container_gets_environment_and_mounts(
    claimed: Claimed,
    pods: tuple[dict[str, str], ...],
    expected: tuple[dict[str, str], dict[str, str]],
) -> None:
    assert container_edits(admitted_claim(claimed, *pods)) == expected


def test_soft_claim_needs_the_host_paths_of_its_mounts() -> None:
    claim = admitted_claim(one_card())

    needs = ENFORCER.needs(claim)

    needed = [*needs.files, *(folder.path for folder in needs.folders)]
    needed += [text.path for text in needs.texts]
    spec: Any = cdi.spec(claim, ENFORCER)
    mounts = spec["devices"][1]["containerEdits"]["mounts"]
    assert [mount["hostPath"] for mount in mounts] == needed
    assert needed == [
        "/run/tensor-fusion/libcuda_limiter.so",
        "/run/tensor-fusion/shm/default/p",
        "/run/tensor-fusion/preload/ld.so.preload",
    ]


def test_admin_access_has_no_limits() -> None:
    device = next(iter(TWO_A100.devices))
    claim = claim_record("a", exclusive_allocation(device, admin_access=True), on=TWO_A100)

    assert container_edits(claim) == (COMMON, {})
    assert ENFORCER.needs(claim).files == ()


LIMIT: Final = "pod default/p0: annotation tensor-fusion.ai/vram-limit: found"

NO_HARD_LIMITER: Final = "isolation hard: found no limiter for it on this node, expected hard "

# Claim, annotations of its pod, reason of the refusal.
REFUSED: Final[list[tuple[Claimed, dict[str, str], str]]] = [
    # Below the request
    (
        one_card(),
        pod_annotations(vram_limit="19Gi"),
        "vram limit: found 19Gi, expected at least its request 20Gi",
    ),
    (
        one_card(),
        pod_annotations(tflops_limit="77.9"),
        "tflops limit: found 77900m, expected at least its request",
    ),
    (
        TWO,
        pod_annotations(vram_limit="19Gi"),
        "vram limit: found 19Gi, expected at least its request 20Gi",
    ),
    (one_card(of_class=OF_HARD_CLASS), pod_annotations(vram_limit="1Mi"), "vram limit: found 1Mi"),
    (WHOLE, pod_annotations(isolation="shared", vram_limit="1Mi"), "vram limit: found 1Mi"),
    (
        one_card("400", "100Gi", node=OVERSUBSCRIBED),
        pod_annotations(vram_limit="80Gi"),
        "request 100Gi",
    ),
    # Malformed
    (one_card(), pod_annotations(vram_limit="-1"), f"{LIMIT} -1, expected 0 or more"),
    (one_card(), pod_annotations(vram_limit=""), f"{LIMIT} '', expected a quantity"),
    (one_card(), pod_annotations(vram_limit="1_000"), f"{LIMIT} '1_000', expected a quantity"),
    (
        one_card(),
        pod_annotations(vram_limit="1e999999999"),
        "vram-limit: found exponent 'e999999999'",
    ),
    (one_card(), pod_annotations(vram_limit="２０Gi"), f"{LIMIT} '２０Gi'"),  # noqa: RUF001 - full-width digits
    (one_card(), pod_annotations(vram_limit="20 GB"), f"{LIMIT} '20 GB', expected a quantity"),
    (
        one_card(),
        pod_annotations(isolation="none"),
        "isolation: found 'none', expected one of soft, hard, shared",
    ),
    (one_card(), pod_annotations(isolation="Soft"), "isolation: found 'Soft'"),
    (one_card(), pod_annotations(isolation=""), "isolation: found ''"),
    (
        one_card(),
        pod_annotations(qos="best"),
        "qos: found 'best', expected one of low, medium, high, critical",
    ),
    (
        one_card(),
        pod_annotations(tflops_limit="x", qos="best"),
        "tflops-limit: found 'x', .*; .*qos: found 'best'",
    ),
    # Parameters
    (
        one_card(of_claim={"limiter": False}),
        {},
        "parameters of the claim: limiter: found this field",
    ),
    (one_card(of_claim={"overridable": True}), {}, "claim: overridable: found this field"),
    (
        one_card(of_claim={"limits": {"vram": "0"}}),
        {},
        "limits.vram: found '0', expected more than 0",
    ),
    (
        one_card(of_claim={"limits": {"vram": "1Gi"}}),
        {},
        "vram limit: found 1Gi, expected at least",
    ),
    (one_card(of_claim={"limit": {}}), {}, "limit: found this field, expected one of apiVersion"),
    (
        one_card(of_class={"isolation": "none"}),
        {},
        "parameters of the class: isolation: found 'none'",
    ),
    # Amounts of the claim
    (one_card("-1"), {}, "tflops: found -1, expected at least 0"),
    (one_card("1", "0"), {}, "vram: found 0, expected at least 1Mi"),
    (one_card("313"), {}, "tflops: found 313 plus 0 in use, expected at most 312"),
    (one_card(beside=("61Gi",)), {}, "vram: found 20Gi plus 61Gi in use, expected at most 80Gi"),
    # A tenant's choice of an isolation that would weaken enforcement
    (one_card(), HARD, NO_HARD_LIMITER),
    (one_card(of_claim=OF_HARD_CLASS), {}, NO_HARD_LIMITER),
    (WHOLE, HARD, NO_HARD_LIMITER),
    (one_card(of_class={"qos": "low", "overridable": False}), HARD, NO_HARD_LIMITER),
    (one_card(of_class={"limiter": False}), HARD, NO_HARD_LIMITER),
    (one_card(of_class=OF_SHARED_CLASS, of_claim=OF_HARD_CLASS), {}, NO_HARD_LIMITER),
    (
        one_card("0", "1Mi"),
        SHARED,
        "isolation shared: found 0 of 312 tflops and 1Mi of 80Gi vram, exp",
    ),
    (
        one_card(),
        SHARED,
        "isolation shared: found 78 of 312 tflops and 20Gi of 80Gi vram, expected the",
    ),
    (one_card("312", "79Gi"), SHARED, "isolation shared: found 312 of 312 tflops and 79Gi of 80Gi"),
    (one_card("311", "80Gi"), SHARED, "isolation shared: found 311 of 312 tflops"),
    (one_card(of_claim=OF_SHARED_CLASS), {}, "isolation shared: found 78 of 312 tflops"),
    (one_card(of_class={"limiter": False}), SHARED, "isolation shared: found 78 of 312 tflops"),
    (
        one_card(of_class=OF_HARD_CLASS, of_claim=OF_SHARED_CLASS),
        {},
        "isolation shared: found 78 of",
    ),
    (
        one_card("312", "80Gi", node=OVERSUBSCRIBED),
        SHARED,
        "isolation shared: found 312 of 468 tflops",
    ),
    (replace(TWO, cards=(("312", "80Gi"), ("78", "20Gi"))), SHARED, "isolation shared: found 78"),
    # Another mode on the card
    (
        one_card(of_class=OF_HARD_CLASS, beside=("1Gi",)),
        {},
        "isolation hard: found the card in isolation soft by default/b0",
    ),
    (one_card(of_class=OF_SHARED_CLASS, beside=("1Gi",)), {}, "expected no other tenant"),
]


@pytest.mark.parametrize(("claimed", "annotations", "reason"), REFUSED)
def test_claim_is_refused(claimed: Claimed, annotations: dict[str, str], reason: str) -> None:
    with pytest.raises(ClaimError, match=f"^claim default/a: .*{reason}"):
        admitted_claim(claimed, annotations)


LIMITS: Final = markdown.text(ROOT / "docs" / "limits.md")


def documented(row: list[str]) -> tuple[Claimed, dict[str, str]]:
    """Return the claim of a row of the documentation, and the annotation that it names."""
    amounts = re.compile(r"(?P<tflops>[0-9.]+) TFLOPS, (?P<vram>[0-9]+[GM]i)").fullmatch(row[0])
    claim = one_card(amounts["tflops"], amounts["vram"]) if amounts else WHOLE
    named = [code.partition(": ") for code in markdown.codes(row[1])]
    return claim, pod_annotations(**{name: value for name, _, value in named})


@pytest.mark.parametrize("row", markdown.table(LIMITS, "limits"), ids=" ".join)
def test_container_gets_the_limits_of_the_documented_table(row: list[str]) -> None:
    claim, annotations = documented(row)

    environment, _ = container_edits(admitted_claim(claim, annotations))

    assert row[2] == f"{environment[names.ENV_SM_PERCENT_LIMIT]} %"
    assert row[3].startswith(f"{environment[names.ENV_MEMORY_LIMIT]} MiB")


def test_table_of_variables_names_every_variable_that_carries_a_limit() -> None:
    rows = markdown.table(LIMITS, "environment")
    environment, _ = container_edits(admitted_claim(one_card()))

    documented = {code for row in rows for code in markdown.codes(row[0])}
    carrying = environment.keys() - {*names.ENV_BYPASSES, *LIMITER}
    assert documented == {*carrying, f"{names.ENV_SHARE_PREFIX}<share>"}

"""Claims with annotations and parameters, for tests of the limits that their containers get."""

from dataclasses import dataclass, replace
from typing import Any, Final

from tensorfusion_dra.core.claims import cdi, fit, share_policy
from tensorfusion_dra.core.claims.claim import AllocatedClaim, OpaqueConfig, PodRef
from tensorfusion_dra.core.claims.enforcers.tensor_fusion import TensorFusion
from tensorfusion_dra.core.claims.fit import NodeOffer
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.devices.gpu import HostResources
from tensorfusion_dra.core.devices.oversubscription import Oversubscription
from tensorfusion_dra.core.kubernetes import quantity
from tensorfusion_dra.core.kubernetes.quantity import GIB
from tests.support.builders.allocations import allocation
from tests.support.builders.claims import allocated_claim, fitted_claim
from tests.support.builders.devices import NODE
from tests.support.builders.gpus import gpu, gpus
from tests.support.builders.nodes import RULES, node_offer
from tests.support.builders.pods import pod_annotations
from tests.support.builders.policies import DEFAULTS
from tests.support.cdi_rules import environment, injected, violations

ENFORCER: Final = TensorFusion(hypervisor_ip="192.0.2.7")
POD: Final = PodRef(namespace="default", name="p", uid="uid-of-p")

TWO_A100: Final = node_offer(*gpus(2))  # 312 TFLOPS and 80Gi each
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
    node: NodeOffer = TWO_A100
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
        return allocated_claim("a", *shares, configs=tuple(configs), pods=(POD,))

    def existing(self) -> list[PreparedClaim]:
        """Return the other claims, which have shares of the first card already."""
        device = next(iter(self.node.devices))
        return [
            fitted_claim(f"b{n}", _share(self.node, device, 50 + n, ("1", vram)), on=self.node)
            for n, vram in enumerate(self.beside)
        ]


def _share(node: NodeOffer, device: str, number: int, amounts: tuple[str, str]) -> Any:
    if node is not OVERSUBSCRIBED:
        return allocation(device, number, tflops=amounts[0], vram=amounts[1])
    names = ("tflops", "vram", "virtual_tflops", "virtual_vram")
    values = dict(zip(names, ("0", "0", *amounts), strict=True))
    return allocation(
        device, number, consumed={key: quantity.parse(text) for key, text in values.items()}
    )


def one_card(tflops: str = "78", vram: str = "20Gi", **more: Any) -> Claimed:
    return Claimed(cards=((tflops, vram),), **more)


def admitted_claim(claimed: Claimed, *pods: dict[str, str]) -> PreparedClaim:
    claim = claimed.claim()
    annotated = share_policy.of_pods(claim, {f"default/p{n}": pod for n, pod in enumerate(pods)})
    policies = [
        share_policy.of_share(claim, item, annotated, DEFAULTS) for item in claim.allocations
    ]
    return fit.fit(claim, policies, claimed.node, claimed.existing()).claim


def container_edits(claim: PreparedClaim) -> tuple[dict[str, str], dict[str, str]]:
    """Return the environment of the claim's container, and the mode of its mounts by path.

    The variables that describe shares are left out.
    """
    spec = cdi.spec(claim, ENFORCER)
    assert spec is not None
    assert violations(spec) == []
    ids = [name for names in cdi.ids_by_share(claim) for name in names]
    variables = environment(spec, ids)
    mounts = [mount for edits in injected(spec, ids) for mount in edits.get("mounts", [])]
    env = {name: value for name, value in variables.items() if "_SHARE_" not in name}
    return env, {mount["containerPath"]: mount["options"][0] for mount in mounts}


TWO: Final = Claimed(cards=(("78", "20Gi"), ("156", "10Gi")))
HARD: Final = pod_annotations(isolation="hard")
SHARED: Final = pod_annotations(isolation="shared")
OF_HARD_CLASS: Final = {"isolation": "hard"}
OF_SHARED_CLASS: Final = {"isolation": "shared"}
WHOLE: Final = one_card("312", "80Gi")

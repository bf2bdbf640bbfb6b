"""Claims inside the driver: allocated by the scheduler, prepared by the node.

For claims as the API server stores them, see tests.support.stored_claims.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final

from tensorfusion_dra.core.claims import fit
from tensorfusion_dra.core.claims.access import CardAccess, SharedAccess
from tensorfusion_dra.core.claims.claim import AllocatedClaim, Allocation, ClaimRef
from tensorfusion_dra.core.claims.enforcers.hami_core import HamiCore
from tensorfusion_dra.core.claims.enforcers.tensor_fusion import TensorFusion
from tensorfusion_dra.core.claims.fit import Fit, NodeOffer
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.claims.share_policy import SharePolicy
from tensorfusion_dra.core.claims.tenancy import LendingRules
from tensorfusion_dra.core.devices.device import Node
from tensorfusion_dra.core.devices.gpu import Gpu, HostResources
from tensorfusion_dra.core.devices.sharing import Isolation, Qos
from tensorfusion_dra.core.kubernetes import quantity
from tests.support.gpus import NO_HOST, NODE, published

COMMON_NODES: Final = ("/dev/nvidiactl", "/dev/nvidia-uvm")
ENFORCER: Final = TensorFusion()
HAMI_CORE: Final = HamiCore(library="/usr/local/vgpu/libvgpu.so.2.8.0")
RULES: Final = LendingRules(enforcers={each.name: each for each in (ENFORCER, HAMI_CORE)})
DEFAULTS: Final = SharePolicy(
    isolation=Isolation.SOFT, qos=Qos.MEDIUM, tflops_limit=None, vram_limit=None, limiter=True
)


def ref(name: str) -> ClaimRef:
    """Return a reference to a claim in the namespace default."""
    return ClaimRef(namespace="default", name=name, uid=f"uid-{name}")


def share_id(number: int) -> str:
    """Return a share ID in the scheduler's form: a lower-case UUID."""
    return f"5a5a5a5a-0000-4000-8000-{number:012x}"


def share(
    device: str, number: int, *, tflops: str = "100", vram: str = "16Gi", **changes: Any
) -> Allocation:
    """Return a share of a device. The number sets its share ID, changes set other attributes."""
    amounts = {"tflops": quantity.parse(tflops), "vram": quantity.parse(vram)}
    given: dict[str, Any] = {
        "request": "gpu",
        "pool": NODE.pool,
        "share_id": share_id(number),
        "consumed": amounts,
    }
    return Allocation(device=device, **{**given, **changes})


def exclusive(device: str, *, request: str = "gpu", admin_access: bool = False) -> Allocation:
    """Return a device without a share: allocated exclusively, or for admin access."""
    return Allocation(
        request=request, pool=NODE.pool, device=device, consumed={}, admin_access=admin_access
    )


def allocated(name: str, *allocations: Allocation, **changes: Any) -> AllocatedClaim:
    """Return a claim with these allocation results; changes set its other attributes."""
    return AllocatedClaim(ref=ref(name), allocations=allocations, **changes)


def policy(*, tflops: str = "", vram: str = "", **changes: Any) -> SharePolicy:
    """Return a policy with these limits and soft isolation; changes set its other attributes."""
    return replace(
        DEFAULTS,
        tflops_limit=quantity.parse(tflops) if tflops else None,
        vram_limit=quantity.parse(vram) if vram else None,
        **changes,
    )


def node_offer(
    *gpus: Gpu, node: Node = NODE, host: HostResources = NO_HOST, rules: LendingRules = RULES
) -> NodeOffer:
    """Return the offer of a node with these cards; a card without a minor number is simulated."""
    devices = {device.name: device for device in published(*gpus, node=node, host=host)}
    return NodeOffer(
        pool=NODE.pool,
        devices=devices,
        access={
            name: CardAccess(
                device_nodes=() if device.gpu.minor is None else (f"/dev/nvidia{device.gpu.minor}",)
            )
            for name, device in devices.items()
        },
        shared_access=SharedAccess(device_nodes=COMMON_NODES),
        enforcer=ENFORCER.name,
        rules=rules,
    )


def admitted(
    claim: AllocatedClaim,
    *,
    on: NodeOffer,
    beside: Iterable[PreparedClaim] = (),
    policy: SharePolicy = DEFAULTS,
) -> Fit:
    """Fit a claim with the same policy for every share of the claim."""
    return fit.fit(claim, [policy] * len(claim.allocations), on, beside)


def prepared(
    name: str, *allocations: Allocation, on: NodeOffer, policy: SharePolicy = DEFAULTS
) -> PreparedClaim:
    """Return the record of a claim on a node that has no other claims."""
    return admitted(allocated(name, *allocations), on=on, policy=policy).claim

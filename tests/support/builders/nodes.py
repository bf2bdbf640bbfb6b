"""Offer of a node: the facts with which a claim is fitted to it."""

from typing import Final

from tensorfusion_dra.core.claims.admit import ClaimFacts
from tensorfusion_dra.core.claims.enforcer import Enforcer
from tensorfusion_dra.core.claims.lending import LendingRules
from tensorfusion_dra.core.claims.prepared import CardAccess, SharedAccess
from tensorfusion_dra.core.devices.device import Node
from tensorfusion_dra.core.devices.gpu import Gpu, HostResources
from tensorfusion_dra.enforcers.hami_core.enforcer import HamiCore
from tensorfusion_dra.enforcers.mps.enforcer import Mps
from tensorfusion_dra.enforcers.nvidia.enforcer import Nvidia
from tensorfusion_dra.enforcers.tensor_fusion.enforcer import TensorFusion
from tests.support.builders.devices import NO_HOST, NODE, published_devices

COMMON_NODES: Final = ("/dev/nvidiactl", "/dev/nvidia-uvm")
ENFORCER: Final = TensorFusion()
MPS: Final = Mps()
HAMI_CORE: Final = HamiCore(library="/usr/local/vgpu/libvgpu.so.2.8.0")
NVIDIA: Final = Nvidia()
ENFORCERS: Final[dict[str, Enforcer]] = {
    each.name: each for each in (ENFORCER, HAMI_CORE, MPS, NVIDIA)
}
RULES: Final = LendingRules(facts={name: each.facts for name, each in ENFORCERS.items()})


def node_facts(
    *gpus: Gpu, node: Node = NODE, host: HostResources = NO_HOST, rules: LendingRules = RULES
) -> ClaimFacts:
    """Return the offer of a node with these cards; a card without a minor number is simulated."""
    devices = {device.name: device for device in published_devices(*gpus, node=node, host=host)}
    return ClaimFacts(
        pool=NODE.pool,
        devices=devices,
        access={
            name: CardAccess(
                device_nodes=() if device.gpu.minor is None else (f"/dev/nvidia{device.gpu.minor}",)
            )
            for name, device in devices.items()
        },
        shared_access=SharedAccess(
            device_nodes=COMMON_NODES if any(each.minor is not None for each in gpus) else ()
        ),
        enforcer=ENFORCER.name,
        rules=rules,
    )

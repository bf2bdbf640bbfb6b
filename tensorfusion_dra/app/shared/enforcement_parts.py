"""Parts that look whether limits hold, built from the settings."""

from typing import Final

from tensorfusion_dra.app.shared import node_parts
from tensorfusion_dra.app.shared.node_settings import Settings
from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.claims.enforcement.signs import NodePlaces
from tensorfusion_dra.core.claims.enforcers.tensor_fusion import TensorFusion
from tensorfusion_dra.core.claims.limits import Limit
from tensorfusion_dra.core.claims.prepared import PreparedClaim, PreparedShare
from tensorfusion_dra.core.devices.sharing import Isolation, Qos
from tensorfusion_dra.core.kubernetes.quantity import GIB, Quantity
from tensorfusion_dra.enforcement.live_signs import LiveSigns

_REAL_NODES: Final = ("/dev/nvidia0",)
_DEVICE_PLUGINS: Final = "device-plugins/tensor-fusion-index-*.sock"


def live_signs(settings: Settings) -> LiveSigns:
    """Return a reader of the signs of this node's enforcer."""
    return LiveSigns(node_places(settings))


def node_places(settings: Settings) -> NodePlaces:
    """Return where this node's enforcer leaves signs of itself, for shares in soft isolation."""
    enforcer = node_parts.enforcers(settings)[settings.enforcer]
    places = enforcer.places(example_claim(settings, isolation=Isolation.SOFT))
    if enforcer.name != TensorFusion.name:
        return NodePlaces(enforcer=enforcer.name, files=places.files, socket=places.socket)
    host = settings.hypervisor_ip
    return NodePlaces(
        enforcer=enforcer.name,
        files=places.files,
        shared_memory=f"{settings.tensor_fusion_root}/shm",
        sockets=f"{settings.kubelet_root}/{_DEVICE_PLUGINS}",
        http=(host, settings.hypervisor_port) if host else None,
    )


def example_claim(settings: Settings, *, isolation: Isolation) -> PreparedClaim:
    """Return an example of a prepared claim for a part of a real card."""
    share = PreparedShare(
        request="gpu",
        pool=node_parts.node(settings).pool,
        device="gpu-0",
        gpu_uuid="GPU-0",
        share_id=None,
        consumed={
            names.CAPACITY_TFLOPS: Quantity.whole(1),
            names.CAPACITY_VRAM: Quantity.of_bytes(GIB),
        },
        exclusive=False,
        admin_access=False,
        device_nodes=_REAL_NODES,
        isolation=isolation,
        qos=Qos(settings.qos),
        toolkit_device=None,
        pci_bus_id="",
        wanted_vram_bytes=GIB,
        limit=Limit(sm_percent=1, vram_bytes=GIB),
    )
    ref = ClaimRef(namespace="default", name="doctor", uid="doctor")
    return PreparedClaim(ref=ref, shares=(share,), enforcer=settings.enforcer)

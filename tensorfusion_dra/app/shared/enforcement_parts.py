"""Parts that look whether limits hold, built from the settings."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tensorfusion_dra.app.shared import node_parts
from tensorfusion_dra.app.shared.node_settings import Settings
from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.claims.enforcement import presence, verdicts
from tensorfusion_dra.core.claims.enforcement.signs import NodePlaces
from tensorfusion_dra.core.claims.enforcement.verdict import Verdict
from tensorfusion_dra.core.claims.enforcers.enforcer import Enforcer
from tensorfusion_dra.core.claims.enforcers.tensor_fusion import TensorFusion
from tensorfusion_dra.core.claims.limits import Limit
from tensorfusion_dra.core.claims.prepared import PreparedClaim, PreparedShare
from tensorfusion_dra.core.devices.sharing import Isolation, Qos
from tensorfusion_dra.core.kubernetes.quantity import GIB, Quantity
from tensorfusion_dra.enforcement.live_signs import LiveSigns

_REAL_NODES: Final = ("/dev/nvidia0",)
_SOCKETS: Final = "tensor-fusion-index-*.sock"


def is_needed(settings: Settings) -> bool:
    """Return True if something on this node has to enforce limits in the default isolation."""
    example = example_claim(settings, isolation=Isolation(settings.isolation))
    return not settings.simulated_gpus and presence.needs_enforcer(example)


def live_signs(settings: Settings, every: Mapping[str, Enforcer] | None = None) -> LiveSigns:
    """Return a reader of the signs of this node's enforcer.

    Args:
        every: From node_parts.enforcers(); None for new ones.
    """
    return LiveSigns(node_places(settings, every))


def node_places(settings: Settings, every: Mapping[str, Enforcer] | None = None) -> NodePlaces:
    """Return where this node's enforcer leaves signs of itself, for shares in soft isolation."""
    enforcer = node_parts.chosen_enforcer(settings, every)
    places = presence.places(example_claim(settings, isolation=Isolation.SOFT), enforcer)
    if enforcer.name != TensorFusion.name:
        return NodePlaces(enforcer=enforcer.name, files=places.files, socket=places.socket)
    host = settings.hypervisor_ip
    sockets = settings.hypervisor_sockets or f"{settings.kubelet_root}/device-plugins"
    return NodePlaces(
        enforcer=enforcer.name,
        files=places.files,
        sockets=f"{sockets}/{_SOCKETS}",
        # A pod in the host's network could answer there while no hypervisor does.
        http=(host, settings.hypervisor_port) if host and not settings.hypervisor_sockets else None,
    )


def verdicts_now(
    settings: Settings, claims: Sequence[PreparedClaim]
) -> Sequence[Sequence[Verdict]]:
    """Return for each of this node's claims the verdict about each of its shares, as of now."""
    enforcers = node_parts.enforcers(settings)
    reader = live_signs(settings, enforcers)
    places = [presence.places(claim, enforcers.get(claim.enforcer)) for claim in claims]
    found = []
    for claim, place in zip(claims, places, strict=True):
        every = zip(claims, places, strict=True)
        beside = verdicts.beside(claim, place.shared_memory, every)
        signs = reader.of_claim(place)
        is_new = signs.read_at - _limits_since(settings, claim) < verdicts.STARTING_SECONDS
        found.append(
            verdicts.of_claim(
                claim,
                signs,
                is_new=is_new,
                beside=beside,
                judge=verdicts.judge_of(enforcers.get(claim.enforcer)),
            )
        )
    return found


def _limits_since(settings: Settings, claim: PreparedClaim) -> float:
    """Return when the claim's limits were last set: the time of its limits document."""
    document = Path(settings.tensor_fusion_root) / "claims" / f"{claim.ref.uid}.json"
    try:
        return document.stat().st_mtime
    except OSError:
        return -math.inf


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

"""Cards, nodes and claims for the tests of other packages."""

from dataclasses import replace
from typing import Any, Final

from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.devices.gpu import Inventory
from tensorfusion_dra.core.devices.sharing import Qos
from tensorfusion_dra.core.kubernetes.quantity import GIB, Quantity
from tensorfusion_dra.extend import (
    EnforcerSettings,
    Gpu,
    Isolation,
    Limit,
    Node,
    PreparedClaim,
    PreparedShare,
    Reading,
    TflopsSource,
)

_ROOT: Final = "/run/tensor-fusion"


def gpu(index: int = 0, **changes: Any) -> Gpu:
    """Return an A100 with 80Gi; changes set its other attributes."""
    card = Gpu(
        uuid=f"GPU-00000000-0000-4000-8000-{index:012x}",
        index=index,
        minor=index,
        product_name="NVIDIA A100-SXM4-80GB",
        model="A100",
        milli_tflops=312_000,
        tflops_source=TflopsSource.TABLE,
        vram_bytes=80 * GIB,
        brand="NVIDIA",
        architecture="ampere",
        compute_capability=(8, 0),
        driver_version="580.95.05",
        cuda_driver_version=(13, 0),
        pci_bus_id=f"0000:{index + 1:02x}:00.0",
        pcie_root="pci0000:00",
        numa_node=0,
    )
    return replace(card, **changes)


ODD_GPUS: Final[tuple[Gpu, ...]] = (
    Gpu(  # of an old driver, which reports next to nothing
        uuid="GPU-odd-1",
        index=90,
        minor=None,
        product_name="",
        model="",
        milli_tflops=1,
        tflops_source=TflopsSource.ESTIMATE,
        vram_bytes=0,
    ),
    gpu(91, product_name="é" * 200, model="x" * 200, numa_node=None, pcie_root=None),
    gpu(92, simulated=True, minor=None, pci_bus_id=None),
    gpu(93, vram_bytes=2**50, milli_tflops=10**9, numa_node=-1),
)
"""Cards without memory, without bus, with long names: providers have to survive them."""


def node(**changes: Any) -> Node:
    """Return the node `node-01` of the pool `default`; changes set its other attributes."""
    return replace(Node(name="node-01", gpupool="default", qos="medium"), **changes)


def reading(*gpus: Gpu) -> Reading:
    """Return a reading of the node() with these cards, for a provider's method `begin`."""
    return Reading(inventory=Inventory(gpus=gpus), node=node())


def share(card: int = 0, *, percent: int = 25, vram_gib: int = 20, **changes: Any) -> PreparedShare:
    """Return a share of the nth card with these limits; changes set its other attributes."""
    given: dict[str, Any] = {
        "request": "gpu",
        "pool": node().pool,
        "device": gpu(card).uuid.lower(),
        "gpu_uuid": gpu(card).uuid,
        "share_id": f"00000000-0000-4000-8000-{card:012x}",
        "consumed": {
            names.CAPACITY_TFLOPS: Quantity.whole(78),
            names.CAPACITY_VRAM: Quantity.of_bytes(vram_gib * GIB),
        },
        "exclusive": False,
        "admin_access": False,
        "device_nodes": (f"/dev/nvidia{card}",),
        "isolation": Isolation.SOFT,
        "qos": Qos.MEDIUM,
        "toolkit_device": None,
        "pci_bus_id": gpu(card).pci_bus_id or "",
        "wanted_vram_bytes": vram_gib * GIB,
        "wanted_sm_percent": percent,
        "limit": Limit(sm_percent=percent, vram_bytes=vram_gib * GIB),
    }
    return PreparedShare(**{**given, **changes})


def claim(*shares: PreparedShare, name: str = "a") -> PreparedClaim:
    """Return a prepared claim with these shares."""
    ref = ClaimRef(namespace="default", name=name, uid=f"uid-{name}")
    return PreparedClaim(ref=ref, shares=shares, common_nodes=("/dev/nvidiactl",))


def enforcer_settings(name: str, **values: str) -> EnforcerSettings:
    """Return the settings of an enforcer; values are settings by flag name, with underscores."""
    folder = f"{_ROOT}/{name}"
    given = {"tensor-fusion-root": _ROOT, "preload": "file"}
    return EnforcerSettings(
        folder=folder,
        claims_root=f"{folder}/claims",
        values=given | {key.replace("_", "-"): value for key, value in values.items()},
    )

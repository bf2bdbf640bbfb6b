"""Check of the files that the configured enforcer needs on this host."""

import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tensorfusion_dra.app.doctor.context import Context
from tensorfusion_dra.app.shared import node_parts
from tensorfusion_dra.app.shared.node_settings import Settings
from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.claims.limits import Limit
from tensorfusion_dra.core.claims.prepared import PreparedClaim, PreparedShare
from tensorfusion_dra.core.devices.sharing import Isolation, Qos
from tensorfusion_dra.core.doctor import enforcement as rules
from tensorfusion_dra.core.doctor.enforcement import ELF, HostFile
from tensorfusion_dra.core.doctor.finding import Finding
from tensorfusion_dra.core.kubernetes.quantity import GIB, Quantity

_SIMULATED_NODES: Final = ()
_REAL_NODES: Final = ("/dev/nvidia0",)


def files(context: Context) -> Iterator[Finding]:
    """Check the files that a share in the default isolation would need."""
    settings = context.settings
    enforcer = node_parts.enforcers(settings)[settings.enforcer]
    needs = enforcer.needs(_share_of_a_card(settings))
    yield from rules.findings(settings.enforcer, [_read_file(Path(path)) for path in needs.files])


def _read_file(path: Path) -> HostFile:
    """Return the facts about a file: whether it exists, its mode and its first bytes."""
    try:
        status = path.stat()
        beginning = b""
        if stat.S_ISREG(status.st_mode):
            with path.open("rb") as file:
                beginning = file.read(len(ELF))
    except FileNotFoundError:
        return HostFile(path=str(path), exists=False)
    except OSError as error:
        return HostFile(path=str(path), trouble=error.strerror or str(error))
    return HostFile(path=str(path), beginning=beginning, mode=stat.S_IMODE(status.st_mode))


def _share_of_a_card(settings: Settings) -> PreparedClaim:
    """Return an example of a prepared claim, with the settings' isolation and enforcer."""
    amount = Quantity.of_bytes(GIB)
    share = PreparedShare(
        request="gpu",
        pool=node_parts.node(settings).pool,
        device="gpu-0",
        gpu_uuid="GPU-0",
        share_id=None,
        consumed={names.CAPACITY_TFLOPS: Quantity.whole(1), names.CAPACITY_VRAM: amount},
        exclusive=False,
        admin_access=False,
        device_nodes=_SIMULATED_NODES if settings.simulated_gpus else _REAL_NODES,
        isolation=Isolation(settings.isolation),
        qos=Qos(settings.qos),
        toolkit_device=None,
        pci_bus_id="",
        wanted_vram_bytes=GIB,
        limit=Limit(sm_percent=1, vram_bytes=GIB),
    )
    ref = ClaimRef(namespace="default", name="doctor", uid="doctor")
    return PreparedClaim(ref=ref, shares=(share,), enforcer=settings.enforcer)

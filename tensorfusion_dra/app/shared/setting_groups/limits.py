"""Settings of the limits: where they come from, and what enforces them."""

from dataclasses import dataclass
from typing import Final

from tensorfusion_dra.app.shared import enforcer_kinds
from tensorfusion_dra.app.shared.setting_forms import check_path
from tensorfusion_dra.app.shared.setting_sources import (
    check_boolean,
    check_choice,
    check_ranges,
    flag,
    setting,
)
from tensorfusion_dra.core.claims.enforcers.kinds import KINDS
from tensorfusion_dra.core.claims.enforcers.preload import Way
from tensorfusion_dra.core.devices.oversubscription import Oversubscription
from tensorfusion_dra.core.devices.sharing import Isolation
from tensorfusion_dra.core.errors import InputError

_RANGES: Final = {"hypervisor_port": (1, 65535)}


@dataclass(frozen=True, kw_only=True)
class LimitSettings:
    """Settings of the limits."""

    isolation: str = setting(
        "soft", f"Isolation of a share that names none: {', '.join(Isolation)}."
    )
    enforcer: str = setting(
        "tensor-fusion",
        f"What enforces the limits: {', '.join(enforcer_kinds.OWN)}, or one of another package "
        "(docs/extend.md).",
    )
    require_enforcement: str = setting(
        "false",
        "Whether to refuse claims whose limits nothing on this node would enforce: true, false.",
    )
    preload: str = setting(
        "file",
        f"How containers load a limiter's library: {', '.join(Way)} (ld.so.preload, LD_PRELOAD).",
    )
    overcommit_limits: str = setting(
        "false", "Whether memory limits may add up to more than a card has: true, false."
    )
    read_pods: str = setting(
        "true",
        "Whether to read limits from the annotations of pods whose claims name none: true, false.",
    )
    tensor_fusion_root: str = setting(
        "/run/tensor-fusion",
        "Folder of Tensor Fusion's hypervisor: limiter, shared memory, claims.",
    )
    hypervisor_ip: str = setting(
        "", "Address at which containers reach the hypervisor; none if empty."
    )
    hypervisor_port: int = setting(8001, "The hypervisor's port.")
    hypervisor_sockets: str = setting(
        "", "Folder of the hypervisor's device plugin sockets; if empty, it is not told of pods."
    )
    hami_core_library: str = setting(
        "/usr/local/vgpu/libvgpu.so.1",
        "HAMi-core's library on the host, a file that is never overwritten in place.",
    )
    mps_pipes: str = setting("/run/nvidia/mps/pipe", "Pipe folder of the MPS daemon on the host.")
    mps_shm: str = setting("/run/nvidia/mps/shm", "Shared memory of the MPS daemon on the host.")

    def _check_limits(self, oversubscription: Oversubscription | None) -> None:
        check_choice("isolation", self.isolation, tuple(Isolation))
        enforcer_kinds.check(self.enforcer)
        check_choice("preload", self.preload, tuple(Way))
        for name in ("require_enforcement", "overcommit_limits", "read_pods"):
            check_boolean(flag(name), getattr(self, name))
        check_ranges(self, _RANGES)
        for name in ("tensor_fusion_root", "hami_core_library", "mps_pipes", "mps_shm"):
            check_path(flag(name), getattr(self, name))
        check_path("hypervisor-sockets", self.hypervisor_sockets, optional=True)
        expands = oversubscription is not None and oversubscription.expands_memory
        if expands and not enforcer_kinds.expands_memory(self.enforcer):
            able = ", ".join(name for name, kind in KINDS.items() if kind.expands_memory)
            raise InputError(
                f"enforcer: found {self.enforcer}, which cannot expand a GPU's memory, expected "
                f"{able} with vram-expand-to-host-mem or vram-expand-to-host-disk above 0"
            )

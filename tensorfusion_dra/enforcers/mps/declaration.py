"""Declaration of enforcer mps; see enforcer.py."""

from typing import Final

from tensorfusion_dra.core.claims.enforcer import EnforcerFacts
from tensorfusion_dra.core.settings import setting
from tensorfusion_dra.enforcers.declaration import Declaration

MPS: Final = Declaration(
    name="mps",
    path="mps.enforcer:Mps",
    # Each process is limited by itself, so a claim with two of them may use twice its limits.
    facts=EnforcerFacts(
        keeper="the MPS daemon",
        enforces_hard=True,
        counts_by_pid=False,
        equal_only=True,
        remedy="run NVIDIA's MPS control daemon on this node (chart value "
        "enforcers.mps.install=true)",
    ),
    settings={
        "mps_root": setting(
            "/run/nvidia/mps",
            "Folder of the MPS daemon's pipe and shm on the host.",
            is_path=True,
        )
    },
    pod={
        "folder": {
            "name": "mps",
            "setting": "mps-root",
            "grows": True,
            "about": "The driver checks for the daemon's pipes before it prepares a claim; without "
            "them, nothing would enforce the limits.",
        },
        "installs": "NVIDIA's MPS daemon",
    },
)

"""Declaration of enforcer nvidia; see enforcer.py."""

from typing import Final

from tensorfusion_dra.core.claims.enforcer import EnforcerFacts
from tensorfusion_dra.core.devices.gpu import Isolation
from tensorfusion_dra.enforcers.declaration import Declaration

NVIDIA: Final = Declaration(
    name="nvidia",
    path="nvidia.enforcer:Nvidia",
    facts=EnforcerFacts(
        keeper="the container memory-limits",
        enforces_hard=True,
        enforces_memory=True,
        counts_by_pid=False,
        fixed_compute=frozenset({Isolation.HARD}),
        fixed_memory=frozenset({Isolation.HARD}),
        keeps_lent_memory=True,
        loses_limits=True,
        must_show_itself=True,
        remedy="run NVIDIA driver 615 or later on this node and the container memory-limits (chart "
        "value enforcers.nvidia.install=true)",
    ),
    pod={
        "container": "memory-limits",
        "installs": "memory limits of NVIDIA's driver, from release 615 on",
    },
)

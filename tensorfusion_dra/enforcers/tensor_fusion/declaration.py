"""Declaration of enforcer tensor-fusion; see enforcer.py."""

from typing import Final

from tensorfusion_dra.core.claims.enforcer import EnforcerFacts
from tensorfusion_dra.core.devices.gpu import Isolation
from tensorfusion_dra.core.settings import PORT, setting
from tensorfusion_dra.enforcers.declaration import Declaration

TENSOR_FUSION: Final = Declaration(
    name="tensor-fusion",
    path="tensor_fusion.enforcer:TensorFusion",
    facts=EnforcerFacts(
        keeper="the hypervisor",
        enforces_compute=True,
        enforces_memory=True,
        expands_memory=True,
        counts_by_pid=False,
        names_containers=True,
        fixed_compute=frozenset({Isolation.HARD}),
        fixed_memory=frozenset({Isolation.HARD}),
        lends_compute_alone=True,
        mixed=frozenset({Isolation.HARD}),
        remedy="run Tensor Fusion's hypervisor on this node, which puts its limiter there (chart "
        "tensor-fusion of NexusGPU/tensor-fusion)",
    ),
    is_simulated=True,
    settings={
        "hypervisor_address": setting(
            "",
            "Where containers reach the hypervisor, as 10.0.0.7:8001.",
            form=(rf"(\S+:{PORT})?", "an address and a port, as 10.0.0.7:8001"),
        ),
        "hypervisor_sockets": setting(
            "",
            "Folder of the hypervisor's sockets; the usual one if empty, unless one enforcer is "
            "named.",
            is_path=True,
        ),
    },
    pod={
        "folder": {
            "name": "device-plugins",
            "setting": "hypervisor-sockets",
            "default": "{kubelet-root}/device-plugins",
            "mounted": "chosen",
            "type": "Directory",
            "about": "The hypervisor's sockets. Read-only: the driver only connects to them.",
        },
        "written": "shm",
        # The hypervisor serves on its node's address; limiters in containers call it there.
        "address": {"setting": "hypervisor-address", "port": 8001},
        "marksPods": True,
    },
)

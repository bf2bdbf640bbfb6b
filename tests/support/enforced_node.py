"""A node that prepares claims with the real files and folders of its enforcers."""

from pathlib import Path

from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.driver.claim_upkeep import NodeFiles
from tensorfusion_dra.enforcers.hami_core.enforcer import HamiCore
from tensorfusion_dra.enforcers.preload import PreloadMethod
from tensorfusion_dra.enforcers.tensor_fusion.enforcer import TensorFusion
from tensorfusion_dra.state import claim_files
from tensorfusion_dra.state.claim_files import HostFiles
from tests.support.prepared_node import GPU_0, Setup, put_claim, share_result, use_real_cards


class EnforcedNode(Setup):
    """A node with real folders for its enforcers."""

    def __init__(
        self, folder: Path, enforcer: str, *, method: PreloadMethod = PreloadMethod.FILE
    ) -> None:
        super().__init__(folder)
        self.root = folder / "run"
        for file in ("libcuda_limiter.so", "libvgpu.so.1"):
            self.root.mkdir(exist_ok=True)
            (self.root / file).touch()
        self.enforcers["tensor-fusion"] = TensorFusion(root=str(self.root), method=method)
        self.enforcers["hami-core"] = HamiCore(
            library=str(self.root / "libvgpu.so.1"),
            root=str(self.root / "hami-core"),
            method=method,
        )
        self.enforcer = self.enforcers[enforcer]
        self.node_files = NodeFiles(
            claim_files.cdi_specs(self.cdi_folder),
            claim_files.limits(self.limits_folder.parent),
            claim_files.device_metadata(self.metadata_folder),
            HostFiles(self.root),
            self.enforcers,
        )
        use_real_cards(self)
        self.preparer = self.with_claims(self.claims)

    def prepare_for_pod(self, name: str, pod: str, device: str = GPU_0) -> ClaimRef:
        result = share_result(device, tflops="1", vram="1Gi")
        return self.prepared(put_claim(self, name, result, pods=[pod])).ref

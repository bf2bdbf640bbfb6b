"""Shared memory at a pod's path counts only if it is the one that the pod's containers have."""

import time
from pathlib import Path
from typing import Final

from tensorfusion_dra.core.claims import verdicts
from tensorfusion_dra.core.claims.enforcers.tensor_fusion import TensorFusion
from tensorfusion_dra.core.claims.evidence import NodePlaces
from tensorfusion_dra.enforcement.hypervisor.shared_memory import WorkerMemory
from tensorfusion_dra.enforcement.live_signs import LiveSigns
from tests.support import enforcer_files
from tests.support.builders.prepared_claims import POD, limit, prepared_claim, prepared_share

CLAIM: Final = prepared_claim(prepared_share(0, limit(25, 20)), enforcer="tensor-fusion")
GPU: Final = CLAIM.shares[0].gpu_uuid


def test_memory_in_another_folder_than_the_registered_one_never_enforces(tmp_path: Path) -> None:
    memory = WorkerMemory(tmp_path / "shm")
    places = TensorFusion(root=str(tmp_path)).places(CLAIM)
    file = Path(places.shared_memory)
    content = enforcer_files.shared_memory(
        {GPU: limit(25, 20)}, heartbeat=int(time.time()), processes=1
    )
    enforcer_files.write_shared_memory(file, content)
    memory.note_registered(POD)

    def reason() -> str:
        signs = LiveSigns(NodePlaces(enforcer="tensor-fusion")).of_claim(places)
        (found,) = verdicts.of_claim(CLAIM, signs, is_new=False)
        return found.reason

    assert reason() == "LimiterActive"
    assert memory.is_kept(POD, (GPU.lower(),))

    memory.note_trouble(POD, "tensor-fusion.ai/tflops-limit: found 312")
    assert reason() == "LimitsDiffer"
    memory.note_trouble(POD, "")
    assert reason() == "LimiterActive"

    file.parent.rename(file.parent.with_name("mounted"))
    assert reason() == "SharedMemoryReplaced"

    enforcer_files.write_shared_memory(file, content)
    assert reason() == "SharedMemoryReplaced"
    assert not memory.is_kept(POD, (GPU.lower(),))

"""Options of a simulation."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tensorfusion_dra.core.devices.capacity import VIRTUAL_OF
from tensorfusion_dra.core.kubernetes import releases

MAX_PODS: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareRequest:
    """Request of one pod.

    Attributes:
        amounts: Quantities of tflops, vram and capacities of other packages; empty for a whole
            card.
        annotations: Annotations of the claim, which the webhook would copy from the pod.
    """

    amounts: Mapping[str, str]
    annotations: Mapping[str, str]

    def capacity(self, *, virtual: bool) -> Mapping[str, str]:
        """Return the claim's capacity requests, as the webhook would fill them.

        Args:
            virtual: Whether the pool oversubscribes, so that claims request virtual capacities.
        """
        names = VIRTUAL_OF if virtual else {}
        return {names.get(name, name): text for name, text in self.amounts.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of a simulation.

    Attributes:
        gpus: Value of the node plugin's `--simulated-gpus`.
        pods: Number of pods.
        requests: Requests of the pods, which take turns.
        tflops_oversell_ratio: Value of the node plugin's setting, in percent.
        vram_expand_to_host_mem: Value of the node plugin's setting, in percent.
        file: File of objects to apply through the admission webhook instead of pods and requests;
            None for those.
        qos: Level of service of the node's GPUs.
        keep: Keep everything running, and on disk, until interrupted.
        release: Minor version of Kubernetes.
        verbose: Show the CDI spec, the environment and the filled claims as well.
    """

    gpus: str
    pods: int
    requests: tuple[ShareRequest, ...]
    tflops_oversell_ratio: str
    vram_expand_to_host_mem: str
    file: Path | None
    qos: str
    keep: bool
    verbose: bool
    release: int = releases.SIMULATED

    @property
    def is_virtual(self) -> bool:
        """Return True if the node oversubscribes its GPUs."""
        return (self.tflops_oversell_ratio, self.vram_expand_to_host_mem) != ("100", "0")

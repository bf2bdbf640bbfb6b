"""Options of the verb `simulate`."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareRequest:
    """What a pod asks for.

    Attributes:
        amounts: Quantities of tflops and vram; empty for a whole card.
        annotations: Of its claim, as the webhook copies them from the pod.
    """

    amounts: Mapping[str, str]
    annotations: Mapping[str, str]

    def capacity(self, *, virtual: bool) -> Mapping[str, str]:
        """The claim's capacity requests, as the webhook fills them.

        Args:
            virtual: The pool hands out more than its cards.
        """
        prefix = "virtual_" if virtual else ""
        return {f"{prefix}{name}": text for name, text in self.amounts.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What to simulate.

    Attributes:
        gpus: As `--simulated-gpus` of the node plugin takes it.
        requests: What the pods ask for, by turns.
        tflops_oversell_ratio: As the node plugin takes it.
        vram_expand_to_host_mem: As the node plugin takes it.
        file: Objects to apply through the admission webhook, in place of the pods above; None for
            those.
        qos: Level of service of the node's GPUs.
        keep: Leave everything running, and on disk, until interrupted.
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

    @property
    def is_virtual(self) -> bool:
        """Whether the node hands out more than its GPUs."""
        return (self.tflops_oversell_ratio, self.vram_expand_to_host_mem) != ("100", "0")

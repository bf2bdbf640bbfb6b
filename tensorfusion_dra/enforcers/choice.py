"""Verdict about a node: would a claim that is prepared now be enforced?

It is given before a container runs, so it rests on less than the verdict about a share: the
enforcer shows that it is alive, or it does not. A library has no life of its own; whether it is
loaded shows only once a process runs.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from tensorfusion_dra.core.claims import verdicts
from tensorfusion_dra.core.claims.enforcer import Enforcer
from tensorfusion_dra.enforcers.hami_core import HamiCore
from tensorfusion_dra.enforcers.registered import NoEnforcer
from tensorfusion_dra.enforcers.mps import Mps
from tensorfusion_dra.enforcers.nvidia.enforcer import Nvidia
from tensorfusion_dra.enforcers.tensor_fusion.enforcer import TensorFusion
from tensorfusion_dra.core.claims.evidence import EvidencePaths, NodeEvidence
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.claims.verdicts import State, Verdict, verdict_of_record
from tensorfusion_dra.core.errors import ClaimError

_HAMI_CORE_INSTALL: Final = "chart value hamiCore.install.enabled=true"
_CURES: Final = {
    TensorFusion.name: "run Tensor Fusion's hypervisor on this node, which puts its limiter there "
    "(chart tensor-fusion of NexusGPU/tensor-fusion)",
    HamiCore.name: f"put HAMi-core's library there ({_HAMI_CORE_INSTALL}, or setting "
    "hami-core-library)",
    Mps.name: "run NVIDIA's MPS control daemon on this node (chart value mps.daemon.enabled=true)",
    NoEnforcer.name: "leave out setting enforcer",
    Nvidia.name: "run NVIDIA driver 615 or later on this node and the container memory-limits "
    "(chart value nvidia.memoryLimits=true)",
}
_ANOTHER: Final = "or choose another enforcer (setting enforcer"
_WHOLE: Final = "claims for whole cards need none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The enforcer of new claims, and whether it is there.

    Attributes:
        enforcer: Its name; ``none`` if `auto` found none.
        verdict: About this node.
        cure: What to do about a bad verdict.
        hints: What else its evidence says.
    """

    enforcer: str
    verdict: Verdict
    cure: str
    hints: tuple[str, ...] = ()

    @property
    def lacking(self) -> str:
        """Why claims with limits are refused: `auto` found no enforcer; "" otherwise."""
        if self.verdict.reason != verdicts.NONE_FOUND:
            return ""
        return f"nothing on this node would enforce its limits: {self.verdict.text}; {self.cure}"

    def with_cure(self, *, is_required: bool) -> Verdict:
        """Return the verdict, with what follows from a bad one and what to do."""
        if self.verdict.state is not State.NOT_ENFORCED:
            return self.verdict
        follows = consequence(self.verdict, is_required=is_required)
        return replace(self.verdict, text=f"{self.verdict.text}: {follows}; {self.cure}")


def none_found(looked_for: Mapping[str, Verdict]) -> Choice:
    """Return the choice of `auto` on a node that has none of these enforcers.

    Args:
        looked_for: What was found instead of each, by name.
    """
    seen = "; ".join(f"{name} ({found.text})" for name, found in looked_for.items())
    ways = "; ".join(f"{name}: {_way(name)}" for name in looked_for)
    return Choice(
        enforcer=NoEnforcer.name,
        verdict=verdicts.not_enforced(verdicts.NONE_FOUND, f"found no enforcer: {seen}"),
        cure=f"install one: {ways}; or let limits be advisory (chart value "
        f"settings.enforcer=none); {_WHOLE}",
    )


def cure(enforcer: str) -> str:
    """Return what to do about a node without its enforcer; every text about one ends with this."""
    hint = (
        ""
        if enforcer == HamiCore.name
        else f"; hami-core needs only a library on each node: {_HAMI_CORE_INSTALL}"
    )
    return f"{_way(enforcer)}, {_ANOTHER}{hint}); {_WHOLE}"


def _way(enforcer: str) -> str:
    return _CURES.get(enforcer, f"install what enforcer {enforcer} needs")


def waiting(enforcer: str, trouble: str) -> str:
    """Return the error of a claim that waits for what its enforcer lacks on this node."""
    return (
        f"nothing on this node would enforce its limits: enforcer {enforcer}: {trouble}; "
        f"{cure(enforcer)}"
    )


def of_node(enforcer: str, evidence: NodeEvidence) -> Verdict:
    """Return the verdict about shares with limits in the default isolation."""
    missing = [f"{file.path}: {file.trouble}" for file in evidence.files if file.trouble]
    daemon = evidence.daemon
    found = verdicts.unknown(
        verdicts.LIBRARY_INSTALLED,
        "the library is there; whether it works shows only in a running container",
    )
    if missing:
        found = verdicts.not_enforced(verdicts.LIMITER_MISSING, missing[0])
    elif enforcer == NoEnforcer.name:
        found = verdicts.not_enforced(verdicts.NO_ENFORCER, verdicts.ADVISORY)
    elif enforcer == TensorFusion.name and evidence.hypervisor:
        found = verdicts.enforced(verdicts.ENFORCER_ALIVE, evidence.hypervisor)
    elif enforcer == TensorFusion.name:
        text = f"no sign of a hypervisor ({'; '.join(evidence.asked)})"
        found = verdicts.not_enforced(verdicts.HYPERVISOR_MISSING, text)
    elif daemon and daemon.trouble and enforcer == Nvidia.name:
        found = verdicts.not_enforced(verdicts.DRIVER_CANNOT_LIMIT, daemon.trouble)
    elif daemon and daemon.trouble:
        subject = "no MPS daemon answers at " if enforcer == Mps.name else ""
        text = f"{subject}{daemon.path}: {daemon.trouble}"
        found = verdicts.not_enforced(verdicts.DAEMON_SILENT, text)
    elif daemon and enforcer == Nvidia.name:
        text = "the NVIDIA driver set and returned limits for a cgroup"
        found = verdicts.enforced(verdicts.ENFORCER_ALIVE, text)
    elif daemon and enforcer == Mps.name:
        text = f"the MPS daemon answers at {daemon.path}"
        found = verdicts.enforced(verdicts.ENFORCER_ALIVE, text)
    elif enforcer not in verdicts.OWN:
        text = f"enforcer {enforcer}: whether it works shows only in a running container"
        found = verdicts.unknown(verdicts.NO_SIGNS, text)
    return found


def refuses(found: Verdict, *, is_required: bool) -> bool:
    """Return True if parts of cards wait on a node with this verdict; whole cards never do.

    Args:
        found: A verdict about a node, NotEnforced.
        is_required: True with require-enforcement.
    """
    # The other enforcers' files and sockets have to be there at each prepare in any case.
    return is_required or found.reason not in {verdicts.HYPERVISOR_MISSING, verdicts.NO_ENFORCER}


def consequence(found: Verdict, *, is_required: bool) -> str:
    """Return what a node with this verdict, NotEnforced, does with claims."""
    if refuses(found, is_required=is_required):
        return "every claim for a part of a GPU waits"
    return "claims are prepared, but nothing keeps them within their limits"


def needs_enforcer(claim: PreparedClaim) -> bool:
    """Return True if a share of the claim is enforced by something on the node."""
    return any(verdict_of_record(claim, share) is None for share in claim.shares)


def evidence_paths(claim: PreparedClaim, enforcer: Enforcer | None) -> EvidencePaths:
    """Return where the enforcer leaves evidence of the claim; nowhere if it can name no path.

    Args:
        claim: As it is prepared.
        enforcer: The claim's; None if there is none of its name.
    """
    if enforcer is None or not needs_enforcer(claim):
        return EvidencePaths()
    try:
        return enforcer.evidence_paths(claim)
    except ClaimError:  # prepared under other settings, or a fault of another package's enforcer
        return EvidencePaths()


def refusal(claim: PreparedClaim, evidence: NodeEvidence) -> str:
    """Return why a claim would not be enforced on this node; "" if nothing speaks against it."""
    if not needs_enforcer(claim):
        return ""
    found = of_node(claim.enforcer, evidence)
    if found.state is not State.NOT_ENFORCED:
        return ""
    return f"{found.text}; {cure(claim.enforcer)}"

"""Findings about an enforcer: its files, its life, and the limits of the prepared claims.

A file alone is never ok: it can be there while nothing enforces a limit.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from tensorfusion_dra.core.claims import presence, verdicts
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.claims.verdicts import State, Verdict
from tensorfusion_dra.core.doctor.finding import (
    Finding,
    not_checked,
    note,
    ok,
    problem,
    warning,
)

_SEE: Final = "see docs/limits.md, How to see whether a limit holds"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFile:
    """State of a host file that an enforcer needs.

    Attributes:
        trouble: Reason why it could not be examined; "" if it could.
        mode: Permission bits.
        refusal: For a socket: why nothing accepts connections on it; "" if a process does.
        answers: For a socket: True if a process accepts connections on it.
    """

    path: str
    trouble: str = ""
    exists: bool = True
    mode: int = 0o755
    refusal: str = ""
    answers: bool = False


def findings(enforcer: str, files: Sequence[HostFile]) -> Iterator[Finding]:
    """Judge the host files that an enforcer needs.

    Args:
        enforcer: Value of --enforcer.
        files: The files that a share in the default isolation needs.
    """
    if not files:
        yield note(
            f"enforcer {enforcer}",
            "needs no file for shares in the default isolation: their limiter is part of the "
            "container's image, or they have no limit",
        )
    for file in files:
        yield from _file(enforcer, file)


def _file(enforcer: str, file: HostFile) -> Iterator[Finding]:
    subject = f"{file.path} of enforcer {enforcer}"
    is_library = ".so" in file.path.rpartition("/")[2]
    if file.trouble:
        yield not_checked(subject, file.trouble, cure="run this as root on the node")
    elif not file.exists:
        yield problem(
            subject,
            "not found: every claim for a part of a real GPU waits",
            expected="the file, before the first claim",
            cure=presence.cure(enforcer),
        )
    elif file.refusal:
        yield problem(
            subject,
            f"{file.refusal}: every claim for a part of a real GPU waits",
            expected="a process that accepts connections",
            cure=presence.cure(enforcer),
        )
    elif is_library and not file.mode & 0o004:
        yield warning(
            subject,
            f"mode {file.mode:04o}: programs that do not run as root cannot load it",
            expected="readable by every user",
            cure=f"chmod o+r {file.path}",
        )
    elif file.answers:
        yield ok(subject, "a process accepts connections")
    else:
        yield note(subject, "found; a file alone enforces nothing")


def simulated(enforcer: str) -> Finding:
    """Return the finding for a node with simulated GPUs."""
    return ok(f"enforcer {enforcer}", "simulated GPUs: there is nothing to enforce")


def alive(enforcer: str, found: Verdict, *, is_required: bool) -> Finding:
    """Judge the enforcer's signs of life.

    Args:
        enforcer: Value of --enforcer.
        found: Verdict about the node.
        is_required: True if claims are refused without an enforcer.
    """
    subject = f"life of enforcer {enforcer}"
    if found.state is State.ENFORCED:
        return ok(subject, found.text)
    if found.state is State.UNKNOWN:
        return note(subject, found.text)
    consequence, cure = (
        presence.consequence(found, is_required=is_required),
        presence.cure(enforcer),
    )
    if presence.refuses(found, is_required=is_required):
        return problem(
            subject, f"{found.text}: {consequence}", expected="a live enforcer", cure=cure
        )
    return warning(
        subject,
        f"{found.text}: {consequence}",
        expected="a live enforcer",
        cure=f"{cure}; refuse such claims with require-enforcement=true",
    )


def no_address() -> Finding:
    """Warn that containers with Tensor Fusion's limiter are not told where the hypervisor is.

    Seen with the open limiter (NexusGPU/vgpu.rs): without HYPERVISOR_IP every process ends at its
    start.
    """
    return warning(
        "address of Tensor Fusion's hypervisor (hypervisor-ip)",
        "not set: a limiter that asks the hypervisor for its pod ends every process",
        expected="the address at which containers reach the hypervisor, such as the node's",
        cure="set --hypervisor-ip; the chart does, from the pod's host IP",
    )


def claims(
    prepared: Sequence[tuple[PreparedClaim, Sequence[Verdict]]],
) -> Iterator[Finding]:
    """Judge the limits of the prepared claims.

    Args:
        prepared: The claims, with a verdict for each share.
    """
    count = 0
    for claim, found in prepared:
        for share, each in zip(claim.shares, found, strict=True):
            subject = f"limits of claim {claim.ref} on {share.device}"
            text = f"{each.state} ({each.reason}): {each.text}"
            if each.state is State.NOT_ENFORCED:
                yield warning(subject, text, expected="Enforced", cure=_SEE)
            elif each.state is State.UNKNOWN and each.reason != verdicts.SIMULATED:
                yield note(subject, text)
            count += each.state is State.ENFORCED
    if count:
        yield ok("limits of prepared claims", f"shares that are Enforced: {count}")

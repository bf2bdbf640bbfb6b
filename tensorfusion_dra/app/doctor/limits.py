"""Checks of the configured enforcer: its files, its life, and the limits of prepared claims.

A file alone is never ok: it can be there while nothing enforces a limit.
"""

import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tensorfusion_dra.app.doctor.checks import Context
from tensorfusion_dra.app.shared import node_parts
from tensorfusion_dra.app.shared.node_settings import Settings
from tensorfusion_dra.core.claims import enforcer as enforcers
from tensorfusion_dra.core.claims import verdicts
from tensorfusion_dra.core.claims.enforcer import Enforcer
from tensorfusion_dra.core.claims.verdicts import State
from tensorfusion_dra.core.devices.gpu import Isolation
from tensorfusion_dra.core.doctor.finding import Finding, not_checked, note, ok, problem, warning
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.enforcers import choice as choices
from tensorfusion_dra.enforcers.choice import EnforcerChoice
from tensorfusion_dra.state import unix_sockets

_SEE: Final = "see docs/limits.md, How to see whether a limit holds"
_WAITING: Final = "every claim for a part of a real GPU waits"


def files(context: Context) -> Iterator[Finding]:
    """Check the files and sockets that a share in the default isolation would need."""
    settings = context.settings
    subject = f"enforcer {settings.enforcer}"
    if settings.simulated_gpus:
        yield ok(subject, "simulated GPUs: there is nothing to enforce")
        return
    found = _choice(settings)
    if found.sign.verdict.reason in {verdicts.NO_ENFORCER, verdicts.NONE_FOUND}:
        return  # alive() says so
    enforcer = node_parts.enforcers(settings)[found.enforcer]
    needs = enforcer.needs(enforcers.example(enforcer.name, Isolation(settings.isolation)))
    if not needs.files and not needs.sockets:
        yield note(
            subject,
            "needs no file for shares in the default isolation: their limiter is part of the "
            "container's image, or they have no limit",
        )
    for path in needs.files:
        yield _file(enforcer, Path(path))
    for path in needs.sockets:
        yield _socket(enforcer, path)


def _file(enforcer: Enforcer, path: Path) -> Finding:
    subject = f"{path} of enforcer {enforcer.name}"
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except FileNotFoundError:
        return _missing(subject, enforcer)
    except OSError as error:
        return not_checked(subject, str(error.strerror), cure="run this as root on the node")
    if ".so" in path.name and not mode & stat.S_IROTH:
        return warning(
            subject,
            f"mode {mode:04o}: programs that do not run as root cannot load it",
            expected="readable by every user",
            cure=f"chmod o+r {path}",
        )
    return note(subject, "found; a file alone enforces nothing")


def _socket(enforcer: Enforcer, path: str) -> Finding:
    subject = f"{path} of enforcer {enforcer.name}"
    if not Path(path).exists():
        return _missing(subject, enforcer)
    if trouble := unix_sockets.trouble(path):
        return problem(
            subject,
            f"{trouble}: {_WAITING}",
            expected="a process that accepts connections",
            cure=choices.remedy(enforcer),
        )
    return ok(subject, "a process accepts connections")


def _missing(subject: str, enforcer: Enforcer) -> Finding:
    return problem(
        subject,
        f"not found: {_WAITING}",
        expected="the file, before the first claim",
        cure=choices.remedy(enforcer),
    )


def alive(context: Context) -> Iterator[Finding]:
    """Check that the enforcer of shares in soft isolation is alive."""
    settings = context.settings
    if not settings.simulated_gpus:
        choice = _choice(settings)
        yield life(choice, is_required=settings.require_enforcement)
        for each in choice.sign.advice:
            yield warning(each.subject, each.found, expected=each.expected, cure=each.remedy)


def _choice(settings: Settings) -> EnforcerChoice:
    enforcer = node_parts.node_enforcer(settings)
    enforcer.of_devices(node_parts.node(settings))  # whose pool may expand the cards' memory
    return enforcer.of_new_claim()


def life(choice: EnforcerChoice, *, is_required: bool) -> Finding:
    """Judge the enforcer's signs of life.

    Args:
        choice: The enforcer of new claims.
        is_required: True if claims are refused without an enforcer.
    """
    found, cure = choice.sign.verdict, choice.remedy
    subject = "enforcer auto" if choice.none_found else f"life of enforcer {choice.enforcer}"
    if found.state is State.ENFORCED:
        return ok(subject, found.text)
    text = f"{found.text}: {choices.consequence(found, is_required=is_required)}"
    if found.reason == verdicts.NO_ENFORCER:
        return note(subject, text)
    if found.state is State.UNKNOWN:
        return note(subject, found.text)
    if choices.refuses(found, is_required=is_required):
        return problem(subject, text, expected="a live enforcer", cure=cure)
    return warning(
        subject,
        text,
        expected="a live enforcer",
        cure=f"{cure}; refuse such claims with require-enforcement=true",
    )


def use(context: Context) -> Iterator[Finding]:
    """Check that the use of the cards can be observed where that is wanted."""
    settings = context.settings
    if settings.observe_use and not settings.simulated_gpus:
        # Imported here: a simulation does not load pynvml.
        from tensorfusion_dra.discovery.nvml import processes  # noqa: PLC0415

        subject = "host's PID namespace (observe-use)"
        try:
            processes.ProcessReader(processes.PROC).check()
        except RetryableError as error:
            yield problem(
                subject,
                str(error),
                expected="processes of the host in /proc",
                cure="set hostPID: true in the node plugin's pod; the chart does with observe-use",
            )
        else:
            yield ok(subject, "/proc has the host's processes")


def claims(context: Context) -> Iterator[Finding]:
    """Check whether the limits of the prepared claims hold now."""
    settings = context.settings
    prepared = node_parts.recorded(settings)
    count = 0
    for claim, found in zip(prepared, node_parts.verdicts_now(settings, prepared), strict=True):
        for share, each in zip(claim.shares, found, strict=True):
            subject = f"limits of claim {claim.ref} on {share.device}"
            text = f"{each.state} ({each.reason}): {each.text}"
            if each.reason == verdicts.NO_ENFORCER:
                yield note(subject, text)
            elif each.state is State.NOT_ENFORCED:
                yield warning(subject, text, expected="Enforced", cure=_SEE)
            elif each.state is State.UNKNOWN and each.reason != verdicts.SIMULATED:
                yield note(subject, text)
            count += each.state is State.ENFORCED
    if count:
        yield ok("limits of prepared claims", f"shares that are Enforced: {count}")

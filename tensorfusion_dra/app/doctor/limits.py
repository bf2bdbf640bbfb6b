"""Checks of the configured enforcer: its files, its life, and the limits of prepared claims."""

import stat
from collections.abc import Iterator
from pathlib import Path

from tensorfusion_dra.app.doctor.checks import Context
from tensorfusion_dra.app.shared import node_parts
from tensorfusion_dra.core.claims import presence
from tensorfusion_dra.core.claims.enforcers.tensor_fusion import TensorFusion
from tensorfusion_dra.core.devices.sharing import Isolation
from tensorfusion_dra.core.doctor import limits as rules
from tensorfusion_dra.core.doctor.finding import Finding
from tensorfusion_dra.core.doctor.limits import HostFile
from tensorfusion_dra.state import ledger_reading, unix_sockets


def files(context: Context) -> Iterator[Finding]:
    """Check the files that a share in the default isolation would need."""
    settings = context.settings
    if settings.simulated_gpus:
        yield rules.simulated(settings.enforcer)
        return
    enforcer = node_parts.chosen_enforcer(settings)
    example = node_parts.example_claim(settings, isolation=Isolation(settings.isolation))
    needs = enforcer.needs(example)
    found = [_read_file(Path(path)) for path in needs.files]
    found += [_ask_socket(path) for path in needs.sockets]
    yield from rules.findings(settings.enforcer, found)


def alive(context: Context) -> Iterator[Finding]:
    """Check that the enforcer of shares in soft isolation is alive."""
    settings = context.settings
    if not settings.simulated_gpus:
        signs = node_parts.live_signs(settings).of_node()
        yield rules.alive(
            settings.enforcer,
            presence.of_node(settings.enforcer, signs),
            is_required=settings.require_enforcement == "true",
        )


def address(context: Context) -> Iterator[Finding]:
    """Check that containers are told where Tensor Fusion's hypervisor is."""
    settings = context.settings
    is_soft = settings.enforcer == TensorFusion.name and settings.isolation == Isolation.SOFT
    if is_soft and not settings.simulated_gpus and not settings.hypervisor_ip:
        yield rules.no_address()


def claims(context: Context) -> Iterator[Finding]:
    """Check whether the limits of the prepared claims hold now."""
    settings = context.settings
    prepared = ledger_reading.claims(settings.data_folder)
    verdicts = node_parts.verdicts_now(settings, prepared)
    yield from rules.claims(list(zip(prepared, verdicts, strict=True)))


def _read_file(path: Path) -> HostFile:
    """Return the facts about a file: whether it exists, and its mode."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return HostFile(path=str(path), exists=False)
    except OSError as error:
        return HostFile(path=str(path), trouble=error.strerror or str(error))
    return HostFile(path=str(path), mode=stat.S_IMODE(mode))


def _ask_socket(path: str) -> HostFile:
    """Return the facts about a socket: whether it exists, and whether a process listens on it."""
    if not Path(path).exists():
        return HostFile(path=path, exists=False)
    trouble = unix_sockets.trouble(path)
    return HostFile(path=path, refusal=trouble, answers=not trouble)

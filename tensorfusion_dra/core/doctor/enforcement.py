"""Findings about the host files that an enforcer needs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from tensorfusion_dra.core.doctor.finding import Finding, not_checked, ok, problem, warning

ELF: Final = b"\x7fELF"

_CURES: Final = {
    "tensor-fusion": "run Tensor Fusion's hypervisor on this node, which puts its limiter there, "
    "or name its folder with --tensor-fusion-root",
    "hami-core": "put HAMi-core's libvgpu.so there, or name it with --hami-core-library",
    "mps": "run nvidia-cuda-mps-control -d on this node, or name its folders with --mps-pipes "
    "and --mps-shm",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFile:
    """State of a host file that an enforcer needs.

    Attributes:
        trouble: Reason why it could not be examined; "" if it could.
        beginning: Its first bytes; empty if it is not a regular file.
        mode: Permission bits.
    """

    path: str
    trouble: str = ""
    exists: bool = True
    beginning: bytes = b""
    mode: int = 0o755


def findings(enforcer: str, files: Sequence[HostFile]) -> Iterator[Finding]:
    """Judge the host files that an enforcer needs.

    Args:
        enforcer: Value of --enforcer.
        files: The files that a share in the default isolation needs.
    """
    if not files:
        yield ok(f"enforcer {enforcer}", "needs no file for shares in the default isolation")
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
            "not found: every claim for a part of a real GPU fails",
            expected="the file, before the first claim",
            cure=_CURES.get(enforcer, "put it there") + "; or choose another --enforcer",
        )
    elif is_library and not file.beginning.startswith(ELF):
        yield problem(
            subject,
            "not a shared library",
            expected="an ELF file: containers that preload something else do not start",
            cure=_CURES.get(enforcer, "put the right file there"),
        )
    elif is_library and not file.mode & 0o004:
        yield warning(
            subject,
            f"mode {file.mode:04o}: programs that do not run as root cannot load it",
            expected="readable by every user",
            cure=f"chmod o+r {file.path}",
        )
    else:
        yield ok(subject, "found")

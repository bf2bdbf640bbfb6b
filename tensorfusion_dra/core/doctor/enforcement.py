"""Whether limits can be enforced on this node."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from tensorfusion_dra.core.doctor.finding import Finding, could_not_look, ok, problem, warning

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
    """A file that an enforcer needs, as it was found.

    Attributes:
        trouble: Why it could not be looked at; "" if it could.
        beginning: Its first bytes; empty for what is no plain file.
        mode: Permission bits.
    """

    path: str
    trouble: str = ""
    exists: bool = True
    beginning: bytes = b""
    mode: int = 0o755


def judged(enforcer: str, files: Sequence[HostFile]) -> Iterator[Finding]:
    """What to think of what an enforcer needs of the host.

    Args:
        enforcer: As --enforcer names it.
        files: What a share in the default isolation would need.
    """
    if not files:
        yield ok(f"enforcer {enforcer}", "needs no file for shares in the default isolation")
    for file in files:
        yield from _file(enforcer, file)


def _file(enforcer: str, file: HostFile) -> Iterator[Finding]:
    looked_at = f"{file.path} of enforcer {enforcer}"
    is_library = ".so" in file.path.rpartition("/")[2]
    if file.trouble:
        yield could_not_look(looked_at, file.trouble, cure="run this as root on the node")
    elif not file.exists:
        yield problem(
            looked_at,
            "not there: every claim for a part of a real GPU fails",
            expected="there before the first claim",
            cure=_CURES.get(enforcer, "put it there") + "; or choose another --enforcer",
        )
    elif is_library and not file.beginning.startswith(ELF):
        yield problem(
            looked_at,
            "no shared library",
            expected="an ELF file: containers that preload something else do not start",
            cure=_CURES.get(enforcer, "put the right file there"),
        )
    elif is_library and not file.mode & 0o004:
        yield warning(
            looked_at,
            f"mode {file.mode:04o}: programs that do not run as root cannot load it",
            expected="readable by everybody",
            cure=f"chmod o+r {file.path}",
        )
    else:
        yield ok(looked_at, "there")

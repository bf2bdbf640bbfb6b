"""Whether the ledger and the CDI folder tell the same, and runtimes can read it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tensorfusion_dra.core import names
from tensorfusion_dra.core.doctor.finding import Finding, could_not_look, note, ok, problem, warning

_LARGE_BYTES: Final = 256 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerFacts:
    """The ledger as it was read.

    Attributes:
        trouble: Why it could not be opened; "" if it could.
        damage: What SQLite or a record says is wrong; "" if nothing is.
        version: Of its schema.
        claims: By UID, ``namespace/name``.
    """

    path: str
    exists: bool = True
    trouble: str = ""
    damage: str = ""
    version: int = 0
    size_bytes: int = 0
    claims: Mapping[str, str] | None = None


def ledger(facts: LedgerFacts, *, version: int) -> Iterator[Finding]:
    """What to think of the ledger.

    Args:
        facts: As read.
        version: Of the schema that this release writes.
    """
    looked_at = f"ledger {facts.path}"
    if facts.trouble:
        yield could_not_look(looked_at, facts.trouble, cure="run this as root on the node")
    elif not facts.exists:
        yield note(looked_at, "not there: no node plugin ran here yet")
    elif facts.version > version:
        yield problem(
            looked_at,
            f"version {facts.version}",
            expected=f"version {version} at most: a newer release wrote it",
            cure="run that release or a later one on this node",
        )
    elif facts.damage:
        yield problem(
            looked_at,
            facts.damage,
            expected="a ledger that can be read: the node plugin does not start without",
            cure=f"keep a copy of {facts.path}*, and report it with the node plugin's log",
        )
    else:
        held = len(facts.claims or ())
        told = f"version {facts.version}, {facts.size_bytes // 1024} KiB, {held} claims"
        if facts.size_bytes > _LARGE_BYTES:
            yield note(looked_at, f"{told}; large for so many")
        else:
            yield ok(looked_at, told)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecFile:
    """One file of a CDI folder.

    Attributes:
        trouble: Why runtimes do not load it; "" if they do.
        kind: Such as ``nvidia.com/gpu``; "" if it cannot be read.
        devices: Qualified names.
        missing_paths: Host paths that it names and that are not there.
    """

    path: str
    trouble: str = ""
    kind: str = ""
    devices: tuple[str, ...] = ()
    missing_paths: tuple[str, ...] = ()

    @property
    def claim_uid(self) -> str | None:
        """The claim whose file it is by its name; None for others' files."""
        name = self.path.rpartition("/")[2]
        if not name.startswith(names.CDI_FILE_PREFIX) or not name.endswith(".json"):
            return None
        return name.removeprefix(names.CDI_FILE_PREFIX).removesuffix(".json")


def specs(files: Sequence[SpecFile], held: Mapping[str, str] | None) -> Iterator[Finding]:
    """What to think of the CDI folders.

    Args:
        files: Those of all folders in which the runtime looks.
        held: The ledger's claims, ``namespace/name`` by UID; None if it could not be read.
    """
    troubles = [*_broken(files), *_clashing(files), *_dangling(files)]
    if held is not None:
        troubles += [*_unrecorded(files, held), *_unwritten(files, held)]
    ours = sum(file.claim_uid is not None for file in files)
    yield from troubles or [
        ok("CDI specs", f"{ours} of this driver, {len(files) - ours} of others")
    ]


def _broken(files: Sequence[SpecFile]) -> Iterator[Finding]:
    for file in files:
        if not file.trouble:
            continue
        looked_at = f"CDI spec {file.path}"
        if file.claim_uid is not None:
            yield problem(
                looked_at,
                file.trouble,
                expected="a spec that runtimes load: containers of its claim do not start",
                cure="restart the node plugin of this node, which writes its specs anew",
            )
        else:
            yield warning(
                looked_at,
                file.trouble,
                expected="a spec that runtimes load; its devices are unknown to them",
                cure="mend or remove it; whoever wrote it knows",
            )


def _clashing(files: Sequence[SpecFile]) -> Iterator[Finding]:
    """The same device in two files of one folder: runtimes then know neither."""
    for file in files:
        if file.kind == names.CDI_KIND and file.claim_uid is None:
            yield warning(
                f"CDI spec {file.path}",
                f"has devices of {names.CDI_KIND}, and is no file of this driver",
                expected=f"that kind only in {names.CDI_FILE_PREFIX}*.json",
                cure="remove it, unless another release of this driver wrote it",
            )
    first: dict[tuple[str, str], str] = {}
    for file in files:
        folder = file.path.rpartition("/")[0]
        for device in file.devices:
            other = first.setdefault((folder, device), file.path)
            if other != file.path:
                yield problem(
                    f"CDI device {device}",
                    f"in {other} and {file.path}",
                    expected="in one file: runtimes use neither of two",
                    cure="remove the file that is no longer needed",
                )


def _dangling(files: Sequence[SpecFile]) -> Iterator[Finding]:
    for file in files:
        if file.missing_paths:
            shown = ", ".join(file.missing_paths[:3])
            yield warning(
                f"CDI spec {file.path}",
                f"names {len(file.missing_paths)} host paths that are not there: {shown}",
                expected="every path there: containers with these devices do not start",
                cure="write it anew, for NVIDIA's with nvidia-ctk cdi generate, as after an update "
                "of the driver",
            )


def _unrecorded(files: Sequence[SpecFile], held: Mapping[str, str]) -> Iterator[Finding]:
    for file in files:
        if file.claim_uid is not None and file.claim_uid not in held:
            yield warning(
                f"CDI spec {file.path}",
                "of a claim that the ledger does not have",
                expected="none without a record",
                cure="restart the node plugin of this node, which removes it",
            )


def _unwritten(files: Sequence[SpecFile], held: Mapping[str, str]) -> Iterator[Finding]:
    written = {file.claim_uid for file in files}
    missing = sorted(name for uid, name in held.items() if uid not in written)
    if missing:
        shown = ", ".join(missing[:5])
        yield warning(
            "CDI specs",
            f"none for {len(missing)} prepared claims: {shown}",
            expected="one for each: a container of theirs that restarts finds no devices",
            cure="restart the node plugin of this node, which writes them anew",
        )

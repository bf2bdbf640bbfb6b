"""Findings about the ledger and the CDI specs: readable, and in agreement."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tensorfusion_dra.core import names, printable
from tensorfusion_dra.core.doctor.finding import Finding, not_checked, note, ok, problem, warning


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerFacts:
    """State of the ledger.

    Attributes:
        trouble: Reason why it could not be opened; "" if it could.
        damage: Damage that SQLite or a malformed record shows; "" for none.
        version: Version of its schema.
        claims: ``namespace/name`` of its claims, by UID; None if they could not be read.
    """

    path: str
    exists: bool = True
    trouble: str = ""
    damage: str = ""
    version: int = 0
    size_bytes: int = 0
    claims: Mapping[str, str] | None = None


def ledger(facts: LedgerFacts, *, version: int) -> Iterator[Finding]:
    """Judge the ledger.

    Args:
        facts: State of the ledger.
        version: Version of the schema that this release writes.
    """
    subject = f"ledger {facts.path}"
    if facts.trouble:
        yield not_checked(subject, facts.trouble, cure="run this as root on the node")
    elif not facts.exists:
        yield note(subject, "not found: no node plugin has run here yet")
    elif facts.version > version:
        yield problem(
            subject,
            f"version {facts.version}",
            expected=f"version {version} at most: a newer release wrote it",
            cure="run that release or a later one on this node",
        )
    elif facts.damage:
        yield problem(
            subject,
            facts.damage,
            expected="a readable ledger; the node plugin repairs a damaged one from its copies",
            cure=f"keep a copy of {facts.path}*, and report it with the node plugin's log",
        )
    else:
        count = len(facts.claims or ())
        text = f"version {facts.version}, {facts.size_bytes // 1024} KiB, {count} claims"
        yield ok(subject, text)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecFile:
    """One file of a CDI folder.

    Attributes:
        trouble: Reason why runtimes do not load it; "" if they do.
        missing_paths: Host paths in it that do not exist.
    """

    path: str
    trouble: str = ""
    missing_paths: tuple[str, ...] = ()

    @property
    def claim_uid(self) -> str | None:
        """UID of the claim in the file's name; None if it is not this driver's file."""
        name = self.path.rpartition("/")[2]
        if not name.startswith(names.CDI_FILE_PREFIX) or not name.endswith(".json"):
            return None
        return name.removeprefix(names.CDI_FILE_PREFIX).removesuffix(".json")


def specs(files: Sequence[SpecFile], claims: Mapping[str, str] | None) -> Iterator[Finding]:
    """Judge the CDI specs of a node.

    Args:
        files: The files of all folders that the runtime reads.
        claims: The ledger's claims, ``namespace/name`` by UID; None if it could not be read.
    """
    troubles = [finding for file in files for finding in _of_file(file, claims)]
    if claims is not None:
        troubles += _unwritten(files, claims)
    ours = sum(file.claim_uid is not None for file in files)
    yield from troubles or [
        ok("CDI specs", f"{ours} of this driver, {len(files) - ours} of others")
    ]


def _of_file(file: SpecFile, claims: Mapping[str, str] | None) -> Iterator[Finding]:
    """Yield what is wrong with one file."""
    subject, is_ours = f"CDI spec {file.path}", file.claim_uid is not None
    if file.trouble and is_ours:
        yield problem(
            subject,
            file.trouble,
            expected="a spec that runtimes load; without one, containers of its claim fail",
            cure="restart the node plugin of this node, which rewrites its specs",
        )
    elif file.trouble:
        yield warning(
            subject,
            file.trouble,
            expected="a spec that runtimes load; until then they do not know its devices",
            cure="regenerate it with the tool that wrote it, or remove it",
        )
    if file.missing_paths:
        yield warning(
            subject,
            f"names {len(file.missing_paths)} host paths that do not exist: "
            f"{printable.first(file.missing_paths)}",
            expected="existing paths only: containers with these devices do not start",
            cure="regenerate it, as after an update of the NVIDIA driver: NVIDIA's own with "
            "nvidia-ctk cdi generate",
        )
    if is_ours and claims is not None and file.claim_uid not in claims:
        yield warning(
            subject,
            "of a claim that is not in the ledger",
            expected="only specs of claims in the ledger",
            cure="restart the node plugin of this node, which removes it",
        )


def _unwritten(files: Sequence[SpecFile], claims: Mapping[str, str]) -> Iterator[Finding]:
    written = {file.claim_uid for file in files}
    missing = sorted(name for uid, name in claims.items() if uid not in written)
    if missing:
        yield warning(
            "CDI specs",
            f"none for {len(missing)} prepared claims: {printable.first(missing)}",
            expected="one for each: a container of these claims that restarts gets no devices",
            cure="restart the node plugin of this node, which rewrites them",
        )

"""The interface of an enforcer, which keeps containers within the limits of their shares.

One class knows everything about one enforcer: what containers need, how a limit is set, how one
sees that it is there and that it holds, and what to do if not. The driver's own classes
(tensorfusion_dra/enforcers) and those of other packages are subclasses of the same Enforcer.

needs(), edits() and of_record() do no I/O. All other methods may read files, ask processes and
wait. Nobody calls any of them while holding the lock of the store, and each returns within a
bounded time: a process that hangs costs the claims that need it. `facts` are read once, at the
start.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, Self

from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims import verdicts
from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.claims.ports import Loop, Pods, WorkerPods
from tensorfusion_dra.core.claims.prepared import Limit, Mount, PreparedClaim, PreparedShare
from tensorfusion_dra.core.claims.verdicts import Verdict
from tensorfusion_dra.core.devices.gpu import Isolation, Qos
from tensorfusion_dra.core.errors import ClaimError, RetryableError
from tensorfusion_dra.core.kubernetes.quantity import GIB, Quantity

Records = Callable[[], Sequence[PreparedClaim]]
"""Returns all claims of the node as they are recorded now."""

AT_ONCE: Final = 0.0
"""A deadline that has passed: do only what needs to wait for nobody."""


class SilentEnforcerError(RetryableError):
    """The process behind an enforcer is gone or does not answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """A host folder that has to exist before the container starts.

    Attributes:
        mode: Permission bits, set regardless of the umask.
    """

    path: str
    mode: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TextFile:
    """A host file with a fixed content, readable by every user."""

    path: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Hook:
    """A program of the host that the container runtime runs; a failure ends the container.

    Attributes:
        name: When it runs, such as createRuntime: before the container's first process.
        path: The program on the host.
        args: Its arguments, the first of which is its name.
    """

    name: str
    path: str
    args: tuple[str, ...]
    timeout_seconds: int

    def as_cdi(self) -> dict[str, Any]:
        """Return the hook as a CDI spec has it."""
        return {
            "hookName": self.name,
            "path": self.path,
            "args": list(self.args),
            "timeout": self.timeout_seconds,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Edits:
    """Additions to the containers of one request.

    Attributes:
        env: An empty value overrides a variable of the image or the pod.
        hooks: Only of the driver's own enforcers.
    """

    env: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    hooks: tuple[Hook, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """Files, sockets and folders that have to be on the host before prepare may succeed.

    Attributes:
        files: Have to exist already; the claim fails without them.
        sockets: Unix sockets on which a process has to accept connections; the claim fails while
            none does. For a service without which a container would run without its limits.
        folders: Created for the claim, with the parents that are missing. Only those below
            `claims_root` and the pod_folder() are removed again.
        texts: Written if they are missing or different. They belong to all claims, and stay.
    """

    files: tuple[str, ...] = ()
    sockets: tuple[str, ...] = ()
    folders: tuple[Folder, ...] = ()
    texts: tuple[TextFile, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EnforcerFacts:
    """Facts of an enforcer that are the same on every node. The defaults promise least.

    Attributes:
        keeper: What keeps the limits, for texts, such as "the MPS daemon"; "" for its name.
        enforces_hard: It brings a limiter that reads its limits from the container's environment,
            so that tenants may choose isolation `hard`.
        enforces_compute: All processes of a claim together are kept within its compute limits.
        enforces_memory: All processes of a claim together are kept within its memory limits.
        expands_memory: It can extend a card's memory by the host's memory or disk.
        counts_by_pid: It tells processes apart by their PID in the container. Containers that use
            one request at the same time then need one PID namespace.
        names_containers: Its limiter needs the name of its container, which the webhook adds.
        fixed_compute: Isolation modes in which the compute limit of a running container cannot be
            changed.
        fixed_memory: The same of memory limits; fixed_compute has all of these modes as well.
        lends_idle_compute: Where the compute limit is fixed, it can be lifted as a whole while the
            other tenants of the card are idle; see raised().
        lends_compute_alone: A compute limit above its request would take from the card's other
            tenants what they have reserved. So it is granted while the share is alone on its card.
        equal_only: It cannot tell requests of a claim apart, so that their limits have to be equal.
        mixed: Isolation modes in which it cannot tell two claims in one container apart.
        keeps_lent_memory: Memory in use cannot be taken back, and the tenant to whom it is reserved
            waits for it. So the node's setting lending-factor bounds what is lent.
        loses_limits: Limits may be lost while containers run, so apply() is called again before
            each judgement.
        must_show_itself: Claims wait for its sign, also without the setting require-enforcement,
            because no file or socket shows whether it can limit.
        remedy: What to do on a node without it.
    """

    keeper: str = ""
    enforces_hard: bool = False
    enforces_compute: bool = False
    enforces_memory: bool = False
    expands_memory: bool = False
    counts_by_pid: bool = True
    names_containers: bool = False
    fixed_compute: frozenset[Isolation] = frozenset(Isolation)
    fixed_memory: frozenset[Isolation] = frozenset(Isolation)
    lends_idle_compute: bool = False
    lends_compute_alone: bool = False
    equal_only: bool = False
    mixed: frozenset[Isolation] = frozenset(Isolation)
    keeps_lent_memory: bool = False
    loses_limits: bool = False
    must_show_itself: bool = False
    remedy: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnforcerSettings:
    """The node's settings as an enforcer sees them.

    Attributes:
        folder: Host folder of this enforcer alone, for files that all its claims share.
        claims_root: Host folder in which each claim can have a folder of its own, named by its UID.
            That folder is removed with the claim, with everything that containers wrote into it.
        values: Every setting of the node plugin as text, by the name of its flag.
        is_choice: True if the node chooses among several enforcers, of which it is one.
    """

    folder: str
    claims_root: str
    values: Mapping[str, str] = field(default_factory=dict)
    is_choice: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Something that `doctor` says although the enforcer is there.

    Attributes:
        level: One of core.finding.Level.
    """

    level: Literal["ok", "note", "warning"] = "warning"
    subject: str
    found: str
    expected: str
    remedy: str = "see docs/limits.md, How to see whether a limit holds"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sign:
    """Sign of an enforcer: is it there? No node shows more before a container runs.

    Attributes:
        verdict: About shares with limits in the default isolation.
        advice: What else is wrong.
        may_be_missing: Claims are prepared also if the verdict is NotEnforced, unless the setting
            require-enforcement is true: no file or socket that they need is missing.
    """

    verdict: Verdict
    advice: tuple[Advice, ...] = ()
    may_be_missing: bool = False


@dataclass(frozen=True, slots=True)
class NodeAccess:
    """Access to the node for the loops of an enforcer.

    Attributes:
        damaged: Returns the devices of the claims whose records cannot be read, by UID; None for
            devices that are not known.
        working: Returns the UIDs of the claims whose kernels ran when the use of the cards was last
            observed; None if it could not be. Empty where it is not observed.
        wait_for_stop: Waits so many seconds; returns True as soon as the process is told to stop,
            before any of its parts is stopped.
    """

    records: Records
    pods: Pods
    worker_pods: WorkerPods
    damaged: Callable[[], Mapping[str, AbstractSet[str] | None]] = dict
    working: Callable[[], AbstractSet[str] | None] = frozenset
    wait_for_stop: Callable[[float], bool] = lambda _: True


class Enforcer:
    """Software that keeps containers within the limits of their shares, on one node.

    needs(), edits() and of_record() are called before a claim is recorded, and while its record is
    compared with its files: they return the same for the same claim, and read and write nothing.
    The limit of a share may become any amount between its request and the wanted limit, and each
    can be expressed, unless its isolation is in facts.fixed_compute or facts.fixed_memory
    (docs/adr/0070). The other methods may be called by any thread, also several at a time. Of
    enforcers of other packages, of_record(), used(), raised(), loops() and examine() are not
    called.

    Attributes:
        name: Name of the enforcer in the settings; the same as that of its entry point.
        facts: What is true of it on every node.
        is_told: True if something on this node has to be told of each claim, by apply().
    """

    name: str
    facts: EnforcerFacts = EnforcerFacts()
    is_told: bool = False

    @classmethod
    def from_settings(cls, settings: EnforcerSettings) -> Self:
        """Return the enforcer of a node; start nothing."""
        raise NotImplementedError

    @property
    def claims_root(self) -> str:
        """The host folder with a folder for each claim, named by its UID; "" if none.

        The claim's folder is removed with the claim, with everything that containers wrote into it.
        """
        return ""

    @property
    def tenants_folder(self) -> str:
        """The host folder that containers write to; "" if none."""
        return self.claims_root

    def needs(self, claim: PreparedClaim) -> Needs:
        """Return what the claim's containers need on the host.

        Raises:
            ClaimError: The enforcer cannot limit such a claim.
        """
        raise NotImplementedError

    def pod_folder(self, claim: PreparedClaim) -> str:
        """Return the folder in needs() that has the name of the claim's pod; "" if none.

        It is removed with everything in it once no claim of such a pod is left. Called in
        transactions of the store, so not of other packages' enforcers.
        """
        return ""

    def edits(self, claim: PreparedClaim, shares: Sequence[PreparedShare]) -> Edits:
        """Return the additions to the containers of one request.

        Args:
            claim: The request's claim.
            shares: The request's shares from enforced(); at least one. Its limit is None if a
                share has none.
        """
        raise NotImplementedError

    def of_record(self, share: PreparedShare) -> Verdict | None:
        """Return the verdict about a share with a limit if its record alone decides, else None."""
        return None

    def sign(self) -> Sign:
        """Look whether the enforcer is there, on a node with real cards."""
        text = f"enforcer {self.name}: whether it works shows only in a running container"
        return Sign(verdict=verdicts.unknown(verdicts.NO_SIGNS, text))

    def examine(
        self, node: Mapping[str, Any], workers: Sequence[Mapping[str, Any]] | None
    ) -> Iterable[Advice]:
        """Judge for `doctor` whether other schedulers use the enforcer's software on a node.

        Args:
            node: A Node object.
            workers: Tensor Fusion's worker pods on the node; None if they cannot be listed.
        """
        return ()

    def judge(
        self,
        claim: PreparedClaim,
        shares: Sequence[PreparedShare],
        others: Iterable[PreparedClaim],
        *,
        is_new: bool,
    ) -> Sequence[Verdict]:
        """Read the evidence of a claim; return for each of the shares whether its limit holds.

        It only reads: `inspect` and `doctor` call it beside a running node plugin.

        Args:
            claim: As it is prepared now.
            shares: Its shares with a limit on a real card about which of_record() says nothing.
            others: The node's claims; perhaps this one as well.
            is_new: The limits were set less than verdicts.STARTING_SECONDS ago.
        """
        text = f"enforcer {self.name} leaves no signs that this driver reads"
        return [verdicts.unknown(verdicts.NO_SIGNS, text) for _ in shares]

    def apply(self, claim: PreparedClaim, records: Records, deadline: float) -> None:
        """Return once the node keeps what is recorded for this claim's pod.

        The same call serves a prepare, a changed limit, a restart and a repair. Calls for one pod
        may overlap, in several instances of the node plugin too. So an enforcer whose limits change
        reads the records while it holds a lock of its own, which all instances of the node share:
        the call that read the newest records is then the last one to write.

        Args:
            claim: A recorded claim; the records may have a newer one by now, or none.
            records: Called as late as possible.
            deadline: On time.monotonic()'s clock. With AT_ONCE, what needs to wait is left to the
                next call.

        Raises:
            ClaimError: It cannot keep the limits of this claim.
            SilentEnforcerError: Its process is gone or does not answer.
            RetryableError: A limit is not as recorded now; the text has the cause.
        """

    def release(self, claim: PreparedClaim, records: Records) -> None:
        """Remove what is left of the claim, which is about to be removed from the records.

        Raises:
            RetryableError: It is still there, and the claim has to stay recorded.
        """

    def used(self, claim: PreparedClaim) -> Mapping[tuple[str, str], int]:
        """Return the memory that the enforcer counts, in bytes by pod UID and GPU UUID."""
        return {}

    def raised(self) -> Mapping[str, int]:
        """Return the claims whose compute limit is raised now, because their cards are idle.

        By claim UID: the percent of each of its cards that the claim may use for the moment.
        """
        return {}

    def loops(self, node: NodeAccess) -> Mapping[str, Loop]:
        """Return the loops that the node plugin runs for it, by thread name.

        The node plugin calls this once, before the first claim; other commands never do.
        """
        return {}


def of_claim(claim: PreparedClaim, enforcers: Mapping[str, Enforcer]) -> Enforcer:
    """Return the claim's enforcer.

    Args:
        claim: Its record.
        enforcers: Those of the node, by name.

    Raises:
        ClaimError: It is unknown, because settings changed or a later release wrote the record.
    """
    enforcer = enforcers.get(claim.enforcer)
    if enforcer is None:
        raise ClaimError(
            f"claim {claim.ref}: found the enforcer {claim.enforcer!r}, "
            f"expected one of {sorted(enforcers)}"
        )
    return enforcer


def raised(enforcers: Iterable[Enforcer]) -> Mapping[str, int]:
    """Return the claims whose compute limit is raised now, under any of them; see Enforcer."""
    return {uid: percent for each in enforcers for uid, percent in each.raised().items()}


def enforced(claim: PreparedClaim) -> Mapping[str, tuple[PreparedShare, ...]]:
    """Return by request the shares that an enforcer handles: all but those with admin access."""
    by_request: dict[str, tuple[PreparedShare, ...]] = {}
    for share in claim.shares:
        if not share.admin_access:
            by_request[share.request] = (*by_request.get(share.request, ()), share)
    return by_request


def is_simulated(shares: Iterable[PreparedShare]) -> bool:
    """Return True if no card has a device node, so that there is nothing to limit on this host."""
    return not any(share.device_nodes for share in shares)


def beside(claim: PreparedClaim, others: Iterable[PreparedClaim]) -> list[PreparedClaim]:
    """Return the other claims of the same enforcer and the same pod, which share their limits."""
    return [
        other
        for other in others
        if claim.pods
        and other.pods[:1] == claim.pods[:1]
        and other.enforcer == claim.enforcer
        and other.ref.uid != claim.ref.uid
    ]


def needs_evidence(claim: PreparedClaim, enforcer: Enforcer | None) -> bool:
    """Return True if evidence on the node decides whether a limit of the claim holds."""
    return any(_of_record(claim, share, enforcer) is None for share in claim.shares)


def judged(
    claim: PreparedClaim,
    enforcer: Enforcer | None,
    others: Iterable[PreparedClaim],
    *,
    is_new: bool,
    excess: Sequence[str] = (),
) -> tuple[Verdict, ...]:
    """Return the verdict about each share of the claim, in their order.

    Args:
        claim: As it is prepared now.
        enforcer: The claim's; None if the node has none of its name.
        others: See Enforcer.judge().
        is_new: See Enforcer.judge().
        excess: For each share, how it was seen to be over its limit, "" if it was not; () if it was
            not observed. It is stronger than any evidence of the enforcer, which a tenant can
            write.
    """
    found = [
        verdicts.not_enforced(verdicts.LIMIT_EXCEEDED, over)
        if over
        else _of_record(claim, share, enforcer)
        for share, over in zip(claim.shares, excess or [""] * len(claim.shares), strict=True)
    ]
    asked = [share for share, known in zip(claim.shares, found, strict=True) if known is None]
    seen = iter(enforcer.judge(claim, asked, others, is_new=is_new) if enforcer and asked else ())
    return tuple(known or next(seen) for known in found)


def _of_record(
    claim: PreparedClaim, share: PreparedShare, enforcer: Enforcer | None
) -> Verdict | None:
    if share.limit is None:
        why = "admin access" if share.admin_access else f"isolation {share.isolation.value}"
        return verdicts.enforced(verdicts.NO_LIMIT, f"no limit to enforce: {why}")
    if is_simulated(each for each in claim.shares if each.limit):
        text = "simulated GPU: there is nothing to enforce"
        return verdicts.unknown(verdicts.SIMULATED, text)
    if enforcer is None:
        text = f"enforcer {claim.enforcer!r} is not known on this node"
        return verdicts.unknown(verdicts.UNKNOWN_ENFORCER, text)
    return enforcer.of_record(share)


_EXAMPLE: Final = PreparedClaim(
    ref=ClaimRef(namespace="default", name="doctor", uid="doctor"),
    shares=(
        PreparedShare(
            request="gpu",
            pool="default/node",
            device="gpu-0",
            gpu_uuid="GPU-0",
            share_id=None,
            consumed={
                names.CAPACITY_TFLOPS: Quantity.whole(1),
                names.CAPACITY_VRAM: Quantity.of_bytes(GIB),
            },
            exclusive=False,
            admin_access=False,
            device_nodes=("/dev/nvidia0",),
            isolation=Isolation.SOFT,
            qos=Qos.MEDIUM,
            toolkit_device=None,
            pci_bus_id="",
            wanted_vram_bytes=GIB,
            limit=Limit(sm_percent=1, vram_bytes=GIB),
        ),
    ),
)


def example(enforcer: str, isolation: Isolation) -> PreparedClaim:
    """Return an example of a prepared claim for a part of a real card."""
    (share,) = _EXAMPLE.shares
    return replace(_EXAMPLE, shares=(replace(share, isolation=isolation),), enforcer=enforcer)

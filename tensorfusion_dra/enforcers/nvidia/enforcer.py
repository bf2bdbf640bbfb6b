"""Enforcer nvidia: memory limits of cgroups that the NVIDIA driver keeps, from release 615 on.

Nothing is loaded into the container, so no process of it can leave its limit. Setting a limit needs
root on the host with CAP_SYS_ADMIN, which the node plugin does not have; the container
`memory-limits` beside it has (docs/adr/0047). What is set, and when:

- At each prepare, the pod's cgroup gets the sum of the pod's claims by card. It is there by then,
  because the kubelet makes it first, and it bounds all containers together, also after restarts.
- When a container starts, a hook of the CDI spec has the container's own cgroup limited, so that
  programs see the limit as the card's memory. A hook that fails keeps the container from starting.

A claim belongs to one pod: the kubelet does not call the driver for a second one, whose cgroup
would stay without a limit. The hook refuses containers of another pod.

Compute is not limited. Memory is lent in isolation `soft`: limits change while containers run, but
the NVIDIA driver lowers none below the present use.

The records say at once what each claim may use, and the NVIDIA driver follows when it can: what was
lent to a pod cannot be taken back while the pod uses it. Until then no limit on this card grows, so
a claim that was to have this memory waits in its prepare.

What was lent stays lent until it is free, without the lock of the store. Each change is made under
a lock of this enforcer, which all instances share: under it, the records are read, all limits on
the cards of one pod are computed from them, and memory-limits lowers first and raises only if each
could be lowered. Records that are newer than those that were read belong to a call that waits for
this lock, so the last call to write has read the newest ones. Records that another call read
before are never written after them.

Limits end with the NVIDIA driver's module and with the machine, so each check of the watch over
limits sets them again.

The container memory-limits serves a socket. Each connection has one request and one answer, each a
line of JSON:

    {"verb": "set", "pod": UID, "limits": {GPU UUID: bytes}, "beside": {UID: {GPU UUID: bytes}}}
                                                       the cards on which the pod had another limit
    {"verb": "get", "pod": UID, "gpus": [GPU UUID]}    limit and use, or a text, by card
    {"verb": "check"}                                  texts, see check()

An answer has these as `found`, or `error` with a text.
"""

import json
import socket
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import structlog

from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims import enforcer, prepared, verdicts
from tensorfusion_dra.core.claims.enforcer import (
    Advice,
    Edits,
    Enforcer,
    EnforcerSettings,
    Hook,
    Needs,
    Records,
    Sign,
    SilentEnforcerError,
    TextFile,
)
from tensorfusion_dra.core.claims.prepared import PreparedClaim, PreparedShare
from tensorfusion_dra.core.claims.verdicts import Verdict
from tensorfusion_dra.core.devices.gpu import UNLIMITED
from tensorfusion_dra.core.errors import ClaimError, RetryableError
from tensorfusion_dra.enforcers.nvidia.declaration import NVIDIA
from tensorfusion_dra.enforcers.patience import HungEnforcerError, Patience, node_lock

log = structlog.get_logger()

FOLDER: Final = "memory-limits"
"""Folder in which the container memory-limits serves; for root alone."""
SOCKET: Final = "socket"
REQUESTS: Final = "requests"
"""Pipe from the hooks; each line is <pid> <pod UID> <GPU UUID>=<bytes>,... <cgroup>."""
# Any POSIX shell: the hook runs on the host, where there may be no Python. It is an argument of the
# shell, since /run may be mounted with noexec.
_HOOK: Final = """\
# Has the memory limits of a container's cgroup set before the container starts.
# usage: sh hook.sh FOLDER POD_UID GPU_UUID=BYTES,... <STATE (OCI runtime specification)
set -eu
fail() { echo "tensorfusion-dra: memory limits: $*" >&2; exit 1; }

pid=$(tr -d ' \\t' | tr ',{}' '\\n\\n\\n' | sed -n 's/^"pid":\\([0-9]*\\)$/\\1/p')
[ -n "$pid" ] || fail "found no pid in the container's state, expected one"
cgroup=$(sed -n 's/^0:://p' "/proc/$pid/cgroup")
[ -n "$cgroup" ] || fail "found no cgroup2 of process $pid, expected one"
answer="$1/$pid.answer"
rm -f "$answer"
[ -p "$1/requests" ] || fail "$1/requests: found no pipe, expected container memory-limits to run"
# For reading too: opening it for writing alone would wait while nobody reads.
exec 3<>"$1/requests"
echo "$pid $2 $3 $cgroup" >&3
tries=0
text=
until [ "${text%% *}" = "$cgroup" ]; do
    tries=$((tries + 1))
    [ "$tries" -le 80 ] || fail "found no answer in 8 s, expected container memory-limits to run"
    sleep 0.1
    text=$(cat "$answer" 2>/dev/null) || :
done
rm -f "$answer"
[ "$text" = "$cgroup ok" ] || fail "${text#* }"
"""
HOOK_SECONDS: Final = 15
_WAIT_SECONDS: Final = 5.0
"""For memory-limits; setting a pod's limits takes some milliseconds."""


class LimitsClient:
    """Limits of pods, set and read by the container memory-limits; safe for all threads.

    Every method raises:
        HungEnforcerError: There was no answer within the time.
        SilentEnforcerError: Nothing listens.
        RetryableError: It answered with an error.
    """

    def __init__(self, path: str) -> None:
        self._path = path

    def set(
        self,
        pod_uid: str,
        limits: Mapping[str, int],
        beside: Mapping[str, Mapping[str, int]],
        *,
        wait_seconds: float,
    ) -> Sequence[str]:
        """Set limits of pods in bytes by GPU UUID; return the cards on which the pod had another.

        Each is read back. A limit of UNLIMITED is removed, also if the pod has no cgroup any more.
        Limits are lowered first, and raised only if each of them could be lowered.

        Args:
            pod_uid: The pod.
            limits: Its limits.
            beside: Limits of the other pods on these cards, by UID.
            wait_seconds: For the answer.
        """
        request = {"verb": "set", "pod": pod_uid, "limits": limits, "beside": beside}
        changed: Sequence[str] = self._ask(request, wait_seconds)
        return changed

    def get(
        self, pod_uid: str, gpu_uuids: Iterable[str], *, wait_seconds: float
    ) -> Mapping[str, tuple[int, int] | str]:
        """Return limit and use of a pod in bytes by GPU UUID, or why a card's cannot be read."""
        found = self._ask({"verb": "get", "pod": pod_uid, "gpus": list(gpu_uuids)}, wait_seconds)
        return {
            uuid: each if isinstance(each, str) else tuple(each) for uuid, each in found.items()
        }

    def check(self, *, wait_seconds: float) -> Sequence[str]:
        """Return why no limit can be set on this node, "" if one can, then what else is wrong."""
        found: Sequence[str] = self._ask({"verb": "check"}, wait_seconds)
        return found

    def _ask(self, request: Mapping[str, object], wait_seconds: float) -> Any:
        expected = "expected the container memory-limits"
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(wait_seconds)
                connection.connect(self._path)
                with connection.makefile("rw", encoding="utf-8") as stream:
                    stream.write(json.dumps(request) + "\n")
                    stream.flush()
                    answer = json.loads(stream.readline())
        except TimeoutError as error:
            text = f"{self._path}: found no answer within {wait_seconds:.0f} s, {expected}"
            raise HungEnforcerError(text) from error
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", "") or str(error)
            raise SilentEnforcerError(f"{self._path}: found {why}, {expected}") from error
        if "error" in answer:
            raise RetryableError(str(answer["error"]))
        return answer["found"]


class Nvidia(Enforcer):
    """The NVIDIA driver as an enforcer."""

    name = NVIDIA.name
    is_told = True
    facts = NVIDIA.facts

    def __init__(
        self,
        *,
        root: str = "/run/tensor-fusion/nvidia",
        client: LimitsClient | None = None,
        wait_seconds: float = _WAIT_SECONDS,
    ) -> None:
        """Connect to nothing; each call makes a connection of its own.

        Args:
            root: Host folder of the hook, and above that of the socket.
            client: Asks memory-limits; None for one at its socket.
            wait_seconds: Longest wait for an answer.
        """
        self._root = root
        self._client = client or LimitsClient(self._socket)
        self._wait_seconds = wait_seconds
        self._patience = Patience("the container memory-limits")

    @classmethod
    def from_settings(cls, settings: EnforcerSettings) -> "Nvidia":
        return cls(root=settings.folder)

    def needs(self, claim: PreparedClaim) -> Needs:
        """Return the socket of the container memory-limits, and the hook.

        Raises:
            ClaimError: Several pods share the claim.
        """
        if not memory_limits([claim]):
            return Needs()
        if len(claim.pods) > 1:
            raise ClaimError(
                f"claim {claim.ref}: found {len(claim.pods)} pods, expected one: enforcer nvidia "
                "limits the cgroup of one pod"
            )
        hook = TextFile(path=self._hook, text=_HOOK)
        return Needs(sockets=(self._socket,), texts=(hook,))

    def edits(self, claim: PreparedClaim, shares: Sequence[PreparedShare]) -> Edits:
        env = {names.ENV_ISOLATION_MODE: shares[0].isolation.value}
        of_request = {share.gpu_uuid for share in shares}
        # The claim's whole amount of each card: its containers share the pod's limit anyway.
        granted = memory_limits([claim])
        wanted = ",".join(f"{uuid}={granted[uuid]}" for uuid in granted if uuid in of_request)
        if not wanted or not claim.pods:
            return Edits(env=env)
        args = ("sh", self._hook, f"{self._root}/{FOLDER}", claim.pods[0].uid, wanted)
        hook = Hook(name="createRuntime", path="/bin/sh", args=args, timeout_seconds=HOOK_SECONDS)
        return Edits(env=env, hooks=(hook,))

    def sign(self) -> Sign:
        try:
            with self._patience.waiting():
                reason, *hints = self._client.check(wait_seconds=self._wait_seconds)
        except RetryableError as error:
            reason, hints = str(error), []
        if reason:
            found = verdicts.not_enforced(verdicts.DRIVER_CANNOT_LIMIT, reason)
        else:
            text = "the NVIDIA driver set and returned limits for a cgroup"
            found = verdicts.enforced(verdicts.ENFORCER_ALIVE, text)
        return Sign(verdict=found, advice=tuple(map(_advice, hints)))

    def judge(
        self,
        claim: PreparedClaim,
        shares: Sequence[PreparedShare],
        others: Iterable[PreparedClaim],
        *,
        is_new: bool,
    ) -> Sequence[Verdict]:
        expected = memory_limits((claim, *enforcer.beside(claim, others)))
        found: Mapping[str, tuple[int, int] | str] = {}
        reason = "its limit was not looked for"
        try:
            found = self._found(claim)
        except RetryableError as error:
            reason = str(error)
        return [
            of_share(each, expected[each.gpu_uuid], found.get(each.gpu_uuid), reason)
            for each in shares
        ]

    def apply(self, claim: PreparedClaim, records: Records, deadline: float) -> None:
        wait_seconds = min(self._wait_seconds, deadline - time.monotonic())
        if wait_seconds <= 0 or not memory_limits([claim]):
            return
        with self._alone(wait_seconds):
            pods = _by_pod(records())
            pod = _pod_uid(claim)
            if mine := pods.pop(pod, None):
                beside = {
                    other: on_same
                    for other, limits in pods.items()
                    if (on_same := {uuid: limits[uuid] for uuid in limits.keys() & mine.keys()})
                }
                changed = self._client.set(pod, mine, beside, wait_seconds=wait_seconds)
                log.debug("memory_limits_set", claim=str(claim.ref), devices=list(changed))

    def release(self, claim: PreparedClaim, records: Records) -> None:
        """Lower the limits of the pod to those of its other claims; without any, remove them.

        A failure is logged only: the claim's containers have ended, and their pod could not end.
        """
        mine = memory_limits([claim])
        if not mine:
            return
        pod = _pod_uid(claim)
        try:
            with self._alone(self._wait_seconds):
                others = (each for each in records() if each.ref.uid != claim.ref.uid)
                wanted = {**dict.fromkeys(mine, UNLIMITED), **_by_pod(others).get(pod, {})}
                self._client.set(pod, wanted, {}, wait_seconds=self._wait_seconds)
        except RetryableError as error:
            log.warning("memory_limits_not_removed", claim=str(claim.ref), error=str(error))

    def used(self, claim: PreparedClaim) -> Mapping[tuple[str, str], int]:
        try:
            found = self._found(claim)
        except RetryableError:
            return {}
        pod = _pod_uid(claim)
        return {(pod, uuid): each[1] for uuid, each in found.items() if not isinstance(each, str)}

    def _found(self, claim: PreparedClaim) -> Mapping[str, tuple[int, int] | str]:
        """Return limit and use of the claim's pod by GPU UUID, or why a card's cannot be read.

        Raises:
            RetryableError: The pod has no cgroup, or memory-limits does not answer.
        """
        uuids = memory_limits([claim])
        if not uuids or not claim.pods:
            return {}
        with self._patience.waiting():
            return self._client.get(_pod_uid(claim), uuids, wait_seconds=self._wait_seconds)

    @contextmanager
    def _alone(self, wait_seconds: float) -> Iterator[None]:
        """Change limits inside the block; no other thread or instance changes any meanwhile.

        Raises:
            SilentEnforcerError: Another call waits for memory-limits.
        """
        with (
            self._patience.waiting(),
            node_lock(Path(self._root) / "limits.lock", wait_seconds=wait_seconds),
        ):
            yield

    @property
    def _hook(self) -> str:
        return f"{self._root}/hook.sh"

    @property
    def _socket(self) -> str:
        """Socket of the container memory-limits on the host."""
        return f"{self._root}/{FOLDER}/{SOCKET}"


def of_share(
    share: PreparedShare, expected: int, found: tuple[int, int] | str | None, reason: str
) -> Verdict:
    """Return the verdict about one card of a pod.

    Args:
        share: A share of the card.
        expected: The pod's limit on this card, in bytes.
        found: Its limit and use as read, or why it cannot be read; None if nothing was read.
        reason: Why nothing was read.
    """
    if found is None:
        memory = verdicts.unknown(verdicts.UNREADABLE, reason)
    elif isinstance(found, str):
        memory = verdicts.not_enforced(verdicts.LIMITS_DIFFER, found)
    elif found[0] > expected:
        text = f"found a limit of {found[0]} bytes, expected {expected}; the driver sets it again"
        memory = verdicts.not_enforced(verdicts.LIMITS_DIFFER, text)
    else:
        text = f"the NVIDIA driver keeps the pod at {found[0]} bytes, of which it uses {found[1]}"
        memory = verdicts.enforced(verdicts.LIMIT_IN_DRIVER, text)
    compute = verdicts.enforced(verdicts.NO_LIMIT, "all of the card")
    if share.limit is not None and share.limit.sm_percent < verdicts.WHOLE_PERCENT:
        compute = verdicts.unknown(
            verdicts.COMPUTE_NOT_LIMITED,
            f"nothing keeps the container at {share.limit.sm_percent} percent, and nothing has to "
            "be lent: the card divides its time equally among those that are busy",
        )
    return verdicts.of_limits(memory, compute)


def memory_limits(claims: Iterable[PreparedClaim]) -> Mapping[str, int]:
    """Return the memory that claims of this enforcer may use together, in bytes by GPU UUID.

    Simulated cards are left out, and so are claims of other enforcers.
    """
    granted = prepared.by_uuid(
        share
        for claim in claims
        if claim.enforcer == Nvidia.name
        for share in claim.shares
        if share.device_nodes
    )
    return {uuid: limit.vram_bytes for uuid, limit in granted.items()}


def _by_pod(claims: Iterable[PreparedClaim]) -> dict[str, Mapping[str, int]]:
    """Return the limits of each pod, by its UID."""
    of_pods: dict[str, list[PreparedClaim]] = {}
    for claim in claims:
        of_pods.setdefault(_pod_uid(claim), []).append(claim)
    return {pod: memory_limits(own) for pod, own in of_pods.items()}


def _pod_uid(claim: PreparedClaim) -> str:
    return claim.pods[0].uid if claim.pods else ""


def _advice(hint: str) -> Advice:
    """Return what memory-limits says of a card: ``<subject>: <found>, expected <expected>``."""
    subject, _, rest = hint.partition(": ")
    found, _, expected = rest.partition(", expected ")
    return Advice(subject=subject, found=found, expected=expected)

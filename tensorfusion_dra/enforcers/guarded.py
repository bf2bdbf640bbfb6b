"""An enforcer of another package, called so that its faults cost only the claims that need it.

Each call runs in a thread of the enforcer and has the budget of a provider. Pure calls and calls
that read or change something on the node have a thread each, so that an enforcer that waits for its
software does not hold up the admission of claims. Once a call is late, others of its thread fail at
once until it returns. An exception, a late answer or one of another type is an error of the claim:
it is not prepared, and the kubelet calls again. What is in an answer is trusted, as all code of
this process is; testing.check_enforcer() examines it.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from threading import Lock
from typing import Final, TypeVar

from tensorfusion_dra.core import names, printable
from tensorfusion_dra.core.claims import enforcer as enforcer_rules
from tensorfusion_dra.core.claims import verdicts
from tensorfusion_dra.core.claims.enforcer import (
    Edits,
    Enforcer,
    EnforcerFacts,
    EnforcerSettings,
    Needs,
    Records,
    Sign,
    SilentEnforcerError,
)
from tensorfusion_dra.core.claims.prepared import PreparedClaim, PreparedShare
from tensorfusion_dra.core.claims.verdicts import Verdict
from tensorfusion_dra.core.devices.gpu import Isolation
from tensorfusion_dra.core.errors import ClaimError, InputError, RetryableError
from tensorfusion_dra.enforcers import registered
from tensorfusion_dra.extend import BUDGET_SECONDS
from tensorfusion_dra.runtime.single_call_thread import OverdueError, SingleCallThread
from tensorfusion_dra.state.claim_files import HostFiles

T = TypeVar("T")

_LOAD_SECONDS: Final = 30.0
"""Time for its import at the start, which may be slow on a busy node."""


class GuardedEnforcer(Enforcer):
    """An enforcer of another package; safe for all threads."""

    def __init__(
        self,
        name: str,
        load: Callable[[], object],
        settings: EnforcerSettings,
        *,
        budget_seconds: float = BUDGET_SECONDS,
    ) -> None:
        """Leave the class to be loaded by the first call.

        Args:
            name: Of its entry point.
            load: Returns its class; may raise anything.
            settings: What it is built from.
            budget_seconds: Time for a call.
        """
        self.name, self.is_told = name, True
        self._load = load
        self._settings = settings
        self._budget_seconds = budget_seconds
        self._pure = SingleCallThread(f"enforcer-{name}")
        self._acting = SingleCallThread(f"enforcer-{name}-acts")
        self._guard = Lock()  # guards the next
        self._enforcer: Enforcer | None = None

    @cached_property
    def facts(self) -> EnforcerFacts:  # type: ignore[override]  # not known before it is loaded
        """Its facts, read once; the least promises if it cannot be loaded."""
        try:
            return self._run(
                self._pure,
                lambda own: _of_type(own.facts, EnforcerFacts, "facts"),
                budget_seconds=_LOAD_SECONDS,
            )
        except (_FaultError, ClaimError, RetryableError):
            return EnforcerFacts()

    @property
    def claims_root(self) -> str:
        """The folder that the driver gave it; asking needs no import."""
        return self._settings.claims_root

    def check(self) -> None:
        """Load the enforcer; return if it can be used.

        Raises:
            InputError: It cannot.
        """
        try:
            self._run(self._pure, lambda own: None, budget_seconds=_LOAD_SECONDS)
        except _FaultError as error:
            raise InputError(f"enforcer: {self.name}: {error}") from error

    def needs(self, claim: PreparedClaim) -> Needs:
        return self._call(claim, lambda own: _of_type(own.needs(claim), Needs, "needs"))

    def edits(self, claim: PreparedClaim, shares: Sequence[PreparedShare]) -> Edits:
        found = self._call(claim, lambda own: _of_type(own.edits(claim, shares), Edits, "edits"))
        # The variable that every enforcer sets, which is also what keeps edits from being empty.
        isolation = {names.ENV_ISOLATION_MODE: shares[0].isolation.value}
        return Edits(env={**isolation, **found.env}, mounts=found.mounts)

    def sign(self) -> Sign:
        """Return its own sign; unless that is bad, check the files and sockets of claims."""
        try:
            needs = self.needs(enforcer_rules.example(self.name, Isolation.SOFT))
            found = self._run(self._acting, lambda own: _of_type(own.sign(), Sign, "sign"))
        except (_FaultError, ClaimError) as error:
            return Sign(verdict=self._unreadable(error))
        if found.verdict.state is verdicts.State.NOT_ENFORCED:
            return found
        for needed, reason in (
            (Needs(files=needs.files), verdicts.LIMITER_MISSING),
            (Needs(sockets=needs.sockets), verdicts.DAEMON_SILENT),
        ):
            if text := HostFiles.missing(needed):
                return Sign(verdict=verdicts.not_enforced(reason, text))
        return found

    def judge(
        self,
        claim: PreparedClaim,
        shares: Sequence[PreparedShare],
        others: Iterable[PreparedClaim],
        *,
        is_new: bool,
    ) -> Sequence[Verdict]:
        def call(own: Enforcer) -> Sequence[Verdict]:
            found = [*own.judge(claim, shares, others, is_new=is_new)]
            if len(found) != len(shares):
                raise _FaultError(f"judge: found {len(found)} verdicts, expected {len(shares)}")
            return [_of_type(each, Verdict, "judge") for each in found]

        try:
            return self._run(self._acting, call)
        except (_FaultError, ClaimError) as error:
            return [self._unreadable(error) for _ in shares]

    def apply(self, claim: PreparedClaim, records: Records, deadline: float) -> None:
        self._act(lambda own: own.apply(claim, records, deadline))

    def release(self, claim: PreparedClaim, records: Records) -> None:
        self._act(lambda own: own.release(claim, records))

    def _act(self, function: Callable[[Enforcer], None]) -> None:
        try:
            self._run(self._acting, function)
        except _FaultError as error:
            raise SilentEnforcerError(self._text(error)) from error

    def _call(self, claim: PreparedClaim, function: Callable[[Enforcer], T]) -> T:
        try:
            return self._run(self._pure, function)
        except _FaultError as error:
            text = f"claim {claim.ref}: {self._text(error)}"
            raise ClaimError(text[: printable.MAX_FOREIGN_TEXT]) from error

    def _text(self, error: Exception) -> str:
        return f"enforcer {self.name}: {error}"[: printable.MAX_FOREIGN_TEXT]

    def _unreadable(self, error: Exception) -> Verdict:
        return verdicts.unknown(verdicts.UNREADABLE, self._text(error))

    def _run(
        self,
        thread: SingleCallThread,
        function: Callable[[Enforcer], T],
        *,
        budget_seconds: float | None = None,
    ) -> T:
        """Call a function with the enforcer in one of its threads.

        Args:
            thread: The thread.
            function: Called with the enforcer.
            budget_seconds: None for that of every call.

        Raises:
            ClaimError: The enforcer refuses the claim.
            RetryableError: A limit is not as recorded now.
            _FaultError: It failed, or did not return in time.
        """

        def call() -> T:
            try:
                with self._guard:
                    if self._enforcer is None:
                        kind = registered.checked(self.name, self._load())
                        self._enforcer = kind.from_settings(self._settings)
                    enforcer = self._enforcer
                return function(enforcer)
            except (ClaimError, RetryableError, _FaultError):
                raise
            except BaseException as error:  # noqa: BLE001 - code of another package
                raise _FaultError(printable.error_text(error)) from None

        seconds = budget_seconds or self._budget_seconds
        try:
            return thread.run(call, wait_seconds=seconds)
        except OverdueError:
            raise _FaultError(f"no answer within {seconds:g} s") from None


class _FaultError(Exception):
    """A call of another package's code failed; the text says how."""


def _of_type(found: T, kind: object, subject: str) -> T:
    if not isinstance(found, kind):  # type: ignore[arg-type]  # a class or a union of classes
        raise _FaultError(f"{subject}: found {found!r}, expected {getattr(kind, '__name__', kind)}")
    return found

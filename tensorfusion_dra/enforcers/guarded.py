"""An enforcer of another package, called so that its faults cost only the claim at hand.

Each call runs in the enforcer's own thread and has the budget of a provider. An exception, a late
answer or one of another type becomes a ClaimError: the claim is not prepared, and the kubelet calls
again. What is in an answer is trusted, as all code of this process is; testing.check_enforcer()
examines it. Members that the class leaves out have the values that promise least.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims import verdicts
from tensorfusion_dra.core.claims.enforcer import Edits, EnforcerSettings, Needs
from tensorfusion_dra.core.claims.evidence import Evidence, EvidencePaths
from tensorfusion_dra.core.claims.prepared import PreparedClaim, PreparedShare
from tensorfusion_dra.core.claims.verdicts import Verdict
from tensorfusion_dra.core.devices.gpu import Isolation
from tensorfusion_dra.core.errors import ClaimError, InputError
from tensorfusion_dra.driver import providers
from tensorfusion_dra.driver.providers import LONGEST_TEXT, Registered
from tensorfusion_dra.extend import BUDGET_SECONDS
from tensorfusion_dra.runtime.single_call_thread import OverdueError, SingleCallThread

T = TypeVar("T")

_LOAD_SECONDS: Final = 30.0
"""Time for its import at the start, which may be slow on a busy node."""


class GuardedEnforcer:
    """An enforcer of another package; safe for all threads."""

    def __init__(
        self,
        registered: Registered,
        settings: EnforcerSettings,
        *,
        budget_seconds: float = BUDGET_SECONDS,
    ) -> None:
        """Load nothing yet.

        Args:
            registered: Its class.
            settings: What it is built from.
            budget_seconds: Time for a call.
        """
        self.registered = registered
        self._settings = settings
        self._budget_seconds = budget_seconds
        self._thread = SingleCallThread(f"enforcer-{registered.name}")
        self._enforcer: Any = None  # of the thread alone

    @property
    def name(self) -> str:
        return self.registered.name

    @property
    def enforces_hard(self) -> bool:
        return self._value("enforces_hard", bool, otherwise=False)

    @property
    def enforces_compute(self) -> bool:
        return self._value("enforces_compute", bool, otherwise=False)

    @property
    def enforces_memory(self) -> bool:
        return self._value("enforces_memory", bool, otherwise=False)

    @property
    def counts_by_pid(self) -> bool:
        return self._value("counts_by_pid", bool, otherwise=True)

    @property
    def expands_memory(self) -> bool:
        return self._value("expands_memory", bool, otherwise=False)

    @property
    def fixed(self) -> frozenset[Isolation]:
        return self._value("fixed", frozenset, otherwise=frozenset(Isolation))

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
            self._run(lambda enforcer: None, budget_seconds=_LOAD_SECONDS)
        except _FaultError as error:
            raise InputError(f"enforcer: {self.name}: {error}") from error

    def needs(self, claim: PreparedClaim) -> Needs:
        return self._call(claim, lambda enforcer: _of_type(enforcer.needs(claim), Needs, "needs"))

    def evidence_paths(self, claim: PreparedClaim) -> EvidencePaths:
        def call(enforcer: Any) -> EvidencePaths:
            found = (
                enforcer.evidence_paths(claim)
                if hasattr(enforcer, "evidence_paths")
                else EvidencePaths()
            )
            return _of_type(found, EvidencePaths, "evidence_paths")

        return self._call(claim, call)

    def edits(self, claim: PreparedClaim, shares: Sequence[PreparedShare]) -> Edits:
        found = self._call(
            claim, lambda enforcer: _of_type(enforcer.edits(claim, shares), Edits, "edits")
        )
        # The variable that every enforcer sets, which is also what keeps edits from being empty.
        isolation = {names.ENV_ISOLATION_MODE: shares[0].isolation.value}
        return Edits(env={**isolation, **found.env}, mounts=found.mounts)

    def judge(self, claim: PreparedClaim, share: PreparedShare, evidence: Evidence, /) -> Verdict:
        """Return its verdict about a share; Unknown if it gives none."""

        def call(enforcer: Any) -> Verdict:
            if hasattr(enforcer, "judge"):
                return _of_type(enforcer.judge(claim, share, evidence), Verdict, "judge")
            text = f"enforcer {self.name} leaves no signs that this driver reads"
            return verdicts.unknown(verdicts.NO_SIGNS, text)

        try:
            return self._run(call)
        except (_FaultError, ClaimError) as error:
            text = f"enforcer {self.name}: {error}"[:LONGEST_TEXT]
            return verdicts.unknown(verdicts.UNREADABLE, text)

    def _value(self, name: str, kind: type[T], *, otherwise: T) -> T:
        try:
            found = self._run(lambda enforcer: getattr(enforcer, name, otherwise))
        except (_FaultError, ClaimError):
            return otherwise
        return found if isinstance(found, kind) else otherwise

    def _call(self, claim: PreparedClaim, function: Callable[[Any], T]) -> T:
        try:
            return self._run(function)
        except _FaultError as error:
            text = f"claim {claim.ref}: enforcer {self.name}: {error}"
            raise ClaimError(text[:LONGEST_TEXT]) from error

    def _run(self, function: Callable[[Any], T], *, budget_seconds: float | None = None) -> T:
        """Call a function with the enforcer in its thread.

        Args:
            function: Called with the enforcer.
            budget_seconds: None for that of every call.

        Raises:
            ClaimError: The enforcer refuses the claim.
            _FaultError: It failed, or did not return in time.
        """

        def call() -> T:
            try:
                return function(self._loaded())
            except (ClaimError, _FaultError):
                raise
            except BaseException as error:  # noqa: BLE001 - code of another package
                raise _FaultError(providers.error_text(error)) from None

        seconds = budget_seconds or self._budget_seconds
        try:
            return self._thread.run(call, wait_seconds=seconds)
        except OverdueError:
            raise _FaultError(f"no answer within {seconds:g} s") from None

    def _loaded(self) -> Any:
        if self._enforcer is None:
            kind: Any = self.registered.load()
            if getattr(kind, "name", None) != self.name:
                found = getattr(kind, "name", None)
                raise TypeError(f"name: found {found!r}, expected {self.name!r}")
            self._enforcer = kind.from_settings(self._settings)
        return self._enforcer


class _FaultError(Exception):
    """A call of another package's code failed; the text says how."""


def _of_type(found: object, kind: type[T], subject: str) -> T:
    if not isinstance(found, kind):
        raise _FaultError(f"{subject}: found {found!r}, expected {kind.__name__}")
    return found

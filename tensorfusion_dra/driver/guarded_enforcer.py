"""An enforcer of another package, called so that its faults cost only the claim at hand.

Each call runs in the enforcer's own thread and has the budget of a provider. Every fault, also a
wrong answer, becomes a ClaimError: the claim is not prepared, and the kubelet asks again. Members
that the class leaves out have the values that promise least.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims import verdicts
from tensorfusion_dra.core.claims.enforcers.enforcer import Edits, EnforcerSettings, Needs
from tensorfusion_dra.core.claims.evidence import Places, Signs
from tensorfusion_dra.core.claims.prepared import PreparedClaim, PreparedShare
from tensorfusion_dra.core.claims.verdicts import State, Verdict
from tensorfusion_dra.core.devices.sharing import Isolation
from tensorfusion_dra.core.errors import ClaimError, InputError
from tensorfusion_dra.driver import providers
from tensorfusion_dra.driver.providers import LONGEST_TEXT, Registered
from tensorfusion_dra.extend import BUDGET_SECONDS
from tensorfusion_dra.runtime.single_call_thread import OverdueError, SingleCallThread

T = TypeVar("T")

_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_REASON: Final = re.compile(r"[A-Z][A-Za-z0-9]{0,79}")
_TAKEN: Final = frozenset({names.ENV_NVIDIA_VISIBLE_DEVICES, names.ENV_CUDA_DEVICE_ORDER})
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
        return self._call(
            claim, lambda enforcer: _needs(enforcer.needs(claim), self._settings.folder)
        )

    def places(self, claim: PreparedClaim) -> Places:
        def call(enforcer: Any) -> Places:
            return _places(enforcer.places(claim)) if hasattr(enforcer, "places") else Places()

        return self._call(claim, call)

    def edits(self, claim: PreparedClaim, shares: Sequence[PreparedShare]) -> Edits:
        found = self._call(claim, lambda enforcer: _edits(enforcer.edits(claim, shares)))
        # The variable that every enforcer sets, which is also what keeps edits from being empty.
        isolation = {names.ENV_ISOLATION_MODE: shares[0].isolation.value}
        return Edits(env={**isolation, **found.env}, mounts=found.mounts)

    def judge(self, claim: PreparedClaim, share: PreparedShare, signs: Signs, /) -> Verdict:
        """Return its verdict about a share; Unknown if it gives none."""

        def call(enforcer: Any) -> Verdict:
            if hasattr(enforcer, "judge"):
                return _verdict(enforcer.judge(claim, share, signs))
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
    """A call of another package's code failed, or its answer cannot be used; the text says how.

    The checks below may also raise anything else at members of a wrong type.
    """


def _needs(found: object, folder: str) -> Needs:
    """Return the needs if the driver may meet them; it creates folders and files as root."""
    needs = _of_type(found, Needs, "needs")
    _check_absolute("needs", *needs.files, *needs.sockets)
    for path in (*(each.path for each in needs.folders), *(each.path for each in needs.texts)):
        if not path.startswith(f"{folder}/") or {"..", "."} & set(path.split("/")):
            raise _FaultError(f"needs: found {path!r}, expected a path below {folder}")
    return needs


def _places(found: object) -> Places:
    """Return the places if the driver can look there."""
    places = _of_type(found, Places, "places")
    single = [each for each in (places.shared_memory, places.socket) if each != ""]
    _check_absolute("places", *places.files, *places.caches.values(), *single)
    return places


def _edits(found: object) -> Edits:
    """Return the edits if a container can have them."""
    edits = _of_type(found, Edits, "edits")
    for key, value in edits.env.items():
        if not _VARIABLE.fullmatch(key):
            raise _FaultError(f"edits: env: found {key!r}, expected the name of a variable")
        if key in _TAKEN or key.startswith(names.ENV_SHARE_PREFIX):
            raise _FaultError(f"edits: env: found {key}, which the driver itself sets")
        _of_type(value, str, f"edits: env: {key}")
    for mount in edits.mounts:
        _check_absolute("edits: mounts", mount.host_path, mount.container_path)
    return edits


def _verdict(found: object) -> Verdict:
    given = _of_type(found, Verdict, "judge")
    if not _REASON.fullmatch(given.reason):
        raise _FaultError(f"judge: found {found!r}, expected a Verdict with a CamelCase reason")
    return Verdict(state=State(given.state), reason=given.reason, text=str(given.text))


def _of_type(found: object, kind: type[T], subject: str) -> T:
    if not isinstance(found, kind):
        raise _FaultError(f"{subject}: found {found!r}, expected {kind.__name__}")
    return found


def _check_absolute(subject: str, *paths: str) -> None:
    for path in paths:
        if not path.startswith("/"):
            raise _FaultError(f"{subject}: found {path!r}, expected an absolute path")

"""An enforcer of another package, called so that its faults cost only the claim at hand.

Each call runs in the enforcer's own thread and has the budget of a provider. What it returns is
checked before anything is written. Every fault becomes a ClaimError: the claim is not prepared, and
the kubelet asks again. Members that the class leaves out have the values that promise least.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims.enforcement import verdict
from tensorfusion_dra.core.claims.enforcement.signs import Places, Signs
from tensorfusion_dra.core.claims.enforcement.verdict import Verdict
from tensorfusion_dra.core.claims.enforcers.enforcer import Edits, Needs
from tensorfusion_dra.core.claims.enforcers.enforcer_settings import EnforcerSettings
from tensorfusion_dra.core.claims.mounts import Mount
from tensorfusion_dra.core.claims.prepared import PreparedClaim, PreparedShare
from tensorfusion_dra.core.devices.sharing import Isolation
from tensorfusion_dra.core.errors import ClaimError, InputError
from tensorfusion_dra.driver.own_thread import ClosedError, OverdueError, OwnThread
from tensorfusion_dra.driver.providers.registered import Registered
from tensorfusion_dra.extend import BUDGET_SECONDS

T = TypeVar("T")

_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_REASON: Final = re.compile(r"[A-Z][A-Za-z0-9]{0,79}")
_TAKEN: Final = frozenset({names.ENV_NVIDIA_VISIBLE_DEVICES, names.ENV_CUDA_DEVICE_ORDER})
_LONGEST_TEXT: Final = 500
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
        self._thread = OwnThread(f"enforcer-{registered.name}")
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
        found = self._call(claim, lambda enforcer: enforcer.needs(claim))
        paths = [*found.files, *found.sockets] if isinstance(found, Needs) else ()
        if not isinstance(found, Needs) or not all(map(_is_absolute, paths)):
            raise self._fault(claim, f"needs: found {found!r}, expected Needs of absolute paths")
        written = [*(each.path for each in found.folders), *(each.path for each in found.texts)]
        for path in written:
            if not _is_below(path, self._settings.folder):
                text = f"needs: found {path!r}, expected a path below {self._settings.folder}"
                raise self._fault(claim, text)
        return found

    def places(self, claim: PreparedClaim) -> Places:
        found = self._call(
            claim,
            lambda enforcer: enforcer.places(claim) if hasattr(enforcer, "places") else Places(),
        )
        if not isinstance(found, Places):
            raise self._fault(claim, f"places: found {found!r}, expected Places")
        return found

    def edits(self, claim: PreparedClaim, shares: Sequence[PreparedShare]) -> Edits:
        found = self._call(claim, lambda enforcer: enforcer.edits(claim, shares))
        if not isinstance(found, Edits):
            raise self._fault(claim, f"edits: found {found!r}, expected Edits")
        if trouble := _trouble(found):
            raise self._fault(claim, f"edits: {trouble}")
        # The variable that every enforcer sets, which is also what keeps edits from being empty.
        isolation = {names.ENV_ISOLATION_MODE: shares[0].isolation.value}
        return Edits(env={**isolation, **found.env}, mounts=found.mounts)

    def judge(self, claim: PreparedClaim, share: PreparedShare, signs: Signs, /) -> Verdict:
        """Return its verdict about a share; Unknown if it gives none."""

        def call(enforcer: Any) -> object:
            if hasattr(enforcer, "judge"):
                return enforcer.judge(claim, share, signs)
            text = f"enforcer {self.name} leaves no signs that this driver reads"
            return verdict.unknown(verdict.NO_SIGNS, text)

        try:
            found = self._run(call)
        except (_FaultError, ClaimError) as error:
            return verdict.unknown(verdict.UNREADABLE, f"enforcer {self.name}: {error}")
        if isinstance(found, Verdict) and _REASON.fullmatch(found.reason):
            return found
        text = f"enforcer {self.name}: found {found!r}, expected a Verdict with a CamelCase reason"
        return verdict.unknown(verdict.UNREADABLE, text[:_LONGEST_TEXT])

    def _value(self, name: str, kind: type[T], *, otherwise: T) -> T:
        try:
            found = self._run(lambda enforcer: getattr(enforcer, name, otherwise))
        except (_FaultError, ClaimError):
            return otherwise
        return found if isinstance(found, kind) else otherwise

    def _call(self, claim: PreparedClaim, function: Callable[[Any], Any]) -> Any:
        try:
            return self._run(function)
        except _FaultError as error:
            raise self._fault(claim, str(error)) from error

    def _fault(self, claim: PreparedClaim, text: str) -> ClaimError:
        return ClaimError(f"claim {claim.ref}: enforcer {self.name}: {text}"[:_LONGEST_TEXT])

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
            except ClaimError:
                raise
            except BaseException as error:  # noqa: BLE001 - code of another package
                raise _FaultError(_shown(error)) from None

        seconds = budget_seconds or self._budget_seconds
        try:
            return self._thread.run(call, wait_seconds=seconds)
        except OverdueError:
            text = f"no answer within {seconds:g} s"
            raise _FaultError(text) from None
        except ClosedError:
            raise _FaultError("the process is stopping") from None

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


def _trouble(edits: Edits) -> str:
    """Return what is wrong with edits; "" if a container can have them."""
    found: object = edits.env
    if not isinstance(found, Mapping):
        return f"env: found {type(found).__name__}, expected a mapping"
    env = (_variable_trouble(key, value) for key, value in found.items())
    return next(filter(None, [*env, *map(_mount_trouble, edits.mounts)]), "")


def _variable_trouble(key: object, value: object) -> str:
    if not isinstance(key, str) or _VARIABLE.fullmatch(key) is None:
        return f"env: found {key!r}, expected the name of a variable"
    if not isinstance(value, str) or "\0" in value:
        return f"env: {key}: found {value!r}, expected text"
    if key in _TAKEN or key.startswith(names.ENV_SHARE_PREFIX):
        return f"env: found {key}, which the driver itself sets"
    return ""


def _mount_trouble(mount: object) -> str:
    if not isinstance(mount, Mount):
        return f"mounts: found {type(mount).__name__}, expected a Mount"
    if not (_is_absolute(mount.host_path) and _is_absolute(mount.container_path)):
        return f"mounts: found {mount}, expected absolute paths"
    return ""


def _is_absolute(path: object) -> bool:
    return isinstance(path, str) and path.startswith("/") and "\0" not in path


def _is_below(path: object, folder: str) -> bool:
    return (
        isinstance(path, str)
        and path.startswith(f"{folder}/")
        and not {"..", "."} & set(path.split("/"))
    )


def _shown(error: BaseException) -> str:
    try:
        return repr(error)[:_LONGEST_TEXT]
    except Exception:  # noqa: BLE001 - code of another package
        return type(error).__name__

"""Rules for writes that depend on the kind: defaults, validation, deletion."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from dra_simulator.api.claim_rules import CheckExpression, any_expression
from dra_simulator.api.gates import DEFAULT_GATES
from tensorfusion_dra.core.kubernetes.field_errors import FieldError

Json = dict[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Settings of the server that strategies need.

    Attributes:
        gates: Enabled feature gates.
        check: Returns the error in a CEL expression; None if there is none.
        labels: Returns the labels of a namespace.
    """

    gates: frozenset[str] = DEFAULT_GATES
    check: CheckExpression = any_expression
    labels: Callable[[str], Mapping[str, object]] = field(default=lambda _: {})


@dataclass(frozen=True, slots=True)
class Strategy:
    """Strategy of a kind without rules of its own.

    Attributes:
        has_status: The status is written only through /status.
        immutable: Paths of the immutable fields.
    """

    setting: Setting
    has_status: bool = False
    immutable: tuple[str, ...] = ()

    def prepare(self, document: Json, old: Json | None) -> None:
        """Set defaults and drop fields that may not be written; old is None for a create."""
        if self.has_status:
            document.pop("status", None)
            if old is not None and "status" in old:
                document["status"] = old["status"]

    def errors(self, document: Json, old: Json | None) -> Iterable[FieldError]:
        """Return the errors in a prepared create or update."""
        return ()

    def prepare_status(self, document: Json, old: Json) -> None:
        """Do the same as prepare for a write to /status."""

    def status_errors(self, document: Json, old: Json) -> Iterable[FieldError]:
        """Return the errors in a prepared write to /status."""
        return ()

    def grace_seconds(self, document: Json, requested: int | None) -> int | None:
        """Return how many seconds a deleted object waits for its kubelet; None if it does not."""
        return None


def part(document: Json, name: str) -> Json:
    """Return an object inside a decoded object; if absent, an empty one that is not part of it."""
    found = document.get(name)
    return found if isinstance(found, dict) else {}

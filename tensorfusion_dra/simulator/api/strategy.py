"""What is special about writing a kind: its defaults, its rules, its deletion."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from tensorfusion_dra.core.kubernetes.field_errors import FieldError
from tensorfusion_dra.simulator.api.claim_rules import CheckExpression, any_expression
from tensorfusion_dra.simulator.api.gates import DEFAULT_GATES

Json = dict[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What strategies need to know of their server.

    Attributes:
        check: What is wrong with a CEL expression.
        labels: The labels of a namespace.
    """

    gates: frozenset[str] = DEFAULT_GATES
    check: CheckExpression = any_expression
    labels: Callable[[str], Mapping[str, object]] = field(default=lambda _: {})


@dataclass(frozen=True, slots=True)
class Strategy:
    """Writing a kind without rules of its own.

    Attributes:
        has_status: Its status is written through /status alone.
        immutable: The paths that never change.
    """

    setting: Setting
    has_status: bool = False
    immutable: tuple[str, ...] = ()

    def prepare(self, document: Json, old: Json | None) -> None:
        """Fills in defaults and drops what may not be written; old is None for a create."""
        if self.has_status:
            document.pop("status", None)
            if old is not None and "status" in old:
                document["status"] = old["status"]

    def errors(self, document: Json, old: Json | None) -> Iterable[FieldError]:
        """What is wrong with a prepared create or update."""
        return ()

    def prepare_status(self, document: Json, old: Json) -> None:
        """The same as prepare, for a write to /status."""

    def status_errors(self, document: Json, old: Json) -> Iterable[FieldError]:
        """What is wrong with a prepared write to /status."""
        return ()

    def grace_seconds(self, document: Json, asked: int | None) -> int | None:
        """How long a deleted object stays for its kubelet; None if it knows no such grace."""
        return None


def part(document: Json, name: str) -> Json:
    """An object inside a decoded object; an empty one that is not part of it if it is absent."""
    found = document.get(name)
    return found if isinstance(found, dict) else {}

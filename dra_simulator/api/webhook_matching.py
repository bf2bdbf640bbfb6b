"""Matching of requests with the webhooks of stored configurations (apiserver's webhook plugins).

Not covered: matchPolicy Equivalent, by which a rule for one version also matches other versions.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from dra_simulator.api.store import Store
from dra_simulator.api.strategy import Json, part
from dra_simulator.api.target import Target
from tensorfusion_dra.core.errors import DriverError

MUTATING: Final = "mutatingwebhookconfigurations"
VALIDATING: Final = "validatingwebhookconfigurations"

Operation = Literal["CREATE", "UPDATE"]


class ConditionError(DriverError):
    """A match condition cannot be evaluated."""


Condition = Callable[[str, Mapping[str, object]], bool]
"""Returns True if an expression holds for these variables; raises ConditionError."""


def no_condition(expression: str, _: Mapping[str, object]) -> bool:
    """Reject every match condition, for servers whose webhooks have none."""
    raise ConditionError(f"{expression}: this server evaluates no match conditions")


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """A write that webhooks have to admit.

    Attributes:
        document: The object, with its kind and apiVersion.
        old: The object before the write; None for a create.
    """

    target: Target
    version: str
    operation: Operation
    document: Json
    old: Json | None
    dry_run: bool


@dataclass(frozen=True, slots=True)
class Webhook:
    """One entry of a configuration.

    Attributes:
        entry: The stored entry.
        is_mutating: The webhook may change the object.
    """

    entry: Mapping[str, Any]
    is_mutating: bool

    @property
    def name(self) -> str:
        """Name of the webhook in errors."""
        return str(self.entry["name"])

    @property
    def is_required(self) -> bool:
        """Return True if the request fails when the webhook cannot be called."""
        return bool(self.entry.get("failurePolicy", "Fail") == "Fail")

    @property
    def is_reinvoked(self) -> bool:
        """Return True if the webhook is called again after later webhooks change the object."""
        return bool(self.entry.get("reinvocationPolicy", "Never") == "IfNeeded")


def webhooks(store: Store, plural: str) -> Iterator[Webhook]:
    """Yield every webhook, ordered by the name of its configuration and then as listed there."""
    for stored in store.listed(plural, None)[0]:
        listed = stored.document.get("webhooks")
        for entry in listed if isinstance(listed, list) else ():
            yield Webhook(entry, is_mutating=plural == MUTATING)


def matches(webhook: Webhook, attempt: Attempt, store: Store, holds: Condition) -> bool:
    """Return True if the webhook has to be called.

    Raises:
        ConditionError: A condition cannot be evaluated, and no other one is false.
    """
    entry = webhook.entry
    if not any(_rule_matches(rule, attempt) for rule in entry.get("rules") or ()):
        return False
    if not _selects(entry.get("namespaceSelector"), _namespace_labels(attempt, store)):
        return False
    labelled = [attempt.document, *([attempt.old] if attempt.old else [])]
    if not any(_selects(entry.get("objectSelector"), _labels(found)) for found in labelled):
        return False
    return _conditions_hold(entry.get("matchConditions") or (), attempt, holds)


def _rule_matches(rule: Mapping[str, Any], attempt: Attempt) -> bool:
    kind = attempt.target.kind
    scope = "Namespaced" if kind.namespaced else "Cluster"
    wanted = (
        ("apiGroups", kind.group),
        ("apiVersions", attempt.version),
        ("resources", kind.plural),
        ("operations", attempt.operation),
    )
    return rule.get("scope", "*") in {"*", scope} and all(
        {"*", value} & set(rule.get(field) or ()) for field, value in wanted
    )


def _conditions_hold(
    conditions: Iterable[Mapping[str, str]], attempt: Attempt, holds: Condition
) -> bool:
    variables: dict[str, object] = {
        "object": attempt.document,
        "oldObject": attempt.old,
        "request": {"operation": attempt.operation, "namespace": attempt.target.namespace},
    }
    error: ConditionError | None = None
    for condition in conditions:
        try:
            if not holds(condition["expression"], variables):
                return False
        except ConditionError as found:
            error = found
    if error is not None:
        raise error
    return True


def _namespace_labels(attempt: Attempt, store: Store) -> Json | None:
    """Return the namespace's labels; None for a cluster-scoped object, which is always selected."""
    if not attempt.target.kind.namespaced:
        return None
    stored = store.get("namespaces", "", attempt.target.namespace)
    return _labels(stored.document) if stored else {}


def _labels(document: Json) -> Json:
    return part(part(document, "metadata"), "labels")


def _selects(selector: Mapping[str, Any] | None, labels: Json | None) -> bool:
    if labels is None or not selector:
        return True
    named = (selector.get("matchLabels") or {}).items()
    return all(labels.get(key) == value for key, value in named) and all(
        _requirement_holds(requirement, labels)
        for requirement in selector.get("matchExpressions") or ()
    )


def _requirement_holds(requirement: Mapping[str, Any], labels: Json) -> bool:
    key, values = requirement["key"], requirement.get("values") or ()
    match requirement["operator"]:
        case "In":
            return labels.get(key) in values
        case "NotIn":
            return labels.get(key) not in values
        case "Exists":
            return key in labels
        case _:
            return key not in labels

"""Findings about the rights of a process at the API server."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tensorfusion_dra.core.doctor.finding import Finding, ok, problem, warning
from tensorfusion_dra.core.doctor.required_rights import Right


class Answer(NamedTuple):
    """The API server's answer about one right.

    Attributes:
        reason: The authorizer's reason; usually "".
    """

    right: Right
    allowed: bool
    reason: str = ""


def findings(who: str, answers: Iterable[Answer]) -> Iterator[Finding]:
    """Yield a finding for each missing right, and one for all granted rights.

    Args:
        who: Holder of the rights, such as ``service account gpu/node-plugin``.
    """
    granted = 0
    for answer in answers:
        if answer.allowed:
            granted += 1
            continue
        severity = problem if answer.right.vital else warning
        reason = f": {answer.reason}" if answer.reason else ""
        yield severity(
            f"right to {answer.right}",
            f"{who} does not have it{reason}",
            expected=f"granted: {answer.right.purpose}",
            cure=f"apply the ClusterRole and its binding of this release again; it needs "
            f"{_rule(answer.right)}",
        )
    if granted:
        yield ok(f"rights of {who}", f"{granted} granted")


def _rule(right: Right) -> str:
    """Return the rule in the notation of a Role."""
    named = f", resourceNames: [{right.name}]" if right.name else ""
    return (
        f'{{apiGroups: ["{right.group}"], resources: [{right.resource}], '
        f'verbs: ["{right.verb}"]{named}}}'
    )

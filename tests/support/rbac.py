"""Rights of roles, with the decisions of Kubernetes' RBAC authorizer."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dra_simulator.api.requests import Asked

Document = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Right:
    """One verb on one resource.

    Attributes:
        namespace: The namespace of the right; "" for all.
        names: The objects to which the right is restricted; empty for all.
    """

    group: str
    resource: str
    verb: str
    namespace: str = ""
    names: tuple[str, ...] = ()

    def allows(self, request: Asked) -> bool:
        """Return True if this right allows a request."""
        return (
            (self.group, self.resource, self.verb)
            == (request.group, request.resource, request.verb)
            and self.namespace in {"", request.namespace}
            and (not self.names or request.name in self.names)
        )


def rights(documents: list[Document], account: str) -> frozenset[Right]:
    """Return all rights that bindings among these objects grant to a ServiceAccount."""
    return frozenset(
        Right(
            group=group,
            resource=resource,
            verb=verb,
            namespace=namespace,
            names=tuple(rule.get("resourceNames", ())),
        )
        for namespace, rule in _rules(documents, account)
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    )


def _rules(documents: list[Document], account: str) -> Iterator[tuple[str, Document]]:
    for binding in documents:
        if binding["kind"] not in {"ClusterRoleBinding", "RoleBinding"}:
            continue
        if account not in {subject["name"] for subject in binding["subjects"]}:
            continue
        namespace = binding["metadata"].get("namespace", "")
        wanted = binding["roleRef"]["kind"], binding["roleRef"]["name"]
        for role in documents:
            same_place = role["metadata"].get("namespace", "") in {"", namespace}
            if (role["kind"], role["metadata"]["name"]) == wanted and same_place:
                yield from ((namespace, rule) for rule in role["rules"])

"""What would hang if the driver were uninstalled: claims that are in use, and their pods.

A kubelet ends a pod only after the driver has unprepared its claims. Without the driver, such a pod
stays in Terminating, and its claim keeps its finalizer. A claim that no pod uses holds nothing up.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from tensorfusion_dra.core import names, printable
from tensorfusion_dra.core.doctor import webhook
from tensorfusion_dra.core.doctor.finding import Finding, note, warning
from tensorfusion_dra.core.kubernetes.untyped_json import as_list, as_map

Document = Mapping[str, Any]

_PROTECTION: Final = "resource.kubernetes.io/delete-protection"
_DONE: Final = frozenset({"Succeeded", "Failed"})


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """A pod, or another consumer, that uses claims with devices of this driver.

    Attributes:
        node: "" for a consumer that has no node.
        state: Phase of the pod, or Terminating; the kind of a consumer that is not a pod.
        since: Time at which its deletion began; "" if it is not being deleted.
        claims: Names of the claims.
        finalizers: Finalizers of the pod.
    """

    node: str
    namespace: str
    name: str
    state: str
    since: str
    claims: tuple[str, ...]
    finalizers: tuple[str, ...]


def users(claims: Iterable[Document], pods: Iterable[Document]) -> list[User]:
    """Return who uses this driver's claims now, sorted by node and name.

    A pod that is done has given its devices back, and one that is gone needs none; their
    reservations are removed by kube-controller-manager, without the driver.
    """
    by_uid = {str(pod["metadata"].get("uid")): pod for pod in pods}
    of_consumer: dict[tuple[str, str, str, str], list[str]] = {}
    for claim in filter(is_ours, claims):
        metadata = claim["metadata"]
        for consumer in map(as_map, as_list(as_map(claim.get("status")).get("reservedFor"))):
            key = (
                str(consumer.get("uid")),
                str(metadata.get("namespace")),
                str(consumer.get("name")),
                str(consumer.get("resource")) if consumer.get("apiGroup") else "",
            )
            of_consumer.setdefault(key, []).append(str(metadata["name"]))
    found = [
        user
        for (uid, namespace, name, kind), named in of_consumer.items()
        if (user := _user(by_uid.get(uid), namespace, name, kind, tuple(named))) is not None
    ]
    return sorted(found, key=lambda user: (user.node, user.namespace, user.name))


def is_ours(claim: Document) -> bool:
    """Return True if the claim has devices of this driver."""
    allocated = as_map(as_map(claim.get("status")).get("allocation"))
    results = as_list(as_map(allocated.get("devices")).get("results"))
    return any(as_map(result).get("driver") == names.DRIVER for result in results)


def notes(claims: Sequence[Document], webhooks: Sequence[Document] | None) -> Iterator[Finding]:
    """Yield what hangs nothing up now, but is worth knowing.

    Args:
        webhooks: All mutating and validating webhook configurations; None if they were not read.
    """
    ours = [claim for claim in claims if is_ours(claim)]
    unused = [_name(claim) for claim in ours if not as_map(claim.get("status")).get("reservedFor")]
    if unused:
        yield note(
            "allocated claims that no pod uses",
            printable.first(unused),
            cure="none is needed: they are released and deleted without the driver",
        )
    foreign = []
    for claim in ours:
        every = map(str, as_list(claim["metadata"].get("finalizers")))
        others = [each for each in every if each != _PROTECTION]
        if others:
            foreign.append(f"{_name(claim)} ({', '.join(others)})")
    if foreign:
        yield warning(
            "finalizers of claims",
            printable.first(foreign),
            expected=f"only {_PROTECTION}, which Kubernetes removes itself",
            cure="find the controllers that have to remove them",
        )
    if webhooks is not None and webhook.ours(webhooks):
        yield note(
            "webhook configurations",
            f"{len(webhook.ours(webhooks))} webhooks of this driver are configured",
            cure="delete them before the webhook, or annotated pods are refused: kubectl delete "
            "mutatingwebhookconfiguration,validatingwebhookconfiguration tensorfusion-dra-webhook",
        )


def _user(
    pod: Document | None, namespace: str, name: str, kind: str, claims: tuple[str, ...]
) -> User | None:
    if kind:
        return User(
            node="",
            namespace=namespace,
            name=name,
            state=kind,
            since="",
            claims=claims,
            finalizers=(),
        )
    if pod is None:
        return None
    metadata, spec = pod["metadata"], as_map(pod.get("spec"))
    phase = str(as_map(pod.get("status")).get("phase") or "Pending")
    if phase in _DONE:
        return None
    since = _deleted_at(metadata)
    return User(
        node=str(spec.get("nodeName") or ""),
        namespace=namespace,
        name=name,
        state="Terminating" if since else phase,
        since=since,
        claims=claims,
        finalizers=tuple(map(str, as_list(metadata.get("finalizers")))),
    )


def _deleted_at(metadata: Document) -> str:
    """Return when the deletion began; Kubernetes adds the grace period to the deletionTimestamp."""
    text = str(metadata.get("deletionTimestamp") or "")
    grace = metadata.get("deletionGracePeriodSeconds")
    if not (text and isinstance(grace, int)):
        return text
    began = datetime.fromisoformat(text) - timedelta(seconds=grace)
    return began.isoformat().replace("+00:00", "Z")


def _name(claim: Document) -> str:
    return f"{claim['metadata'].get('namespace')}/{claim['metadata']['name']}"

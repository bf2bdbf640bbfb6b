"""The verb `teardown-check`: show what would hang if the driver were uninstalled now.

A kubelet ends a pod only after the driver has unprepared its claims. Without the driver, such a pod
stays in Terminating, and its claim keeps its finalizer. A claim that no pod uses holds nothing up.
"""

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from tensorfusion_dra.app.doctor import objects
from tensorfusion_dra.app.shared import kubectl, logging, streams
from tensorfusion_dra.cluster.api import segment
from tensorfusion_dra.cluster.cluster_lists import ClusterLists
from tensorfusion_dra.core import names, printable
from tensorfusion_dra.core.finding import Finding, note
from tensorfusion_dra.core.kubernetes import resource_claims
from tensorfusion_dra.core.kubernetes.untyped_json import as_list, as_map

Document = Mapping[str, Any]

User = Mapping[str, Any]
"""A pod, or another consumer, that uses claims of this driver, as in the JSON document.

Its node is "" for a consumer that has none; its state is the phase of the pod, or Terminating, or
the kind of a consumer that is not a pod; deletedSince is "" if it is not being deleted.
"""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `teardown-check`."""
    streams.add_exit_codes(parser, "nothing would hang", "something would hang")
    streams.add_form(parser)
    kubectl.add_flags(parser, namespace="only claims of this namespace", of_all=True)


def run(flags: argparse.Namespace) -> int:
    """Print what would hang; return 1 if something would.

    Raises:
        InputError: The kubeconfig cannot be used.
        RetryableError: The API server did not answer, or a permission is missing.
    """
    logging.configure(level="critical", form="console")
    lists = ClusterLists(kubectl.api(flags.kubeconfig, flags.context))
    wanted = flags.namespace
    claims = [each for each in lists.claims() if wanted in (None, each["metadata"]["namespace"])]
    found = _users(claims, _pods(lists, claims))
    called = [
        name
        for path in objects.CONFIGURATIONS
        for name in objects.webhooks(lists.readable_items(path, path.rpartition("/")[2]) or ())
    ]
    about_webhooks = note(
        "webhook configurations",
        f"{len(called)} webhooks of this driver are configured",
        remedy="delete them before the webhook, or annotated pods are refused: kubectl delete "
        "mutatingwebhookconfiguration,validatingwebhookconfiguration tensorfusion-dra-webhook",
    )
    findings = [about_webhooks] if called else []
    document = {
        "wouldHang": found,
        "findings": [finding.as_json() for finding in findings],
        "unchecked": list(lists.unreadable),
    }
    lines = map(printable.one_line, _lines(found, findings, lists.unreadable))
    sys.stdout.write(streams.formatted(flags.form, document, lines))
    return 1 if found else 0


def _pods(lists: ClusterLists, claims: Sequence[Document]) -> list[dict[str, Any]]:
    """Return the pods of all namespaces in which claims of this driver are allocated."""
    return [
        pod
        for namespace in sorted({str(c["metadata"]["namespace"]) for c in claims if _is_ours(c)})
        for pod in lists.items(f"/api/v1/namespaces/{segment(namespace)}/pods")
    ]


def _lines(
    found: Sequence[User], findings: Sequence[Finding], unreadable: Sequence[str]
) -> list[str]:
    nodes = len({user["node"] for user in found})
    subject = "1 pod" if len(found) == 1 else f"{len(found)} pods"
    where = "1 node" if nodes == 1 else f"{nodes} nodes"
    hanging = [
        f"{subject} on {where} would hang in Terminating: without the driver their claims cannot "
        "be given back.",
        "End them first, for example by scaling their workloads down, and run this again.",
    ]
    heads = ("NODE", "POD", "STATE", "SINCE", "CLAIMS", "FINALIZERS")
    return streams.sections(
        hanging if found else ["Nothing would hang: no pod uses a claim of this driver."],
        streams.table([heads, *map(_row, found)], indent="") if found else (),
        *(
            [
                f"{each.level.value}: {each.subject}: {each.found}",
                *([f"  {each.remedy}"] if each.remedy else ()),
            ]
            for each in findings
        ),
        [f"Not checked: {', '.join(unreadable)}."] if unreadable else (),
    )


def _row(user: User) -> Sequence[str]:
    return (
        user["node"] or "-",
        f"{user['namespace']}/{user['pod']}",
        user["state"],
        user["deletedSince"] or "-",
        ", ".join(user["claims"]),
        ", ".join(user["finalizers"]) or "-",
    )


def _users(claims: Iterable[Document], pods: Iterable[Document]) -> list[dict[str, Any]]:
    """Return who uses this driver's claims now, sorted by node and name.

    A pod that is done has given its devices back, and one that is gone needs none; their
    reservations are removed by kube-controller-manager, without the driver.
    """
    by_uid: dict[str, Document] = {str(pod["metadata"].get("uid")): pod for pod in pods}
    of_consumer: dict[tuple[str, str, str, str], list[str]] = {}
    for claim in filter(_is_ours, claims):
        metadata = claim["metadata"]
        for consumer in map(as_map, as_list(as_map(claim.get("status")).get("reservedFor"))):
            key = (
                str(consumer.get("uid")),
                str(metadata.get("namespace")),
                str(consumer.get("name")),
                str(consumer.get("resource")) if consumer.get("apiGroup") else "",
            )
            of_consumer.setdefault(key, []).append(str(metadata["name"]))
    found = []
    for (uid, namespace, name, kind), named in of_consumer.items():
        pod = by_uid.get(uid, {})
        metadata = as_map(pod.get("metadata"))
        state = kind or str(as_map(pod.get("status")).get("phase") or "Pending")
        if not (pod or kind) or state in ("Succeeded", "Failed"):
            continue
        since = _deleted_at(metadata)
        found.append(
            {
                "node": str(as_map(pod.get("spec")).get("nodeName") or ""),
                "namespace": namespace,
                "pod": name,
                "state": "Terminating" if since else state,
                "deletedSince": since,
                "claims": named,
                "finalizers": list(map(str, as_list(metadata.get("finalizers")))),
            }
        )
    return sorted(found, key=lambda user: (user["node"], user["namespace"], user["pod"]))


def _is_ours(claim: Document) -> bool:
    """Return True if the claim has devices of this driver."""
    return any(each.get("driver") == names.DRIVER for each in resource_claims.results(claim))


def _deleted_at(metadata: Document) -> str:
    """Return when the deletion began; Kubernetes adds the grace period to the deletionTimestamp."""
    text = str(metadata.get("deletionTimestamp") or "")
    grace = metadata.get("deletionGracePeriodSeconds")
    if not (text and isinstance(grace, int)):
        return text
    began = datetime.fromisoformat(text) - timedelta(seconds=grace)
    return began.isoformat().replace("+00:00", "Z")

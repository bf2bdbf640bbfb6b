"""The verb `teardown-check`: show what would hang if the driver were uninstalled now."""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from tensorfusion_dra.app.shared import kubectl, logging
from tensorfusion_dra.app.shared.tables import table
from tensorfusion_dra.cluster.api import segment
from tensorfusion_dra.cluster.cluster_lists import ClusterLists
from tensorfusion_dra.core import printable
from tensorfusion_dra.core.doctor import teardown
from tensorfusion_dra.core.doctor.finding import Finding
from tensorfusion_dra.core.doctor.teardown import User

_EXIT_CODES: Final = """\
exit codes:
  0  nothing would hang
  1  something would hang; or no answer from the API server
  2  bad input
"""
_ADMISSION: Final = "/apis/admissionregistration.k8s.io/v1"
_WEBHOOKS: Final = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `teardown-check`."""
    parser.epilog = _EXIT_CODES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "-o", dest="form", choices=("table", "json"), default="table", help="output format"
    )
    kubectl.add_flag(parser)


def run(flags: argparse.Namespace) -> int:
    """Print what would hang; return 1 if something would.

    Raises:
        InputError: The kubeconfig cannot be used.
        RetryableError: The API server did not answer, or a right is missing.
    """
    logging.configure(level="critical", form="console")
    lists = ClusterLists(kubectl.api(flags.kubeconfig))
    claims = lists.claims()
    found = teardown.users(claims, _pods(lists, claims))
    findings = list(teardown.notes(claims, _webhooks(lists)))
    if flags.form == "json":
        text = json.dumps(_document(found, findings, lists.unreadable), indent=2)
    else:
        lines = _lines(found, findings, lists.unreadable)
        text = "\n".join(map(printable.one_line, lines))
    sys.stdout.write(text + "\n")
    return 1 if found else 0


def _pods(lists: ClusterLists, claims: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the pods of all namespaces in which claims of this driver are allocated."""
    near = {str(claim["metadata"]["namespace"]) for claim in claims if teardown.is_ours(claim)}
    return [
        pod
        for namespace in sorted(near)
        for pod in lists.items(f"/api/v1/namespaces/{segment(namespace)}/pods")
    ]


def _webhooks(lists: ClusterLists) -> list[dict[str, Any]] | None:
    """Return the webhook configurations; None without the right to list all of them."""
    found: list[dict[str, Any]] = []
    for kind in _WEBHOOKS:
        listed = lists.readable_items(f"{_ADMISSION}/{kind}", kind)
        if listed is None:
            return None
        found += listed
    return found


def _lines(
    found: Sequence[User], findings: Sequence[Finding], unreadable: Sequence[str]
) -> Iterator[str]:
    if not found:
        yield "Nothing would hang: no pod uses a claim of this driver."
    else:
        nodes = len({user.node for user in found})
        subject = "1 pod" if len(found) == 1 else f"{len(found)} pods"
        where = "1 node" if nodes == 1 else f"{nodes} nodes"
        yield (
            f"{subject} on {where} would hang in Terminating: without the driver their claims "
            "cannot be given back."
        )
        yield "End them first, for example by scaling their workloads down, and run this again."
        yield ""
        heads = ("NODE", "POD", "STATE", "SINCE", "CLAIMS", "FINALIZERS")
        yield from table([heads, *map(_row, found)], indent="")
    for finding in findings:
        yield ""
        yield f"{finding.level.value}: {finding.subject}: {finding.found}"
        if finding.cure:
            yield f"  {finding.cure}"
    if unreadable:
        yield ""
        yield f"Not checked: {', '.join(unreadable)}."


def _row(user: User) -> Sequence[str]:
    return (
        user.node or "-",
        f"{user.namespace}/{user.name}",
        user.state,
        user.since or "-",
        ", ".join(user.claims),
        ", ".join(user.finalizers) or "-",
    )


def _document(
    found: Sequence[User], findings: Sequence[Finding], unreadable: Sequence[str]
) -> Mapping[str, Any]:
    return {
        "wouldHang": [
            {
                "node": user.node,
                "namespace": user.namespace,
                "pod": user.name,
                "state": user.state,
                "deletedSince": user.since,
                "claims": list(user.claims),
                "finalizers": list(user.finalizers),
            }
            for user in found
        ],
        "findings": [finding.as_json() for finding in findings],
        "unchecked": list(unreadable),
    }

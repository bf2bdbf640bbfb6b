"""Checks of the rights (RBAC) that the node plugin and the webhook need."""

from collections.abc import Iterable, Iterator
from typing import Final

from tensorfusion_dra.app.doctor.context import Context
from tensorfusion_dra.core.doctor import api_server
from tensorfusion_dra.core.doctor import required_rights as table
from tensorfusion_dra.core.doctor import rights as rules
from tensorfusion_dra.core.doctor.finding import Finding, note
from tensorfusion_dra.core.doctor.required_rights import Right
from tensorfusion_dra.core.doctor.rights import Answer

_DAEMONSETS: Final = "/apis/apps/v1/daemonsets"
_DEPLOYMENTS: Final = "/apis/apps/v1/deployments"
_NODE_PLUGIN: Final = "app.kubernetes.io/name=tensorfusion-dra"
_WEBHOOK: Final = f"{_NODE_PLUGIN},app.kubernetes.io/component=webhook"


def of_node_plugin(context: Context) -> Iterator[Finding]:
    """Check each right that a node plugin with these settings uses.

    The account is the one in the options, else the pod's own, else that of the DaemonSet, else
    the user of the kubeconfig.
    """
    settings = context.settings
    account = context.options.service_account
    if account is None and not context.in_pod:
        account = _account(context, _DAEMONSETS, _NODE_PLUGIN)
    if account is not None:
        subject = f"service account {'/'.join(account)}"
    elif context.in_pod:
        subject = "this pod's service account"
    else:
        subject = "the user of this kubeconfig"
        yield note(
            "rights",
            "found no DaemonSet of this driver; those of the kubeconfig's user are checked",
            cure="name the node plugin's account with --service-account NAMESPACE/NAME",
        )
    wanted = table.of_node_plugin(
        pool_source=settings.pool_source,
        read_pods=settings.read_pods == "true",
        marks_pods=bool(settings.hypervisor_sockets),
    )
    yield from rules.findings(subject, _answers(context, wanted, account))


def of_webhook(context: Context) -> Iterator[Finding]:
    """Check each right that the webhook uses, if it is installed."""
    account = _account(context, _DEPLOYMENTS, _WEBHOOK)
    if account is not None:
        answers = _answers(context, table.of_webhook(), account)
        yield from rules.findings(f"service account {'/'.join(account)}", answers)


def _answers(
    context: Context, wanted: Iterable[Right], account: tuple[str, str] | None
) -> list[Answer]:
    probe = context.probe
    version = str((probe.find("/version") or {}).get("gitVersion", ""))
    minor = api_server.minor_version(version)
    return [
        probe.review_access(right, service_account=account)
        for right in wanted
        if minor is None or minor >= right.since_minor
    ]


def _account(context: Context, path: str, selector: str) -> tuple[str, str] | None:
    """Return the service account of the installed workload; None if none is installed."""
    for item in context.probe.items(path, labelSelector=selector) or []:
        name = item["spec"]["template"]["spec"].get("serviceAccountName") or "default"
        return item["metadata"]["namespace"], name
    return None

"""The rights of node plugin and webhook: this pod's own, or those of their service accounts."""

from collections.abc import Iterable, Iterator
from typing import Final

from tensorfusion_dra.app.doctor.context import Context
from tensorfusion_dra.core.doctor import api_server
from tensorfusion_dra.core.doctor import required_rights as table
from tensorfusion_dra.core.doctor import rights as judge
from tensorfusion_dra.core.doctor.finding import Finding, note
from tensorfusion_dra.core.doctor.required_rights import Right
from tensorfusion_dra.core.doctor.rights import Answer

_DAEMONSETS: Final = "/apis/apps/v1/daemonsets"
_DEPLOYMENTS: Final = "/apis/apps/v1/deployments"
_NODE_PLUGIN: Final = "app.kubernetes.io/name=tensorfusion-dra"
_WEBHOOK: Final = f"{_NODE_PLUGIN},app.kubernetes.io/component=webhook"


def of_node_plugin(context: Context) -> Iterator[Finding]:
    """Each right that a node plugin with these settings uses."""
    settings = context.settings
    account = context.options.service_account
    if account is None and not context.in_pod:
        account = _account(context, _DAEMONSETS, _NODE_PLUGIN)
    if account is not None:
        who = f"service account {'/'.join(account)}"
    elif context.in_pod:
        who = "this pod's service account"
    else:
        who = "whoever this kubeconfig is for"
        yield note(
            "rights",
            "no DaemonSet of this driver is there, so those of this kubeconfig are looked at",
            cure="name the node plugin's account with --service-account NAMESPACE/NAME",
        )
    wanted = table.of_node_plugin(
        pool_source=settings.pool_source, read_pods=settings.read_pods == "true"
    )
    yield from judge.judged(who, _answers(context, wanted, account))


def of_webhook(context: Context) -> Iterator[Finding]:
    """Each right that the webhook uses, if it is installed."""
    account = _account(context, _DEPLOYMENTS, _WEBHOOK)
    if account is not None:
        answers = _answers(context, table.of_webhook(), account)
        yield from judge.judged(f"service account {'/'.join(account)}", answers)


def _answers(
    context: Context, wanted: Iterable[Right], account: tuple[str, str] | None
) -> list[Answer]:
    probe = context.probe
    told = str((probe.find("/version") or {}).get("gitVersion", ""))
    minor = api_server.minor_version(told)
    return [
        probe.answers(right, service_account=account)
        for right in wanted
        if minor is None or minor >= right.since_minor
    ]


def _account(context: Context, path: str, selector: str) -> tuple[str, str] | None:
    """The service account of what is installed; None if nothing is."""
    for item in context.probe.items(path, labelSelector=selector) or []:
        name = item["spec"]["template"]["spec"].get("serviceAccountName") or "default"
        return item["metadata"]["namespace"], name
    return None

"""Checks of the rights (RBAC) that the node plugin and the webhook need."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from tensorfusion_dra.app.doctor import objects
from tensorfusion_dra.app.doctor.checks import Context
from tensorfusion_dra.core.doctor import objects as cluster_objects
from tensorfusion_dra.core.doctor import rights as rules
from tensorfusion_dra.core.doctor.finding import Finding, note
from tensorfusion_dra.core.doctor.rights import Answer, Right

_DEPLOYMENTS: Final = "/apis/apps/v1/deployments"
_WEBHOOK: Final = "app.kubernetes.io/name=tensorfusion-dra,app.kubernetes.io/component=webhook"
_DECISIVE: Final = frozenset(
    {
        *("pool_source", "read_pods", "hypervisor_sockets", "enforcer_wait_seconds"),
        *("release_driver", "simulated_gpus"),
    }
)
"""Settings on which rights depend."""


def of_node_plugin(context: Context) -> Iterator[Finding]:
    """Check each right that a node plugin with these settings uses.

    The account is the pod's own, else that of the DaemonSet, else the user of the kubeconfig. With
    the DaemonSet's account its settings count, too.
    """
    settings = {name: str(getattr(context.settings, name)).lower() for name in _DECISIVE}
    account = None
    if not context.in_pod:
        for installed in objects.installed(context)[:1]:
            account = _account(installed)
            variables = cluster_objects.environment(installed)
            settings |= {
                name: variables[variable]
                for name in _DECISIVE
                if (variable := f"{cluster_objects.SETTING}{name.upper()}") in variables
            }
    if account is not None:
        subject = f"service account {'/'.join(account)}"
    elif context.in_pod:
        subject = "this pod's service account"
    else:
        subject = "the user of this kubeconfig"
        yield note(
            "rights",
            "found no DaemonSet of this driver; those of the kubeconfig's user are checked",
            cure="install the DaemonSet, or run this in a pod with the node plugin's account",
        )
    wanted = rules.of_node_plugin(
        pool_source=settings["pool_source"],
        read_pods=settings["read_pods"] == "true",
        marks_pods=bool(settings["hypervisor_sockets"]),
        lists_claims=settings["enforcer_wait_seconds"].strip("0.") != "",
        releases_driver=settings["release_driver"] == "true" and not settings["simulated_gpus"],
    )
    yield from rules.findings(subject, _answers(context, wanted, account))


def of_webhook(context: Context) -> Iterator[Finding]:
    """Check each right that the webhook uses, if it is installed."""
    for installed in context.cluster.items(_DEPLOYMENTS, labelSelector=_WEBHOOK)[:1]:
        account = _account(installed)
        answers = _answers(context, rules.of_webhook(), account)
        yield from rules.findings(f"service account {'/'.join(account)}", answers)


def _answers(
    context: Context, wanted: Iterable[Right], account: tuple[str, str] | None
) -> list[Answer]:
    minor = context.cluster.minor_version
    return [
        context.cluster.review_access(right, service_account=account)
        for right in wanted
        if minor is None or minor >= right.since_minor
    ]


def _account(workload: Mapping[str, Any]) -> tuple[str, str]:
    """Return namespace and name of the service account of a workload's pods."""
    name = workload["spec"]["template"]["spec"].get("serviceAccountName") or "default"
    return workload["metadata"]["namespace"], name

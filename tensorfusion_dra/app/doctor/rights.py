"""The rights of the node plugin: this pod's own, or those of its service account."""

from collections.abc import Iterator
from typing import Final

from tensorfusion_dra.app.doctor.surroundings import Surroundings
from tensorfusion_dra.core import rights as table
from tensorfusion_dra.core.diagnosis import rights as judge
from tensorfusion_dra.core.diagnosis.finding import Finding, note

_DAEMONSETS: Final = "/apis/apps/v1/daemonsets"
_SELECTOR: Final = "app.kubernetes.io/name=tensorfusion-dra"


def of_node_plugin(surroundings: Surroundings) -> Iterator[Finding]:
    """Each right that a node plugin with these settings uses."""
    settings = surroundings.settings
    account = surroundings.options.service_account
    if account is None and not surroundings.in_pod:
        account = _installed(surroundings)
    if account is not None:
        who = f"service account {'/'.join(account)}"
    elif surroundings.in_pod:
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
    survey = surroundings.survey
    answers = [survey.answers(right, service_account=account) for right in wanted]
    yield from judge.judged(who, answers)


def _installed(surroundings: Surroundings) -> tuple[str, str] | None:
    """The service account of the DaemonSet; None if there is none."""
    found = surroundings.survey.items(_DAEMONSETS, labelSelector=_SELECTOR) or []
    for item in found:
        name = item["spec"]["template"]["spec"].get("serviceAccountName") or "default"
        return item["metadata"]["namespace"], name
    return None

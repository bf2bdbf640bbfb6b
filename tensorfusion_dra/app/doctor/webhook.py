"""Check of the path of a pod through the webhook."""

from collections.abc import Iterator
from typing import Final

from tensorfusion_dra.app.doctor.checks import Context
from tensorfusion_dra.cluster.api import StatusError, segment
from tensorfusion_dra.core.doctor import webhook as rules
from tensorfusion_dra.core.doctor.finding import Finding

_ADMISSION: Final = "/apis/admissionregistration.k8s.io/v1"
_KINDS: Final = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")


def reachable(context: Context) -> Iterator[Finding]:
    """Check that the webhook is configured, and that a dry run of a pod gets a claim from it.

    The API server's error in the dry run names what is wrong on the way: the CA, the certificate,
    the Service without endpoints.
    """
    found = [
        name for kind in _KINDS for name in rules.ours(context.probe.items(f"{_ADMISSION}/{kind}"))
    ]
    yield from rules.installed(found)
    if found:
        yield from _dry_run(context)


def _dry_run(context: Context) -> Iterator[Finding]:
    namespace = context.namespace
    path = f"/api/v1/namespaces/{segment(namespace)}/pods"
    try:
        pod = context.probe.dry_run(path, rules.trial_pod(namespace))
    except StatusError as error:
        yield rules.refused(str(error))
        return
    yield from rules.admitted(pod)

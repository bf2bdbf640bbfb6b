"""Check of the path of a pod through the webhook."""

import base64
import binascii
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

from tensorfusion_dra.app.doctor.checks import Context
from tensorfusion_dra.cluster.api import StatusError, segment
from tensorfusion_dra.core.doctor import webhook as rules
from tensorfusion_dra.core.doctor.finding import Finding
from tensorfusion_dra.core.doctor.webhook import Bundle, CalledWebhook, Service

_ADMISSION: Final = "/apis/admissionregistration.k8s.io/v1"
_KINDS: Final = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")


def reachable(context: Context) -> Iterator[Finding]:
    """Check the webhook's configuration, CA bundles, endpoints, and the dry run of a pod."""
    probe = context.probe
    webhooks: list[CalledWebhook] = []
    for kind in _KINDS:
        webhooks += rules.ours(probe.items(f"{_ADMISSION}/{kind}") or [])
    yield from rules.installed(webhooks)
    if not webhooks:
        return
    now = datetime.now(UTC)
    for item in webhooks:
        yield from rules.bundle(item, ca_bundle(item.ca_bundle), now=now)
    services = {item.service: None for item in webhooks if item.service is not None}
    for service in services:
        yield from _endpoints(context, service)
    yield from _dry_run(context)


def ca_bundle(text: str) -> Bundle:
    """Parse the caBundle of a webhook configuration: base64 of certificates in PEM."""
    try:
        pem = base64.b64decode(text, validate=True).decode("ascii")
    except (binascii.Error, UnicodeDecodeError) as error:
        return Bundle(trouble=f"{error}, expected base64 of PEM")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(cadata=pem)
    except (ssl.SSLError, ValueError) as error:
        return Bundle(trouble=str(error))
    # get_ca_certs() does not list a certificate that signs only itself, so its end stays unknown.
    ends = [
        ssl.cert_time_to_seconds(str(certificate["notAfter"]))
        for certificate in context.get_ca_certs()
    ]
    return Bundle(ends=datetime.fromtimestamp(min(ends), UTC) if ends else None)


def _endpoints(context: Context, service: Service) -> Iterator[Finding]:
    probe, namespace = context.probe, segment(service.namespace)
    found = probe.find(f"/api/v1/namespaces/{namespace}/services/{segment(service.name)}")
    slices = None
    if found is not None:
        slices = probe.items(
            f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices",
            labelSelector=f"kubernetes.io/service-name={service.name}",
        )
    yield from rules.endpoints(service, slices)


def _dry_run(context: Context) -> Iterator[Finding]:
    namespace = context.namespace
    path = f"/api/v1/namespaces/{segment(namespace)}/pods"
    try:
        pod = context.probe.dry_run(path, rules.trial_pod(namespace))
    except StatusError as error:
        yield rules.refused(str(error))
        return
    yield from rules.admitted(pod)

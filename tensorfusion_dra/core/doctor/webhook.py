"""Findings about the webhook, which gives claims to pods that request GPUs by annotations."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from tensorfusion_dra.core import names
from tensorfusion_dra.core.doctor.finding import Finding, note, ok, problem, warning
from tensorfusion_dra.core.kubernetes.untyped_json import as_list, as_map

DOMAIN: Final = "dra.tensor-fusion.ai"
"""Domain of this driver's webhooks; the end of each of their names."""

_SOON: Final = timedelta(days=14)
_TRIAL_ANNOTATIONS: Final = {
    # Set, because otherwise the webhook ignores pods of a pool without DRA.
    names.ANNOTATION_DRA_ENABLED: "true",
    names.ANNOTATION_TFLOPS_REQUEST: "1",
    names.ANNOTATION_VRAM_REQUEST: "1Gi",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """The Service through which the API server calls a webhook."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CalledWebhook:
    """One webhook of a configuration.

    Attributes:
        service: Its Service; None if it is called by a URL.
        ca_bundle: CA bundle, base64 of PEM; "" for the API server's own roots.
    """

    name: str
    service: Service | None
    ca_bundle: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """State of a CA bundle.

    Attributes:
        trouble: Reason why it cannot be used; "" if it can.
        ends: Earliest expiry of its certificates; None if it is unknown.
    """

    trouble: str = ""
    ends: datetime | None = None


def ours(configurations: Sequence[Mapping[str, Any]]) -> tuple[CalledWebhook, ...]:
    """Return this driver's webhooks among all configured ones."""
    return tuple(
        _called(as_map(webhook))
        for configuration in configurations
        for webhook in as_list(configuration.get("webhooks"))
        if str(as_map(webhook).get("name", "")).endswith(f".{DOMAIN}")
    )


def trial_pod(namespace: str) -> Mapping[str, Any]:
    """Return a pod for a dry run, which requests a share by annotations."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "tensorfusion-dra-doctor",
            "namespace": namespace,
            "annotations": _TRIAL_ANNOTATIONS,
        },
        "spec": {"containers": [{"name": "app", "image": "busybox"}]},
    }


def installed(called: Sequence[CalledWebhook]) -> Iterator[Finding]:
    """Judge whether a webhook is configured."""
    if called:
        yield ok("webhook configuration", ", ".join(item.name for item in called))
    else:
        yield note(
            "webhook configuration",
            f"none whose name ends with .{DOMAIN}",
            cure="install the webhook (docs/install.md) if pods are to request GPUs by "
            "annotations; pods with claims of their own do not need it",
        )


def bundle(item: CalledWebhook, found: Bundle, *, now: datetime) -> Iterator[Finding]:
    """Judge the CA bundle by which the API server verifies a webhook."""
    subject = f"CA bundle of webhook {item.name}"
    cure = "let cert-manager fill it in, or put the CA's certificate into clientConfig.caBundle"
    if not item.ca_bundle:
        yield problem(
            subject,
            "empty",
            expected="the CA of the webhook's certificate: the API server calls no webhook that it "
            "cannot verify",
            cure=cure,
        )
    elif found.trouble:
        yield problem(subject, found.trouble, expected="certificates in PEM", cure=cure)
    elif found.ends is not None and found.ends <= now:
        yield problem(
            subject, f"expired at {found.ends:%Y-%m-%d %H:%M}", expected="a valid one", cure=cure
        )
    elif found.ends is not None and found.ends <= now + _SOON:
        yield warning(
            subject,
            f"expires at {found.ends:%Y-%m-%d %H:%M}",
            expected="valid for at least two more weeks",
            cure=cure,
        )
    else:
        until = f", valid until {found.ends:%Y-%m-%d}" if found.ends else ""
        yield ok(subject, f"in PEM{until}")


def endpoints(service: Service, slices: Sequence[Mapping[str, Any]] | None) -> Iterator[Finding]:
    """Judge the endpoints of a webhook's Service.

    Args:
        service: The Service.
        slices: EndpointSlices of the Service; None if it does not exist.
    """
    subject = f"service {service}"
    if slices is None:
        yield problem(
            subject,
            "not found",
            expected="the webhook's",
            cure="install it again (docs/install.md)",
        )
        return
    endpoints = [e for item in slices for e in map(as_map, as_list(item.get("endpoints")))]
    ready = [e for e in endpoints if as_map(e.get("conditions")).get("ready") is not False]
    if ready:
        yield ok(subject, f"{len(ready)} of {len(endpoints)} endpoints are ready")
    else:
        yield problem(
            subject,
            f"none of {len(endpoints)} endpoints is ready",
            expected="at least one; until then pods that request a share are refused",
            cure=f"kubectl describe pods -n {service.namespace} -l "
            "app.kubernetes.io/component=webhook",
        )


def admitted(pod: Mapping[str, Any]) -> Iterator[Finding]:
    """Judge the result of the dry run of a pod."""
    claims = as_list(as_map(pod.get("spec")).get("resourceClaims"))
    subject = "dry run of a pod"
    if claims:
        names = ", ".join(str(as_map(claim).get("name")) for claim in claims)
        yield ok(subject, f"the webhook added the claim {names}")
    else:
        yield problem(
            subject,
            "the webhook added no claim: the pod would run without a GPU",
            expected="spec.resourceClaims and resources.claims",
            cure="check the namespaceSelector and matchConditions of the webhook configuration, "
            "and the webhook's log",
        )


def refused(reason: str) -> Finding:
    """Return the finding for a refused dry run of a pod."""
    if "calling webhook" in reason:
        return problem(
            "dry run of a pod",
            reason,
            expected="an answer of the webhook to kube-apiserver",
            cure="check its endpoints, its certificate and the network from kube-apiserver to pods "
            "(port 9443)",
        )
    return warning(
        "dry run of a pod",
        reason,
        expected="an accepted pod",
        cure="try it in another namespace with --namespace",
    )


def _called(webhook: Mapping[str, object]) -> CalledWebhook:
    client = as_map(webhook.get("clientConfig"))
    service = as_map(client.get("service"))
    return CalledWebhook(
        name=str(webhook.get("name")),
        service=Service(namespace=str(service.get("namespace")), name=str(service.get("name")))
        if service
        else None,
        ca_bundle=str(client.get("caBundle") or ""),
    )

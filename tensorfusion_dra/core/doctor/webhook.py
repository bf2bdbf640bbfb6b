"""Whether pods that ask by annotations reach the webhook, and come back with a claim."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from tensorfusion_dra.core import names
from tensorfusion_dra.core.doctor.finding import Finding, note, ok, problem, warning
from tensorfusion_dra.core.kubernetes.untyped_json import as_list, as_map

DOMAIN: Final = "dra.tensor-fusion.ai"
"""The end of every name of this driver's webhooks."""

_SOON: Final = timedelta(days=14)
_TRIAL_ANNOTATIONS: Final = {
    # Said here, because pods of a pool without DRA are left alone.
    names.ANNOTATION_DRA_ENABLED: "true",
    names.ANNOTATION_TFLOPS_REQUEST: "1",
    names.ANNOTATION_VRAM_REQUEST: "1Gi",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """Where the API server calls a webhook."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Called:
    """One webhook of a configuration.

    Attributes:
        service: None if it is called by a URL.
        ca_bundle: Base64 of PEM; "" for the API server's own roots.
    """

    name: str
    service: Service | None
    ca_bundle: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """A CA bundle as it was read.

    Attributes:
        trouble: Why it cannot be used; "" if it can.
        ends: When the first of its certificates ends; None if that is not told.
    """

    trouble: str = ""
    ends: datetime | None = None


def ours(configurations: Sequence[Mapping[str, Any]]) -> tuple[Called, ...]:
    """This driver's webhooks among all that are configured."""
    return tuple(
        _called(as_map(webhook))
        for configuration in configurations
        for webhook in as_list(configuration.get("webhooks"))
        if str(as_map(webhook).get("name", "")).endswith(f".{DOMAIN}")
    )


def trial_pod(namespace: str) -> Mapping[str, Any]:
    """A pod that asks for a share by annotations; for a write on trial."""
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


def installed(called: Sequence[Called]) -> Iterator[Finding]:
    """Whether there is a webhook at all."""
    if called:
        yield ok("webhook configuration", ", ".join(item.name for item in called))
    else:
        yield note(
            "webhook configuration",
            f"none whose name ends with .{DOMAIN}",
            cure="apply daemonset/webhook, if pods are to ask by annotations; those with claims "
            "of their own do without",
        )


def bundle(item: Called, found: Bundle, *, now: datetime) -> Iterator[Finding]:
    """What to think of the CA by which the API server knows a webhook."""
    looked_at = f"CA bundle of webhook {item.name}"
    cure = "let cert-manager fill it in, or put the CA's certificate into clientConfig.caBundle"
    if not item.ca_bundle:
        yield problem(
            looked_at,
            "empty",
            expected="the CA of the webhook's certificate: the API server calls nobody it does "
            "not know",
            cure=cure,
        )
    elif found.trouble:
        yield problem(looked_at, found.trouble, expected="certificates in PEM", cure=cure)
    elif found.ends is not None and found.ends <= now:
        yield problem(
            looked_at, f"ended at {found.ends:%Y-%m-%d %H:%M}", expected="a valid one", cure=cure
        )
    elif found.ends is not None and found.ends <= now + _SOON:
        yield warning(
            looked_at,
            f"ends at {found.ends:%Y-%m-%d %H:%M}",
            expected="valid for two more weeks",
            cure=cure,
        )
    else:
        until = f", valid until {found.ends:%Y-%m-%d}" if found.ends else ""
        yield ok(looked_at, f"in PEM{until}")


def endpoints(service: Service, slices: Sequence[Mapping[str, Any]] | None) -> Iterator[Finding]:
    """What to think of the pods behind a webhook's service.

    Args:
        service: Its namespace and name.
        slices: EndpointSlices of the service; None if there is no such service.
    """
    looked_at = f"service {service}"
    if slices is None:
        yield problem(
            looked_at, "not there", expected="the webhook's", cure="apply daemonset/webhook"
        )
        return
    endpoints = [e for item in slices for e in map(as_map, as_list(item.get("endpoints")))]
    ready = [e for e in endpoints if as_map(e.get("conditions")).get("ready") is not False]
    if ready:
        yield ok(looked_at, f"{len(ready)} of {len(endpoints)} endpoints are ready")
    else:
        yield problem(
            looked_at,
            f"none of {len(endpoints)} endpoints is ready",
            expected="at least one: pods that ask for a share are refused meanwhile",
            cure=f"kubectl describe pods -n {service.namespace} -l "
            "app.kubernetes.io/component=webhook",
        )


def admitted(pod: Mapping[str, Any]) -> Iterator[Finding]:
    """What to think of a trial pod as it would have been stored."""
    claims = as_list(as_map(pod.get("spec")).get("resourceClaims"))
    looked_at = "pod written on trial"
    if claims:
        names = ", ".join(str(as_map(claim).get("name")) for claim in claims)
        yield ok(looked_at, f"came back with the claim {names}")
    else:
        yield problem(
            looked_at,
            "came back without a claim: it would run without a GPU",
            expected="spec.resourceClaims and resources.claims, which the webhook adds",
            cure="look at the namespaceSelector and matchConditions of the webhook configuration, "
            "and into the webhook's log",
        )


def refused(reason: str) -> Finding:
    """A trial pod that was not taken."""
    if "calling webhook" in reason:
        return problem(
            "pod written on trial",
            reason,
            expected="an answer of the webhook to kube-apiserver",
            cure="look at its endpoints, its certificate and the network from kube-apiserver to "
            "pods (port 9443)",
        )
    return warning(
        "pod written on trial",
        reason,
        expected="a pod that is taken",
        cure="try it in another namespace with --namespace",
    )


def _called(webhook: Mapping[str, object]) -> Called:
    client = as_map(webhook.get("clientConfig"))
    service = as_map(client.get("service"))
    return Called(
        name=str(webhook.get("name")),
        service=Service(namespace=str(service.get("namespace")), name=str(service.get("name")))
        if service
        else None,
        ca_bundle=str(client.get("caBundle") or ""),
    )

"""Check of the path of a pod through the webhook, which gives claims to annotated pods."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from tensorfusion_dra.app.doctor.checks import Context
from tensorfusion_dra.cluster.api import segment
from tensorfusion_dra.core import names
from tensorfusion_dra.core.doctor import objects
from tensorfusion_dra.core.doctor.finding import Finding, note, ok, problem, warning
from tensorfusion_dra.core.errors import StatusError
from tensorfusion_dra.core.kubernetes.untyped_json import as_list, as_map

CONFIGURATIONS: Final = tuple(
    f"/apis/admissionregistration.k8s.io/v1/{kind}webhookconfigurations"
    for kind in ("mutating", "validating")
)
"""Paths of the webhook configurations."""
_TRIAL_ANNOTATIONS: Final = {
    # Set, because otherwise the webhook ignores pods of a pool without DRA.
    names.ANNOTATION_DRA_ENABLED: "true",
    names.ANNOTATION_TFLOPS_REQUEST: "1",
    names.ANNOTATION_VRAM_REQUEST: "1Gi",
}


def reachable(context: Context) -> Iterator[Finding]:
    """Check that the webhook is configured, and that a dry run of a pod gets a claim from it.

    The API server's error in the dry run names what is wrong on the way: the CA, the certificate,
    the Service without endpoints.
    """
    subject = "webhook configuration"
    found = [
        name for path in CONFIGURATIONS for name in objects.webhooks(context.cluster.items(path))
    ]
    if not found:
        yield note(
            subject,
            f"none whose name ends with .{objects.WEBHOOK_DOMAIN}",
            cure="install the webhook (docs/install.md) if pods are to request GPUs by "
            "annotations; pods with claims of their own do not need it",
        )
        return
    yield ok(subject, ", ".join(found))
    path = f"/api/v1/namespaces/{segment(context.namespace)}/pods"
    try:
        pod = context.cluster.dry_run(path, trial_pod(context.namespace))
    except StatusError as error:
        yield refused(str(error))
    else:
        yield admitted(pod)


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


def admitted(pod: Mapping[str, Any]) -> Finding:
    """Judge the result of the dry run of a pod."""
    claims = as_list(as_map(pod.get("spec")).get("resourceClaims"))
    if claims:
        named = ", ".join(str(as_map(claim).get("name")) for claim in claims)
        return ok("dry run of a pod", f"the webhook added the claim {named}")
    return problem(
        "dry run of a pod",
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

"""Findings about the webhook, which gives claims to pods that request GPUs by annotations."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from tensorfusion_dra.core import names
from tensorfusion_dra.core.doctor.finding import Finding, note, ok, problem, warning
from tensorfusion_dra.core.kubernetes.untyped_json import as_list, as_map, name_of

DOMAIN: Final = "dra.tensor-fusion.ai"
"""Domain of this driver's webhooks; the end of each of their names."""

_TRIAL_ANNOTATIONS: Final = {
    # Set, because otherwise the webhook ignores pods of a pool without DRA.
    names.ANNOTATION_DRA_ENABLED: "true",
    names.ANNOTATION_TFLOPS_REQUEST: "1",
    names.ANNOTATION_VRAM_REQUEST: "1Gi",
}


def ours(configurations: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names of this driver's webhooks among all configured ones."""
    every = [each for found in configurations for each in as_list(found.get("webhooks"))]
    return [name for name in map(name_of, every) if name.endswith(f".{DOMAIN}")]


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


def installed(called: Sequence[str]) -> Iterator[Finding]:
    """Judge whether a webhook is configured."""
    if called:
        yield ok("webhook configuration", ", ".join(called))
    else:
        yield note(
            "webhook configuration",
            f"none whose name ends with .{DOMAIN}",
            cure="install the webhook (docs/install.md) if pods are to request GPUs by "
            "annotations; pods with claims of their own do not need it",
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

"""Check of CDI in the container runtime, by the version that the kubelet reports."""

import re
from collections.abc import Iterator

from tensorfusion_dra.app.doctor.checks import Context
from tensorfusion_dra.app.doctor.kubernetes import checked_nodes
from tensorfusion_dra.core.doctor.finding import Finding, note, ok, problem
from tensorfusion_dra.core.kubernetes.untyped_json import as_map


def cdi(context: Context) -> Iterator[Finding]:
    """Check that the nodes' runtimes use CDI."""
    for node in checked_nodes(context):
        found = as_map(as_map(node.get("status")).get("nodeInfo"))
        yield finding(str(found.get("containerRuntimeVersion", "")))


def finding(reported: str) -> Finding:
    """Judge a node's container runtime, such as ``containerd://2.1.9``."""
    name, _, version = reported.partition("://")
    release = re.match(r"v?([0-9]+)\.([0-9]+)", version)
    minor = (int(release[1]), int(release[2])) if release else (2, 0)
    if name == "cri-o" or (name == "containerd" and minor >= (2, 0)):
        return ok("container runtime", f"{reported}, in which CDI is on by default")
    if name == "containerd" and minor < (1, 7):
        return problem(
            "container runtime",
            reported,
            expected="containerd 1.7 or later, which supports CDI",
            remedy="upgrade containerd, preferably to 2.x, where CDI is on by default",
        )
    is_off = "in which CDI is off by default" if name == "containerd" else "which is not known here"
    return note(
        "container runtime",
        f"{reported or 'not reported'}, {is_off}",
        expected="a runtime that reads CDI specs: without it containers have no GPU and no limits",
        remedy='in containerd 1.7 enable_cdi = true under [plugins."io.containerd.grpc.v1.cri"]; a '
        "pod with a claim must have TF_ISOLATION_MODE in its environment",
    )

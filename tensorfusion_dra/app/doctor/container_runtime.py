"""Check of the nodes' container runtimes: do containers get what CDI specs add?

A runtime that reads no CDI specs starts containers without their GPU and without limits. Its
settings are visible only to root on the node, and its version tells no more than its defaults. So
containers have to prove it, in one of two ways:

- A limiter registers with its enforcer. It found the way there by variables and mounts of the
  claim's CDI spec. The node plugin remembers the last one in a file on the node. On a workstation
  the claims' statuses show limiters that are active now.
- `helm test` runs a pod that looks for the variables of its share. Its pod remains, and counts for
  the node that it ran on.

Example: after an installation, every node is "not checked". `helm test` passes on node-01, which
is ok from then on, and the other nodes have a note. A pod on node-02 uses CUDA: node-02 is ok, too.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Final

from tensorfusion_dra.app.doctor.checks import Context, Place
from tensorfusion_dra.app.doctor.kubernetes import checked_nodes
from tensorfusion_dra.app.doctor.objects import installed
from tensorfusion_dra.cluster.api import resource_path
from tensorfusion_dra.core import names, printable
from tensorfusion_dra.core.claims import verdicts
from tensorfusion_dra.core.devices import device as device_facts
from tensorfusion_dra.core.finding import Finding, not_checked, note, ok, problem
from tensorfusion_dra.core.kubernetes.untyped_json import as_map
from tensorfusion_dra.state import saved_state
from tensorfusion_dra.state.saved_state import SavedState

TEST_POD: Final = "tensorfusion-dra-test"
"""Name of the pod of `helm test` (daemonset/chart/templates/test.yaml)."""


def cdi(context: Context) -> Iterator[Finding]:
    """Check that containers on the nodes get what CDI specs add, by containers that got it."""
    exit_codes = _tests(context)
    seen = {node: "seen by helm test" for node, code in exit_codes.items() if code == 0}
    seen |= _limiters(context)
    elsewhere = f"; only on {printable.first(sorted(seen))}" if seen else ""
    if context.cluster.unreadable:
        elsewhere = f"; not read: {', '.join(context.cluster.unreadable)}"
    for node in checked_nodes(context):
        name, info = node["metadata"]["name"], (node.get("status") or {}).get("nodeInfo") or {}
        subject = f"container runtime of {name}"
        runtime = str(info.get("containerRuntimeVersion") or "runtime not reported")
        release = re.match(r"containerd://v?([0-9]+)\.([0-9]+)", runtime)
        minor = (int(release[1]), int(release[2])) if release else (2, 0)
        if minor < (1, 7):
            yield problem(
                subject,
                runtime,
                expected="containerd 1.7 or later, which supports CDI",
                remedy="upgrade containerd, preferably to 2.x, where CDI is on by default",
            )
        elif exit_codes.get(name) == 1:
            yield problem(
                subject,
                f"{runtime}: helm test found none of its share's variables in its container",
                expected="those of the claim's CDI spec; containers have no GPU and no limits",
                remedy="set enable_cdi = true, and cdi_spec_dirs with /var/run/cdi, in the "
                "runtime's configuration (containerd 1.7: under "
                '[plugins."io.containerd.grpc.v1.cri"]); then restart it, and run helm test again',
            )
        elif name not in seen:
            judge = note if elsewhere else not_checked
            yield judge(
                subject,
                f"{runtime}: not checked: no container with a share was seen to have its variables"
                f"{elsewhere}",
                remedy="run helm test, or a program that uses CUDA in a pod with a share; the "
                "container must have TF_ISOLATION_MODE in its environment",
            )
        elif minor < (2, 0):
            yield note(subject, f"{runtime}, in which CDI is off by default; {seen[name]}")
        else:
            yield ok(subject, f"{runtime}; variables of a share were {seen[name]}")


def _tests(context: Context) -> Mapping[str, int]:
    """Return with which exit code the container of `helm test` ended, by node."""
    namespaces = {context.own_namespace}
    if not context.in_pod:
        namespaces = {each["metadata"]["namespace"] for each in installed(context)}
    paths = (f"/api/v1/namespaces/{each}/pods/{TEST_POD}" for each in namespaces)
    return {
        pod["spec"]["nodeName"]: ended["exitCode"]
        for path in paths
        if (pod := context.cluster.find_readable(path, "the pod of helm test"))
        for each in (pod.get("status") or {}).get("containerStatuses") or ()
        if (ended := each["state"].get("terminated"))
    }


def _limiters(context: Context) -> Mapping[str, str]:
    """Return how a limiter in a container was seen, by node."""
    if context.place is Place.NODE:
        saved = SavedState(context.settings.data_folder, saved_state.LIMITS).load() or {}
        last = as_map(saved.get(saved_state.LIMITER_SEEN))
        seen = "seen in claim {claim} at {since}"
        return {context.settings.node_name: seen.format_map(last)} if last else {}
    path, what = resource_path("resourceclaims"), "ResourceClaims"
    return {
        device_facts.node_name(device["pool"]): "seen in claim {namespace}/{name}".format_map(
            claim["metadata"]
        )
        for claim in context.cluster.readable_items(path, what) or ()
        for device in (claim.get("status") or {}).get("devices") or ()
        for each in device.get("conditions") or ()
        if device["driver"] == names.DRIVER and each["reason"] in verdicts.LIMITER_SEEN
    }

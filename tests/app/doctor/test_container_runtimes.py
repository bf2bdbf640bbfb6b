"""Whether containers get what CDI specs add: findings before and after a container proved it."""

import json
from pathlib import Path
from typing import Any, Final

import pytest

from tensorfusion_dra.app.doctor import container_runtime
from tensorfusion_dra.app.doctor.checks import Place
from tensorfusion_dra.cluster.api import Api
from tensorfusion_dra.core import names
from tensorfusion_dra.core.finding import Level
from tests.app.doctor.here import OWN_NAMESPACE, context
from tests.support import findings
from tests.support.canned_api import CannedApi, served
from tests.support.findings import Expected

DAEMONSETS: Final = "GET /apis/apps/v1/daemonsets"
CLAIMS: Final = "GET /apis/resource.k8s.io/v1/resourceclaims"
SLICES: Final = "GET /apis/resource.k8s.io/v1/resourceslices"
TEST: Final = f"GET /api/v1/namespaces/{OWN_NAMESPACE}/pods/tensorfusion-dra-test"
SEEN: Final = {"limiterSeen": {"claim": "team-a/train", "since": "2026-03-01T00:00:00+00:00"}}
BY_LIMITER: Final = "seen in claim team-a/train"
BY_TEST: Final = "seen by helm test"
OFF: Final = "helm test found none of its share's variables in its container"
UNPROVEN: Final = "not checked: no container with a share was seen to have its variables"


def node(name: str, reported: str) -> dict[str, Any]:
    info = {"nodeInfo": {"containerRuntimeVersion": reported}}
    return {"metadata": {"name": name}, "status": info}


def of_test(exit_code: int | None, *, node: str = "node-01") -> dict[str, Any]:
    """Return the pod of helm test; it still waits if it has no exit code."""
    state = {"waiting": {}} if exit_code is None else {"terminated": {"exitCode": exit_code}}
    return {"spec": {"nodeName": node}, "status": {"containerStatuses": [{"state": state}]}}


def serve(canned: CannedApi, reported: str, **more: Any) -> None:
    canned.answers |= {
        "GET /api/v1/nodes/node-01": node("node-01", reported),
        "GET /api/v1/nodes": {"items": [node("node-01", reported), node("node-02", reported)]},
        DAEMONSETS: {"items": [{"metadata": {"namespace": OWN_NAMESPACE}}]},
        **more,
    }


@pytest.mark.parametrize("in_pod", [True, False], ids=["in the node plugin's pod", "as root"])
@pytest.mark.parametrize(
    ("reported", "saved", "test", "expected"),
    [
        ("containerd://1.6.33", SEEN, of_test(0), (Level.PROBLEM, "containerd 1.7 or later")),
        ("containerd://2.1.9", {}, None, (Level.COULD_NOT_LOOK, UNPROVEN)),
        ("containerd://2.1.9", {}, of_test(None), (Level.COULD_NOT_LOOK, UNPROVEN)),
        ("containerd://2.1.9", {}, of_test(137), (Level.COULD_NOT_LOOK, UNPROVEN)),
        ("containerd://2.1.9", {}, of_test(1), (Level.PROBLEM, OFF)),
        ("containerd://2.1.9", {}, of_test(0), (Level.OK, BY_TEST)),
        ("containerd://2.1.9", SEEN, None, (Level.OK, BY_LIMITER)),
        ("containerd://2.1.9", SEEN, of_test(1), (Level.PROBLEM, OFF)),
        ("containerd://2.1.9", {}, of_test(0, node="b"), (Level.NOTE, f"{UNPROVEN}; only on b")),
        ("containerd://2.1.9", {}, of_test(1, node="b"), (Level.COULD_NOT_LOOK, UNPROVEN)),
        ("containerd://2.1.9", {}, (403, "no"), (Level.NOTE, f"{UNPROVEN}; not read: the pod")),
        ("containerd://2.1.9", SEEN, (403, "no"), (Level.OK, BY_LIMITER)),
        ("containerd://1.7.24", {}, None, (Level.COULD_NOT_LOOK, UNPROVEN)),
        ("containerd://1.7.24", SEEN, None, (Level.NOTE, "CDI is off by default; seen in claim")),
        ("cri-o://1.34.1", {}, None, (Level.COULD_NOT_LOOK, UNPROVEN)),
        ("docker://28.0.0", {}, None, (Level.COULD_NOT_LOOK, UNPROVEN)),
        ("docker://28.0.0", {}, of_test(0), (Level.OK, BY_TEST)),
        ("", {}, None, (Level.COULD_NOT_LOOK, "runtime not reported")),
    ],
)
def test_runtime_of_a_node_is_ok_only_after_a_container_had_its_variables(  # noqa: PLR0917
    tmp_path: Path,
    reported: str,
    saved: dict[str, Any],
    test: Any,
    expected: Expected,
    in_pod: bool,
) -> None:
    with served({}) as canned:
        serve(canned, reported, **{TEST: test})
        here = context(tmp_path, api=Api(canned.kubeconfig(tmp_path / "config")), in_pod=in_pod)
        here.settings.data_folder.mkdir(parents=True, exist_ok=True)
        (here.settings.data_folder / "limits.json").write_text(json.dumps(saved))

        findings.check(container_runtime.cdi(here), [expected])


def claim(node: str, reason: str) -> dict[str, Any]:
    device = {"driver": names.DRIVER, "pool": f"default/{node}", "device": "gpu-0"}
    conditions = [{"type": "LimitsEnforced", "status": "True", "reason": reason}]
    return {
        "metadata": {"namespace": "team-a", "name": "train"},
        "status": {"devices": [{**device, "conditions": conditions}]},
    }


@pytest.mark.parametrize(
    ("reason", "test", "expected"),
    [
        ("NoLimit", None, [(Level.COULD_NOT_LOOK, UNPROVEN)] * 2),
        ("LimiterActive", None, [(Level.NOTE, "only on node-02"), (Level.OK, BY_LIMITER)]),
        ("LimiterActive", of_test(0), [(Level.OK, BY_TEST), (Level.OK, BY_LIMITER)]),
        ("LimitInDriver", of_test(0), [(Level.OK, BY_TEST), (Level.NOTE, "only on node-01")]),
    ],
)
def test_workstation_sees_limiters_in_the_claims_statuses(
    tmp_path: Path, reason: str, test: Any, expected: list[Expected]
) -> None:
    with served({}) as canned:
        serve(
            canned,
            "containerd://2.1.9",
            **{TEST: test, SLICES: {"items": []}, CLAIMS: {"items": [claim("node-02", reason)]}},
        )
        api = Api(canned.kubeconfig(tmp_path / "config"))

        found = container_runtime.cdi(context(tmp_path, api=api, place=Place.WORKSTATION))

        findings.check(found, expected)

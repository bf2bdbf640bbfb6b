"""Checks of rights, objects and the webhook, against canned answers of an API server."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tensorfusion_dra.app.doctor import cluster
from tensorfusion_dra.app.doctor.checks import Context, Place
from tensorfusion_dra.cluster.api import Api
from tensorfusion_dra.core.doctor.finding import Finding, Level
from tests.app.doctor.here import context
from tests.support import findings
from tests.support.canned_api import CannedApi, served

SELF = "POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
OTHERS = "POST /apis/authorization.k8s.io/v1/subjectaccessreviews"
DAEMONSETS = "GET /apis/apps/v1/daemonsets"
DEPLOYMENTS = "GET /apis/apps/v1/deployments"
RESOURCE = "/apis/resource.k8s.io/v1"
MUTATING = "GET /apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
PODS = "POST /api/v1/namespaces/default/pods"

Here = Callable[..., Context]


@pytest.fixture
def canned() -> Iterator[CannedApi]:
    with served({}) as api:
        yield api


@pytest.fixture
def here(canned: CannedApi, tmp_path: Path) -> Here:
    kubeconfig = canned.kubeconfig(tmp_path / "kubeconfig")
    return lambda **more: context(tmp_path, api=Api(kubeconfig), **more)


def allowed(refused: str = "") -> Callable[[Any], Any]:
    def review(body: Any) -> Any:
        verb = body["spec"]["resourceAttributes"]["verb"]
        return {"status": {"allowed": verb != refused}}

    return review


def requests_to(canned: CannedApi, request: str) -> list[Any]:
    return [body for name, body in canned.requests if name.split("?")[0] == request]


def workload(account: str, **variables: str) -> dict[str, Any]:
    env = [{"name": f"TENSORFUSION_DRA_{key}", "value": text} for key, text in variables.items()]
    spec = {"serviceAccountName": account, "containers": [{"env": env}]}
    return {"metadata": {"namespace": "gpu"}, "spec": {"template": {"spec": spec}}}


def test_in_a_pod_the_pods_own_rights_are_checked(canned: CannedApi, here: Here) -> None:
    canned.answers[SELF] = allowed(refused="watch")

    missing, granted = cluster.of_node_plugin(here(in_pod=True))

    assert (missing.level, granted.level) == (Level.PROBLEM, Level.OK)
    assert len(requests_to(canned, SELF)) == 11


@pytest.mark.parametrize(("version", "count"), [("v1.35.0", 10), ("v1.36.2", 11)])
def test_a_right_that_the_release_does_not_know_is_not_required(
    canned: CannedApi, here: Here, version: str, count: int
) -> None:
    canned.answers |= {SELF: allowed(), "GET /version": {"gitVersion": version}}

    (granted,) = cluster.of_node_plugin(here(in_pod=True))

    assert (granted.level, granted.found) == (Level.OK, f"{count} granted")


def test_outside_of_a_pod_the_daemonsets_rights_are_checked(canned: CannedApi, here: Here) -> None:
    canned.answers |= {DAEMONSETS: {"items": [workload("node-plugin")]}, OTHERS: allowed()}

    (granted,) = cluster.of_node_plugin(here())

    assert granted.subject == "rights of service account gpu/node-plugin"
    assert requests_to(canned, OTHERS)[0]["spec"]["user"] == "system:serviceaccount:gpu:node-plugin"


@pytest.mark.parametrize(
    ("variables", "right", "is_asked"),
    [
        ({}, "get pods", True),
        ({"READ_PODS": "false"}, "get pods", False),
        ({"READ_PODS": "true"}, "get pods", True),
        ({}, "list resourceclaims", False),
        ({"ENFORCER_WAIT_SECONDS": "0"}, "list resourceclaims", False),
        ({"ENFORCER_WAIT_SECONDS": "100"}, "list resourceclaims", True),
    ],
)
def test_the_settings_of_the_daemonset_decide_about_its_rights(
    canned: CannedApi, here: Here, variables: dict[str, str], right: str, is_asked: bool
) -> None:
    canned.answers |= {DAEMONSETS: {"items": [workload("a", **variables)]}, OTHERS: allowed()}

    list(cluster.of_node_plugin(here()))

    asked = [each["spec"]["resourceAttributes"] for each in requests_to(canned, OTHERS)]
    assert (right in [f"{each['verb']} {each['resource']}" for each in asked]) == is_asked


def test_without_a_daemonset_the_callers_rights_are_checked_with_a_note(
    canned: CannedApi, here: Here
) -> None:
    canned.answers |= {DAEMONSETS: {"items": []}, SELF: allowed()}

    note, granted = cluster.of_node_plugin(here())

    assert (note.level, granted.level) == (Level.NOTE, Level.OK)


def test_the_webhooks_rights_are_checked_only_if_it_is_installed(
    canned: CannedApi, here: Here
) -> None:
    assert list(cluster.of_webhook(here())) == []
    items = [workload("webhook")]
    canned.answers |= {DEPLOYMENTS: {"items": items}, OTHERS: allowed(refused="get")}

    missing, granted = cluster.of_webhook(here())

    assert (missing.level, granted.level) == (Level.PROBLEM, Level.OK)
    assert "get pods" in missing.subject


def test_a_node_name_without_a_node_object_is_a_problem(here: Here) -> None:
    (finding,) = cluster.nodes(here())

    assert finding.level is Level.PROBLEM
    assert "--node-name" in finding.cure


def test_a_workstation_checks_the_nodes_that_publish_slices(canned: CannedApi, here: Here) -> None:
    nodes = [{"metadata": {"name": name}, "status": {}} for name in ("a", "b")]
    published = {"spec": {"nodeName": "b", "driver": "tensor-fusion.ai.dra-driver"}}
    canned.answers |= {
        "GET /api/v1/nodes": {"items": nodes},
        f"GET {RESOURCE}/resourceslices": {"items": [published]},
    }

    found = cluster.checked_nodes(here(place=Place.WORKSTATION))

    assert [node["metadata"]["name"] for node in found] == ["b"]


def test_slices_of_this_node_or_on_a_workstation_of_all_are_checked(
    canned: CannedApi, here: Here
) -> None:
    canned.answers |= {
        "GET /api/v1/nodes": {"items": []},
        f"GET {RESOURCE}/resourceslices": {"items": []},
    }

    (of_node,) = cluster.published_slices(here())
    (of_cluster,) = cluster.published_slices(here(place=Place.WORKSTATION))

    assert (of_node.level, of_cluster.level) == (Level.PROBLEM, Level.PROBLEM)
    assert "node-01" in of_node.subject
    requests = [name for name, _ in canned.requests if "resourceslices" in name]
    assert "spec.nodeName%3Dnode-01" in requests[0]
    assert "nodeName" not in requests[1]


def test_a_healthy_webhook_gives_the_dry_run_pod_a_claim(canned: CannedApi, here: Here) -> None:
    canned.answers |= {
        MUTATING: {"items": [{"webhooks": [{"name": "pods.dra.tensor-fusion.ai"}]}]},
        PODS: lambda pod: {**pod, "spec": {**pod["spec"], "resourceClaims": [{"name": "gpu"}]}},
    }

    healthy = [each.level for each in cluster.reachable(here())]
    canned.answers[PODS] = (500, 'failed calling webhook "pods.dra.tensor-fusion.ai"')
    unreached = [each.level for each in cluster.reachable(here())]

    assert (healthy, unreached) == ([Level.OK, Level.OK], [Level.OK, Level.PROBLEM])
    request, pod = next(each for each in canned.requests if each[0].startswith("POST"))
    assert "dryRun=All" in request
    assert pod["metadata"]["annotations"]["tensor-fusion.ai/vram-request"] == "1Gi"


def test_without_a_webhook_no_pod_is_created_as_a_dry_run(canned: CannedApi, here: Here) -> None:
    (finding,) = cluster.reachable(here())

    assert finding.level is Level.NOTE
    assert requests_to(canned, PODS) == []


def test_multi_gpu_claims_and_templates_are_reported_on_an_old_cluster(
    canned: CannedApi, here: Here
) -> None:
    exactly = {"deviceClassName": "large", "count": 2}
    spec = {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}
    metadata = {"namespace": "a", "name": "train"}
    selectors = [{"cel": {"expression": 'device.driver == "tensor-fusion.ai.dra-driver"'}}]
    of_class = {"metadata": {"name": "large"}, "spec": {"selectors": selectors}}
    canned.answers |= {
        "GET /version": {"gitVersion": "v1.35.6"},
        f"GET {RESOURCE}/deviceclasses": {"items": [of_class]},
        f"GET {RESOURCE}/resourceclaims": {"items": [{"metadata": metadata, "spec": spec}]},
        f"GET {RESOURCE}/resourceclaimtemplates": {
            "items": [{"metadata": metadata, "spec": {"spec": spec}}]
        },
    }

    (found,) = cluster.multi_gpu(here())

    assert found.found.startswith("ResourceClaim a/train, ResourceClaimTemplate a/train: ")


@pytest.mark.parametrize(
    ("found", "level", "text"),
    [
        (cluster.admitted(cluster.trial_pod("default")), Level.PROBLEM, "added no claim"),
        (cluster.refused("500: failed calling webhook: refused"), Level.PROBLEM, "port 9443"),
        (cluster.refused("403: exceeded quota"), Level.WARNING, "exceeded quota"),
    ],
)
def test_refused_or_unchanged_pod_is_reported(found: Finding, level: Level, text: str) -> None:
    findings.check([found], [(level, text)])


DAEMONSET: Any = {
    "metadata": {"namespace": "gpu", "name": "node-plugin"},
    "spec": {
        "template": {
            "spec": {
                "runtimeClassName": "nvidia",
                "nodeSelector": {"nvidia.com/gpu.present": "true"},
                "containers": [
                    {"env": [{"name": "TENSORFUSION_DRA_POOL_SOURCE", "value": "node-labels"}]}
                ],
            }
        }
    },
    "status": {"desiredNumberScheduled": 0},
}
NODES: Any = {"items": [{"metadata": {"name": "node-01"}}]}


def test_label_and_runtime_class_of_a_daemonset_without_pods_are_named(
    canned: CannedApi, here: Here
) -> None:
    canned.answers |= {DAEMONSETS: {"items": [DAEMONSET]}, "GET /api/v1/nodes": NODES}

    found = list(cluster.pods(here(place=Place.WORKSTATION)))

    assert [each.level for each in found] == [Level.PROBLEM, Level.PROBLEM]
    assert "RuntimeClass nvidia" in found[0].subject
    assert "nvidia.com/gpu.present=true" in found[1].found


@pytest.mark.parametrize("place", Place)
def test_awaited_gpupool_is_named_in_place_of_the_missing_slices(
    canned: CannedApi, here: Here, place: Place
) -> None:
    canned.answers |= {
        DAEMONSETS: {"items": [DAEMONSET]},
        "GET /api/v1/nodes": NODES,
        "GET /api/v1/nodes/node-01": NODES["items"][0],
        f"GET {RESOURCE}/resourceslices": {"items": []},
    }

    (found,) = cluster.published_slices(here(place=place, pool_source="node-labels"))

    assert found.subject == "GPUPool (pool-source=node-labels)"
    assert found.found.startswith("the API server has no GPUPools")

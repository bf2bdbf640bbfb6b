"""The cluster probe reads objects, rights and feature gates without changing anything."""

from pathlib import Path
from typing import Any

import pytest

from dra_simulator.api.faults import Refuse
from dra_simulator.api.gates import DEFAULT_GATES
from dra_simulator.apiserver import ApiServer
from tensorfusion_dra.cluster.api import Api, ResourceApi, StatusError
from tensorfusion_dra.cluster.cluster_lists import ClusterProbe
from tensorfusion_dra.core.doctor import kubernetes
from tensorfusion_dra.core.doctor.finding import Level
from tensorfusion_dra.core.doctor.rights import Right
from tensorfusion_dra.core.errors import RetryableError
from tests.support.canned_api import served

DRIVER_STATUS = Right(
    verb="associated-node:patch",
    group="resource.k8s.io",
    resource="resourceclaims/driver",
    name="tensor-fusion.ai.dra-driver",
    purpose="",
)
SELF = "POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
SUBJECT = "POST /apis/authorization.k8s.io/v1/subjectaccessreviews"


def test_missing_object_is_none_and_missing_right_is_an_error(server: ApiServer, api: Api) -> None:
    probe = ClusterProbe(api)

    assert probe.find("/api/v1/namespaces/nowhere") is None
    assert probe.items("/api/v1/namespaces") is not None
    assert probe.items("/apis/tensor-fusion.ai/v1/gpupools") is None
    server.faults.add("get", "namespaces", Refuse(403))
    with pytest.raises(StatusError, match="403"):
        probe.find("/api/v1/namespaces/default")


@pytest.mark.parametrize(
    ("off", "levels"),
    [
        (set(), [Level.OK]),
        ({"DRAConsumableCapacity"}, [Level.PROBLEM]),
        ({"DRADeviceTaints"}, [Level.NOTE]),
        ({"DRAConsumableCapacity", "DRADeviceTaints"}, [Level.PROBLEM, Level.NOTE]),
    ],
)
def test_dry_run_shows_feature_gates_and_stores_nothing(
    off: set[str], levels: list[Level], tmp_path: Path
) -> None:
    with ApiServer(gates=DEFAULT_GATES - off) as server:
        resource_api = ResourceApi(Api(server.kubeconfig(tmp_path / "kubeconfig")))
        probe, sent = ClusterProbe(resource_api.api), kubernetes.trial_slice("node-01")
        kind = {"apiVersion": resource_api.api_version(), "kind": "ResourceSlice"}

        stored = probe.dry_run(resource_api.slices(), {**kind, **sent})

        assert [f.level for f in kubernetes.kept_of_slice(sent, stored)] == levels
        assert probe.items(resource_api.slices()) == []


def review(*, allowed: bool) -> dict[str, Any]:
    return {"status": {"allowed": allowed, "reason": "" if allowed else "no binding"}}


def test_access_review_splits_resource_and_subresource(tmp_path: Path) -> None:
    with served({SELF: review(allowed=True)}) as canned:
        probe = ClusterProbe(Api(canned.kubeconfig(tmp_path / "kubeconfig")))

        answer = probe.review_access(DRIVER_STATUS, service_account=None)

    assert answer.allowed
    ((_, body),) = canned.requests
    assert body["spec"]["resourceAttributes"] == {
        "verb": "associated-node:patch",
        "group": "resource.k8s.io",
        "resource": "resourceclaims",
        "subresource": "driver",
        "name": "tensor-fusion.ai.dra-driver",
    }


def test_access_review_of_a_service_account_names_its_user_and_groups(tmp_path: Path) -> None:
    with served({SUBJECT: review(allowed=False)}) as canned:
        probe = ClusterProbe(Api(canned.kubeconfig(tmp_path / "kubeconfig")))

        answer = probe.review_access(DRIVER_STATUS, service_account=("gpu", "node-plugin"))

    assert (answer.allowed, answer.reason) == (False, "no binding")
    ((_, body),) = canned.requests
    assert body["spec"]["user"] == "system:serviceaccount:gpu:node-plugin"
    assert "system:serviceaccounts:gpu" in body["spec"]["groups"]


def test_access_review_without_a_verdict_is_an_error(tmp_path: Path) -> None:
    with served({SELF: {"status": {}}}) as canned:
        probe = ClusterProbe(Api(canned.kubeconfig(tmp_path / "kubeconfig")))

        with pytest.raises(RetryableError, match=r"status\.allowed"):
            probe.review_access(DRIVER_STATUS, service_account=None)

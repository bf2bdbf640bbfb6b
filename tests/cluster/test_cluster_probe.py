"""A look at a cluster asks for what it wants to know, and changes nothing."""

from pathlib import Path
from typing import Any

import pytest

from tensorfusion_dra.cluster.api import Api, StatusError
from tensorfusion_dra.cluster.cluster_probe import ClusterProbe
from tensorfusion_dra.cluster.resource_api import ResourceApi
from tensorfusion_dra.core.doctor import gates
from tensorfusion_dra.core.doctor.finding import Level
from tensorfusion_dra.core.doctor.required_rights import Right
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.simulator.api.faults import Refuse
from tensorfusion_dra.simulator.api.gates import DEFAULT_GATES
from tensorfusion_dra.simulator.apiserver import ApiServer
from tests.support.canned_api import served

DRIVER_STATUS = Right(
    verb="associated-node:patch",
    group="resource.k8s.io",
    resource="resourceclaims/driver",
    name="tensor-fusion.ai.dra-driver",
    purpose="",
)
SELF = "POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
OTHERS = "POST /apis/authorization.k8s.io/v1/subjectaccessreviews"


def test_an_object_is_there_or_not_and_a_missing_right_is_neither(
    server: ApiServer, api: Api
) -> None:
    survey = ClusterProbe(api)

    assert survey.find("/api/v1/namespaces/nowhere") is None
    assert survey.items("/api/v1/namespaces") is not None
    assert survey.items("/apis/tensor-fusion.ai/v1/gpupools") is None
    server.faults.add("get", "namespaces", Refuse(403))
    with pytest.raises(StatusError, match="403"):
        survey.find("/api/v1/namespaces/default")


@pytest.mark.parametrize(
    ("off", "levels"),
    [
        (set(), [Level.OK]),
        ({"DRAConsumableCapacity"}, [Level.PROBLEM]),
        ({"DRADeviceTaints"}, [Level.NOTE]),
        ({"DRAConsumableCapacity", "DRADeviceTaints"}, [Level.PROBLEM, Level.NOTE]),
    ],
)
def test_gates_show_in_what_would_have_been_stored_and_nothing_is_stored(
    off: set[str], levels: list[Level], tmp_path: Path
) -> None:
    with ApiServer(gates=DEFAULT_GATES - off) as server:
        resource_api = ResourceApi(Api(server.kubeconfig(tmp_path / "kubeconfig")))
        survey, sent = ClusterProbe(resource_api.api), gates.trial_slice("node-01")
        kind = {"apiVersion": resource_api.api_version(), "kind": "ResourceSlice"}

        stored = survey.tried(resource_api.slices(), {**kind, **sent})

        assert [f.level for f in gates.kept_of_slice(sent, stored)] == levels
        assert survey.items(resource_api.slices()) == []


def review(*, allowed: bool) -> dict[str, Any]:
    return {"status": {"allowed": allowed, "reason": "" if allowed else "no binding"}}


def test_a_right_is_asked_for_as_rbac_names_it(tmp_path: Path) -> None:
    with served({SELF: review(allowed=True)}) as canned:
        survey = ClusterProbe(Api(canned.kubeconfig(tmp_path / "kubeconfig")))

        answer = survey.answers(DRIVER_STATUS, service_account=None)

    assert answer.allowed
    ((_, body),) = canned.asked
    assert body["spec"]["resourceAttributes"] == {
        "verb": "associated-node:patch",
        "group": "resource.k8s.io",
        "resource": "resourceclaims",
        "subresource": "driver",
        "name": "tensor-fusion.ai.dra-driver",
    }


def test_others_are_asked_about_by_the_name_and_groups_of_their_account(tmp_path: Path) -> None:
    with served({OTHERS: review(allowed=False)}) as canned:
        survey = ClusterProbe(Api(canned.kubeconfig(tmp_path / "kubeconfig")))

        answer = survey.answers(DRIVER_STATUS, service_account=("gpu", "node-plugin"))

    assert (answer.allowed, answer.reason) == (False, "no binding")
    ((_, body),) = canned.asked
    assert body["spec"]["user"] == "system:serviceaccount:gpu:node-plugin"
    assert "system:serviceaccounts:gpu" in body["spec"]["groups"]


def test_an_answer_without_a_verdict_is_none(tmp_path: Path) -> None:
    with served({SELF: {"status": {}}}) as canned:
        survey = ClusterProbe(Api(canned.kubeconfig(tmp_path / "kubeconfig")))

        with pytest.raises(RetryableError, match=r"status\.allowed"):
            survey.answers(DRIVER_STATUS, service_account=None)

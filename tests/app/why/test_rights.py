"""The verb `why` with few rights, and that it only reads."""

import subprocess
import sys
from pathlib import Path

import pytest

from dra_simulator.api.faults import Refuse
from dra_simulator.rest import EVENTS, PODS, TEMPLATES
from tests.support import image_packages, markdown, objects
from tests.support.gpu_cluster import Cluster, request
from tests.support.waiting import PATIENCE_SECONDS

Capture = pytest.CaptureFixture[str]
pytestmark = pytest.mark.usefixtures("cards")
FORBIDDEN = 403


def test_missing_rights_are_named_and_the_rest_is_answered(
    cluster: Cluster, capsys: Capture
) -> None:
    cluster.add_pod("a", request())
    cluster.server.faults.add("list", "resourceclaimtemplates", Refuse(FORBIDDEN))

    code, found = cluster.why(capsys, "a")

    assert (code, found["state"]) == (0, "fits")
    assert found["unchecked"] == ["ResourceClaimTemplates (no right to list them)"]


def test_template_that_cannot_be_read_is_not_called_missing(
    cluster: Cluster, capsys: Capture
) -> None:
    cluster.client.create(PODS, objects.pod("a", template_name="mine"))
    cluster.server.faults.add("list", "resourceclaimtemplates", Refuse(FORBIDDEN))

    code, found = cluster.why(capsys, "a")

    assert code == 1
    assert "the template could not be read" in found["answer"]


VITAL = {
    "nodes": "Nodes",
    "resourceslices": "ResourceSlices",
    "deviceclasses": "DeviceClasses",
    "resourceclaims": "ResourceClaims",
}


@pytest.mark.parametrize("refused", [["nodes"], ["deviceclasses", "resourceclaims"], [*VITAL]])
def test_without_the_rights_for_a_trial_the_faults_of_the_pod_are_found(
    cluster: Cluster, capsys: Capture, refused: list[str]
) -> None:
    cluster.add_pod("a", request())
    cluster.add_pod("b", request(), schedulingGates=[{"name": "example.com/queue"}])
    for plural in refused:
        cluster.server.faults.add("list", plural, Refuse(FORBIDDEN))

    code, free = cluster.why(capsys, "a")
    _, gated = cluster.why(capsys, "b")

    kinds = [VITAL[plural] for plural in refused]
    assert (code, free["state"]) == (1, "waits")
    assert free["answer"] == (
        "default/a waits; whether a card is free for it was not tried: no right to list "
        f"{' and '.join(kinds)}. Ask with an account that has the right: kubectl tensorfusion why, "
        "with your own kubeconfig."
    )
    assert free["findings"] == []
    assert free["unchecked"] == [f"{kind} (no right to list them)" for kind in kinds]
    assert gated["answer"] == (
        "default/b cannot be scheduled: spec.schedulingGates: example.com/queue."
    )


def test_pod_that_may_not_be_read(cluster: Cluster, capsys: Capture) -> None:
    cluster.add_pod("a")
    cluster.server.faults.add("get", "pods", Refuse(FORBIDDEN))

    ended = cluster.run(capsys, "why", "a")

    assert (ended.code, ended.out, ended.err.count("\n")) == (1, "", 1)
    assert "GET /api/v1/namespaces/default/pods/a: 403" in ended.err
    assert "kubectl tensorfusion why, with your own kubeconfig" in ended.err


def test_event_about_a_claim_that_could_not_be_created(cluster: Cluster, capsys: Capture) -> None:
    cluster.client.create(TEMPLATES, objects.template(request(), name="mine"))
    pod = cluster.client.create(PODS, objects.pod("a", template_name="mine"))
    reference = {"kind": "Pod", "name": "a", "namespace": "default", "uid": pod["metadata"]["uid"]}
    cluster.client.create(
        EVENTS,
        {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": "a.1", "namespace": "default"},
            "involvedObject": reference,
            "reason": "FailedResourceClaimCreation",
            "message": "exceeded quota: team",
            "type": "Warning",
        },
    )

    code, found = cluster.why(capsys, "a")

    assert code == 1
    assert "mine: not created: exceeded quota: team. Otherwise it fits now" in found["answer"]


def test_why_runs_with_the_packages_of_the_image(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder := tmp_path / "absent").mkdir()
    image_packages.require(folder, monkeypatch)
    cluster.add_pod("a", request())
    arguments = ["why", "a", "--kubeconfig", str(cluster.kubeconfig)]

    ended = subprocess.run(
        [sys.executable, "-m", "tensorfusion_dra", *arguments],
        cwd=markdown.ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )

    assert (ended.returncode, ended.stderr) == (0, "")
    assert "default/a fits now on node-01 (gpu-" in ended.stdout


@pytest.mark.parametrize("verb", ["why", "top", "teardown-check"])
def test_verbs_only_read(cluster: Cluster, capsys: Capture, verb: str) -> None:
    cluster.add_pod("a", request())
    cluster.schedule()
    before = cluster.server.requests.writes()

    cluster.run(capsys, verb, *(["a"] if verb == "why" else []))

    assert cluster.server.requests.writes() == before

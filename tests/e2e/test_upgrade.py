"""The chart and the image of an earlier version are upgraded to those of this checkout.

hack/upgrade-from writes the earlier chart to dist/upgrade/chart, and its image as
tensorfusion-dra:before to dist/upgrade/image.tar, which the nodes need beside this checkout's.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
import yaml

from tensorfusion_dra.core import names
from tests.e2e.cluster import Cluster, Json
from tests.e2e.drivers import LABEL_NODE_PLUGIN
from tests.support import helm

pytestmark = pytest.mark.upgrade

EARLIER: Final = helm.ROOT / "dist/upgrade/chart"
SHARE: Final = {"tflops": "30", "vram": "4Gi"}
NAMED, LABELLED, APPLIED = (f"e2e-upgrade-{name}" for name in ("named", "labelled", "applied"))
VALUES: Final = {
    "nvidia": {"enabled": False},
    "settings": {"simulated-gpus": "2xA100-SXM4-80GB"},
    "claimTemplate": {"namespaces": [NAMED]},
}


@pytest.fixture
def earlier_release(bare_cluster: Cluster, kubeconfig: str) -> Iterator[None]:
    """The driver is installed from the earlier chart, with the earlier image."""
    for name in (NAMED, LABELLED, APPLIED):
        bare_cluster.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    chart("install", kubeconfig, EARLIER, {**VALUES, "image": {"tag": "before"}})
    yield
    run("uninstall", helm.NAMESPACE, kubeconfig)
    mine = {NAMED, LABELLED, APPLIED}
    for name in mine:
        bare_cluster.delete("Namespace", name)
    bare_cluster.until(
        "the namespaces to be gone, which the next test creates again",
        lambda: mine.isdisjoint(
            item["metadata"]["name"] for item in bare_cluster.objects("Namespace")
        ),
        seconds=120,
    )


def templates(cluster: Cluster) -> dict[str, Json]:
    """Return the claim templates by namespace."""
    return {
        item["metadata"]["namespace"]: item
        for item in cluster.objects("ResourceClaimTemplate")
        if item["metadata"]["name"] == names.CLAIM_TEMPLATE
    }


def test_claim_templates_survive_upgrades_whoever_made_them(
    earlier_release: None, cluster: Cluster, kubeconfig: str
) -> None:
    before = templates(cluster)
    assert before.keys() == {NAMED}
    label = {"metadata": {"labels": {names.LABEL_TEMPLATE_WANTED: "true"}}}
    for name in (LABELLED, APPLIED):
        cluster.merge("Namespace", name, label)
    plain = yaml.safe_load((helm.ROOT / "daemonset/claim-template.yaml").read_text())
    plain["metadata"]["namespace"] = APPLIED
    before[APPLIED] = cluster.create(plain)

    for _ in range(3):
        chart("upgrade", kubeconfig, helm.CHART, VALUES)

        found = templates(cluster)
        before.setdefault(LABELLED, found[LABELLED])
        assert {name: item["metadata"]["uid"] for name, item in found.items()} == {
            name: item["metadata"]["uid"] for name, item in before.items()
        }
        assert all(item["spec"] == plain["spec"] for item in found.values())


def chart(verb: str, kubeconfig: str, folder: Path, values: object) -> None:
    flags = ("--create-namespace",) if verb == "install" else ()
    options = (*flags, "--wait", "--timeout", "4m", "--values", "-")
    run(verb, helm.NAMESPACE, kubeconfig, str(folder), *options, values=values)


def run(verb: str, release: str, kubeconfig: str, *arguments: str, values: object = None) -> None:
    program = os.environ.get("HELM") or shutil.which("helm")
    assert program, "helm: found none on PATH and no variable HELM (hack/tool has Go build it)"
    subprocess.run(
        [program, verb, release, *arguments, "--namespace", helm.NAMESPACE],
        env={**os.environ, "KUBECONFIG": kubeconfig},
        input=json.dumps(values),
        text=True,
        timeout=300,
        check=True,
    )


def images(cluster: Cluster) -> set[str]:
    """Return the images of the node plugins that run and are ready."""
    pods = cluster.objects("Pod", namespace=helm.NAMESPACE, labelSelector=LABEL_NODE_PLUGIN)
    return {
        status["image"].rpartition("/")[2]
        for pod in pods
        for status in pod["status"].get("containerStatuses", [])
        if status["name"] == "node-plugin" and status["ready"]
    }


def test_pods_keep_their_shares_and_new_ones_get_theirs_through_an_upgrade(
    earlier_release: None, cluster: Cluster, kubeconfig: str, request: pytest.FixtureRequest
) -> None:
    # Only now, because these look for the installed driver.
    tenants = request.getfixturevalue("tenants")
    limits = tenants.run("stays", SHARE)
    tenants.run("ends", SHARE)
    container = tenants.stored("stays")["status"]["containerStatuses"][0]["containerID"]
    assert images(cluster) == {"tensorfusion-dra:before"}

    chart("upgrade", kubeconfig, helm.CHART, VALUES)

    expected = helm.containers(helm.render(VALUES))
    (image,) = {each["image"] for each in expected}
    cluster.until(
        "only this checkout's node plugin to run",
        lambda: images(cluster) == {image},
        seconds=120,
        diagnose=lambda: str(images(cluster)),
    )
    (status,) = tenants.stored("stays")["status"]["containerStatuses"]
    assert (status["containerID"], status["restartCount"]) == (container, 0)
    assert limits[names.ENV_MEMORY_LIMIT] == "4096"
    # Unprepared by records of the earlier version: a pod stays until that was done.
    tenants.delete("ends")
    new = tenants.run("new", SHARE)
    assert new[names.ENV_MEMORY_LIMIT] == "4096"
    tenants.delete("stays", "new")

"""Workloads that request GPUs in the resources of their containers."""

from typing import Any

import pytest

from tensorfusion_dra.core import names
from tensorfusion_dra.core.errors import StatusError
from tests.e2e.cluster import Cluster, Json
from tests.e2e.tenants import SMALL, Tenants

pytestmark = pytest.mark.webhook

LARGE = {"tflops": "78", "vram": "16Gi"}


def asking(team: Tenants, *amounts: dict[str, str]) -> Json:
    """Return the spec of pods with a container for each of these amounts; others get nothing."""
    spec: Json = team.document("any", containers=[None] * len(amounts))["spec"]
    for container, own in zip(spec["containers"], amounts, strict=True):
        limits = {f"{names.ANNOTATION_PREFIX}{name}": text for name, text in own.items()}
        container["resources"] = {"limits": limits}
    return spec


def workload(team: Tenants, kind: str, version: str, pods: Json, **spec: Any) -> Json:
    labels = {"of": kind.lower()}
    template = {"metadata": {"labels": labels}, "spec": pods}
    return {
        "apiVersion": version,
        "kind": kind,
        "metadata": {"name": "train", "namespace": team.namespace},
        "spec": {**spec, "template": template},
    }


def pods_of(team: Tenants, cluster: Cluster, kind: str, number: int) -> list[str]:
    """Wait until a workload has this number of pods and they run; return their names."""
    selector = f"of={kind.lower()}"

    def found() -> list[str]:
        pods = cluster.objects("Pod", namespace=team.namespace, labelSelector=selector)
        return [pod["metadata"]["name"] for pod in pods] if len(pods) == number else []

    every = cluster.until(f"{number} pods of the {kind}", found, seconds=60)
    for name in every:
        team.wait_until_running(name)
    return every


def consumed(team: Tenants, pod: str) -> dict[str, Json]:
    return {each["request"]: each["consumedCapacity"] for each in team.results(pod)}


def test_each_pod_of_a_job_has_the_share_that_its_template_names(
    team: Tenants, cluster: Cluster
) -> None:
    spec = asking(team, LARGE)
    spec["initContainers"] = [
        {**spec["containers"][0], "name": "init", "command": ["true"], "args": []}
    ]
    job = workload(team, "Job", "batch/v1", spec, parallelism=2, completions=2)

    cluster.create(job)

    for name in pods_of(team, cluster, "Job", 2):
        stored = team.stored(name)["spec"]
        assert [*consumed(team, name).values()] == [LARGE]
        assert team.env(name)[names.ENV_MEMORY_LIMIT] == str(16 * 1024)
        for container in [*stored["initContainers"], *stored["containers"]]:
            assert container["resources"] == {"claims": [{"name": names.POD_CLAIM}]}
    cluster.delete("Job", "train", namespace=team.namespace)


def test_each_container_of_a_stateful_set_has_its_own_share_also_a_sidecar(
    team: Tenants, cluster: Cluster
) -> None:
    spec = {**asking(team, LARGE, SMALL), "restartPolicy": "Always"}
    sidecar = {**asking(team, SMALL)["containers"][0], "name": "sidecar", "restartPolicy": "Always"}
    spec["initContainers"] = [sidecar]
    selector = {"matchLabels": {"of": "statefulset"}}
    cluster.create(
        workload(
            team, "StatefulSet", "apps/v1", spec, replicas=1, selector=selector, serviceName="train"
        )
    )

    (name,) = pods_of(team, cluster, "StatefulSet", 1)

    assert consumed(team, name) == {"sidecar": SMALL, "c0": LARGE, "c1": SMALL}
    limits = [team.env(name, each)[names.ENV_MEMORY_LIMIT] for each in range(2)]
    assert limits == [str(16 * 1024), "1024"]
    cluster.delete("StatefulSet", "train", namespace=team.namespace)


def test_a_pod_is_refused_for_what_the_template_of_a_job_is(
    team: Tenants, cluster: Cluster
) -> None:
    spec = asking(team, {"tflops": "1500m", "vram": "16Gi"})
    pod = {**team.document("part"), "spec": spec}

    for document in (pod, workload(team, "Job", "batch/v1", spec)):
        with pytest.raises(StatusError) as refused:
            cluster.create(document)
        assert "tensor-fusion.ai/tflops" in str(refused.value)
    spec["containers"][0]["resources"]["limits"] = {"tensor-fusion.ai/vram": "1Gi"}
    pod["metadata"]["annotations"] = {names.ANNOTATION_GPU_COUNT: "2"}
    with pytest.raises(StatusError, match=r"beside tensor-fusion\.ai/vram"):
        cluster.create(pod)

"""`why` and the simulated scheduler agree: it says "fits" exactly of the pods that are bound."""

import random
from dataclasses import replace

import pytest

from dra_simulator.rest import PODS
from tensorfusion_dra.core.kubernetes.quantity import GIB
from tests.support import objects
from tests.support.builders.gpus import gpu
from tests.support.gpu_cluster import MODEL, Cluster, request
from tests.support.objects import Json

PODS_OF_A_CLUSTER = 24


def random_request(chosen: random.Random, name: str) -> Json:
    capacity = {
        "vram": f"{chosen.choice([1, 10, 30, 40, 70, 100])}Gi",
        "tflops": str(chosen.choice([1, 50, 150, 312])),
    }
    fields: Json = {}
    if chosen.random() < 0.4:
        fields["selectors"] = objects.expressions(f'{MODEL} == "{chosen.choice(["A100", "T4"])}"')
    if chosen.random() < 0.2:
        fields["count"] = 2
    if chosen.random() < 0.2:
        fields["tolerations"] = [{"operator": "Exists"}]
    made = request(capacity if chosen.random() < 0.9 else None, **fields)
    return {**made, "name": name}


@pytest.mark.parametrize("seed", [1, 2])
def test_why_says_fits_of_the_pods_that_are_bound(
    cluster: Cluster, capsys: pytest.CaptureFixture[str], seed: int
) -> None:
    chosen = random.Random(seed)
    t4 = replace(gpu(9, model="T4", milli_tflops=65_000, vram_bytes=16 * GIB), uuid="GPU-t4")
    cluster.add_node("node-01", gpu(0), gpu(1), zone="east")
    cluster.add_node("node-02", gpu(2), t4, taint="xid-79", zone="west")
    cluster.add_node("node-03", gpu(3), spec={"unschedulable": True}, zone="west")
    said, bound = [], []
    for number in range(PODS_OF_A_CLUSTER):
        requests = [random_request(chosen, name) for name in ("a", "b")[: chosen.choice([1, 1, 2])]]
        zone = {"nodeSelector": {"zone": "west"}} if chosen.random() < 0.2 else {}
        name = f"pod-{number}"
        cluster.add_pod(name, *requests, **zone)

        _, found = cluster.why(capsys, name)
        cluster.schedule()

        said.append(found["state"] == "fits")
        bound.append("nodeName" in cluster.client.get(PODS, name, "default")["spec"])

    assert said == bound
    assert 2 < sum(bound) < PODS_OF_A_CLUSTER - 2

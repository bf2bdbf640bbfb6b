"""The verb `why` on pods that wait for different reasons."""

import pytest

from dra_simulator.rest import CLAIMS, CLASSES, PODS, SLICES, Resource
from tensorfusion_dra import cli
from tensorfusion_dra.cluster.api import USER_AGENT
from tensorfusion_dra.core.devices.gpu import Gpu
from tests.dra_simulator.waiting import eventually
from tests.support import imports, installation, objects, rbac
from tests.support.builders.gpus import gpu
from tests.support.gpu_cluster import Cluster, request, two_cards

Capture = pytest.CaptureFixture[str]
NAMESPACES = Resource(api_version="v1", plural="namespaces", kind="Namespace", namespaced=False)


def test_pod_that_fits(cluster: Cluster, capsys: Capture) -> None:
    first, _ = cluster.add_node("node-01", *two_cards())
    cluster.add_pod("a", request({"vram": "20Gi", "tflops": "100"}))

    code, found = cluster.why(capsys, "a")

    assert (code, found["state"]) == (0, "fits")
    assert found["answer"] == f"default/a fits now on node-01 ({first})."
    assert found["helps"] == []


def test_cards_that_other_pods_hold(cluster: Cluster, capsys: Capture) -> None:
    first, second = cluster.add_node("node-01", *two_cards())
    for name, vram in (("a", "70Gi"), ("b", "60Gi")):
        cluster.add_pod(name, request({"vram": vram, "tflops": "100"}))
        cluster.schedule()
    cluster.add_pod("c", request({"vram": "40Gi", "tflops": "100"}))

    code, found = cluster.why(capsys, "c")

    assert code == 1
    assert found["helps"] == [
        "Request less: vram 20Gi fits now on node-01.",
        f"Wait for default/b (tflops 100, vram 60Gi) on {second} of node-01: without it the pod "
        "fits there.",
    ]
    text = cluster.text(capsys, "why", "c")
    assert f"node-01 {first} vram 70Gi of 80Gi taken, 40Gi more do not fit default/a (70Gi)" in text


def test_claim_that_only_observes_a_card_does_not_hold_it(
    cluster: Cluster, capsys: Capture
) -> None:
    cluster.add_node("node-01", gpu(1))
    cluster.add_pod("a", request({"vram": "70Gi", "tflops": "100"}))
    cluster.schedule()
    cluster.client.patch(
        NAMESPACES,
        cluster.client.get(NAMESPACES, "default"),
        {"metadata": {"labels": {"resource.kubernetes.io/admin-access": "true"}}},
    )
    cluster.add_pod("watcher", request({"vram": "1Gi", "tflops": "1"}, adminAccess=True))
    cluster.schedule()
    cluster.add_pod("b", request({"vram": "40Gi", "tflops": "100"}))

    text = cluster.text(capsys, "why", "b")

    assert "40Gi more do not fit default/a (70Gi)" in text
    assert "watcher" not in text
    assert "default/watcher (observes)" in cluster.text(capsys, "top")


def add_network_cards(cluster: Cluster, node: str) -> None:
    cards = [objects.device(f"nic-{number}") for number in range(8)]
    made = objects.resource_slice(*cards, name=f"nics-{node}", pool=f"nics-{node}")
    made["spec"]["nodeName"] = node
    cluster.client.create(SLICES, made)


@pytest.mark.parametrize(
    ("gpus", "expected"),
    [
        (two_cards(), "none of 2 cards fits: 2 have too little free vram."),
        (
            (),
            "no node that it may use has a usable device: they have no device of DeviceClass "
            "tensor-fusion.ai.",
        ),
    ],
)
def test_devices_that_the_class_excludes_are_not_counted(
    cluster: Cluster, capsys: Capture, gpus: tuple[Gpu, ...], expected: str
) -> None:
    cluster.add_node("node-01", *gpus)
    add_network_cards(cluster, "node-01")
    cluster.add_pod("a", request({"vram": "100Gi", "tflops": "1"}))

    _, found = cluster.why(capsys, "a")
    text = cluster.text(capsys, "why", "a")

    assert found["answer"] == f"default/a waits: {expected}"
    assert "nic-" not in text


def test_many_nodes_share_a_line(cluster: Cluster, capsys: Capture) -> None:
    for number in range(12):
        cluster.add_node(f"node-{number:02}", *two_cards(), taint="xid-79" if number < 2 else "")
    cluster.add_pod("a", request({"vram": "100Gi", "tflops": "1"}))

    shown = cluster.text(capsys, "why", "a").splitlines()

    assert "12: node-00, node-01 and 10 more 24 24 have too little free vram" in shown
    assert len(shown) < 12


def test_nodes_that_are_unfit(cluster: Cluster, capsys: Capture) -> None:
    taint = {"key": "team", "value": "b", "effect": "NoSchedule"}
    cluster.add_node("node-01", *two_cards(), spec={"unschedulable": True})
    cluster.add_node("node-02", *two_cards(), spec={"taints": [taint]})
    cluster.add_node("node-03", zone="west")
    cluster.add_pod("a", request({"vram": "1Gi"}), nodeSelector={"zone": "west"})

    code, found = cluster.why(capsys, "a")

    reasons = {node["name"]: node["reason"] for node in found["nodes"]}
    assert code == 1
    assert reasons["node-01"] == "unschedulable (cordoned)"
    assert reasons["node-02"] == "taint team=b:NoSchedule is not tolerated"
    assert "no node that it may use has a usable device" in found["answer"]


def test_no_fit_node_shows_how_many_have_which_reason(cluster: Cluster, capsys: Capture) -> None:
    taint = {"key": "team", "value": "b", "effect": "NoSchedule"}
    for name in ("node-01", "node-02"):
        cluster.add_node(name, *two_cards(), spec={"taints": [taint]})
    cluster.add_node("node-03", *two_cards(), spec={"unschedulable": True})
    cluster.add_pod("a", request({"vram": "1Gi"}))

    _, found = cluster.why(capsys, "a")

    assert found["answer"] == (
        "default/a waits: no node is fit for it: taint team=b:NoSchedule is not tolerated "
        "(2 nodes); unschedulable (cordoned)."
    )


def test_cluster_without_slices_of_the_driver(cluster: Cluster, capsys: Capture) -> None:
    cluster.add_node("node-01")
    cluster.add_pod("a", request())

    _, found = cluster.why(capsys, "a")

    assert found["findings"][0]["lookedAt"] == "ResourceSlices of this driver"
    assert found["findings"][0]["found"] == "none on any node"


def test_pod_whose_claim_is_allocated_elsewhere(cluster: Cluster, capsys: Capture) -> None:
    cluster.add_node("node-01", *two_cards())
    cluster.add_node("node-02", *two_cards(), zone="west")
    cluster.add_pod("a", request({"vram": "1Gi"}), nodeSelector={})
    cluster.schedule()
    eventually(lambda: cluster.client.get(CLAIMS, "a", "default")["status"].get("allocation"))
    pod = objects.pod("b", claim_name="a")
    pod["spec"]["nodeSelector"] = {"zone": "west"}
    cluster.client.create(PODS, pod)

    code, found = cluster.why(capsys, "b")

    reasons = [node["reason"] for node in found["nodes"]]
    assert code == 1
    assert reasons == [
        "nodeSelector zone=west, node has no label zone",
        "claim a is allocated on another node",
    ]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), "pod: found none, expected POD, KIND/NAME or -f FILE"),
        (("",), "pod: found none, expected POD, KIND/NAME or -f FILE"),
        (("none",), "pod default/none: found none"),
        (("deploy/none",), "Deployment default/none: found none"),
        (("node/a",), "node/a: found 'node', expected POD or KIND/NAME, KIND of pod, deployment"),
        (("deploy/",), "deploy/: found 'deploy', expected POD or KIND/NAME"),
        (("-f", "/nowhere"), "/nowhere: No such file"),
    ],
)
def test_bad_input_is_a_one_line_error(
    cluster: Cluster, capsys: Capture, arguments: tuple[str, ...], expected: str
) -> None:
    code = cli.main(["why", "--kubeconfig", str(cluster.kubeconfig), *arguments])

    printed = capsys.readouterr()
    assert (code, printed.out, printed.err.count("\n")) == (2, "", 1)
    assert expected in printed.err


def test_why_loads_no_grpc() -> None:
    statement = "import tensorfusion_dra.app.why.diagnosis"

    assert imports.loaded(statement, "grpc", "kubernetes", "pynvml", "sqlite3") == []


def test_in_the_webhooks_pods_it_may_read_all_that_it_reads(
    cluster: Cluster, capsys: Capture
) -> None:
    cluster.add_node("node-01", *two_cards())
    cluster.add_pod("a", request({"vram": "100Gi"}))

    cluster.why(capsys, "a")

    asked = {each for each in cluster.server.requests.asked(USER_AGENT) if each.resource}
    granted = rbac.rights(installation.documents("webhook"), "tensorfusion-dra-webhook")
    assert {"pods", "nodes", "resourceclaims"} <= {each.resource for each in asked}
    assert [each for each in asked if not any(right.allows(each) for right in granted)] == []


def test_each_of_two_requests_has_the_devices_of_its_class(
    cluster: Cluster, capsys: Capture
) -> None:
    cluster.add_node("node-01", *two_cards())
    add_network_cards(cluster, "node-01")
    cluster.client.create(CLASSES, objects.device_class("nic"))
    cluster.client.create(CLASSES, objects.device_class("fpga", "false"))
    gpu_request = request({"vram": "100Gi", "tflops": "1"})
    nic_request = objects.exactly("nic", deviceClassName="nic", count=2)
    fpga_request = objects.exactly("fpga", deviceClassName="fpga")
    cluster.add_pod("a", nic_request, gpu_request)
    cluster.add_pod("b", nic_request, fpga_request)

    _, of_gpu = cluster.why(capsys, "a")
    _, of_fpga = cluster.why(capsys, "b")

    assert of_gpu["answer"] == (
        "default/a waits: for request a/gpu, none of 2 cards fits: 2 have too little free vram."
    )
    assert of_fpga["answer"] == (
        "default/b waits: for request b/fpga, no node that it may use has a device of DeviceClass "
        "fpga."
    )

"""The verb `why` on pods that wait for different reasons."""

import pytest

from tensorfusion_dra import cli
from tensorfusion_dra.core import names
from tensorfusion_dra.core.kubernetes.quantity import GIB
from tensorfusion_dra.simulator.rest import CLAIMS, CLASSES, EVENTS, PODS, TEMPLATES
from tests.simulator.waiting import eventually
from tests.support import imports, objects
from tests.support.builders.gpus import gpu
from tests.support.builders.pods import pod_annotations
from tests.support.gpu_cluster import ANNOTATED, MODEL, Cluster, request, template, two_cards

Capture = pytest.CaptureFixture[str]


def test_pod_that_fits(cluster: Cluster, capsys: Capture) -> None:
    first, _ = cluster.add_node("node-01", *two_cards())
    cluster.add_pod("a", request({"vram": "20Gi", "tflops": "100"}))

    code, found = cluster.why(capsys, "a")

    assert (code, found["state"]) == (0, "fits")
    assert found["answer"] == f"default/a fits now on node-01 ({first})."
    assert found["helps"] == []


def test_pod_that_is_bound(cluster: Cluster, capsys: Capture) -> None:
    cluster.add_node("node-01", *two_cards())
    cluster.add_pod("a", request({"vram": "20Gi"}))
    cluster.schedule()

    code, found = cluster.why(capsys, "a")

    assert (code, found["state"]) == (0, "bound")
    assert "default/a is scheduled on node-01 already" in found["answer"]


def test_pod_that_does_not_start_on_its_node(cluster: Cluster, capsys: Capture) -> None:
    cluster.add_node("node-01", *two_cards())
    cluster.add_pod("a", request({"vram": "20Gi"}))
    cluster.schedule()
    uid = cluster.client.get(PODS, "a", "default")["metadata"]["uid"]
    for number, (event_uid, text) in enumerate(((uid, "no driver"), ("earlier-pod", "no volume"))):
        cluster.client.create(
            EVENTS,
            {
                "apiVersion": "v1",
                "kind": "Event",
                "metadata": {"name": f"a.{number}", "namespace": "default"},
                "involvedObject": {
                    "kind": "Pod",
                    "name": "a",
                    "namespace": "default",
                    "uid": event_uid,
                },
                "reason": "FailedPrepareDynamicResources",
                "message": text,
                "type": "Warning",
                "source": {"component": "kubelet"},
                "lastTimestamp": f"2026-01-01T00:00:0{number}Z",
            },
        )

    code, found = cluster.why(capsys, "a")

    assert (code, found["state"]) == (0, "bound")
    assert found["answer"] == (
        "default/a is scheduled on node-01 already; it waits there: FailedPrepareDynamicResources: "
        "no driver"
    )


def test_too_much_memory_for_every_card(cluster: Cluster, capsys: Capture) -> None:
    small = gpu(7, vram_bytes=40 * GIB)
    cluster.add_node("node-01", *two_cards())
    cluster.add_node("node-02", small)
    cluster.add_pod("a", request({"vram": "100Gi", "tflops": "1"}))

    code, found = cluster.why(capsys, "a")

    assert (code, found["state"]) == (1, "waits")
    assert found["answer"] == (
        "default/a waits: none of 3 cards fits: 3 have too little free vram."
    )
    assert found["helps"] == [
        "Request less: vram 80Gi fits now on node-01.",
        "No card has vram 100Gi: the largest has 80Gi.",
    ]


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


def test_selector_that_no_card_matches(cluster: Cluster, capsys: Capture) -> None:
    cluster.add_node("node-01", *two_cards())
    selectors = objects.expressions(f'{MODEL} == "H100" && device.attributes.size() > 0')
    cluster.add_pod("a", request(selectors=selectors[:1]))

    code, found = cluster.why(capsys, "a")

    assert code == 1
    assert '2 do not match model == "H100"' in found["answer"]
    assert found["helps"] == [
        'Correct the selector model == "H100": the cards have model: A100 (2).'
    ]


def test_selector_that_fails(cluster: Cluster, capsys: Capture) -> None:
    cluster.add_node("node-01", *two_cards())
    rack = objects.expressions(f'device.attributes["{names.DRIVER}"].rack == 1')
    cluster.add_pod("a", request(selectors=rack))

    code, found = cluster.why(capsys, "a")

    assert code == 1
    assert "cannot be scheduled on any node: claim default/a: selector #0" in found["answer"]
    assert "no such key: rack" in found["answer"]


def test_missing_class(cluster: Cluster, capsys: Capture) -> None:
    cluster.add_node("node-01", *two_cards())
    cluster.client.delete(CLASSES, names.DEVICE_CLASS)
    cluster.add_pod("a", request())

    code, found = cluster.why(capsys, "a")

    assert code == 1
    assert found["answer"] == (
        f"default/a cannot be scheduled: DeviceClass {names.DEVICE_CLASS}: not found."
    )
    assert "install the driver's DeviceClass" in found["helps"][0]


def test_silent_webhook(cluster: Cluster, capsys: Capture) -> None:
    cluster.add_node("node-01", *two_cards())
    cluster.client.create(TEMPLATES, template())
    cluster.add_pod("a", metadata={"annotations": ANNOTATED})

    code, found = cluster.why(capsys, "a")

    assert code == 1
    assert found["answer"].startswith("default/a gets no GPU: webhook: is not installed")
    assert found["answer"].endswith("Otherwise it fits now on node-01.")
    assert found["helps"][0].startswith("install the webhook, then delete the pod")


def test_silent_webhook_of_a_pod_that_was_scheduled(cluster: Cluster, capsys: Capture) -> None:
    cluster.add_node("node-01", *two_cards())
    cluster.add_pod("a", metadata={"annotations": ANNOTATED})
    cluster.schedule()

    code, found = cluster.why(capsys, "a")

    assert (code, found["state"]) == (1, "bound")
    assert found["answer"].endswith(
        "It got no GPU: webhook: is not installed, so the pod's annotations gave it no claim."
    )
    assert found["helps"][0].startswith("install the webhook")


def test_annotations_of_a_pod_that_does_not_use_dra(cluster: Cluster, capsys: Capture) -> None:
    cluster.add_node("node-01", *two_cards())
    cluster.add_pod("a", metadata={"annotations": pod_annotations(vram_request="16Gi")})

    code, found = cluster.why(capsys, "a")

    assert code == 0
    assert "requests no GPU by a claim" in found["answer"]
    assert found["helps"] == [f"set the annotation {names.ANNOTATION_DRA_ENABLED}: true"]


def test_cards_that_are_tainted(cluster: Cluster, capsys: Capture) -> None:
    first, _ = cluster.add_node("node-01", *two_cards(), taint="xid-79")
    cluster.add_pod("a", request({"vram": "20Gi", "tflops": "1"}, count=2))

    code, found = cluster.why(capsys, "a")

    taint = f"{names.TAINT_UNHEALTHY}=xid-79"
    assert code == 1
    assert found["answer"].endswith(
        "no node has its 2 cards at once: most are on node-01, where 1 of 2 fit alone, 1 is "
        f"tainted {taint}."
    )
    assert f"Repair {first} of node-01: would fit but for the taint {taint}." in found["helps"]


def test_missing_template_and_claim_that_is_not_created(cluster: Cluster, capsys: Capture) -> None:
    cluster.add_node("node-01", *two_cards())
    entries = [{"name": "gpu", "resourceClaimTemplateName": "mine"}]
    cluster.add_pod("a", resourceClaims=entries)

    code, found = cluster.why(capsys, "a")
    cluster.client.create(TEMPLATES, objects.template(request(), name="mine"))
    later_code, later = cluster.why(capsys, "a")

    assert (code, later_code) == (1, 1)
    assert "ResourceClaimTemplate mine: not found" in found["answer"]
    assert "claim from ResourceClaimTemplate mine: not created yet" in later["answer"]
    assert "Otherwise it fits now on node-01" in later["answer"]


def test_missing_claim(cluster: Cluster, capsys: Capture) -> None:
    cluster.add_node("node-01", *two_cards())
    cluster.client.create(PODS, objects.pod("a", claim_name="none"))

    code, found = cluster.why(capsys, "a")

    assert code == 1
    assert found["answer"] == "default/a cannot be scheduled: ResourceClaim none: not found."


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
    assert found["helps"] == [
        "node-01 has room, but: unschedulable (cordoned).",
        "node-02 has room, but: taint team=b:NoSchedule is not tolerated.",
    ]


def test_cluster_without_slices_of_the_driver(cluster: Cluster, capsys: Capture) -> None:
    cluster.add_node("node-01")
    cluster.add_pod("a", request())

    _, found = cluster.why(capsys, "a")

    assert found["findings"][0]["lookedAt"] == "ResourceSlices of this driver"
    assert found["findings"][0]["found"] == "none on any node"


def test_scheduling_gates(cluster: Cluster, capsys: Capture) -> None:
    cluster.add_node("node-01", *two_cards())
    cluster.add_pod("a", request(), schedulingGates=[{"name": "example.com/queue"}])

    code, found = cluster.why(capsys, "a")

    assert code == 1
    assert found["answer"] == (
        "default/a cannot be scheduled: spec.schedulingGates: example.com/queue. "
        "Otherwise it fits now on node-01."
    )


def test_many_nodes_share_a_line(cluster: Cluster, capsys: Capture) -> None:
    for number in range(12):
        cluster.add_node(f"node-{number:02}", *two_cards(), taint="xid-79" if number < 2 else "")
    cluster.add_pod("a", request({"vram": "100Gi", "tflops": "1"}))

    shown = cluster.text(capsys, "why", "a").splitlines()

    assert "12: node-00, node-01 and 10 more 24 24 have too little free vram" in shown
    assert len(shown) < 12


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
        ((), "pod: found none, expected POD or -f FILE"),
        (("none",), "pod default/none: found none"),
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
    statement = "import tensorfusion_dra.app.why.answering"

    assert imports.loaded(statement, "grpc", "kubernetes", "pynvml", "sqlite3") == []

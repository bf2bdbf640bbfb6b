"""The verb `why` on pods that wait for different reasons, and what it proposes."""

import pytest
import yaml

from dra_simulator.rest import CLAIMS, CLASSES, PODS, SLICES, TEMPLATES, Resource
from tensorfusion_dra import cli
from tensorfusion_dra.cluster.api import USER_AGENT
from tensorfusion_dra.core import names
from tensorfusion_dra.core.devices.gpu import Gpu
from tests.support import helm, installation, objects, rbac
from tests.support.builders.gpus import gpu
from tests.support.builders.pods import pod_annotations
from tests.support.gpu_cluster import ANNOTATED, Cluster, request, template, two_cards
from tests.support.objects import Json

Capture = pytest.CaptureFixture[str]
NAMESPACES = Resource(api_version="v1", plural="namespaces", kind="Namespace", namespaced=False)


@pytest.mark.parametrize(
    "target", [("a",), ("default/a",), ("default/a", "-n", "other"), ("po/a",)]
)
def test_pod_that_fits(cluster: Cluster, capsys: Capture, target: tuple[str, ...]) -> None:
    first, _ = cluster.add_node("node-01", *two_cards())
    cluster.add_pod("a", request({"vram": "20Gi", "tflops": "100"}))

    code, found = cluster.why(capsys, *target)

    assert (code, found["state"], found["helps"]) == (0, "fits", [])
    assert found["answer"] == f"default/a fits now on node-01 ({first})."


@pytest.mark.parametrize("priority", [0, 1000])
def test_cards_that_other_pods_hold(cluster: Cluster, capsys: Capture, priority: int) -> None:
    first, second = cluster.add_node("node-01", *two_cards())
    for name, vram in (("a", "70Gi"), ("b", "60Gi")):
        cluster.schedule_pod(name, request({"vram": vram, "tflops": "100"}))
    cluster.add_pod("c", request({"vram": "40Gi", "tflops": "100"}), priority=priority)

    code, found = cluster.why(capsys, "c")

    preempts_none = (
        "Its priority does not help: Kubernetes preempts no pods for the devices of claims."
    )
    assert code == 1
    assert found["helps"] == [
        "Request less: vram 20Gi fits now on node-01.",
        f"Wait for default/b (tflops 100, vram 60Gi) on {second} of node-01: without it the pod "
        "fits there.",
        *([preempts_none] if priority else []),
    ]
    assert yaml.safe_load(cluster.run(capsys, "why", "c", "-o", "yaml").out) == found
    text = cluster.text(capsys, "why", "c")
    assert f"node-01 {first} vram 70Gi of 80Gi taken, 40Gi more do not fit default/a (70Gi)" in text


def test_table_is_cut_on_a_terminal_and_whole_with_o_wide(
    cluster: Cluster, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.add_node("node-01", *two_cards())
    for name in ("held", "b"):
        cluster.schedule_pod(name, request({"vram": "70Gi", "tflops": "10"}))
    cluster.add_pod("a", request({"vram": "40Gi", "tflops": "10"}))
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "40")
    whole = "vram 70Gi of 80Gi taken, 40Gi more do not fit"

    assert whole in cluster.text(capsys, "why", "a", "-o", "wide")
    assert whole not in cluster.text(capsys, "why", "a")


@pytest.mark.parametrize(
    ("held", "lacks", "detail"),
    [
        (
            {"vram": "70Gi", "tflops": "100"},
            "has too little free vram",
            "vram 70Gi of 80Gi taken, 40Gi more do not fit",
        ),
        # Without amounts the claim takes a card that is not shared.
        (None, "is in use exclusively", "in use exclusively"),
    ],
)
def test_full_card_that_is_tainted_as_well(
    cluster: Cluster, capsys: Capture, held: Json | None, lacks: str, detail: str
) -> None:
    cluster.add_node("node-01", gpu(1), taint="xid-79")
    if held is None:
        (stored,) = cluster.client.list(SLICES).items
        del stored["spec"]["devices"][0]["allowMultipleAllocations"]
        for capacity in stored["spec"]["devices"][0]["capacity"].values():
            capacity.pop("requestPolicy")
        cluster.client.replace(SLICES, stored)
    cluster.schedule_pod("a", request(held, tolerations=[{"operator": "Exists"}]))
    cluster.add_pod("b", request({"vram": "40Gi", "tflops": "100"}))

    _, found = cluster.why(capsys, "b")

    taint = f"(tainted {names.TAINT_UNHEALTHY}=xid-79)"
    assert found["answer"].startswith(f"default/b waits: the only card {lacks} {taint}")
    assert f" {detail} {taint} default/a" in cluster.text(capsys, "why", "b")
    assert found["helps"] == []


def test_claim_that_only_observes_a_card_does_not_hold_it(
    cluster: Cluster, capsys: Capture
) -> None:
    cluster.add_node("node-01", gpu(1))
    cluster.schedule_pod("a", request({"vram": "70Gi", "tflops": "100"}))
    cluster.client.patch(
        NAMESPACES,
        cluster.client.get(NAMESPACES, "default"),
        {"metadata": {"labels": {"resource.kubernetes.io/admin-access": "true"}}},
    )
    cluster.schedule_pod("watcher", request({"vram": "1Gi", "tflops": "1"}, adminAccess=True))
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
        (
            two_cards(),
            "none of 2 cards fits: 2 have too little free vram; the largest card has vram 80Gi.",
        ),
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

    assert found["answer"] == f"default/a waits: {expected}"
    assert "nic-" not in cluster.text(capsys, "why", "a")
    driver_is_missing = ("ResourceSlices of this driver", "none on any node")
    shown = [(each["lookedAt"], each["found"]) for each in found["findings"]]
    assert (driver_is_missing in shown) == (not gpus)


def test_many_nodes_share_a_line(cluster: Cluster, capsys: Capture) -> None:
    for number in range(12):
        cluster.add_node(f"node-{number:02}", *two_cards(), taint="xid-79" if number < 2 else "")
    cluster.add_pod("a", request({"vram": "100Gi", "tflops": "1"}))

    shown = cluster.text(capsys, "why", "a").splitlines()

    assert "12: node-00, node-01 and 10 more 24 24 have too little free vram" in shown
    assert len(shown) < 12


def test_no_fit_node_shows_how_many_have_which_reason(cluster: Cluster, capsys: Capture) -> None:
    taint = {"key": "team", "value": "b", "effect": "NoSchedule"}
    for name in ("node-01", "node-02"):
        cluster.add_node(name, *two_cards(), spec={"taints": [taint]})
    cluster.add_node("node-03", *two_cards(), spec={"unschedulable": True})
    cluster.add_pod("a", request({"vram": "1Gi"}))

    code, found = cluster.why(capsys, "a")

    assert code == 1
    assert found["answer"] == (
        "default/a waits: no node is fit for it: taint team=b:NoSchedule is not tolerated "
        "(2 nodes); unschedulable (cordoned)."
    )


def test_pod_whose_claim_is_allocated_elsewhere(cluster: Cluster, capsys: Capture) -> None:
    cluster.add_node("node-01", *two_cards())
    cluster.add_node("node-02", *two_cards(), zone="west")
    cluster.schedule_pod("a", request({"vram": "1Gi"}), nodeSelector={})
    pod = objects.pod("b", claim_name="a")
    pod["spec"]["nodeSelector"] = {"zone": "west"}
    cluster.client.create(PODS, pod)

    code, found = cluster.why(capsys, "b")

    assert code == 1
    assert [node["reason"] for node in found["nodes"]] == [
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
        (("node/a",), "pod node/a: found none, expected POD with -n NAMESPACE, NAMESPACE/POD or K"),
        (("node/a",), "KIND/NAME, KIND of pod, deployment, replicaset,"),
        (("deploy/",), "deploy/: found no name, expected one"),
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


@pytest.mark.process
def test_in_the_webhooks_pods_it_may_read_all_that_it_reads_if_the_chart_says_so(
    cluster: Cluster, capsys: Capture
) -> None:
    cluster.add_node("node-01", *two_cards())
    cluster.add_pod("a", request({"vram": "100Gi"}))

    cluster.why(capsys, "a")

    asked = {each for each in cluster.server.requests.asked(USER_AGENT) if each.resource}
    granted = rbac.rights(
        helm.render({"webhook": {"enabled": True, "why": True}}), "tensorfusion-dra-webhook"
    )
    assert {"pods", "nodes", "resourceclaims"} <= {each.resource for each in asked}
    assert [each for each in asked if not any(right.allows(each) for right in granted)] == []


def test_the_webhooks_account_lists_neither_pods_nor_events_by_default() -> None:
    granted = rbac.rights(installation.documents("webhook"), "tensorfusion-dra-webhook")

    assert ("pods", "get") in {(each.resource, each.verb) for each in granted}
    assert {"pods", "events"}.isdisjoint(
        each.resource for each in granted if each.verb in {"list", "watch"}
    )


def test_each_of_two_requests_has_the_devices_of_its_class(
    cluster: Cluster, capsys: Capture
) -> None:
    cluster.add_node("node-01", *two_cards())
    add_network_cards(cluster, "node-01")
    cluster.client.create(CLASSES, objects.device_class("nic"))
    cluster.client.create(CLASSES, objects.device_class("fpga", "false"))
    nic_request = objects.exactly("nic", deviceClassName="nic", count=2)
    cluster.add_pod("b", nic_request, objects.exactly("fpga", deviceClassName="fpga"))

    _, found = cluster.why(capsys, "b")

    assert found["answer"] == (
        "default/b waits: for request b/fpga, no node that it may use has a device of DeviceClass "
        "fpga."
    )


ATTRIBUTES = f'device.attributes["{names.DRIVER}"]'
H100 = f'{ATTRIBUTES}.model == "H100"'


def large(name: str, vram: str) -> Json:
    """An alternative with this vram."""
    return {"name": name, **request({"vram": vram, "tflops": "1"})["exactly"]}


@pytest.mark.parametrize(
    ("made", "answer", "helps", "shown"),
    [
        pytest.param(
            {"requests": [request({"vram": "20Gi"}, selectors=objects.expressions(H100))]},
            'none of 2 cards fits: 2 do not match model == "H100".',
            ['Correct the selector model == "H100": the cards have model: A100 (2).'],
            "",
            id="model that no card has",
        ),
        pytest.param(
            {"requests": [request(selectors=objects.expressions(f"{ATTRIBUTES}.rack == 1"))]},
            ": CEL runtime error: no such key: rack.",
            [],
            "",
            id="selector that fails",
        ),
        pytest.param(
            {"requests": [request({"vram": "20Gi", "tflops": "1"}, count=2)], "taint": "xid-79"},
            "no node has its 2 cards at once: most are on node-01, where 1 of 2 fits alone, 1 is "
            f"tainted {names.TAINT_UNHEALTHY}=xid-79.",
            [],
            "",
            id="tainted card",
        ),
        pytest.param(
            {"cards": 1, "taint": "xid-79", "annotations": {}},
            f"the only card is tainted {names.TAINT_UNHEALTHY}=xid-79.",
            [],
            "",
            id="unhealthy card, although the webhook's selector excludes its phase",
        ),
        pytest.param(
            {
                "cards": 1,
                "taint": "xid-79",
                "requests": [
                    request(
                        selectors=objects.expressions(f'{ATTRIBUTES}.phase == "Running"'),
                        tolerations=[{"key": names.TAINT_UNHEALTHY, "operator": "Exists"}],
                    )
                ],
            },
            'the only card does not match phase == "Running".',
            ["Repair the cards: the driver publishes them as unhealthy (phase Unknown)."],
            "",
            id="tolerated taint leaves the phase as the reason",
        ),
        pytest.param(
            {"annotations": {names.ANNOTATION_GPU_COUNT: "3"}},
            "no node has 3 cards: node-01 has most, 2.",
            [],
            "",
            id="more cards than a node has",
        ),
        pytest.param(
            {"requests": [request({"vram": "20Gi", "tflops": "1"}, count=3)], "taint": "xid-79"},
            "no node has 3 cards: node-01 has most, 2.",
            [],
            "",
            id="a count above the cards of a node",
        ),
        pytest.param(
            {
                "requests": [request({"vram": "1Gi"}, count=2)],
                "constraints": [{"matchAttribute": f"{names.DRIVER}/{names.ATTR_UUID}"}],
            },
            "no node has its 2 cards at once: most are on node-01, where 2 of 2 fit alone, but 1 "
            f"does not satisfy matchAttribute {names.DRIVER}/{names.ATTR_UUID}.",
            [],
            "",
            id="constraint between cards",
        ),
        pytest.param(
            {
                "requests": [
                    request({"vram": "1Gi", "tflops": "1"}, name="small"),
                    {
                        "name": "large",
                        "firstAvailable": [large("300gi", "300Gi"), large("90gi", "90Gi")],
                    },
                ]
            },
            "for request a/large, none of 2 cards fits: 2 have too little free vram; the largest "
            "card has vram 80Gi.",
            ["Request less in request large/90gi: vram 80Gi fits now on node-01."],
            "a/small: fits alone; a/large/300gi: vram 0 of 80Gi taken, 300Gi more",
            id="of several requests, the one that no card fits",
        ),
        pytest.param(
            {
                "requests": [
                    request({"vram": "100Gi", "tflops": "1"}, name="large"),
                    request({"vram": "10Gi", "tflops": "1"}, name="one"),
                    request({"vram": "10Gi", "tflops": "1"}, name="two"),
                ]
            },
            "for request a/large, none of 2 cards fits: 2 have too little free vram; the largest "
            "card has vram 80Gi.",
            ["Request less in request large: vram 80Gi fits now on node-01."],
            "",
            id="only the request that is too large gets less",
        ),
        pytest.param(
            {"requests": [request({"vram": "10Gi", "shine": "1"})]},
            "none of 2 cards fits: 2 do not offer the requested shine; the cards have tflops, "
            "vram.",
            [],
            "",
            id="capacity that no card has",
        ),
        pytest.param(
            {"annotations": {names.ANNOTATION_GPUPOOL: "nowhere"}},
            'none of 2 cards fits: 2 do not match pool_name == "nowhere".',
            [
                f"Correct {names.ANNOTATION_GPUPOOL}: found nowhere, but the cards have: "
                "default (2)."
            ],
            "",
            id="pool that no card has",
        ),
        pytest.param(
            {"annotations": {names.ANNOTATION_QOS: "critical"}},
            'none of 2 cards fits: 2 do not match qos == "critical".',
            [f"Correct {names.ANNOTATION_QOS}: found critical, but the cards have: medium (2)."],
            "",
            id="qos that no card has",
        ),
    ],
)
def test_pod_that_no_node_has_room_for(
    cluster: Cluster, capsys: Capture, made: Json, answer: str, *, helps: list[str], shown: str
) -> None:
    cluster.add_node("node-01", *two_cards()[: made.get("cards", 2)], taint=made.get("taint", ""))
    cluster.client.create(TEMPLATES, template())
    if "annotations" in made:
        cluster.add_pod("a", metadata={"annotations": {**ANNOTATED, **made["annotations"]}})
    else:
        asked = objects.claim(*made["requests"], name="a", constraints=made.get("constraints", []))
        cluster.client.create(CLAIMS, asked)
        cluster.client.create(PODS, objects.pod("a", claim_name="a"))

    code, found = cluster.why(capsys, "a")

    of_webhook = [text for text in found["helps"] if text.startswith("install the webhook")]
    assert code == 1
    assert found["answer"].endswith(answer)
    assert [text for text in found["helps"] if text not in of_webhook] == helps
    assert shown in cluster.text(capsys, "why", "a")


def test_smaller_request_is_given_as_annotations_that_the_pod_does_not_have_yet(
    cluster: Cluster, capsys: Capture
) -> None:
    cluster.add_node("node-01", *two_cards())
    cluster.client.create(TEMPLATES, template())
    cluster.schedule_pod("held", request({"vram": "30Gi", "tflops": "12"}, count=2))
    annotations = pod_annotations(dra_enabled="true", dedicated_gpu="true")
    cluster.add_pod("a", metadata={"annotations": annotations})

    _, found = cluster.why(capsys, "a")

    less = (
        f"Request less: {names.ANNOTATION_TFLOPS_REQUEST}: 300, {names.ANNOTATION_VRAM_REQUEST}: "
        "50Gi instead of whole cards fits now on node-01."
    )
    assert less in found["helps"]


def test_annotations_cannot_write_to_the_terminal(cluster: Cluster, capsys: Capture) -> None:
    cluster.add_node("node-01", *two_cards())
    cluster.client.create(TEMPLATES, template())
    annotations = {**ANNOTATED, names.ANNOTATION_GPU_MODEL: "H\x1b[2J100"}
    cluster.add_pod("a", metadata={"annotations": annotations})

    out = cluster.run(capsys, "why", "a").out

    assert ("H\\x1b[2J100" in out, "\x1b" in out) == (True, False)

"""The verbs `cordon` and `uncordon`: where they write, and what others then show."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from dra_simulator.rest import NODES, SLICES
from tensorfusion_dra import cli
from tensorfusion_dra.app.cordon import command
from tensorfusion_dra.core import names
from tensorfusion_dra.core.devices import cordon
from tests.support import canned_api
from tests.support.builders.gpus import gpu, partition
from tests.support.canned_api import CannedApi
from tests.support.gpu_cluster import Cluster, Printed, request

pytestmark = pytest.mark.usefixtures("quiet")

Capture = pytest.CaptureFixture[str]
RULES: Final = "/apis/resource.k8s.io/v1/devicetaintrules"
REVIEWS: Final = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
ALICE: Final = {"status": {"userInfo": {"username": "alice"}}}


@pytest.fixture
def device(cluster: Cluster) -> str:
    """The one card of node-01."""
    (found,) = cluster.add_node("node-01", gpu(1))
    return found


class Rules:
    """The DeviceTaintRules of an API server of 1.37."""

    def __init__(self, server: CannedApi) -> None:
        self.server = server
        self.stored: list[Any] = []
        server.answers[f"GET {RULES}"] = lambda _: {"items": self.stored}

    def of(self, device: str) -> None:
        """Serve the rule of a device."""
        path = f"{RULES}/tensor-fusion-cordon-{device}"
        self.server.answers[f"PATCH {path}"] = self._apply
        self.server.answers[f"DELETE {path}"] = self._delete

    def _apply(self, rule: Any) -> Any:
        self.stored = [rule]
        return rule

    def _delete(self, _: Any) -> Any:
        self.stored = []
        return {"kind": "Status"}


@pytest.fixture
def rules(cluster: Cluster, device: str, tmp_path: Path) -> Iterator[Rules]:
    answers = {"GET /version": {"gitVersion": "v1.37.2"}, f"POST {REVIEWS}": ALICE}
    with canned_api.served(answers) as server:
        server.other_url = cluster.server.url
        cluster.kubeconfig = server.kubeconfig(tmp_path / "canned")
        found = Rules(server)
        found.of(device)
        yield found


def cordon_card(cluster: Cluster, capsys: Capture, *arguments: str) -> Printed:
    return cluster.run(capsys, "cordon", *arguments)


@pytest.mark.parametrize(
    ("flags", "effect", "rest"),
    [((), "NoSchedule", "Its pods go on."), (("--evict",), "NoExecute", "Its pods are deleted.")],
)
def test_a_rule_of_the_device_says_who_did_it_and_why(
    cluster: Cluster,
    rules: Rules,
    device: str,
    capsys: Capture,
    *,
    flags: tuple[str, ...],
    effect: str,
    rest: str,
) -> None:
    ended = cordon_card(cluster, capsys, f"node-01/{device[:8]}", "--reason", "fan, loud", *flags)

    (rule,) = rules.stored
    # Whoever else wrote a part of it: the last cordon counts.
    query = "?fieldManager=kubectl-tensorfusion&force=true"
    assert rules.server.requests[-1][0].endswith(f"/tensor-fusion-cordon-{device}{query}")
    assert ended == (
        0,
        f"node-01/{device}: out of service for new pods (fan-loud_by_alice). {rest} To end it: "
        f"kubectl tensorfusion uncordon node-01/{device}\n",
        "",
    )
    assert rule["metadata"]["annotations"] == {
        "tensor-fusion.ai/cordoned-node": "node-01",
        "tensor-fusion.ai/cordoned-by": "alice",
        "tensor-fusion.ai/cordon-reason": "fan, loud",
    }
    assert rule["spec"] == {
        "deviceSelector": {"driver": names.DRIVER, "device": device},
        "taint": {
            "key": "tensor-fusion.ai/cordoned",
            "value": "fan-loud_by_alice",
            "effect": effect,
        },
    }


def test_a_partition_has_a_name_of_its_own(
    cluster: Cluster, rules: Rules, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (device,) = cluster.add_node("node-02", partition(0, card=2))
    rules.of(device)

    cordoned = cordon_card(cluster, capsys, "node-02/mig-")

    assert cordoned.code == 0
    assert rules.stored[0]["spec"]["deviceSelector"]["device"] == device
    assert "tensor-fusion.ai/cordoned=by_alice" in cluster.text(capsys, "top")
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
    monkeypatch.setattr(sys, "argv", ["kubectl_complete-tensorfusion", "uncordon", "node-02/"])
    cli.complete()
    assert capsys.readouterr().out.splitlines() == [f"node-02/{device}", ":4"]
    assert cluster.run(capsys, "uncordon", device).code == 0
    assert rules.stored == []


@pytest.mark.usefixtures("rules")
def test_top_why_and_doctor_show_who_did_it_and_why(
    cluster: Cluster, device: str, capsys: Capture
) -> None:
    cordon_card(cluster, capsys, device, "--reason", "fan")
    cluster.add_pod("train", request({"vram": "20Gi"}))

    assert "ok" not in cluster.text(capsys, "top")
    assert "tensor-fusion.ai/cordoned=fan_by_alice" in cluster.text(capsys, "top")
    assert "tensor-fusion.ai/cordoned=fan_by_alice" in cluster.text(capsys, "why", "train")
    doctor = cluster.text(capsys, "doctor", "--on", "workstation")
    assert f"note node-01/{device}: out of service: fan_by_alice, NoSchedule" in doctor
    assert f"kubectl tensorfusion uncordon node-01/{device}" in doctor


def test_uncordon_deletes_the_rule_also_of_a_card_that_is_gone(
    cluster: Cluster, rules: Rules, device: str, capsys: Capture
) -> None:
    cordon_card(cluster, capsys, device)
    cluster.client.delete(SLICES, "slice-node-01")

    ended = cluster.run(capsys, "uncordon", device)

    assert ended == (0, f"node-01/{device}: back in service\n", "")
    assert rules.stored == []


def test_a_card_of_a_renamed_node_is_uncordoned_by_the_nodes_new_name(
    cluster: Cluster, rules: Rules, device: str, capsys: Capture
) -> None:
    cordon_card(cluster, capsys, device)
    cluster.client.delete(SLICES, "slice-node-01")
    cluster.add_node("node-02", gpu(1))
    assert f"uncordon node-02/{device}" in cluster.text(capsys, "doctor", "--on", "workstation")

    ended = cluster.run(capsys, "uncordon", f"node-02/{device}")

    assert ended == (0, f"node-02/{device}: back in service\n", "")
    assert rules.stored == []


def test_uncordon_takes_away_a_mark_of_before_the_upgrade_too_and_no_rule_of_others(
    cluster: Cluster, rules: Rules, device: str, capsys: Capture
) -> None:
    key = f"cordon.tensor-fusion.ai/{device}"
    node = cluster.client.get(NODES, "node-01")
    cluster.client.patch(NODES, node, {"metadata": {"annotations": {key: "fan_by_bob"}}})
    cordon_card(cluster, capsys, device)
    rules.stored += [{"metadata": {"name": "gpu-of-others"}, "spec": {}}]
    rules.server.answers["PATCH /api/v1/nodes/node-01"] = {}

    ended = cluster.run(capsys, "uncordon", "gpu-")

    assert ended == (0, f"node-01/{device}: back in service\n", "")
    unmarked = ("PATCH /api/v1/nodes/node-01", {"metadata": {"annotations": {key: None}}})
    assert unmarked in rules.server.requests
    assert rules.stored == []


def follow(cluster: Cluster, device: str) -> None:
    """Taint the device as its node plugin does."""
    (taint,) = cordon.of_node(
        cluster.client.get(NODES, "node-01")["metadata"]["annotations"]
    ).values()
    stored = cluster.client.get(SLICES, "slice-node-01")
    stored["spec"]["devices"][0]["taints"] = [taint.as_api()]
    cluster.client.replace(SLICES, stored)


@pytest.mark.parametrize("cluster", [36], indirect=True)
def test_before_1_37_the_node_has_a_mark_that_its_node_plugin_follows(
    cluster: Cluster, device: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait = command._wait

    def followed(*arguments: Any) -> None:
        follow(cluster, device)
        wait(*arguments)

    monkeypatch.setattr(command, "_wait", followed)

    cordoned = cordon_card(cluster, capsys, f"node-01/{device}", "--reason", "fan", "--evict")

    key = f"cordon.tensor-fusion.ai/{device}"
    marks = cluster.client.get(NODES, "node-01")["metadata"]["annotations"]
    assert cordoned.code == 0
    assert marks[key].startswith("fan_by_unknown:NoExecute:20")
    assert "cordoned=fan_by_unknown" in cluster.text(capsys, "top")
    assert "fan_by_unknown, NoExecute" in cluster.text(capsys, "doctor", "--on", "workstation")
    assert cluster.run(capsys, "uncordon", device).code == 0
    assert key not in cluster.client.get(NODES, "node-01")["metadata"].get("annotations", {})


@pytest.mark.parametrize("cluster", [36], indirect=True)
def test_a_node_plugin_that_does_not_follow_is_said(
    cluster: Cluster, device: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "_FOLLOW_SECONDS", 0.1)
    assert cordon_card(cluster, capsys, device, "--reason", "fan").code == 2
    follow(cluster, device)

    ended = cordon_card(cluster, capsys, device, "--reason", "heat")

    assert ended.code == 2
    assert f"node-01/{device}: the Node is annotated, but found no taint" in ended.err
    assert "feature gate DRADeviceTaints" in ended.err


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize(
    ("verb", "card", "error"),
    [
        ("cordon", "node-02/gpu-", "found 0 such cards of node-01/gpu-"),
        ("cordon", "node-01/", "found 0 such cards of node-01/gpu-"),
        ("cordon", "gpu-", "found 2 such cards of node-01/gpu-"),
        ("uncordon", "gpu-", "gpu-: found no card that cordon took out of service"),
    ],
)
def test_a_card_that_is_not_there_or_not_the_only_one_is_said(
    cluster: Cluster, capsys: Capture, verb: str, card: str, error: str
) -> None:
    cluster.add_node("node-03", replace(gpu(2), uuid="GPU-other"))

    ended = cluster.run(capsys, verb, card)

    assert ended.code == 2
    assert error in ended.err


def test_kubectl_completes_pods_namespaces_and_cards(
    cluster: Cluster, device: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.add_pod("train", request({"vram": "20Gi"}))
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))

    def completed(*words: str) -> list[str]:
        monkeypatch.setattr(sys, "argv", ["kubectl_complete-tensorfusion", *words])
        cli.complete()
        return capsys.readouterr().out.splitlines()

    assert completed("why", "t") == ["train", ":4"]
    assert completed("why", "") == ["train", ":4"]
    assert completed("why", "--na") == ["--namespace", ":4"]
    assert completed("why", "-n", "kube", "t") == [":4"]
    assert completed("why", "--namespace=kube", "t") == [":4"]
    assert completed("top", "-n", "def") == ["default", ":4"]
    assert completed("cordon", "node-01/") == [f"node-01/{device}", ":4"]
    assert completed("why", "--context", "of-another-cluster", "t") == [":4"]
    monkeypatch.setenv("KUBECONFIG", "/dev/null")
    assert completed("why", "--kubeconfig", str(cluster.kubeconfig), "t") == ["train", ":4"]
    cluster.server.stop()
    assert completed("why", "--kubeconfig", str(cluster.kubeconfig), "t") == [":4"]


def test_doctor_names_an_unhealthy_card(cluster: Cluster, device: str, capsys: Capture) -> None:
    (published,) = cluster.client.list(SLICES).items
    taint = {"key": names.TAINT_UNHEALTHY, "value": "vanished", "effect": "NoSchedule"}
    published["spec"]["devices"][0]["taints"] = [taint]
    cluster.client.replace(SLICES, published)

    found = cluster.text(capsys, "doctor", "--on", "workstation")

    assert f"warning node-01/{device}: unhealthy: vanished, NoSchedule" in found

"""The real node-plugin process follows changes of limits, through kills, and at what cost."""

import json
from typing import Any
from urllib.request import urlopen

import pytest

from dra_simulator.rest import CLAIMS
from tensorfusion_dra import cli
from tensorfusion_dra.app.simulate.cluster import SimulatedCluster
from tensorfusion_dra.cluster.api import USER_AGENT
from tensorfusion_dra.core import names
from tests.support.node_plugin_process import (
    SHARE,
    cluster_with,
    condition,
    event_messages,
    run_pod,
    start,
    stop,
)

pytestmark = pytest.mark.process


def resize(cluster: SimulatedCluster, *arguments: str) -> int:
    """Run the verb and return its exit code."""
    place = ("--kubeconfig", str(cluster.kubeconfig), "--namespace", "default")
    return cli.main(["resize", *arguments, *place])


def share(cluster: SimulatedCluster, pod: str) -> Any:
    """Return the share of a pod as the status page has it."""
    with urlopen(f"{cluster.pages_url}status.json", timeout=10) as answer:
        (found,) = [each for each in json.load(answer)["shares"] if each["pods"] == [pod]]
    return found


def requests(cluster: SimulatedCluster) -> tuple[int, list[str]]:
    """Return the number of requests so far, and lists and watches of claims among them."""
    asked = cluster.server.requests.asked(USER_AGENT)
    verbs = [each.verb for each in asked if each.resource == "resourceclaims"]
    return cluster.server.requests.received(USER_AGENT), sorted({*verbs} & {"list", "watch"})


@pytest.mark.usefixtures("quiet")
def test_a_change_is_granted_in_part_and_refused_and_outlives_a_kill(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with cluster_with("1xA100-SXM4-80GB") as cluster:
        cluster.serve_pages()
        start(cluster)
        ref = run_pod(cluster, "a")
        assert share(cluster, "a")["limitChanged"] is None

        assert resize(cluster, "a", "vram=60Gi", "--wait") == 0
        assert "Granted: GPU-" in capsys.readouterr().out
        assert share(cluster, "a")["limit"]["vramBytes"] == 60 * 2**30
        assert share(cluster, "a")["limitChanged"]["asked"] == {"vram": "60Gi"}
        cluster.submit("b", {**SHARE, "vram": "40Gi"})
        cluster.until("b runs", lambda: cluster.container_of("b") is not None)
        cluster.until(
            "in part", lambda: condition(cluster, "a", "LimitChanged") == ("False", "GrantedInPart")
        )
        cluster.kill_plugin()
        claim = cluster.client.get(CLAIMS, ref.name, "default")
        claim["metadata"]["annotations"][names.ANNOTATION_VRAM_LIMIT] = "30Gi"
        cluster.client.replace(CLAIMS, claim)
        start(cluster)
        cluster.until(
            "what was changed meanwhile is followed",
            lambda: condition(cluster, "a", "LimitChanged") == ("True", "Granted"),
        )
        assert share(cluster, "a")["limit"]["vramBytes"] == 30 * 2**30
        assert resize(cluster, "a", "vram=1Gi", "--wait") == 1
        assert "Refused: gpu-" in capsys.readouterr().out
        assert share(cluster, "a")["limit"]["vramBytes"] == 30 * 2**30
        events = event_messages(cluster, names.EVENT_LIMIT_CHANGED)
        assert {text.partition(": ")[2] for text in events if text.startswith("GPU-")} == {
            "limit 33% of compute, 60Gi of memory",
            "limit 33% of compute, 30Gi of memory",
        }
        assert resize(cluster, "b", "vram=41Gi") == 0
        stop(cluster)


def test_other_nodes_claims_and_other_changes_cost_no_request() -> None:
    with cluster_with() as cluster:
        start(cluster)
        ref = run_pod(cluster, "a")
        cluster.until("a status", lambda: condition(cluster, "a", "Ready") == ("True", "Prepared"))
        before, verbs = requests(cluster)
        assert verbs == ["list", "watch"]
        claim = cluster.client.get(CLAIMS, ref.name, "default")
        labels = {names.LABEL_NODE: cluster.node_name}
        for number in range(50):
            metadata = {"namespace": "default", "labels": labels, "name": f"forged-{number}"}
            cluster.client.create(CLAIMS, {**claim, "metadata": metadata, "status": {}})

        def change(**annotations: str) -> None:
            claim = cluster.client.get(CLAIMS, ref.name, "default")
            found = claim["metadata"].get("annotations") or {}
            claim["metadata"] |= {"labels": labels, "annotations": found | annotations}
            cluster.client.replace(CLAIMS, claim)

        for number in range(20):
            change(**{"example.com/n": str(number)})
        change(**{names.ANNOTATION_VRAM_LIMIT: "20Gi"})
        cluster.until(
            "granted", lambda: condition(cluster, "a", "LimitChanged") == ("True", "Granted")
        )

        # A read when the label came and one for the limit, a status and an Event after each.
        assert requests(cluster)[0] - before <= 6


@pytest.mark.usefixtures("quiet")
def test_without_the_setting_nothing_is_listed_or_watched() -> None:
    with cluster_with() as cluster:
        cluster.plugin_flags.append("--resize=false")
        start(cluster)
        run_pod(cluster, "a")

        assert requests(cluster)[1] == []
        assert resize(cluster, "a", "vram=20Gi", "--wait", "1") == 2

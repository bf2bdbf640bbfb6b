"""The verb `teardown-check`, before and after the pods have ended."""

import json
from datetime import datetime, timedelta

import pytest
import yaml

from dra_simulator.rest import CLAIMS, PODS
from tensorfusion_dra.core import names
from tests.support.gpu_cluster import Cluster, request, two_cards

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def node(cluster: Cluster) -> None:
    cluster.add_node("node-01", *two_cards())


def test_only_running_pods_with_claims_of_the_driver_would_hang(
    cluster: Cluster, capsys: Capture
) -> None:
    for name in ("done", "gone", "other", "waits", "unused"):
        cluster.add_pod(name, request({"vram": "500Gi" if name == "waits" else "1Gi"}))
    cluster.schedule()
    unused = cluster.client.get(CLAIMS, "unused", "default")
    unused["status"]["reservedFor"] = []
    cluster.client.replace_status(CLAIMS, unused)
    done = cluster.client.get(PODS, "done", "default")
    cluster.client.patch(PODS, done, {"status": {"phase": "Succeeded"}}, subresource="status")
    cluster.client.delete(PODS, "gone", "default", grace_seconds=0)
    claim = cluster.client.get(CLAIMS, "other", "default")
    of_other = json.loads(json.dumps(claim["status"]).replace(names.DRIVER, "other.example.com"))
    cluster.client.replace_status(CLAIMS, {**claim, "status": {}})
    fresh = cluster.client.get(CLAIMS, "other", "default")
    cluster.client.replace_status(CLAIMS, {**fresh, "status": of_other})

    ended = cluster.run(capsys, "teardown-check")

    nothing = "Nothing would hang: no pod uses a claim of this driver.\n"
    assert (ended.code, ended.out) == (0, nothing)


def test_pods_that_use_claims_would_hang(cluster: Cluster, capsys: Capture) -> None:
    for name in ("a", "b"):
        keep = {"finalizers": ["example.com/keep"]} if name == "b" else {}
        cluster.schedule_pod(name, request({"vram": "1Gi"}), metadata=keep)
    cluster.client.delete(PODS, "b", "default", grace_seconds=30)
    grace_ends = cluster.client.get(PODS, "b", "default")["metadata"]["deletionTimestamp"]

    code, out, _ = cluster.run(capsys, "teardown-check", "-o", "json")
    text = cluster.text(capsys, "teardown-check")

    as_yaml = cluster.run(capsys, "teardown-check", "-o", "yaml").out
    assert yaml.safe_load(as_yaml) == json.loads(out)
    for flags, ended in (((), 1), (("-n", "team-b"), 0), (("-n", "team-b", "-A"), 1)):
        assert cluster.run(capsys, "teardown-check", *flags).code == ended
    first, second = json.loads(out)["wouldHang"]
    deleted_at = datetime.fromisoformat(grace_ends) - timedelta(seconds=30)
    waiting = {"node": "node-01", "pod": "a", "state": "Pending", "claims": ["a"]}
    assert code == 1
    assert first.items() >= waiting.items()
    terminating = {
        "pod": "b",
        "state": "Terminating",
        "deletedSince": f"{deleted_at:%Y-%m-%dT%H:%M:%SZ}",
        "finalizers": ["example.com/keep"],
    }
    assert second.items() >= terminating.items()
    assert text.startswith("2 pods on 1 node would hang in Terminating")

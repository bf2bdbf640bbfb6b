"""The verb `top` on a cluster with shares."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from dra_simulator.rest import CLAIMS, CLASSES, PODS, SLICES
from tensorfusion_dra.app import top
from tensorfusion_dra.cluster import watch
from tensorfusion_dra.core import names
from tensorfusion_dra.core.errors import RetryableError
from tests.support import canned_api, objects
from tests.support.builders.gpus import gpu, partition
from tests.support.builders.quotas import quota_document
from tests.support.gpu_cluster import Cluster, device_class, request, two_cards

Capture = pytest.CaptureFixture[str]
UUID = "3a38f1-2650-50ff-9309-5021289a0407"


@pytest.fixture
def shared(cluster: Cluster) -> tuple[str, ...]:
    """The names of three cards; two pods have shares of the first, and the third is tainted."""
    first, second = cluster.add_node("node-01", *two_cards())
    for name in ("a", "b"):
        cluster.add_pod(name, request({"vram": "20Gi", "tflops": "100"}))
    cluster.schedule()
    (third, _) = cluster.add_node("node-02", *two_cards(), taint="xid-79")
    return first, second, third


def test_top_shows_what_is_free_and_who_has_the_rest_also_to_programs(
    cluster: Cluster, shared: tuple[str, ...], capsys: Capture
) -> None:
    first, second, third = shared

    assert cluster.text(capsys, "top").splitlines() == [
        "2 nodes, 4 GPUs, 2 shares; tflops 736 of 936 free; vram 200Gi of 240Gi free; "
        "1 GPU tainted, not counted as free",
        "",
        "NODE GPU MODEL TFLOPS FREE VRAM FREE SHARES HEALTH",
        f"node-01 {first} A100 112 of 312 40Gi of 80Gi 2 ok",
        f"node-01 {second} A100 312 of 312 80Gi of 80Gi 0 ok",
        f"node-02 {third} A100 312 of 312 80Gi of 80Gi 0 {names.TAINT_UNHEALTHY}=xid-79",
        f"node-02 {second} A100 312 of 312 80Gi of 80Gi 0 ok",
        "",
        "POD NODE GPU TFLOPS VRAM USED",
        f"default/a node-01 {first} 100 20Gi -",
        f"default/b node-01 {first} 100 20Gi -",
    ]
    assert cluster.text(capsys, "top", "-n", "other").splitlines()[1:] == [
        "no shares in namespace other"
    ]

    as_json, as_yaml = (
        cluster.run(capsys, "top", "-n", "default", "-o", form).out for form in ("json", "yaml")
    )
    found = json.loads(as_json)
    card = found["cards"][0]
    assert found["free"]["vram"] == {"total": "240Gi", "taken": "40Gi", "free": "200Gi"}
    assert card["capacity"]["tflops"] == {"total": "312", "taken": "200", "free": "112"}
    assert [share["pods"] for share in card["shares"]] == [["a"], ["b"]]
    assert yaml.safe_load(as_yaml) == found


def use(cluster: Cluster, claim: str, **used: object) -> None:
    """Write what a claim's share uses into its status, as the node plugin does."""
    stored = cluster.client.get(CLAIMS, claim, namespace="default")
    (result,) = stored["status"]["allocation"]["devices"]["results"]
    named = ("driver", "pool", "device", "shareID")
    entry = {name: result[name] for name in named if name in result}
    stored["status"]["devices"] = [{**entry, "data": {"used": used}}]
    cluster.client.replace_status(CLAIMS, stored)


@pytest.mark.usefixtures("shared")
def test_top_shows_what_came_of_a_change_of_limits(cluster: Cluster, capsys: Capture) -> None:
    use(cluster, "a", vramBytes=0, smPercent=0)
    stored = cluster.client.get(CLAIMS, "a", namespace="default")
    changed = {
        "type": "LimitChanged",
        "status": "False",
        "reason": "GrantedInPart",
        "message": "limit\n40Gi",
        "lastTransitionTime": "2026-03-01T00:00:00Z",
    }
    stored["status"]["devices"][0]["conditions"] = [changed]
    cluster.client.replace_status(CLAIMS, stored)

    lines = cluster.text(capsys, "top").splitlines()

    assert lines[-1] == r"default/a: limits GrantedInPart: limit\n40Gi"
    found = json.loads(cluster.run(capsys, "top", "-o", "json").out)
    shares = [each["limitChanged"] for each in found["cards"][0]["shares"]]
    assert shares == [changed, None]


@pytest.mark.usefixtures("shared")
def test_top_shows_what_shares_use_by_container(cluster: Cluster, capsys: Capture) -> None:
    pod = cluster.client.get(PODS, "a", namespace="default")
    containers = [{"name": "main", "containerID": "containerd://4f4f"}]
    pod["status"] = {**pod.get("status", {}), "containerStatuses": containers}
    cluster.client.replace_status(PODS, pod)
    unknown = "a0" * 32  # of a container that has ended, or of a simulated card
    own = {"4f4f": 10 * 2**30 + 5, unknown: 2 * 2**30}
    more = {"processes": 2, "containers": own, "raisedSmPercent": 100}
    use(cluster, "a", vramBytes=12 * 2**30, smPercent=35, **more)

    lines = cluster.text(capsys, "top", "--containers").splitlines()
    found = json.loads(cluster.run(capsys, "top", "-o", "json").out)

    of_a, of_b, *_ = (line for line in lines if line.startswith("default/"))
    assert of_a.endswith(" 12Gi, 35% (may use 100%)")
    assert of_b.endswith(" -")
    assert [(*line.split()[:2], line.split()[-1]) for line in lines[-3:]] == [
        ("POD", "CONTAINER", "USED"),
        ("default/a", "a0a0a0a0a0a0", "2Gi"),
        ("default/a", "main", "10Gi"),
    ]
    used = [share["used"] for share in found["cards"][0]["shares"]]
    assert (used[0]["vramBytes"], used[1]) == (12 * 2**30, None)


def test_tables_cut_the_names_of_cards_to_what_is_unique(cluster: Cluster, capsys: Capture) -> None:
    cards = [replace(gpu(number), uuid=f"GPU-{number}6{UUID}") for number in (1, 2)]
    names_of_cards = cluster.add_node("node-01", *cards)
    cluster.schedule_pod("a", request({"vram": "20Gi"}))
    cluster.add_pod("b", request({"vram": "70Gi"}, count=2))

    shown = cluster.text(capsys, "top", "-o", "wide") + cluster.text(capsys, "why", "b")
    programs = cluster.run(capsys, "top", "-o", "json").out

    first, second = (f"gpu-{number}6{UUID[:2]}" for number in (1, 2))
    for line in (
        "SHARES HEALTH POOL UUID",
        *(f"node-01 {name} A100" for name in (first, second)),
        f"default/a node-01 {first} 312 20Gi - a gpu",
        f"node-01 {first} tflops 312 of 312 taken, 312 more do not fit",
    ):
        assert line in shown
    for name in names_of_cards:
        assert name not in shown
        assert name in programs


def test_top_shows_what_namespaces_have_of_their_quotas(
    cluster: Cluster, tmp_path: Path, capsys: Capture
) -> None:
    for name in ("a", "b"):
        cluster.add_pod(name, request({"vram": "20Gi", "tflops": "100"}))
    quotas = [
        quota_document(tflops="250", vram="1Ti", workers=9),
        quota_document(vram="10Gi", workers=9),
        quota_document(vram="1Gi"),
    ]
    for quota in quotas[:2]:
        quota["metadata"]["namespace"] = "default"
    with canned_api.served({f"GET {watch.QUOTAS}": {"items": quotas}}) as server:
        server.other_url = cluster.server.url
        cluster.kubeconfig = server.kubeconfig(tmp_path / "canned")
        lines = cluster.text(capsys, "top", "--namespaces").splitlines()
        in_team = ("--namespaces", "-n", "team-a", "-o")
        as_json, as_yaml = (
            cluster.run(capsys, "top", *in_team, form).out for form in ("json", "yaml")
        )

    assert lines == [
        "NAMESPACE CLAIMS AMOUNT USED QUOTA LEFT",
        "default 2 requests.tflops 200 250 50",
        "default 2 requests.vram 40Gi 10Gi 0",
        "default 2 workers 2 9 7",
        "team-a 0 requests.tflops 0 - -",
        "team-a 0 requests.vram 0 1Gi 1Gi",
    ]
    assert (
        json.loads(as_json)
        == yaml.safe_load(as_yaml)
        == {
            "namespaces": [
                {
                    "namespace": "team-a",
                    "claims": 0,
                    "amounts": {
                        "requests.tflops": {"used": "0", "quota": None, "left": None},
                        "requests.vram": {"used": "0", "quota": "1Gi", "left": "1Gi"},
                    },
                }
            ]
        }
    )


def test_card_that_is_gone_stays_listed_while_a_claim_holds_it(
    cluster: Cluster, shared: tuple[str, ...], capsys: Capture
) -> None:
    cluster.client.delete(SLICES, "slice-node-01")

    text = cluster.text(capsys, "top")

    assert "1 GPU gone, but held by claims" in text
    assert f"- {shared[0]} - - - 2 gone" in text


def test_whole_card_and_claim_without_a_pod(cluster: Cluster, capsys: Capture) -> None:
    (first, _) = cluster.add_node("node-01", *two_cards())
    of_card = {"request": "gpu", "driver": names.DRIVER, "pool": "p/node-01", "device": first}
    claim = cluster.client.create(CLAIMS, objects.claim(request(), name="a"))
    allocation = {"devices": {"results": [of_card]}}
    cluster.client.replace_status(CLAIMS, {**claim, "status": {"allocation": allocation}})

    text = cluster.text(capsys, "top")

    assert f"node-01 {first} A100 0 of 312 0 of 80Gi 1 ok" in text
    assert f"claim default/a (used by no pod) node-01 {first} all all" in text


def test_cluster_without_cards(cluster: Cluster, capsys: Capture) -> None:
    cluster.client.create(CLAIMS, objects.claim())

    assert cluster.text(capsys, "top", "-n", "other").splitlines() == [
        "0 nodes, 0 GPUs, 0 shares",
        "no node publishes GPUs: tensorfusion-dra doctor says what is missing",
    ]


def test_watch_prints_again_and_survives_an_error(capsys: Capture) -> None:
    answers, waits = iter(["one\n", "", "two\n"]), iter([True, True, False])

    def shown() -> str:
        answer = next(answers)
        if not answer:
            raise RetryableError("GET x: 503")
        return answer

    top.watch(shown, wait=lambda: next(waits), is_screen=False)

    assert capsys.readouterr().out == "one\ntensorfusion-dra: GET x: 503\ntwo\n"


@pytest.mark.parametrize("seconds", ["0", "nan", "inf"])
def test_interval_that_is_none(cluster: Cluster, capsys: Capture, seconds: str) -> None:
    ended = cluster.run(capsys, "top", "--watch", "--seconds", seconds)

    refusal = f"tensorfusion-dra: seconds: found {seconds}, expected 1 to 86400\n"
    assert (ended.code, ended.err) == (2, refusal)


def test_taint_of_a_rule_counts(cluster: Cluster, tmp_path: Path, capsys: Capture) -> None:
    taint = {"key": "maintenance", "effect": "NoSchedule"}
    rules = {"items": [{"spec": {"deviceSelector": {"device": "gpu-0"}, "taint": taint}}]}
    cards = objects.resource_slice(objects.shared("gpu-0"), objects.shared("gpu-1"))
    cards["spec"]["driver"] = names.DRIVER
    group = "GET /apis/resource.k8s.io"
    answers = {
        "GET /version": {"gitVersion": "v1.37.2"},
        f"{group}/v1/resourceslices": {"items": [cards]},
        f"{group}/v1/devicetaintrules": rules,
    }
    with canned_api.served(answers) as server:
        cluster.kubeconfig = server.kubeconfig(tmp_path / "canned")
        ended = cluster.run(capsys, "top")

    assert (ended.code, ended.out.count(" maintenance")) == (0, 1)
    assert "1 GPU tainted" in ended.out


def test_partition_that_nobody_can_get_is_not_unused(cluster: Cluster, capsys: Capture) -> None:
    cluster.add_node("node-01", partition(0), partition(1), taint="xid-79")

    summary, *_ = cluster.text(capsys, "top").splitlines()

    assert summary.endswith("2 partitions, 1 unused")


def test_top_and_why_show_partitions_and_who_has_them(cluster: Cluster, capsys: Capture) -> None:
    cluster.client.create(CLASSES, {**device_class(), "metadata": {"name": names.PARTITION_CLASS}})
    parts = [partition(number, card=1) for number in range(2)]
    cluster.add_node("node-01", gpu(0), *parts)
    wanted = objects.exactly(
        deviceClassName=names.PARTITION_CLASS,
        selectors=objects.expressions(f'device.attributes["{names.DRIVER}"].partition != ""'),
        tolerations=[{"key": names.TAINT_PARTITION, "operator": "Exists"}],
    )

    for name in ("a", "b", "c"):
        cluster.add_pod(name, wanted)
    cluster.schedule()

    summary, _, _, card, first, *_ = cluster.text(capsys, "top").splitlines()
    assert summary == (
        "1 node, 1 GPU, 2 shares; tflops 312 of 312 free; vram 80Gi of 80Gi free; "
        "2 partitions, 0 unused"
    )
    assert card.endswith("A100 312 of 312 80Gi of 80Gi 0 ok")
    assert first.endswith("A100 1g.10gb 0 of 40.444 0 of 9.5Gi 1 ok")
    use(cluster, "a", vramBytes=6 * 2**30, smPercent=0, processes=1, containers={})
    lines = cluster.text(capsys, "top").splitlines()
    assert next(line for line in lines if line.startswith("default/a")).endswith(" all 6Gi")
    waits, *rest = cluster.text(capsys, "why", "c").splitlines()
    assert waits.startswith("default/c waits: none of 3 cards fits: 2 are in use exclusively")
    assert "default/a (the whole device)" in "\n".join(rest)
    assert "whole card" not in "\n".join(rest)

"""What the chart's values for labels, images, the webhook and optional objects render."""

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support import forks, helm, rbac

Document = dict[str, Any]

NAME, COMPONENT = "app.kubernetes.io/name", "app.kubernetes.io/component"
NODE_PLUGIN = "tensorfusion-dra-node-plugin"
DIGEST = f"sha256:{'5a' * 32}"
WEBHOOK = {"webhook": {"enabled": True}}
EVERYTHING: Mapping[str, Any] = {
    "namespace": {"create": True},
    "crds": {"install": True},
    "claimTemplate": {"namespaces": ["team-a"]},
    "monitoring": {"enabled": True},
    "mps": {"daemon": {"enabled": True}},
    "settings": {"enforcer": "mps", "hypervisor-sockets": "/var/lib/kubelet/device-plugins"},
    **WEBHOOK,
}
MPS = {"settings": {"enforcer": "mps"}, "mps": {"daemon": {"enabled": True}}}
HAMI_CORE = {
    "settings": {"enforcer": "hami-core"},
    "hamiCore": {"install": {"enabled": True}},
}


def of_kind(documents: list[Document], kind: str) -> list[Document]:
    return [item for item in documents if item["kind"] == kind]


def pods(documents: list[Document]) -> Iterator[Document]:
    """Yield the pods of the workloads, each with its workload's selector, and the test's pod."""
    for item in documents:
        if item["kind"] in {"DaemonSet", "Deployment"}:
            yield {**item["spec"]["template"], "selector": item["spec"]["selector"]}
        elif item["kind"] == "Pod":
            yield item


def test_every_object_has_the_standard_labels_and_the_users() -> None:
    values = {**EVERYTHING, "commonLabels": {"team": "gpu", NAME: "of-the-user"}}

    for item in helm.render(values):
        labels = item["metadata"]["labels"]
        assert (
            labels.items()
            >= {
                NAME: "tensorfusion-dra",
                "app.kubernetes.io/part-of": "tensorfusion-dra",
                "app.kubernetes.io/instance": "tensorfusion-dra",
                "app.kubernetes.io/version": "0.1.0",
                "app.kubernetes.io/managed-by": "Helm",
                "helm.sh/chart": "tensorfusion-dra-0.1.0",
                "team": "gpu",
            }.items()
        ), item["metadata"]["name"]
        assert COMPONENT in labels


def test_selectors_and_pods_name_nothing_that_an_upgrade_changes() -> None:
    labels = {"commonLabels": {"team": "gpu"}, "nodePlugin": {"podLabels": {"a": "b"}}}
    webhook = {**WEBHOOK["webhook"], "podLabels": {"c": "d"}}

    found = {
        pod["metadata"]["labels"][COMPONENT]: pod
        for values in ({**labels, **MPS}, {**labels, **HAMI_CORE, "webhook": webhook})
        for pod in pods(helm.render(values))
        if "selector" in pod
    }

    assert {name: pod["metadata"]["labels"] for name, pod in found.items()} == {
        name: {NAME: "tensorfusion-dra", COMPONENT: name, "team": "gpu", **own}
        for name, own in {
            "node-plugin": {"a": "b"},
            "webhook": {"c": "d"},
            "mps": {},
            "hami-core": {},
        }.items()
    }
    for name, pod in found.items():
        assert pod["selector"] == {"matchLabels": {NAME: "tensorfusion-dra", COMPONENT: name}}


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        ({}, "tensorfusion-dra:0.1.0"),
        ({"repository": "registry.example/dra", "tag": "dev"}, "registry.example/dra:dev"),
        ({"digest": DIGEST, "tag": "dev"}, f"tensorfusion-dra@{DIGEST}"),
    ],
)
def test_all_pods_of_the_drivers_image_take_its_tag_or_digest(
    image: Mapping[str, str], expected: str
) -> None:
    images = {
        container["image"]
        for pod in pods(helm.render({"image": image, **MPS, **WEBHOOK}))
        for field in ("initContainers", "containers")
        for container in pod["spec"].get(field, ())
    }

    assert images == {expected}


@pytest.mark.parametrize(("replicas", "unavailable"), [(1, []), (2, [1]), (3, [1])])
def test_a_drain_takes_at_most_one_pod_of_a_webhook_that_has_several(
    replicas: int, unavailable: list[int]
) -> None:
    rendered = helm.render({"webhook": {"enabled": True, "replicas": replicas}})

    (deployment,) = of_kind(rendered, "Deployment")
    budgets = of_kind(rendered, "PodDisruptionBudget")
    assert [budget["spec"]["maxUnavailable"] for budget in budgets] == unavailable
    for budget in budgets:
        assert budget["spec"]["selector"] == deployment["spec"]["selector"]


def test_webhooks_pods_take_the_values_for_scheduling() -> None:
    scheduling = {
        "priorityClassName": "of-the-team",
        "nodeSelector": {"kubernetes.io/os": "linux", "pool": "system"},
        "affinity": {"nodeAffinity": {}},
        "tolerations": [{"key": "system", "operator": "Exists"}],
    }

    (deployment,) = of_kind(helm.render({"webhook": {"enabled": True, **scheduling}}), "Deployment")

    spec = deployment["spec"]["template"]["spec"]
    assert {name: spec[name] for name in scheduling} == scheduling
    # Two on a node only if there is no other one that takes them.
    (spread,) = spec["topologySpreadConstraints"]
    assert spread["labelSelector"] == deployment["spec"]["selector"]
    assert (spread["topologyKey"], spread["maxSkew"]) == ("kubernetes.io/hostname", 1)
    assert (spread["whenUnsatisfiable"], spread["nodeTaintsPolicy"]) == ("DoNotSchedule", "Honor")


@pytest.mark.parametrize(
    ("values", "variable", "may_get_pods"),
    [
        ({}, None, True),
        ({"settings": {"read-pods": False}}, "false", False),
        (WEBHOOK, "false", False),
        ({**WEBHOOK, "settings": {"read-pods": True}}, "true", True),
        # These need to know which containers use a claim.
        ({**WEBHOOK, "settings": {"enforcer": "hami-core"}}, None, True),
        ({**WEBHOOK, "settings": {"enforcer": "mps"}}, None, True),
        # It needs the pod that it marks.
        ({**WEBHOOK, "settings": {"hypervisor-sockets": "/sockets"}}, "false", True),
    ],
)
def test_pods_are_not_read_where_the_webhook_copies_their_annotations(
    values: Mapping[str, Any], variable: str | None, may_get_pods: bool
) -> None:
    rendered = helm.render(values)

    (plugin,) = (
        item
        for item in rendered
        if item["metadata"]["name"] == NODE_PLUGIN and item["kind"] == "DaemonSet"
    )
    (container,) = plugin["spec"]["template"]["spec"]["containers"]
    variables = {each["name"]: each.get("value") for each in container["env"]}
    rights = {(each.resource, each.verb) for each in rbac.rights(rendered, NODE_PLUGIN)}
    assert variables.get("TENSORFUSION_DRA_READ_PODS") == variable
    assert (("pods", "get") in rights) == may_get_pods


def test_definitions_are_installed_on_request_and_outlive_the_release() -> None:
    files = sorted((helm.CHART / "tensor-fusion-crds").iterdir())
    kind = "CustomResourceDefinition"

    definitions = of_kind(helm.render({"crds": {"install": True}}), kind)

    assert of_kind(helm.render(), kind) == []
    assert [item["spec"] for item in definitions] == [
        yaml.safe_load(file.read_text())["spec"] for file in files
    ]
    for item in definitions:
        assert item["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}


def test_namespace_has_its_pod_security_level_and_outlives_the_release() -> None:
    (namespace,) = of_kind(helm.render({"namespace": {"create": True}}), "Namespace")

    metadata = namespace["metadata"]
    assert metadata["name"] == helm.NAMESPACE
    assert metadata["labels"]["pod-security.kubernetes.io/enforce"] == "privileged"
    assert metadata["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert of_kind(helm.render(), "Namespace") == []


def test_pod_of_helm_test_ends_well_if_and_only_if_it_got_its_share(tmp_path: Path) -> None:
    hooks = [item for item in helm.render() if "annotations" in item["metadata"]]
    for item in hooks:
        assert item["metadata"]["annotations"]["helm.sh/hook"] == "test"
        item["metadata"]["namespace"] = "default"
    file = tmp_path / "test.yaml"
    file.write_text(yaml.safe_dump_all(hooks))
    (pod,) = of_kind(hooks, "Pod")
    (container,) = pod["spec"]["containers"]

    simulated = forks.run("simulate", "-o", "json", "--from", str(file))
    (share,) = json.loads(simulated.stdout)["pods"]

    assert share["phase"] == "Running"
    for environment, status in ((share["env"], 0), ({}, 1)):
        ended = subprocess.run(
            container["command"],
            env={"PATH": os.environ["PATH"], **environment},
            capture_output=True,
            text=True,
            check=False,
        )
        assert ended.returncode == status
        assert bool(ended.stdout) == (status == 0)

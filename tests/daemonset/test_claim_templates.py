"""Claim templates of namespaces through releases of helm, in whatever order people act."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support import helm, helm_cluster
from tests.support.helm_cluster import HelmCluster, Json
from tests.support.installation import NO_GPUS

pytestmark = pytest.mark.process

SELF_SIGNED = {"enabled": True, "certificate": {"source": "self-signed"}}
LABEL = {"tensor-fusion.ai/claim-template": "true"}
NAMED = {"claimTemplate": {"namespaces": ["team-a"]}}
EARLIER = """
{{- range include "template-namespaces" . | fromJsonArray }}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: tensor-fusion-gpu-template, namespace: {{ . }}, labels: {a: b}}
spec:
  {{- include "claim-template-spec" . | nindent 2 }}
{{- end }}
"""
"""The templates of an earlier chart, which belonged to the release."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[HelmCluster]:
    with helm_cluster.cluster(tmp_path, {**NO_GPUS, "webhook": SELF_SIGNED}) as found:
        add_team(found)
        yield found


def add_team(cluster: HelmCluster, **labels: str) -> None:
    metadata = {"name": "team-a", "labels": labels}
    cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})


def plain() -> Json:
    found: Json = yaml.safe_load((helm.ROOT / "daemonset" / "claim-template.yaml").read_text())
    return found


def changed() -> Json:
    found = plain()
    found["spec"]["spec"]["devices"]["requests"][0]["exactly"]["selectors"] = [
        {"cel": {"expression": "true"}}
    ]
    return found


def stored(cluster: HelmCluster) -> Json:
    return cluster.stored[cluster.path(plain(), "team-a")]


def earlier_chart(folder: Path) -> Path:
    chart = Path(shutil.copytree(helm.CHART, folder / "earlier"))
    file = chart / "templates" / "claim-template.yaml"
    definition, end, _ = file.read_text().partition("{{- end }}\n")
    file.write_text(definition + end + EARLIER)
    return chart


@pytest.mark.parametrize(
    ("steps", "values"),
    [
        (("label", "upgrade"), {}),
        (("label", "apply", "upgrade"), {}),
        (("apply", "upgrade"), NAMED),
        (("upgrade",), NAMED),
        (("label", "upgrade", "apply"), {}),
    ],
)
def test_upgrades_give_a_namespace_its_template_and_leave_one_that_is_there(
    cluster: HelmCluster, steps: tuple[str, ...], values: dict[str, Any]
) -> None:
    cluster.helm("install", helm.CHART)
    notes = ""
    for step in steps:
        if step == "label":
            add_team(cluster, **LABEL)
        elif step == "apply":
            cluster.apply(plain(), "team-a")
        else:
            notes = cluster.helm("upgrade", helm.CHART, **values)
    first = stored(cluster)

    for _ in range(2):
        assert "WARNING: the claim template" not in cluster.helm("upgrade", helm.CHART, **values)
    cluster.helm("rollback")

    assert "that have the claim template: team-a\n" in notes
    assert stored(cluster) == first
    assert first["spec"] == plain()["spec"]
    assert first["metadata"]["labels"].items() >= plain()["metadata"]["labels"].items()


def test_template_of_somebodys_own_is_left_alone_and_named(cluster: HelmCluster) -> None:
    cluster.helm("install", helm.CHART, **NAMED)
    cluster.apply(changed(), "team-a")
    before = stored(cluster)

    notes = cluster.helm("upgrade", helm.CHART, **NAMED)

    assert "WARNING: the claim template of namespace team-a differs from the chart's" in notes
    assert stored(cluster) == before


def test_template_that_belongs_to_an_earlier_release_survives_all_upgrades(
    cluster: HelmCluster, tmp_path: Path
) -> None:
    cluster.helm("install", earlier_chart(tmp_path), **NAMED)
    uid = stored(cluster)["metadata"]["uid"]

    for _ in range(3):
        cluster.helm("upgrade", helm.CHART, **NAMED)
        assert stored(cluster)["metadata"]["uid"] == uid
        assert stored(cluster)["spec"] == plain()["spec"]
    cluster.apply(changed(), "team-a")
    before = stored(cluster)
    cluster.helm("upgrade", helm.CHART, **NAMED)
    assert stored(cluster) == before


def test_templates_outlive_the_release_and_serve_the_next_one(cluster: HelmCluster) -> None:
    cluster.helm("install", helm.CHART, **NAMED)
    before = stored(cluster)

    cluster.helm("uninstall")
    cluster.helm("install", helm.CHART, **NAMED)

    assert stored(cluster) == before

"""Kustomize and the chart render the same objects, and these are valid for Kubernetes."""

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tests.support import chart, go_template, kubernetes_schemas, kustomize

ROOT = Path(__file__).parents[2] / "daemonset"
CHART = ROOT / "chart"
VERSIONS = ("1.34", "1.35", "1.36", "1.37")

KINDS_OF_OTHERS = ("cert-manager.io/", "monitoring.coreos.com/")

Document = dict[str, Any]

NO_GPUS = {"nvidia": {"enabled": False}, "settings": {"simulated-gpus": "2xA100-SXM4-80GB"}}
MPS_DAEMON = {"settings": {"enforcer": "mps"}, "mps": {"daemon": {"enabled": True}}}
WEBHOOK = {"webhook": {"enabled": True}}

SAME: Mapping[str, tuple[str, tuple[str, ...], Mapping[str, Any]]] = {
    "nvidia": ("nvidia", (), {}),
    "simulated": ("simulated", (), NO_GPUS),
    "k8s-1.34": ("k8s-1.34", (), {"granularStatus": False}),
    "privileged": ("nvidia", ("privileged",), {"nvidia": {"privileged": True}}),
    "driver-container": (
        "nvidia",
        ("driver-container",),
        {"nvidia": {"driverRoot": "/run/nvidia/driver"}},
    ),
    "selinux": ("nvidia", ("selinux",), {"nodePlugin": {"seLinuxType": "spc_t"}}),
    "device-metadata": (
        "nvidia",
        ("device-metadata",),
        {"settings": {"device-metadata": True}},
    ),
    "gpupools": ("nvidia", ("gpupools",), {"settings": {"pool-source": "node-labels"}}),
    "hami-core": ("nvidia", ("hami-core",), {"settings": {"enforcer": "hami-core"}}),
    "hami-core-install": (
        "nvidia",
        ("hami-core", "hami-core-install"),
        {"settings": {"enforcer": "hami-core"}, "hamiCore": {"install": {"enabled": True}}},
    ),
    "hypervisor": (
        "nvidia",
        ("hypervisor",),
        {"settings": {"hypervisor-sockets": "/var/lib/kubelet/device-plugins"}},
    ),
    "mps": ("nvidia", ("mps",), {"settings": {"enforcer": "mps"}}),
    "mps-daemon": ("nvidia", ("mps", "mps-daemon"), MPS_DAEMON),
    "mps-daemon-privileged": (
        "nvidia",
        ("privileged", "mps", "mps-daemon", "mps-daemon-privileged"),
        {**MPS_DAEMON, "nvidia": {"privileged": True}},
    ),
    "mps-exclusive-process": (
        "nvidia",
        ("mps", "mps-daemon", "mps-exclusive-process"),
        {**MPS_DAEMON, "mps": {"daemon": {"enabled": True}, "exclusiveProcess": True}},
    ),
    "extended-resource": (
        "nvidia",
        ("extended-resource",),
        {"deviceClass": {"extendedResourceName": "tensor-fusion.ai/gpu"}},
    ),
    "monitoring": ("nvidia", ("monitoring",), {"monitoring": {"enabled": True}}),
}
"""Overlay, components, and the chart's values that render the same."""


def key(document: Document) -> tuple[str, str, str]:
    metadata = document["metadata"]
    return document["kind"], metadata.get("namespace", ""), metadata["name"]


def by_key(documents: list[Document]) -> dict[tuple[str, str, str], Document]:
    found = {key(document): document for document in documents}
    assert len(found) == len(documents)
    # The chart has no Namespace: `helm install --create-namespace` creates it.
    return {name: document for name, document in found.items() if name[0] != "Namespace"}


@functools.cache
def check_valid(document: str, version: str) -> None:
    """Raise an error if Kubernetes would reject the object, given as JSON.

    Results are cached, because overlays share most of their objects. Kubernetes has no schemas of
    the kinds that others define.
    """
    if not json.loads(document)["apiVersion"].startswith(KINDS_OF_OTHERS):
        kubernetes_schemas.check(json.loads(document), version)


def overlay(name: str, *components: str) -> list[Document]:
    return kustomize.with_components(
        ROOT / "overlays" / name, *(ROOT / "components" / component for component in components)
    )


@pytest.mark.parametrize(("name", "components", "values"), SAME.values(), ids=SAME)
def test_chart_and_overlay_are_equal(
    name: str, components: tuple[str, ...], values: Mapping[str, Any]
) -> None:
    assert by_key(chart.render(CHART, values)) == by_key(overlay(name, *components))


def test_chart_webhook_and_cert_manager_overlay_are_equal() -> None:
    with_webhook = by_key(chart.render(CHART, WEBHOOK))
    without = by_key(chart.render(CHART))

    added = {name: with_webhook[name] for name in with_webhook.keys() - without.keys()}

    assert added == by_key(overlay("webhook"))


def test_chart_passes_the_nodes_enforcer_to_the_webhook() -> None:
    rendered = chart.render(CHART, {**WEBHOOK, "settings": {"enforcer": "hami-core"}})

    (webhook,) = [item for item in rendered if item["kind"] == "Deployment"]
    (container,) = webhook["spec"]["template"]["spec"]["containers"]
    assert "--enforcer=hami-core" in container["args"]


def test_chart_creates_the_plain_claim_template_in_each_namespace() -> None:
    plain = yaml.safe_load((ROOT / "claim-template.yaml").read_text())

    rendered = chart.render(CHART, {"claimTemplate": {"namespaces": ["team-a", "team-b"]}})

    templates = [item for item in rendered if item["kind"] == "ResourceClaimTemplate"]
    assert templates == [
        {**plain, "metadata": {**plain["metadata"], "namespace": namespace}}
        for namespace in ("team-a", "team-b")
    ]


def test_chart_adds_variables_that_are_no_settings() -> None:
    variables = [
        {"name": "OTEL_TRACES_SAMPLER", "value": "parentbased_traceidratio"},
        {"name": "HEADERS", "valueFrom": {"secretKeyRef": {"name": "collector", "key": "token"}}},
    ]

    values = {"settings": {"otlp-endpoint": "http://c:4318"}, "nodePlugin": {"env": variables}}
    rendered = by_key(chart.render(CHART, values))

    plugin = rendered["DaemonSet", "tensorfusion-dra", "tensorfusion-dra-node-plugin"]
    (container,) = plugin["spec"]["template"]["spec"]["containers"]
    endpoint = {"name": "TENSORFUSION_DRA_OTLP_ENDPOINT", "value": "http://c:4318"}
    assert container["env"][-3:] == [endpoint, *variables]


def test_every_configuration_trusts_the_self_signed_certificate() -> None:
    values = {"webhook": {"enabled": True, "certificate": {"source": "self-signed"}}}

    rendered = chart.render(CHART, values)

    (secret,) = [item for item in rendered if item["kind"] == "Secret"]
    configurations = [item for item in rendered if item["kind"].endswith("WebhookConfiguration")]
    trusted = {
        webhook["clientConfig"]["caBundle"]
        for item in configurations
        for webhook in item["webhooks"]
    }
    assert trusted == {secret["data"]["ca.crt"]}
    assert secret["metadata"]["name"] == "tensorfusion-dra-webhook-tls"
    assert not [item for item in rendered if item["kind"] == "Certificate"]


def test_chart_notes_give_the_next_steps() -> None:
    with_templates = {**WEBHOOK, "claimTemplate": {"namespaces": ["team-a", "team-b"]}}

    plain, without, complete = (
        chart.notes(CHART, values) for values in ({}, WEBHOOK, with_templates)
    )

    names = {(item["kind"], item["metadata"]["name"]) for item in chart.render(CHART)}
    assert ("DaemonSet", "tensorfusion-dra-node-plugin") in names
    for notes in (plain, without, complete):
        assert f"--namespace {chart.NAMESPACE} exec daemonset/tensorfusion-dra-node-plugin" in notes
    assert "DeviceClass tensor-fusion.ai" in plain
    assert "template: none yet (claimTemplate.namespaces)" in without
    assert "template: team-a team-b\n" in complete


def test_monitoring_without_metrics_is_refused() -> None:
    values = {"monitoring": {"enabled": True}, "settings": {"metrics": "false"}}

    with pytest.raises(go_template.TemplateError, match="metrics=false, expected the metrics"):
        chart.render(CHART, values)


def test_chart_adds_labels_by_which_prometheus_and_grafana_select() -> None:
    values = {"enabled": True, "labels": {"release": "a"}, "dashboardLabels": {"folder": "b"}}
    rendered = chart.render(CHART, {"monitoring": values})

    labels = {item["kind"]: item["metadata"].get("labels", {}) for item in rendered}
    assert labels["PodMonitor"]["release"] == labels["PrometheusRule"]["release"] == "a"
    assert labels["ConfigMap"]["folder"] == "b"
    assert "release" not in labels["NetworkPolicy"]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", sorted(path.name for path in (ROOT / "overlays").iterdir()))
def test_every_overlay_is_valid_for_kubernetes(name: str, version: str) -> None:
    for document in overlay(name):
        check_valid(json.dumps(document, sort_keys=True), version)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("name", "components", "values"), SAME.values(), ids=SAME)
def test_every_component_is_valid_for_kubernetes(
    name: str, components: tuple[str, ...], values: Mapping[str, Any], version: str
) -> None:
    for document in overlay(name, *components):
        check_valid(json.dumps(document, sort_keys=True), version)


@pytest.mark.parametrize("version", VERSIONS)
def test_options_of_the_chart_alone_are_valid_for_kubernetes(version: str) -> None:
    values = {
        "imagePullSecrets": [{"name": "registry"}],
        "kubeletRoot": "/var/lib/k0s/kubelet",
        "nvidia": {"driverRoot": "/run/nvidia/driver", "runtimeClass": "", "toolkitSpecs": ""},
        "nodePlugin": {
            "podAnnotations": {"a": "b"},
            "affinity": {"nodeAffinity": {}},
            "env": [{"name": "OTEL_TRACES_SAMPLER", "value": "always_off"}],
        },
        "webhook": {"enabled": True, "certificate": {"source": "self-signed"}},
        "settings": {"poll-seconds": 10, "read-pods": False},
    }

    for document in chart.render(CHART, values):
        check_valid(json.dumps(document, sort_keys=True), version)


@pytest.mark.parametrize(
    "values",
    [
        {"setting": {}},
        {"settings": {"no-such-setting": 1}},
        {"settings": {"preload": "none"}},
        {"settings": {"kubelet-root": "/elsewhere"}},
        {"settings": {"poll-seconds": "often"}},
        {"nvidia": {"driverRoot": "usr"}},
        {"nodePlugin": {"env": [{"name": "TENSORFUSION_DRA_LOG_LEVEL", "value": "debug"}]}},
        {"webhook": {"replicas": 0}},
        {"mps": {"daemon": {"defaultActiveThreadPercentage": 101}}},
        {"mps": {"daemon": {"defaultPinnedMemory": "16Gi"}}},
        {"mps": {"daemon": {"shmSize": "50 %"}}},
        {"hamiCore": {"install": {"version": "../v1"}}},
        {"hamiCore": {"install": {"folder": "vgpu"}}},
        {"hamiCore": {"install": {"image": ""}}},
        {"monitoring": {"interval": "half a minute"}},
        {"monitoring": {"prometheus": {"namespace": ""}}},
    ],
)
def test_unknown_and_invalid_values_are_rejected(values: Mapping[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        chart.render(CHART, values)

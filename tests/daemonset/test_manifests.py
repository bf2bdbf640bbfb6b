"""The chart renders objects that are valid for Kubernetes, and the static manifests are its."""

import functools
import json
from collections.abc import Mapping
from typing import Any

import pytest
import yaml

from tests.support import helm, installation, kubernetes_schemas
from tests.support.helm import ROOT, Document, RefusedValuesError
from tests.support.installation import WEBHOOK

VERSIONS = ("1.34", "1.35", "1.36", "1.37")

KINDS_OF_OTHERS = ("cert-manager.io/", "monitoring.coreos.com/")

MPS_DAEMON = {"settings": {"enforcer": "mps"}, "mps": {"daemon": {"enabled": True}}}

VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "nvidia": {},
    "simulated": installation.NO_GPUS,
    "privileged": {"nvidia": {"privileged": True}},
    "driver-container": {"nvidia": {"driverRoot": "/run/nvidia/driver"}},
    "selinux": {"nodePlugin": {"seLinuxType": "spc_t"}},
    "device-metadata": {"settings": {"device-metadata": True}},
    "gpupools": {"settings": {"pool-source": "node-labels"}},
    "hami-core": {"settings": {"enforcer": "hami-core"}},
    "hami-core-install": {
        "settings": {"enforcer": "hami-core"},
        "hamiCore": {"install": {"enabled": True}},
    },
    "hypervisor": {"settings": {"hypervisor-sockets": "/var/lib/kubelet/device-plugins"}},
    "mps": {"settings": {"enforcer": "mps"}},
    "mps-daemon": MPS_DAEMON,
    "mps-daemon-privileged": {**MPS_DAEMON, "nvidia": {"privileged": True}},
    "mps-exclusive-process": {
        **MPS_DAEMON,
        "mps": {"daemon": {"enabled": True}, "exclusiveProcess": True},
    },
    "extended-resource": {"deviceClass": {"extendedResourceName": "tensor-fusion.ai/gpu"}},
    "monitoring": {"monitoring": {"enabled": True}},
    "webhook": WEBHOOK,
}
"""The chart's values of each way to install it."""


def key(document: Document) -> tuple[str, str, str]:
    metadata = document["metadata"]
    return document["kind"], metadata.get("namespace", ""), metadata["name"]


def by_key(documents: list[Document]) -> dict[tuple[str, str, str], Document]:
    found = {key(document): document for document in documents}
    assert len(found) == len(documents)
    return found


@functools.cache
def check_valid(document: str, version: str) -> None:
    """Raise an error if Kubernetes would reject the object, given as JSON.

    Results are cached, because variants share most of their objects. Kubernetes has no schemas of
    the kinds that others define.
    """
    if not json.loads(document)["apiVersion"].startswith(KINDS_OF_OTHERS):
        kubernetes_schemas.check(json.loads(document), version)


@pytest.mark.parametrize("name", installation.NAMES)
def test_static_manifests_are_rendered_from_the_chart(name: str) -> None:
    found = (installation.FOLDER / f"{name}.yaml").read_text(encoding="utf-8")

    assert found == installation.rendered(name), "run `make manifests`"


def test_chart_passes_the_nodes_enforcer_to_the_webhook() -> None:
    rendered = helm.render({**WEBHOOK, "settings": {"enforcer": "hami-core"}})

    (webhook,) = [item for item in rendered if item["kind"] == "Deployment"]
    (container,) = webhook["spec"]["template"]["spec"]["containers"]
    assert "--enforcer=hami-core" in container["args"]


def test_chart_creates_the_plain_claim_template_in_each_namespace() -> None:
    plain = yaml.safe_load((ROOT / "daemonset" / "claim-template.yaml").read_text())

    rendered = helm.render({"claimTemplate": {"namespaces": ["team-a", "team-b"]}})

    templates = {
        item["metadata"]["namespace"]: item
        for item in rendered
        if item["metadata"]["name"] == plain["metadata"]["name"]
    }
    assert list(templates) == ["team-a", "team-b"]
    for found in templates.values():
        assert found["spec"] == plain["spec"]
        assert found["metadata"]["labels"].items() >= plain["metadata"]["labels"].items()


def test_chart_adds_variables_that_are_no_settings() -> None:
    variables = [
        {"name": "RACK_URL", "value": "http://rack.example"},
        {"name": "RACK_TOKEN", "valueFrom": {"secretKeyRef": {"name": "rack", "key": "token"}}},
    ]

    values = {"settings": {"log-level": "debug"}, "nodePlugin": {"env": variables}}
    rendered = by_key(helm.render(values))

    plugin = rendered["DaemonSet", "tensorfusion-dra", "tensorfusion-dra-node-plugin"]
    (container,) = plugin["spec"]["template"]["spec"]["containers"]
    level = {"name": "TENSORFUSION_DRA_LOG_LEVEL", "value": "debug"}
    assert container["env"][-3:] == [level, *variables]


def test_webhook_admits_only_clients_of_the_named_ca() -> None:
    rendered = helm.render({"webhook": {"enabled": True, "clientCA": "api-server-ca"}})

    (webhook,) = [item for item in rendered if item["kind"] == "Deployment"]
    pod = webhook["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert "--client-ca-file=/client-ca/ca.crt" in container["args"]
    (mount,) = [item for item in container["volumeMounts"] if item["mountPath"] == "/client-ca"]
    (volume,) = [item for item in pod["volumes"] if item["name"] == mount["name"]]
    assert volume["secret"]["secretName"] == "api-server-ca"


def test_every_configuration_trusts_the_self_signed_certificate() -> None:
    values = {"webhook": {"enabled": True, "certificate": {"source": "self-signed"}}}

    rendered = helm.render(values)

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

    plain, without, complete = (helm.notes(values) for values in ({}, WEBHOOK, with_templates))

    names = {(item["kind"], item["metadata"]["name"]) for item in helm.render()}
    assert ("DaemonSet", "tensorfusion-dra-node-plugin") in names
    for notes in (plain, without, complete):
        assert f"--namespace {helm.NAMESPACE} exec daemonset/tensorfusion-dra-node-plugin" in notes
    assert "DeviceClass tensor-fusion.ai" in plain
    assert "template: none yet (claimTemplate.namespaces)" in without
    assert "template: team-a team-b\n" in complete


def test_monitoring_without_metrics_is_refused() -> None:
    values = {"monitoring": {"enabled": True}, "settings": {"metrics": "false"}}

    with pytest.raises(RefusedValuesError, match="metrics=false, expected the metrics"):
        helm.render(values)


def test_chart_adds_labels_by_which_prometheus_and_grafana_select() -> None:
    values = {"enabled": True, "labels": {"release": "a"}, "dashboardLabels": {"folder": "b"}}
    rendered = helm.render({"monitoring": values})

    labels = {item["kind"]: item["metadata"].get("labels", {}) for item in rendered}
    assert labels["PodMonitor"]["release"] == labels["PrometheusRule"]["release"] == "a"
    assert labels["ConfigMap"]["folder"] == "b"
    assert "release" not in labels["NetworkPolicy"]


@pytest.mark.parametrize("version", VERSIONS)
def test_every_static_manifest_is_valid_for_kubernetes(version: str) -> None:
    for document in installation.documents(*installation.NAMES):
        check_valid(json.dumps(document, sort_keys=True), version)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("values", VARIANTS.values(), ids=VARIANTS)
def test_every_variant_is_valid_for_kubernetes(values: Mapping[str, Any], version: str) -> None:
    for document in helm.render(values, kube_version=f"{version}.0"):
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
            "env": [{"name": "RACK_URL", "value": "http://rack.example"}],
        },
        "webhook": {"enabled": True, "certificate": {"source": "self-signed"}, "clientCA": "ca"},
        "settings": {"poll-seconds": 10, "read-pods": False},
    }

    for document in helm.render(values):
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
    with pytest.raises(RefusedValuesError, match="schema"):
        helm.render(values)

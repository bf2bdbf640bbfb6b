"""The chart renders valid objects from its values and the settings, and the manifests are its.

hack/webhook-cert prints the webhook's manifest with a certificate that an API server accepts.
"""

import argparse
import base64
import copy
import functools
import json
import os
import ssl
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml

from tensorfusion_dra.app.doctor import container_runtime, objects
from tensorfusion_dra.app.shared import setting_sources
from tensorfusion_dra.app.shared.node_settings import Settings
from tensorfusion_dra.app.webhook import command
from tensorfusion_dra.app.webhook.settings import WebhookSettings
from tensorfusion_dra.core.admission.dialects import Dialect
from tests.support import canned_api, forks, helm, installation, kubernetes_schemas, yaml_text
from tests.support.chart_variants import MPS_DAEMON, VARIANTS
from tests.support.helm import ROOT, Document, RefusedValuesError
from tests.support.helm_cluster import discovery, plural, root
from tests.support.installation import NO_GPUS, WEBHOOK
from tests.support.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.process

TENSOR_FUSION: Mapping[str, Any] = {"enforcer": "tensor-fusion"}

VERSIONS = ("1.35", "1.36", "1.37")

KINDS_OF_OTHERS = ("cert-manager.io/", "monitoring.coreos.com/")


@functools.cache
def check_object(text: str) -> None:
    """Raise an error if a supported Kubernetes would reject the object, given as JSON.

    Results are cached, because variants share most of their objects. Kubernetes has no schemas of
    the kinds that others define.
    """
    document = json.loads(text)
    for version in () if document["apiVersion"].startswith(KINDS_OF_OTHERS) else VERSIONS:
        kubernetes_schemas.check(document, version)


def test_the_chart_knows_what_the_driver_declares() -> None:
    found = installation.DECLARED.read_text(encoding="utf-8")

    assert found == installation.declared(), "run `make manifests`"


@pytest.mark.parametrize("name", installation.NAMES)
def test_static_manifests_are_rendered_from_the_chart(name: str) -> None:
    found = (installation.FOLDER / f"{name}.yaml").read_text(encoding="utf-8")

    assert found == installation.rendered(name), "run `make manifests`"


CASES: list[Any] = yaml_text.load_all((Path(__file__).parent / "values.yaml").read_text())


def contains(found: object, part: object) -> bool:
    """Return True if all fields and entries of the part are in what was found."""
    if isinstance(part, dict) and isinstance(found, dict):
        return all(key in found and contains(found[key], each) for key, each in part.items())
    if isinstance(part, list) and isinstance(found, list):
        return all(any(contains(entry, each) for entry in found) for each in part)
    return found == part


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case["title"]))
def test_values_change_these_parts_of_a_release(case: Any) -> None:
    rendered = helm.render(case["values"])

    for is_there, parts in ((True, case.get("has", ())), (False, case.get("lacks", ()))):
        for part in parts:
            assert any(contains(item, part) for item in rendered) is is_there, part
    for whole in case.get("equal", ()):
        found = helm.one(rendered, whole["kind"], whole["name"])
        assert functools.reduce(dict.__getitem__, whole["at"].split("."), found) == whole["value"]


@pytest.mark.parametrize(
    ("webhook", "settings", "expected"),
    [
        ({}, {}, {}),
        ({"defaultEnabled": True}, {}, {"default_enabled": True}),
        ({"clientCA": "api-server-ca"}, {}, {"client_ca_file": "/client-ca/ca.crt"}),
        ({}, {"enforcer": "hami-core"}, {"enforcer": "hami-core"}),
        ({}, {"enforcer": "hami-core,mps"}, {}),
    ],
)
def test_webhook_has_its_default_settings_unless_these_values_change_them(
    webhook: Mapping[str, Any], settings: Mapping[str, Any], expected: Mapping[str, Any]
) -> None:
    rendered = helm.render({"webhook": {"enabled": True, **webhook}, "settings": settings})
    template = helm.one(rendered, "Deployment")["spec"]["template"]
    verb, *flags = template["spec"]["containers"][0]["args"]
    parser = argparse.ArgumentParser()
    command.add_flags(parser)
    found = setting_sources.values(WebhookSettings, parser.parse_args(flags), {})

    assert verb == "webhook"
    assert WebhookSettings(**found) == WebhookSettings(**expected)


@pytest.mark.parametrize("chosen", [[], ["kai"], ["hami", "kserve"]])
def test_chart_translates_the_chosen_dialects_and_none_by_default(chosen: list[str]) -> None:
    values: dict[str, object] = {"enabled": True, **({"dialects": chosen} if chosen else {})}

    found = helm.one(helm.render({"webhook": values}), "MutatingWebhookConfiguration")

    names = [entry["name"].partition(".")[0] for entry in found["webhooks"]]
    assert names == [*chosen, "pods", "claims", "templates", "changed-limits"]


@pytest.mark.process
@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({"shareClasses": {"quarter": {"requests": {"vram": "20Gi"}}}}, "shareClasses: found it"),
        ({"webhook": {"dialects": ["hami"]}}, "webhook.dialects: found it without webhook.enabled"),
        ({"webhook": {"classes": ["mine"]}}, "webhook.classes: found it without webhook.enabled"),
        ({"settings": {"tflops-oversell-ratio": -5}}, "tflops-oversell-ratio"),
    ],
)
def test_values_that_would_do_nothing_are_refused(values: dict[str, object], error: str) -> None:
    with pytest.raises(RefusedValuesError, match=error):
        helm.render(values)


def test_chart_knows_the_dialects_of_the_webhook() -> None:
    schema = json.loads((ROOT / "daemonset" / "chart" / "values.schema.json").read_text())

    items = schema["properties"]["webhook"]["properties"]["dialects"]["items"]
    assert items["enum"] == [str(dialect) for dialect in Dialect]


def test_chart_creates_the_plain_claim_template_in_each_namespace() -> None:
    plain = yaml.safe_load((ROOT / "daemonset" / "claim-template.yaml").read_text())
    name, labels = plain["metadata"]["name"], plain["metadata"]["labels"]

    rendered = helm.render({"claimTemplate": {"namespaces": ["team-a", "team-b"]}})

    found = [item for item in rendered if item["metadata"]["name"] == name]
    assert [each["metadata"]["namespace"] for each in found] == ["team-a", "team-b"]
    for each in found:
        assert each["spec"] == plain["spec"]
        assert each["metadata"]["labels"].items() >= labels.items()


def test_every_configuration_trusts_the_self_signed_certificate() -> None:
    rendered = helm.render(SELF_SIGNED)

    secret = helm.one(rendered, "Secret", "tensorfusion-dra-webhook-tls")
    trusted = {
        webhook["clientConfig"]["caBundle"]
        for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
        for webhook in helm.one(rendered, kind)["webhooks"]
    }
    assert trusted == {secret["data"]["ca.crt"]}
    assert not [item for item in rendered if item["kind"] == "Certificate"]


def test_chart_notes_give_the_next_steps() -> None:
    with_templates = {**WEBHOOK, "claimTemplate": {"namespaces": ["team-a", "team-b"]}}

    for values, text in (
        ({}, "DeviceClass tensor-fusion.ai"),
        (WEBHOOK, "template: none yet (claimTemplate.namespaces)"),
        (with_templates, "template: team-a team-b\n"),
    ):
        notes = helm.notes(values)
        assert f"--namespace {helm.NAMESPACE} exec daemonset/{NODE_PLUGIN}" in notes
        assert text in notes
    assert helm.one(helm.render(), "DaemonSet", NODE_PLUGIN)


def check_valid(documents: list[Document]) -> None:
    for document in documents:
        check_object(json.dumps(document, sort_keys=True))


def test_every_static_manifest_is_valid_for_kubernetes() -> None:
    check_valid(installation.documents(*installation.NAMES))


@pytest.mark.parametrize("values", VARIANTS.values(), ids=VARIANTS)
def test_every_variant_is_valid_for_kubernetes(values: Mapping[str, Any]) -> None:
    check_valid(helm.render(values))


def test_oldest_supported_kubernetes_gets_the_same_objects() -> None:
    assert helm.render(EVERYTHING, kube_version=f"{VERSIONS[0]}.0") == helm.render(EVERYTHING)


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
        {"enforcers": {"mps": {"defaultActiveThreadPercentage": 101}}},
        {"enforcers": {"mps": {"defaultPinnedMemory": "16Gi"}}},
        {"enforcers": {"mps": {"shmSize": "50 %"}}},
        {"enforcers": {"hamiCore": {"version": "../v1"}}},
        {"enforcers": {"hamiCore": {"folder": "vgpu"}}},
        {"enforcers": {"hamiCore": {"image": ""}}},
        {"monitoring": {"interval": "half a minute"}},
        {"monitoring": {"prometheus": {"namespace": ""}}},
    ],
)
def test_unknown_and_invalid_values_are_rejected(values: Mapping[str, Any]) -> None:
    with pytest.raises(RefusedValuesError, match="schema"):
        helm.render(values)


NAME, COMPONENT = "app.kubernetes.io/name", "app.kubernetes.io/component"
NODE_PLUGIN = "tensorfusion-dra-node-plugin"
SELF_SIGNED: Mapping[str, Any] = {
    "webhook": {"enabled": True, "certificate": {"source": "self-signed"}}
}
DIGEST = f"sha256:{'5a' * 32}"
EVERYTHING: Mapping[str, Any] = {
    "namespace": {"create": True},
    "crds": {"install": True},
    "claimTemplate": {"namespaces": ["team-a"]},
    "monitoring": {"enabled": True},
    "enforcers": {"mps": {"install": True}},
    "settings": {"enforcer": "mps", "hypervisor-sockets": "/var/lib/kubelet/device-plugins"},
    **WEBHOOK,
}


def workloads(documents: list[Document]) -> Iterator[Document]:
    """Yield the specs of the workloads that an upgrade changes."""
    for item in documents:
        if item["kind"] in {"DaemonSet", "Deployment"}:
            yield item["spec"]


def test_every_object_has_the_standard_labels_and_the_users() -> None:
    values = {**EVERYTHING, "commonLabels": {"team": "gpu", NAME: "of-the-user"}}
    expected = {
        NAME: "tensorfusion-dra",
        "app.kubernetes.io/instance": "tensorfusion-dra",
        "app.kubernetes.io/version": "0.1.0",
        "app.kubernetes.io/managed-by": "Helm",
        "helm.sh/chart": "tensorfusion-dra-0.1.0",
        "team": "gpu",
    }

    for item in helm.render(values):
        labels = item["metadata"]["labels"]
        assert labels.items() >= expected.items(), item["metadata"]["name"]
        assert COMPONENT in labels


def test_selectors_and_pods_name_nothing_that_an_upgrade_changes() -> None:
    labels = {"commonLabels": {"team": "gpu"}, "nodePlugin": {"podLabels": {"a": "b"}}}
    webhook = {**WEBHOOK["webhook"], "podLabels": {"c": "d"}}
    of_pods: dict[str, dict[str, str]] = {
        "node-plugin": {"a": "b"},
        "webhook": {"c": "d"},
        "mps": {},
        "hami-core": {},
    }

    found = {
        spec["template"]["metadata"]["labels"][COMPONENT]: (
            spec["selector"],
            spec["template"]["metadata"]["labels"],
        )
        for values in (MPS_DAEMON, {**VARIANTS["hami-core-install"], "webhook": webhook})
        for spec in workloads(helm.render({**labels, **values}))
    }

    assert found == {
        name: (
            {"matchLabels": {NAME: "tensorfusion-dra", COMPONENT: name}},
            {NAME: "tensorfusion-dra", COMPONENT: name, "team": "gpu", **own},
        )
        for name, own in of_pods.items()
    }


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
    rendered = helm.render({"image": image, **MPS_DAEMON, **WEBHOOK})

    of_test = helm.one(rendered, "Pod")["spec"]["containers"]
    images = {each["image"] for each in (*helm.containers(rendered), *of_test)}
    assert images == {expected}


OF_METADATA: dict[str, Any] = {"properties": {"creationTimestamp": {}}}


def undescribed(schema: Any, path: str = "") -> list[str]:
    """Return the fields of a schema that have no description, or that of a field beside them."""
    found: list[str] = []
    beside = {""}
    for name, field in schema.get("properties", {}).items():
        at, description = f"{path}.{name}", field.get("description", "")
        found += ([at] if description in beside else []) + undescribed(field, at)
        beside.add(description)
    return found + (undescribed(schema["items"], f"{path}[]") if "items" in schema else [])


@pytest.mark.parametrize(
    "file", sorted((helm.CHART / "tensor-fusion-crds").iterdir()), ids=lambda file: file.stem
)
def test_kubectl_explains_every_field_of_the_definitions_and_shows_what_they_have(
    file: Path,
) -> None:
    (version,) = yaml.safe_load(file.read_text())["spec"]["versions"]
    schema = version["schema"]["openAPIV3Schema"]

    assert schema["description"]
    assert undescribed(schema) == []
    for column in version.get("additionalPrinterColumns", ()):
        _, *path = column["jsonPath"].split(".")
        field = {"properties": {**schema["properties"], "metadata": OF_METADATA}}
        for name in path:
            assert name in field["properties"], column["jsonPath"]
            field = field["properties"][name]


def test_definitions_are_installed_on_request_and_outlive_the_release() -> None:
    files = sorted((helm.CHART / "tensor-fusion-crds").iterdir())

    definitions = [
        item
        for item in helm.render({"crds": {"install": True}})
        if item["kind"] == "CustomResourceDefinition"
    ]

    assert [item["spec"] for item in definitions] == [
        yaml.safe_load(file.read_text())["spec"] for file in files
    ]
    for item in definitions:
        assert item["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}


def hooked(event: str) -> list[Document]:
    """Return the objects that Helm makes at an event, in the chart's order."""
    hook = {"helm.sh/hook": event}
    return [
        item
        for item in helm.render()
        if item["metadata"].get("annotations", {}).items() >= hook.items()
    ]


def test_an_uninstallation_is_refused_by_a_job_with_the_rights_that_its_check_needs() -> None:
    account, role, binding, _, job = hooked("pre-delete")

    kinds = ["ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Job"]
    assert [each["kind"] for each in (account, role, binding, job)] == kinds
    spec = job["spec"]["template"]["spec"]
    assert spec["serviceAccountName"] == account["metadata"]["name"]
    assert spec["containers"][0]["args"] == ["teardown-check"]
    # A check that found a share is not repeated, and one that cannot start gives up.
    assert (job["spec"]["backoffLimit"], job["spec"]["activeDeadlineSeconds"]) == (0, 120)
    needed = {path.rpartition("/")[2] for path in objects.CONFIGURATIONS}
    assert {(each, *rule["verbs"]) for rule in role["rules"] for each in rule["resources"]} == {
        (each, "list") for each in (*needed, "pods", "resourceclaims")
    }


PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def test_job_that_needs_only_the_image_is_the_first_to_fail_and_names_the_cause() -> None:
    *_, pull, check = hooked("pre-delete")

    # Helm's error has nothing but the name of the job and DeadlineExceeded.
    assert pull["metadata"]["name"] == "tensorfusion-dra-image-pull"
    annotations = [each["metadata"]["annotations"] for each in (pull, check)]
    before, after = (each["helm.sh/hook-weight"] for each in annotations)
    assert int(before) < int(after)
    # Helm prints the log of the one that failed, and leaves it.
    assert {each["helm.sh/hook-output-log-policy"] for each in annotations} == {"hook-failed"}
    assert (pull["spec"]["backoffLimit"], pull["spec"]["activeDeadlineSeconds"]) == (0, 45)
    pod, other = (each["spec"]["template"]["spec"] for each in (pull, check))
    (container,), (with_check,) = pod["containers"], other["containers"]
    assert container["image"] == with_check["image"]
    # Nodes with the node plugin have the image, so that nothing is pulled within the time.
    plugin = helm.one(helm.render(), "DaemonSet")["spec"]["selector"]
    for each in (pod, other):
        (preferred,) = each["affinity"]["podAffinity"][PREFERRED]
        term = {"labelSelector": plugin, "topologyKey": "kubernetes.io/hostname"}
        assert preferred["podAffinityTerm"] == term
    # It succeeds wherever the image runs, without the API server.
    assert "serviceAccountName" not in pod
    assert forks.run(*container["args"]).returncode == 0


def test_pod_of_helm_test_ends_well_if_and_only_if_it_got_its_share(tmp_path: Path) -> None:
    hooks = hooked("test")
    for item in hooks:
        item["metadata"]["namespace"] = "default"
    file = tmp_path / "test.yaml"
    file.write_text(yaml.safe_dump_all(hooks))
    pod = helm.one(hooks, "Pod", container_runtime.TEST_POD)
    (container,) = pod["spec"]["containers"]
    # helm reads the log, and only then removes the pod of an earlier test.
    assert pod["metadata"]["annotations"]["helm.sh/hook-delete-policy"] == "before-hook-creation"

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


GPU_NODE = {"feature.node.kubernetes.io/pci-10de.present": "true"}
LOOKED_UP = {
    "Namespace": "v1",
    "Node": "v1",
    "RuntimeClass": "node.k8s.io/v1",
    "CustomResourceDefinition": "apiextensions.k8s.io/v1",
}
MONITORING = {"monitoring": {"enabled": True}}


def cluster(*objects: str, nodes: tuple[Mapping[str, str], ...] = ()) -> dict[str, Document]:
    """Return an API server's answers to the chart's lookups.

    Args:
        objects: As kind and name: `RuntimeClass/nvidia`.
        nodes: The labels of each node.
    """
    answers: dict[str, Document] = {}
    for text in ("Namespace/kube-system", *objects):
        kind, _, name = text.partition("/")
        answers[f"GET {root(LOOKED_UP[kind])}/{plural(kind)}/{name}"] = {
            "apiVersion": LOOKED_UP[kind],
            "kind": kind,
            "metadata": {"name": name},
        }
    items = [{"metadata": {"name": str(n), "labels": each}} for n, each in enumerate(nodes)]
    answers["GET /api/v1/nodes"] = {"apiVersion": "v1", "kind": "NodeList", "items": items}
    return answers


def notes(answers: Mapping[str, Any], values: Mapping[str, Any], folder: Path) -> str:
    """Return the notes of a release in a cluster."""
    kinds = {(api, kind, False) for kind, api in LOOKED_UP.items()}
    kinds |= {("v1", "ConfigMap", True)}
    kinds |= {
        (item["apiVersion"], item["kind"], "namespace" in item["metadata"])
        for item in helm.render(values)
    }
    found = {f"GET {path}": each for path, each in discovery(sorted(kinds)).items()}
    with canned_api.served({**found, **answers}) as api:
        return helm.notes(values, kubeconfig=api.kubeconfig(folder / "kubeconfig"))


@pytest.mark.parametrize(
    ("answers", "values", "warnings"),
    [
        (cluster("RuntimeClass/nvidia", nodes=({}, GPU_NODE)), {}, set()),
        (cluster("RuntimeClass/nvidia", nodes=({}, {"a": "b"})), {}, {"label node NODE"}),
        (cluster(nodes=(GPU_NODE,)), {}, {"no RuntimeClass nvidia"}),
        (cluster(nodes=({},)), {}, {"label node NODE", "no RuntimeClass nvidia"}),
        # Values by which the DaemonSet needs neither.
        (cluster(nodes=({},)), NO_GPUS, set()),
        (
            cluster("RuntimeClass/of-the-team", nodes=({},)),
            {"nvidia": {"runtimeClass": "of-the-team"}, "nodePlugin": {"affinity": {"a": {}}}},
            set(),
        ),
        (cluster(nodes=(GPU_NODE,)), {"nvidia": {"privileged": True}}, set()),
        (cluster(nodes=(GPU_NODE,)), {"nvidia": {"runtimeClass": ""}}, set()),
        # Without a cluster nothing is known.
        (cluster(), {}, set()),
    ],
)
def test_notes_name_what_a_daemonset_without_pods_lacks(
    answers: Mapping[str, Any], values: Mapping[str, Any], warnings: set[str], tmp_path: Path
) -> None:
    found = notes(answers, values, tmp_path)

    assert {text for text in ("label node NODE", "no RuntimeClass nvidia") if text in found} == (
        warnings
    )


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, "On a node without one, pods with a part\nof a card wait"),
        ({"settings": {"enforcer": "hami-core,mps"}}, "that it finds of hami-core, mps."),
        ({"settings": {"enforcer": "none"}}, "Limits are advisory (settings.enforcer=none)"),
        ({"settings": TENSOR_FUSION}, "WARNING: nothing keeps the limits of shares"),
        ({"settings": {**TENSOR_FUSION, "hypervisor-sockets": "/x"}}, ""),
        ({"settings": {**TENSOR_FUSION, "isolation": "shared"}}, ""),
        ({"settings": {"enforcer": "hami-core"}}, ""),
        ({"settings": {"enforcer": "mps"}}, ""),
        ({"enforcers": {"hamiCore": {"install": True}}}, ""),
        ({"enforcers": {"mps": {"install": True}}}, ""),
        (NO_GPUS, ""),
    ],
)
def test_notes_say_what_keeps_limits_where_it_may_be_missing(
    values: Mapping[str, Any], expected: str
) -> None:
    found = helm.notes(values)

    said = ("Each node uses the first", "Limits are advisory", "WARNING: nothing keeps")
    assert expected in found
    assert [text in found for text in said].count(True) == bool(expected)


CERTIFICATES = "CustomResourceDefinition/certificates.cert-manager.io"
MONITORS = "CustomResourceDefinition/podmonitors.monitoring.coreos.com"
TEAMS = {"claimTemplate": {"namespaces": ["team-a", "team-b", helm.NAMESPACE]}}
"""The release's own namespace may be one that helm is about to create."""


@pytest.mark.parametrize(
    ("values", "present", "missing", "error"),
    [
        (
            WEBHOOK,
            [],
            CERTIFICATES,
            r"certificates.cert-manager.io.* or set webhook.certificate.source=self-signed",
        ),
        (MONITORING, [], MONITORS, r"podmonitors.monitoring.*or set monitoring.enabled=false"),
        (
            TEAMS,
            ["Namespace/team-a"],
            "Namespace/team-b",
            r"claimTemplate.namespaces: found no namespace team-b in",
        ),
    ],
)
def test_installation_into_a_cluster_without_what_it_needs_is_refused(
    values: Mapping[str, Any], present: list[str], missing: str, error: str, tmp_path: Path
) -> None:
    with pytest.raises(RefusedValuesError, match=error):
        notes(cluster(*present), values, tmp_path)

    assert notes(cluster(*present, missing), values, tmp_path)
    assert helm.render(values), "without a cluster nothing is known"


def test_namespaces_with_the_label_get_a_claim_template_too(tmp_path: Path) -> None:
    labels: tuple[dict[str, str], ...] = (
        {},
        {"tensor-fusion.ai/claim-template": "true"},
        {"other": "true"},
    )
    found = [{"metadata": {"name": f"team-{i}", "labels": each}} for i, each in enumerate(labels)]
    listed = {"apiVersion": "v1", "kind": "NamespaceList", "items": found}
    answers = {**cluster("Namespace/team-0", "Namespace/team-1"), "GET /api/v1/namespaces": listed}
    values = {**SELF_SIGNED, "claimTemplate": {"namespaces": ["team-0"]}}

    assert "that have the claim template: team-0 team-1\n" in notes(answers, values, tmp_path)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (
            {"enforcers": {"mps": {"install": True}}, "settings": {"enforcer": "hami-core"}},
            "expected settings.enforcer=mps, or auto",
        ),
        ({"enforcers": {"mps": {"exclusiveProcess": True}}}, "without enforcers.mps.install"),
        (
            {**MPS_DAEMON, "settings": {"enforcer": "mps", "mps-root": "/run/elsewhere"}},
            "found the setting mps-root",
        ),
        (
            {**VARIANTS["mps-exclusive-process"], "nvidia": {"privileged": True}},
            "found nvidia.privileged",
        ),
        (
            {"enforcers": {"hamiCore": {"install": True}}, "settings": {"enforcer": "mps"}},
            "expected settings.enforcer=hami-core, or auto",
        ),
        (
            {
                "enforcers": {"hamiCore": {"install": True}},
                "settings": {"enforcer": "hami-core", "hami-core-library": "/opt/libvgpu.so.1"},
            },
            "expected enforcers.hamiCore.folder and version instead",
        ),
        *(
            (
                {**MONITORING, "settings": {"metrics-address": address}},
                f"metrics-address={address}, expected :8081",
            )
            for address in ("", "127.0.0.1:8081")
        ),
    ],
)
def test_values_that_contradict_each_other_are_refused(
    values: Mapping[str, Any], text: str
) -> None:
    with pytest.raises(RefusedValuesError, match=text):
        helm.render(values)


def test_settings_table_and_chart_schema_match_the_settings() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "hack" / "settings-docs"), "--check"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )

    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)


@pytest.mark.parametrize("name", ["nvidia", "simulated"])
def test_every_variable_in_the_manifests_belongs_to_a_setting(name: str) -> None:
    known = {setting_sources.variable(item) for item in fields(Settings)}
    (container,) = (
        each
        for each in helm.containers(installation.documents(name))
        if each["name"] == "node-plugin"
    )

    texts = " ".join(entry.get("value", "") for entry in container["env"])
    named = {entry["name"] for entry in container["env"] if f"$({entry['name']})" not in texts}
    assert {name for name in named if not name.startswith("NVIDIA_")} <= known


def test_chart_settings_never_duplicate_a_variable() -> None:
    settings = {"gpupool": "a", "qos": "high", "enforcer": "mps", "poll-seconds": 5}

    documents = helm.render({"settings": settings})

    for container in helm.containers(documents):
        given = [entry["name"] for entry in container.get("env", [])]
        assert len(set(given)) == len(given)


WEBHOOK_CERT = ROOT / "hack" / "webhook-cert"
OF_CERTIFICATES = {"Secret", "Issuer", "Certificate"}
HOST = "tensorfusion-dra-webhook.tensorfusion-dra.svc"


@pytest.fixture(scope="module")
def printed() -> list[Document]:
    """The objects that the script prints."""
    ended = subprocess.run(
        [WEBHOOK_CERT], check=True, timeout=PATIENCE_SECONDS, stdout=subprocess.PIPE, text=True
    )
    return yaml_text.load_all(ended.stdout)


def test_only_the_certificate_differs_from_the_static_manifest(printed: list[Document]) -> None:
    def without_certificate(found: list[Document]) -> list[Document]:
        kept = copy.deepcopy([item for item in found if item["kind"] not in OF_CERTIFICATES])
        for item in kept:
            item["metadata"].pop("annotations", None)
            for webhook in item.get("webhooks", []):
                webhook["clientConfig"].pop("caBundle", None)
        return kept

    assert without_certificate(printed) == without_certificate(installation.documents("webhook"))
    assert "cert-manager" not in str(printed)


def test_client_that_trusts_the_authority_accepts_the_service_certificate(
    printed: list[Document], tmp_path: Path
) -> None:
    secret = helm.one(printed, "Secret", "tensorfusion-dra-webhook-tls")
    for name, content in secret["data"].items():
        (tmp_path / name).write_bytes(base64.b64decode(content))
    (authority,) = {
        webhook["clientConfig"]["caBundle"]
        for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
        for webhook in helm.one(printed, kind)["webhooks"]
    }
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")
    client = ssl.create_default_context(cadata=base64.b64decode(authority).decode())
    # Go clients do not require this, but Python 3.13 does by default.
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        client.wrap_bio(to_client, to_server, server_hostname=HOST),
        server.wrap_bio(to_server, to_client, server_side=True),
    )

    finished = [handshaken(end) for end in ends * 3]

    assert finished[-2:] == [True, True]
    assert secret["type"] == "kubernetes.io/tls"


def handshaken(end: ssl.SSLObject) -> bool:
    try:
        end.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True


def test_days_that_are_no_number_are_refused() -> None:
    ended = subprocess.run(
        [WEBHOOK_CERT, "a year"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )

    assert (ended.returncode, ended.stdout) == (2, "")
    assert "DAYS: found a year, expected a number" in ended.stderr

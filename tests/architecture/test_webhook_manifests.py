"""The webhook's manifests match its behaviour, and are valid for Kubernetes."""

import argparse
from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_simulator import match_conditions
from tensorfusion_dra.app.webhook import command, process
from tensorfusion_dra.core import names
from tensorfusion_dra.core.admission import claim_admission, pod_request
from tensorfusion_dra.webhook import reviews
from tests.support import installation
from tests.support.builders.pods import pod_annotations, pod_document
from tests.support.builders.stored_claims import template_claim

FOLDER = Path(__file__).parents[2] / "daemonset"

Json = dict[str, Any]


def of_kind(kind: str) -> list[Json]:
    """Return the webhook's objects of a kind whose name ends with the given text."""
    found = [item for item in installation.documents("webhook") if item["kind"].endswith(kind)]
    assert found
    return found


def webhooks() -> dict[tuple[str, str], Json]:
    """Return the webhooks by kind of configuration and name without domain."""
    return {
        (
            document["kind"].removesuffix("WebhookConfiguration"),
            entry["name"].partition(".")[0],
        ): entry
        for document in of_kind("WebhookConfiguration")
        for entry in document["webhooks"]
    }


def is_sent(entry: Json, document: Json) -> bool:
    """Return True if the match conditions let the API server send an object to the webhook."""
    variables = {"object": document, "oldObject": None, "request": {}}
    conditions = entry.get("matchConditions", ())
    return all(match_conditions.holds(each["expression"], variables) for each in conditions)


def claim_template() -> Json:
    loaded: Json = yaml.safe_load((FOLDER / "claim-template.yaml").read_text())
    return loaded


def test_each_webhook_has_the_path_for_its_kind() -> None:
    paths = {key: entry["clientConfig"]["service"]["path"] for key, entry in webhooks().items()}

    assert paths == {
        ("Mutating", "pods"): reviews.MUTATE_PODS,
        ("Mutating", "claims"): reviews.MUTATE_CLAIMS,
        ("Validating", "claims"): reviews.VALIDATE,
        ("Validating", "templates"): reviews.VALIDATE,
        ("Validating", "classes"): reviews.VALIDATE,
    }


def test_configurations_name_the_webhooks_service() -> None:
    (service,) = of_kind("Service")
    (deployment,) = of_kind("Deployment")
    metadata, (port,) = service["metadata"], service["spec"]["ports"]
    labels = deployment["spec"]["template"]["metadata"]["labels"]

    for entry in webhooks().values():
        called = entry["clientConfig"]["service"]
        assert (called["name"], called["namespace"], called["port"]) == (
            metadata["name"],
            metadata["namespace"],
            port["port"],
        )
    assert service["spec"]["selector"].items() <= labels.items()


def test_deployment_flags_and_ports_match_the_settings() -> None:
    (deployment,) = of_kind("Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    verb, *flags = container["args"]
    parser = argparse.ArgumentParser()
    command.add_flags(parser)

    settings = command.from_flags(parser.parse_args(flags), {})

    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert verb == "webhook"
    assert ports == {"https": settings.port, "health": settings.health_port}
    (mount,) = container["volumeMounts"]
    assert settings.tls_cert_file == f"{mount['mountPath']}/tls.crt"
    assert settings.tls_key_file == f"{mount['mountPath']}/tls.key"
    grace = deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert settings.drain_seconds + process.GRACE_SECONDS < grace


@pytest.mark.parametrize("annotation", pod_request.REQUESTING_ANNOTATIONS)
def test_pod_with_a_request_annotation_is_sent(annotation: str) -> None:
    assert is_sent(webhooks()["Mutating", "pods"], pod_document({annotation: "x"}))


@pytest.mark.parametrize(
    "annotations",
    [
        {},
        {"example.com/a": "b"},
        pod_annotations(gpupool="a", qos="high", vram_limit="1Gi"),
        pod_annotations(dra_enabled="false", vram_request="1Gi"),
    ],
)
def test_pod_without_a_request_is_not_sent(annotations: dict[str, str]) -> None:
    document = pod_document(annotations)
    if not annotations:
        del document["metadata"]["annotations"]

    assert not is_sent(webhooks()["Mutating", "pods"], document)
    assert not pod_request.requests_gpu(annotations)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("claims", "ResourceClaim"),
        ("templates", "ResourceClaimTemplate"),
        ("classes", "DeviceClass"),
    ],
)
def test_only_objects_with_parameters_for_this_driver_are_sent(name: str, kind: str) -> None:
    def configured(driver: str) -> Json:
        document: Any = [{"opaque": {"driver": driver}}]
        for part in reversed(claim_admission.CONFIG_PATHS[kind]):
            document = {part: document}
        return dict(document)

    entry = webhooks()["Validating", name]

    assert is_sent(entry, configured(names.DRIVER))
    assert not is_sent(entry, configured("nic.example.com"))
    empty: Json = {"spec": {"spec": {}}} if kind == "ResourceClaimTemplate" else {"spec": {}}
    assert not is_sent(entry, empty)
    assert not is_sent(entry, {"spec": {"spec": {"devices": {}}, "devices": {}}})


def test_claims_are_selected_by_the_templates_label() -> None:
    template = claim_template()
    wanted = webhooks()["Mutating", "claims"]["objectSelector"]["matchLabels"]

    assert wanted == {names.LABEL_CLAIM_TEMPLATE: "true"}
    assert template["metadata"]["labels"] == template["spec"]["metadata"]["labels"] == wanted
    assert template["metadata"]["name"] == names.CLAIM_TEMPLATE
    assert template_claim()["metadata"]["labels"] == wanted


def test_system_and_driver_namespaces_are_excluded() -> None:
    (namespace,) = (document["metadata"]["namespace"] for document in of_kind("Deployment"))

    for (_, name), entry in webhooks().items():
        if name != "classes":
            (rule,) = entry["namespaceSelector"]["matchExpressions"]
            assert (rule["key"], rule["operator"]) == ("kubernetes.io/metadata.name", "NotIn")
            assert {"kube-system", namespace} <= set(rule["values"])


def test_webhook_outage_blocks_pods_but_not_parameter_checks() -> None:
    policies = {key: entry["failurePolicy"] for key, entry in webhooks().items()}

    assert {kind for (kind, _), policy in policies.items() if policy == "Fail"} == {"Mutating"}
    assert {kind for (kind, _), policy in policies.items() if policy == "Ignore"} == {"Validating"}


def test_webhook_role_has_exactly_the_rights_it_needs() -> None:
    (role,) = (
        each
        for each in of_kind("ClusterRole")
        if each["metadata"]["name"] == "tensorfusion-dra-webhook"
    )
    rights = {
        (group, resource): set(rule["verbs"])
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }

    watched = {"get", "list", "watch"}
    assert rights == {
        (names.TENSOR_FUSION_GROUP, names.GPUPOOLS): watched,
        (names.TENSOR_FUSION_GROUP, names.SCHEDULING_CONFIG_TEMPLATES): watched,
        ("", "pods"): {"get"},
        ("resource.k8s.io", "resourceslices"): {"list"},
    }

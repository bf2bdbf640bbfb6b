"""Examples, the manifests of the webhook and custom resources: valid, and as the driver needs."""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from dra_simulator import allocation_results, match_conditions
from dra_simulator.apiserver import ApiServer
from dra_simulator.rest import (
    CLASSES,
    GPUPOOLS,
    NAMESPACES,
    PODS,
    SCHEDULING_CONFIG_TEMPLATES,
    TEMPLATES,
    Client,
)
from tensorfusion_dra.app.shared import setting_sources
from tensorfusion_dra.app.webhook import command, process
from tensorfusion_dra.app.webhook.settings import WebhookSettings
from tensorfusion_dra.core import names
from tensorfusion_dra.core.admission import claim_admission, dialects, pod_request, pod_resources
from tensorfusion_dra.core.admission.dialects import WORDS, Dialect, FieldMapping, Kind
from tensorfusion_dra.core.cel import user_guide
from tensorfusion_dra.core.devices import gpupool
from tensorfusion_dra.core.devices.capacity import Oversubscription
from tensorfusion_dra.core.devices.gpupool import QOS_LEVELS
from tensorfusion_dra.core.errors import InputError
from tensorfusion_dra.core.kubernetes import name_rules, quantity
from tensorfusion_dra.scheduling import allocation, cel_evaluation
from tensorfusion_dra.scheduling.allocation import NoFitError
from tensorfusion_dra.webhook import reviews
from tests.support import helm, installation, kubernetes_schemas, objects, rbac
from tests.support.builders.gpupools import gpupool_document
from tests.support.builders.pods import container_document, pod_annotations, pod_document
from tests.support.builders.slices import stored_slices
from tests.support.builders.stored_claims import (
    allocation_result,
    stored_claim,
    template_claim,
)

EXAMPLES = sorted((helm.ROOT / "hack" / "examples").glob("*.yaml"))
MANIFESTS = [helm.ROOT / "daemonset" / "claim-template.yaml"]
LLM_D = helm.ROOT / "hack" / "examples" / "helm"
KINDS = {
    resource.kind: resource
    for resource in (CLASSES, GPUPOOLS, NAMESPACES, PODS, SCHEDULING_CONFIG_TEMPLATES, TEMPLATES)
}

Json = dict[str, Any]
DEFINITIONS = {path.name: path for path in sorted((helm.CHART / "tensor-fusion-crds").iterdir())}


def schema(plural: str) -> Any:
    """Return the schema in the CustomResourceDefinition of a resource."""
    (definition,) = documents(DEFINITIONS[f"{plural}.yaml"])
    (version,) = definition["spec"]["versions"]
    return version["schema"]["openAPIV3Schema"]


def documents(file: Path) -> list[Any]:
    return list(yaml.safe_load_all(file.read_text()))


@pytest.fixture
def client() -> Iterator[Client]:
    with ApiServer(tensor_fusion=True, check_expression=cel_evaluation.check_expression) as server:
        yield Client(server.url)


@pytest.mark.parametrize("file", [*EXAMPLES, *MANIFESTS], ids=lambda file: file.name)
def test_every_example_is_valid_and_a_strict_api_server_accepts_it(
    file: Path, client: Client
) -> None:
    found = documents(file)

    assert found
    for document in found:
        resource = KINDS[document["kind"]]
        if document["apiVersion"].startswith(f"{names.TENSOR_FUSION_GROUP}/"):
            jsonschema.validate(document, schema(resource.plural))
        else:
            kubernetes_schemas.check(document)
        if resource is PODS:
            assert not pod_request.parse(document["metadata"].get("annotations", {})).errors
        if resource.namespaced:
            document["metadata"].setdefault("namespace", "default")
        assert client.create(resource, document)["metadata"]["uid"]


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.name)
def test_example_can_be_applied_to_any_namespace_or_brings_its_own(file: Path) -> None:
    found = documents(file)
    own = {each["metadata"]["name"] for each in found if each["kind"] == "Namespace"}

    assert {each["metadata"].get("namespace") for each in found} - {None} == own


def test_templates_in_examples_equal_the_shipped_one() -> None:
    """A different one with the same name could not be applied: a template's spec is immutable."""
    (shipped,) = documents(MANIFESTS[0])
    found = [
        document
        for file in EXAMPLES
        for document in documents(file)
        if document["metadata"]["name"] == names.CLAIM_TEMPLATE
    ]

    assert len(found) == 2
    assert all(document["spec"] == shipped["spec"] for document in found)


def test_selectors_in_examples_need_no_translation() -> None:
    for document in documents(helm.ROOT / "hack" / "examples" / "guide-selectors.yaml"):
        (request,) = document["spec"]["spec"]["devices"]["requests"]
        (selector,) = request["exactly"]["selectors"]
        expression = selector["cel"]["expression"]
        assert user_guide.translate(expression) == expression


def test_admin_access_example_gets_cards_in_use_because_it_names_amounts() -> None:
    _, template, _ = documents(helm.ROOT / "hack" / "examples" / "admin-access.yaml")
    spec = template["spec"]["spec"]
    device = stored_slices(1)[0]["spec"]["devices"][0]["name"]
    user = stored_claim("user", allocation_result(device, tflops="100", vram="16Gi"))

    assert len(devices_for(spec, existing=user)) == 2

    del spec["devices"]["requests"][0]["exactly"]["capacity"]
    with pytest.raises(NoFitError):
        devices_for(spec, existing=user)


def devices_for(spec: Json, *, existing: Json) -> list[str]:
    """Return the devices that the scheduler allocates to a claim on node-01, which has two."""
    device_class = helm.one(installation.documents("nvidia"), "DeviceClass", "tensor-fusion.ai")
    cluster = allocation.cluster(slices=stored_slices(2), classes=[device_class], claims=[existing])
    claim = {"metadata": {"namespace": "default", "name": "claim"}, "spec": spec}
    node = {"metadata": {"name": "node-01"}}
    (found,) = allocation_results.allocate([claim], cluster, node)
    return [result["device"] for result in found["devices"]["results"]]


def only(**properties: Json) -> Json:
    """Return the schema of an object that has no other fields than these."""
    return {"type": "object", "additionalProperties": False, "properties": properties}


TEXT, YES = {"type": "string"}, {"type": "boolean"}
TEMPLATE_OF_04 = {"name": TEXT, "class": TEXT, "match": TEXT, "selectors": {"type": "array"}}
TEMPLATE_OF_03 = {**TEMPLATE_OF_04, "count": {"type": "integer"}}
SCHEMAS_OF_LLM_D = {
    "0.3": only(
        accelerator=only(type=TEXT),
        dra=only(
            enabled=YES,
            type=TEXT,
            claimTemplates={"type": "array", "items": only(**TEMPLATE_OF_03)},
        ),
    ),
    "0.4": only(
        accelerator=only(
            type={"enum": ["cpu", "nvidia"]},
            dra=YES,
            resourceClaimTemplates={
                "type": "object",
                "additionalProperties": only(**TEMPLATE_OF_04),
            },
        ),
    ),
}
"""What the schemas of llm-d-modelservice 0.3.15 to 0.3.18, and 0.4.0 to 0.4.12, say of our values.

Of `accelerator.type` they allow more names.
"""


def of_llm_d(version: str) -> Any:
    return yaml.safe_load((LLM_D / f"llm-d-modelservice-{version}.yaml").read_text())


@pytest.mark.parametrize(("version", "other"), [("0.3", "0.4"), ("0.4", "0.3")])
def test_llm_d_values_pass_the_schema_of_their_version_and_of_no_other(
    version: str, other: str
) -> None:
    jsonschema.validate(of_llm_d(version), SCHEMAS_OF_LLM_D[version])

    for refused in (of_llm_d(other), of_llm_d(version) | of_llm_d(other)):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(refused, SCHEMAS_OF_LLM_D[version])


def rendered(block: Json, name: str) -> Json:
    """Return the template that the chart llm-d-modelservice renders from an entry."""
    # From 0.4.0 on the values have no count: it is that of the server's parallelism.
    wanted = {"deviceClassName": block["class"], "count": block.get("count", 2)}
    request = {"name": name, block["match"]: {**wanted, "selectors": block["selectors"]}}
    return objects.template(request, name=f"{name}-claim-template")


@pytest.mark.parametrize(
    ("version", "device_class"), [("0.4", names.DEVICE_CLASS), ("share", "gpu-quarter")]
)
def test_llm_d_values_give_a_template_of_their_device_class(
    client: Client, version: str, device_class: str
) -> None:
    old, new = of_llm_d("0.3")["dra"], of_llm_d(version)["accelerator"]
    (entry,) = (each for each in old["claimTemplates"] if each["name"] == old["type"])
    entry = {**entry, "class": device_class}
    blocks = {old["type"]: entry, new["type"]: new["resourceClaimTemplates"][new["type"]]}

    jsonschema.validate(of_llm_d(version), SCHEMAS_OF_LLM_D["0.4"])
    for name, block in blocks.items():
        assert list(name_rules.label("", name)) == []
        stored = client.create(TEMPLATES, rendered(block, name))
        exactly = stored["spec"]["spec"]["devices"]["requests"][0]["exactly"]
        assert (exactly["deviceClassName"], exactly["count"]) == (device_class, 2)


KUEUE = ("configuration", "claims")
WEBHOOK = installation.documents("webhook")


def webhooks() -> dict[tuple[str, str], Json]:
    """Return the webhooks by kind of configuration and name without domain."""
    return {
        (kind, entry["name"].partition(".")[0]): entry
        for kind in ("Mutating", "Validating")
        for entry in helm.one(WEBHOOK, f"{kind}WebhookConfiguration")["webhooks"]
    }


def is_sent(entry: Json, document: Json, old: Json | None = None) -> bool:
    """Return True if the match conditions let the API server send an object to the webhook."""
    operation = "CREATE" if old is None else "UPDATE"
    variables = {"object": document, "oldObject": old, "request": {"operation": operation}}
    conditions = entry.get("matchConditions", ())
    return all(match_conditions.holds(each["expression"], variables) for each in conditions)


def charge(transformed: Json, limits: Json) -> dict[str, int]:
    """Return what Kueue charges a container, in billionths."""
    return {
        name: quantity.parse(amount).nano * quantity.parse(factor).nano // quantity.NANO
        for each, amount in limits.items()
        for name, factor in transformed[each]["outputs"].items()
    }


def test_kueues_queues_count_resources_and_a_capacity_of_this_driver() -> None:
    folder = helm.ROOT / "hack" / "examples" / "kueue"
    (configuration,), (claims,) = (documents(folder / f"{name}.yaml") for name in KUEUE)
    queues = [each for each in documents(folder / "queue.yaml") if each["kind"] == "ClusterQueue"]
    (job,) = documents(folder / "job.yaml")

    transformed = {each["input"]: each for each in configuration["resources"]["transformations"]}
    (container,) = job["spec"]["template"]["spec"]["containers"]
    (mapping,) = claims["resources"]["deviceClassMappings"]
    capacity = mapping["sources"][0]["capacity"]
    counted = {mapping["name"]} | {
        name for each in transformed.values() for name in each["outputs"]
    }
    limits = container["resources"]["limits"]
    # A Job with a resource that is not transformed would never be admitted.
    assert transformed.keys() == pod_resources.AMOUNTS.keys()
    assert limits.keys() <= transformed.keys()
    quarter = {name: "25" for name in transformed if name.endswith("-percent")}
    assert charge(transformed, quarter) == charge(transformed, limits), "a quarter of one card"
    assert {each["multiplyBy"] for each in transformed.values()} == {names.RESOURCE_GPU}
    assert names.DEVICE_CLASS in mapping["deviceClassNames"]
    assert (capacity["driver"], capacity["name"]) == (names.DRIVER, names.CAPACITY_VRAM)
    for queue in queues:
        (group,) = queue["spec"]["resourceGroups"]
        covered = {*group["coveredResources"]}
        assert covered == counted | {names.RESOURCE_GPU}
        assert covered == {each["name"] for each in group["flavors"][0]["resources"]}


def test_each_webhook_has_the_path_for_its_kind() -> None:
    paths = {key: entry["clientConfig"]["service"]["path"] for key, entry in webhooks().items()}

    assert paths == {
        **{("Mutating", str(each)): f"{reviews.MUTATE_PODS}/{each}" for each in Dialect},
        ("Mutating", "pods"): reviews.MUTATE_PODS,
        ("Mutating", "claims"): reviews.MUTATE_CLAIMS,
        ("Mutating", "templates"): reviews.MUTATE_TEMPLATES,
        ("Mutating", "changed-limits"): reviews.MUTATE_CLAIMS,
        ("Validating", "parameters"): reviews.VALIDATE,
        ("Validating", "enforced-quotas"): reviews.QUOTAS,
        ("Validating", "quotas"): reviews.QUOTAS,
        ("Validating", "changed-quotas"): reviews.QUOTAS,
    }
    # Dialects come before the webhook that reads what they write.
    assert [name for kind, name in paths if kind == "Mutating"].index("pods") == len(Dialect)


def test_configurations_name_the_webhooks_service() -> None:
    service, deployment = (helm.one(WEBHOOK, kind) for kind in ("Service", "Deployment"))
    (port,) = service["spec"]["ports"]
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    called = {key: service["metadata"][key] for key in ("name", "namespace")}

    for entry in webhooks().values():
        found = entry["clientConfig"]["service"]
        assert found.items() >= {**called, "port": port["port"]}.items()
    assert service["spec"]["selector"].items() <= labels.items()


def test_deployment_flags_and_ports_match_the_settings() -> None:
    pod = helm.one(WEBHOOK, "Deployment")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    verb, *flags = container["args"]
    parser = argparse.ArgumentParser()
    command.add_flags(parser)

    settings = WebhookSettings(
        **setting_sources.values(WebhookSettings, parser.parse_args(flags), {})
    )

    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert verb == "webhook"
    assert ports["https"] == settings.port
    assert f":{ports['health']}" == settings.health_address == settings.metrics_address
    (mount,) = container["volumeMounts"]
    files = (settings.tls_cert_file, settings.tls_key_file)
    assert files == (f"{mount['mountPath']}/tls.crt", f"{mount['mountPath']}/tls.key")
    grace = pod["terminationGracePeriodSeconds"]
    assert settings.drain_seconds + process.GRACE_SECONDS < grace


EVERY_WORD = [(dialect, word) for dialect, words in WORDS.items() for word in words]


@pytest.mark.parametrize("kind", ["containers", "initContainers"])
@pytest.mark.parametrize(
    ("dialect", "word"), EVERY_WORD, ids=[f"{dialect}-{word.name}" for dialect, word in EVERY_WORD]
)
def test_pod_is_sent_by_those_words_by_which_it_asks_for_a_gpu(
    dialect: Dialect, word: FieldMapping, kind: str
) -> None:
    entry = webhooks()["Mutating", str(dialect)]
    name = word.name.replace("*", "main")
    document = pod_document({})
    (container,) = document["spec"]["containers"]
    document["spec"][kind] = [{**container, "resources": {"limits": {"cpu": "1"}}}]
    document["metadata"]["labels"] = {f"{names.ANNOTATION_PREFIX}other": "x"}
    assert not is_sent(entry, document)
    place = {
        Kind.RESOURCE: document["spec"][kind][0]["resources"]["limits"],
        Kind.ANNOTATION: document["metadata"]["annotations"],
        Kind.LABEL: document["metadata"]["labels"],
        Kind.SCHEDULER: document["spec"],
        Kind.VARIABLE: {},
    }[word.kind]
    if word.kind is Kind.VARIABLE:
        document["spec"][kind][0]["env"] = [{"name": name, "value": "1"}]
    place["schedulerName" if word.kind is Kind.SCHEDULER else name] = "1"

    asks = word.kind is Kind.RESOURCE and word.becomes != ""
    asks = asks or name in {"gpu-fraction", "gpu-memory", dialects.KSERVE_CLASS}
    assert is_sent(entry, document) is (asks or dialect is Dialect.GPU_FRACTIONING)
    assert entry["namespaceSelector"]["matchLabels"] == {f"{names.LABEL_DIALECT}{dialect}": "true"}


@pytest.mark.parametrize(
    ("annotations", "sent"),
    [
        *(({annotation: "x"}, True) for annotation in pod_request.REQUESTING_ANNOTATIONS),
        ({}, False),
        ({"example.com/a": "b"}, False),
        (pod_annotations(gpupool="a", qos="high", vram_limit="1Gi"), False),
        (pod_annotations(dra_enabled="false", vram_request="1Gi"), False),
    ],
)
def test_only_a_pod_with_a_request_is_sent(annotations: dict[str, str], sent: bool) -> None:
    document = pod_document(annotations)
    if not annotations:
        del document["metadata"]["annotations"]

    assert is_sent(webhooks()["Mutating", "pods"], document) == sent
    assert pod_request.requests_gpu(annotations) == sent


@pytest.mark.parametrize("kind", ["limits", "requests"])
@pytest.mark.parametrize("field", ["containers", "initContainers"])
@pytest.mark.parametrize("annotations", [{}, {"dra_enabled": "false"}, {"dra_enabled": "true"}])
@pytest.mark.parametrize(
    ("resource", "asks"),
    [
        *((name, True) for name in pod_resources.AMOUNTS),
        (names.RESOURCE_GPU, False),  # whole cards by Kubernetes' extended resource
        (f"{names.TENSOR_FUSION_INDEX}0", False),
        ("cpu", False),
    ],
)
def test_only_a_pod_whose_containers_name_amounts_is_sent(
    kind: str, field: str, annotations: dict[str, str], resource: str, asks: bool
) -> None:
    asking = container_document("one", resources={kind: {resource: "1"}})
    document = pod_document(pod_annotations(**annotations))
    document["spec"][field] = [asking]

    sent = is_sent(webhooks()["Mutating", "pods"], document)

    assert sent == (asks or annotations == {"dra_enabled": "true"})
    assert bool(pod_resources.named(document)) == asks


def test_pod_for_a_partition_is_sent_whatever_else_it_asks_for() -> None:
    entry = webhooks()["Mutating", "pods"]
    asks = pod_document(pod_annotations(isolation="partitioned"))
    other = pod_document(pod_annotations(isolation="soft"))
    off = pod_document(pod_annotations(isolation="partitioned", dra_enabled="false"))

    assert [is_sent(entry, each) for each in (asks, other, off)] == [True, False, False]


def configured(kind: str, driver: str) -> Any:
    """Return an object of a kind with parameters for a driver."""
    document: Any = [{"opaque": {"driver": driver}}]
    for part in reversed(claim_admission.CONFIG_PATHS[kind]):
        document = {part: document}
    return document


def labelled(labels: Json) -> Json:
    """Return a claim that was made from a template with these labels."""
    claim = template_claim()
    return {**claim, "metadata": {**claim["metadata"], "labels": labels}}


def requesting(annotations: Json, **request: Any) -> Json:
    """Return a claim with one request, by default of a card of this driver.

    One without annotations has no such field.
    """
    wanted = request or {"exactly": {"deviceClassName": names.DEVICE_CLASS}}
    return {
        "metadata": {"annotations": annotations} if annotations else {"finalizers": ["a"]},
        "spec": {"devices": {"requests": [wanted]}},
    }


PARAMETERS, QUOTAS = ("Validating", "parameters"), ("Validating", "quotas")
CLAIMS = ("Mutating", "claims")
OTHER = {"example.com/x": "1"}


@pytest.mark.parametrize(
    ("webhook", "new", "old", "sent"),
    [
        *(
            (PARAMETERS, configured(kind, driver), None, driver == names.DRIVER)
            for kind in claim_admission.CONFIG_PATHS
            for driver in (names.DRIVER, "nic.example.com")
        ),
        (PARAMETERS, {"spec": {}}, None, False),
        (PARAMETERS, {"spec": {"spec": {}}}, None, False),
        (PARAMETERS, {"spec": {"spec": {"devices": {}}, "devices": {}}}, None, False),
        (CLAIMS, template_claim(), None, True),
        (CLAIMS, labelled({names.LABEL_CLAIM_TEMPLATE: "false"}), None, False),
        (CLAIMS, labelled({}), None, False),
        (CLAIMS, {"metadata": {}, "spec": {}}, None, False),
        (QUOTAS, requesting({}), None, True),
        (QUOTAS, requesting({}, exactly={"deviceClassName": "nic.example.com"}), None, False),
        (
            QUOTAS,
            requesting({}, firstAvailable=[{"deviceClassName": names.DEVICE_CLASS}]),
            None,
            True,
        ),
        # A changed claim is checked again only if annotations of shares changed.
        *(
            (QUOTAS, requesting(new), requesting(old), name in names.SHARE_ANNOTATIONS)
            for name in sorted({*names.SHARE_ANNOTATIONS, "example.com/other"})
            for new, old in (
                ({name: "1"}, {}),
                ({}, {name: "1"}),
                ({name: "2"}, {name: "1"}),
                ({name: "1"}, OTHER),
            )
        ),
        (QUOTAS, requesting(OTHER), requesting({}), False),
        (QUOTAS, requesting({}), requesting(OTHER), False),
    ],
)
def test_only_these_claims_and_classes_are_sent(
    webhook: tuple[str, str], new: Json, old: Json | None, sent: bool
) -> None:
    assert is_sent(webhooks()[webhook], new, old) is sent


def test_claims_of_the_template_have_its_label() -> None:
    (template,) = documents(MANIFESTS[0])

    for each in (template, template["spec"], template_claim()):
        assert each["metadata"]["labels"] == {names.LABEL_CLAIM_TEMPLATE: "true"}
    assert template["metadata"]["name"] == names.CLAIM_TEMPLATE


def test_system_and_driver_namespaces_are_excluded() -> None:
    namespace = helm.one(WEBHOOK, "Deployment")["metadata"]["namespace"]

    for entry in webhooks().values():
        rule, *_ = entry["namespaceSelector"]["matchExpressions"]
        assert (rule["key"], rule["operator"]) == ("kubernetes.io/metadata.name", "NotIn")
        assert {"kube-system", namespace} <= set(rule["values"])


def test_webhook_outage_blocks_pods_and_enforced_quotas_but_not_parameter_checks() -> None:
    fails = {name: entry["failurePolicy"] for (_, name), entry in webhooks().items()}

    assert {name for name, policy in fails.items() if policy == "Ignore"} == {
        "parameters",
        "templates",
        "quotas",
    }
    assert fails["enforced-quotas"] == fails["pods"] == fails["claims"] == "Fail"
    assert fails["changed-limits"] == fails["changed-quotas"] == "Fail"


def test_claims_are_sent_for_one_check_of_quotas_which_the_label_of_their_namespace_selects() -> (
    None
):
    every = {
        name: webhooks()["Validating", name]
        for name in ("enforced-quotas", "quotas", "changed-quotas")
    }
    label = {"key": names.LABEL_QUOTA, "values": [names.QUOTA_ENFORCED]}
    found = {}
    for name, each in every.items():
        (_, selector), (rule,) = each["namespaceSelector"]["matchExpressions"], each["rules"]
        assert {key: selector[key] for key in label} == label
        found[name] = selector["operator"], tuple(rule["operations"]), each["failurePolicy"]

    # Each operation in each namespace is reviewed once; a change never without the webhook.
    assert found == {
        "enforced-quotas": ("In", ("CREATE", "UPDATE"), "Fail"),
        "quotas": ("NotIn", ("CREATE",), "Ignore"),
        "changed-quotas": ("NotIn", ("UPDATE",), "Fail"),
    }
    assert {each["sideEffects"] for each in every.values()} == {"NoneOnDryRun"}
    assert len({str(each["matchConditions"]) for each in every.values()}) == 1


def test_quotas_webhook_may_write_an_event_except_in_a_dry_run() -> None:
    assert webhooks()[QUOTAS]["sideEffects"] == "NoneOnDryRun"


def test_webhook_role_has_exactly_the_rights_it_needs() -> None:
    granted = rbac.rights(WEBHOOK, "tensorfusion-dra-webhook")

    group, watched = names.TENSOR_FUSION_GROUP, ("get", "list", "watch")
    assert {(each.group, each.resource, each.verb) for each in granted} == {
        *((group, names.GPUPOOLS, verb) for verb in watched),
        *((group, names.SCHEDULING_CONFIG_TEMPLATES, verb) for verb in watched),
        *((group, names.GPU_RESOURCE_QUOTAS, verb) for verb in ("list", "watch", "patch")),
        ("", "pods", "get"),
        ("events.k8s.io", "events", "create"),
        *((names.RESOURCE_GROUP, "resourceclaimtemplates", verb) for verb in ("list", "watch")),
        *((names.RESOURCE_GROUP, "deviceclasses", verb) for verb in ("list", "watch")),
        *((names.RESOURCE_GROUP, "resourceslices", verb) for verb in ("list", "watch")),
        (names.RESOURCE_GROUP, "resourceclaims", "list"),
        (names.SCHEDULING_GROUP, "priorityclasses", "get"),
    }


@pytest.mark.parametrize("name", DEFINITIONS)
def test_definition_is_valid_of_its_scope_and_in_tensor_fusions_group(name: str) -> None:
    (found,) = documents(DEFINITIONS[name])
    spec = found["spec"]

    kubernetes_schemas.check(found)
    assert name == f"{spec['names']['plural']}.yaml"
    assert found["metadata"]["name"] == f"{spec['names']['plural']}.{spec['group']}"
    assert spec["group"] == names.TENSOR_FUSION_GROUP
    is_namespaced = spec["names"]["plural"] == names.GPU_RESOURCE_QUOTAS
    assert spec["scope"] == ("Namespaced" if is_namespaced else "Cluster")
    assert [version["name"] for version in spec["versions"]] == [names.TENSOR_FUSION_VERSION]


def test_pools_have_the_drivers_defaults_ranges_and_levels() -> None:
    fields = schema(names.GPUPOOLS)["properties"]["spec"]["properties"]
    ratios = fields["capacityConfig"]["properties"]["oversubscription"]["properties"]

    assert parsed({}) == parsed({name: ratio["default"] for name, ratio in ratios.items()})
    assert len(ratios) == len(Oversubscription.__dataclass_fields__)
    for name, ratio in ratios.items():
        for limit, beyond in (("minimum", -1), ("maximum", 1)):
            assert parsed({name: ratio[limit]}) is not None
            with pytest.raises(InputError, match=name):
                parsed({name: ratio[limit] + beyond})
    levels = fields["qosConfig"]["properties"]["defaultQoS"]["enum"]
    assert tuple(levels) == QOS_LEVELS


def parsed(ratios: dict[str, Any]) -> Oversubscription | None:
    pool = gpupool_document("prod", capacityConfig={"oversubscription": ratios})
    return gpupool.parse(pool).oversubscription


@pytest.mark.process
def test_changes_of_limits_and_of_the_label_are_sent_and_no_others() -> None:
    entry = webhooks()["Mutating", "changed-limits"]

    def sent(new: Json, old: Json, driver: str = names.DRIVER) -> bool:
        result = {"driver": driver, "pool": "p/n", "device": "gpu-0", "request": "gpu"}
        status = {"allocation": {"devices": {"results": [result] if driver else []}}}
        documents = [{"metadata": each, "spec": {}, "status": status} for each in (new, old)]
        return is_sent(entry, *documents)

    plain: Json = {"name": "a"}
    limit: Json
    other: Json
    limit, other = ({**plain, "annotations": {names.ANNOTATION_VRAM_LIMIT: text}} for text in "12")
    label: Json = {**plain, "labels": {names.LABEL_NODE: "n"}}
    changes = [(limit, plain), (plain, limit), (other, limit), (label, plain), (plain, label)]
    assert all(sent(new, old) for new, old in changes)
    assert not any(sent(new, old, driver) for new, old in changes for driver in ("", "other"))
    assert not sent(limit, limit)
    assert not sent({**plain, "annotations": {"example.com/a": "1"}}, plain)

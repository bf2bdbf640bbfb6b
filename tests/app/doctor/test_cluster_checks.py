"""Checks of Kubernetes, of objects, rights and the webhook, by answers of an API server."""

import copy
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from dra_simulator.api import object_rules
from tensorfusion_dra.app.doctor import kubernetes, objects
from tensorfusion_dra.app.doctor.checks import CheckFunction, Context, Place
from tensorfusion_dra.app.doctor.command import CHECKS
from tensorfusion_dra.cluster.api import Api
from tensorfusion_dra.cluster.watch import QUOTAS
from tensorfusion_dra.core.devices import capacity, slices
from tensorfusion_dra.core.devices.gpu import Gpu
from tensorfusion_dra.core.finding import Level
from tensorfusion_dra.core.names import LABEL_QUOTA, QUOTA_ENFORCED
from tests.app.doctor.here import context
from tests.support import findings
from tests.support.builders.devices import NODE
from tests.support.builders.devices import published_devices as devices
from tests.support.builders.gpupools import gpupool_document
from tests.support.builders.gpus import gpus, partition
from tests.support.builders.quotas import quota_document
from tests.support.canned_api import CannedApi, served
from tests.support.findings import Expected
from tests.support.helm import CHART

SELF = "POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
OTHERS = "POST /apis/authorization.k8s.io/v1/subjectaccessreviews"
DAEMONSETS = "GET /apis/apps/v1/daemonsets"
DEPLOYMENTS = "GET /apis/apps/v1/deployments"
RESOURCE = "/apis/resource.k8s.io/v1"
MUTATING = "GET /apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
PODS = "POST /api/v1/namespaces/default/pods"
DRIVER = "tensor-fusion.ai.dra-driver"
OK = (Level.OK, "")

Here = Callable[..., Context]


@pytest.fixture
def canned() -> Iterator[CannedApi]:
    with served({}) as api:
        yield api


@pytest.fixture
def here(canned: CannedApi, tmp_path: Path) -> Here:
    kubeconfig = canned.kubeconfig(tmp_path / "kubeconfig")
    return lambda **more: context(tmp_path, api=Api(kubeconfig), **more)


def workload(account: str, **variables: str) -> dict[str, Any]:
    env = [{"name": f"TENSORFUSION_DRA_{key}", "value": text} for key, text in variables.items()]
    spec = {"serviceAccountName": account, "containers": [{"env": env}]}
    return {"metadata": {"namespace": "gpu"}, "spec": {"template": {"spec": spec}}}


def test_a_workstation_checks_the_nodes_that_publish_slices(canned: CannedApi, here: Here) -> None:
    nodes = [{"metadata": {"name": name}, "status": {}} for name in ("a", "b")]
    published = {"spec": {"nodeName": "b", "driver": "tensor-fusion.ai.dra-driver"}}
    canned.answers |= {
        "GET /api/v1/nodes": {"items": nodes},
        f"GET {RESOURCE}/resourceslices": {"items": [published]},
    }

    found = kubernetes.checked_nodes(here(place=Place.WORKSTATION))

    assert [node["metadata"]["name"] for node in found] == ["b"]


def test_slices_of_this_node_or_on_a_workstation_of_all_are_checked(
    canned: CannedApi, here: Here
) -> None:
    canned.answers |= {
        "GET /api/v1/nodes": {"items": []},
        f"GET {RESOURCE}/resourceslices": {"items": []},
    }

    findings.check(objects.published_slices(here()), [(Level.PROBLEM, "node-01")])
    findings.check(objects.published_slices(here(place=Place.WORKSTATION)), [(Level.PROBLEM, "")])
    requests = [name for name, _ in canned.requests if "resourceslices" in name]
    assert "spec.nodeName%3Dnode-01" in requests[0]
    assert "nodeName" not in requests[1]


def test_no_card_is_out_of_service_on_a_node_without_cards(canned: CannedApi, here: Here) -> None:
    spec = {"nodeName": "node-01", "driver": DRIVER, "pool": {"name": "default/node-01"}}
    canned.answers |= {VERSION: {"gitVersion": "v1.36.0"}, SLICES: {"items": [{"spec": spec}]}}

    assert [*objects.out_of_service(here())] == []


def test_a_healthy_webhook_gives_the_dry_run_pod_a_claim(canned: CannedApi, here: Here) -> None:
    canned.answers |= {
        MUTATING: {"items": [{"webhooks": [{"name": "pods.dra.tensor-fusion.ai"}]}]},
        PODS: lambda pod: {**pod, "spec": {**pod["spec"], "resourceClaims": [{"name": "gpu"}]}},
    }

    findings.check(objects.reachable(here()), [OK, (Level.OK, "added the claim gpu")])
    for answer, expected in (
        ((500, 'failed calling webhook "pods.dra"'), (Level.PROBLEM, "port 9443")),
        ((403, "exceeded quota"), (Level.WARNING, "exceeded quota")),
        (lambda pod: pod, (Level.PROBLEM, "added no claim")),
    ):
        canned.answers[PODS] = answer
        findings.check(objects.reachable(here()), [OK, expected])
    request, pod = next(each for each in canned.requests if each[0].startswith("POST"))
    assert "dryRun=All" in request
    assert pod["metadata"]["annotations"]["tensor-fusion.ai/vram-request"] == "1Gi"


def test_without_a_webhook_no_pod_is_created_as_a_dry_run(canned: CannedApi, here: Here) -> None:
    findings.check(objects.reachable(here()), [(Level.NOTE, "")])
    assert not any(name.startswith(PODS) for name, _ in canned.requests)


VERSION = "GET /version"
SLICES = f"GET {RESOURCE}/resourceslices"
CLAIMS = f"GET {RESOURCE}/resourceclaims"
NEW_CLAIM = f"POST {RESOURCE}/namespaces/default/resourceclaims"
TEMPLATES = f"GET {RESOURCE}/resourceclaimtemplates"
CLASSES = f"GET {RESOURCE}/deviceclasses"
CLASS = f"{CLASSES}/tensor-fusion.ai"
POOLS = "GET /apis/tensor-fusion.ai/v1/gpupools"
READY = [{"type": "Ready", "status": "True"}]


def of_version(version: str) -> dict[str, Any]:
    return {VERSION: {"gitVersion": version}}


def of_node(kubelet: str = "v1.36.0", conditions: list[dict[str, str]] = READY) -> dict[str, Any]:
    status = {"nodeInfo": {"kubeletVersion": kubelet}, "conditions": conditions}
    return {"GET /api/v1/nodes/node-01": {"metadata": {"name": "node-01"}, "status": status}}


def claim_for_a_part(*results: dict[str, Any], asks: bool = True) -> dict[str, Any]:
    exactly = {"capacity": {"requests": {"vram": "1Gi"}}} if asks else {}
    return {
        "metadata": {"namespace": "default", "name": "a"},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
        "status": {"allocation": {"devices": {"results": list(results)}}},
    }


PARTS = [
    claim_for_a_part({"driver": DRIVER, "consumedCapacity": {"vram": "1Gi"}}),
    claim_for_a_part({"driver": DRIVER}, asks=False),
    claim_for_a_part({"driver": "gpu.example.com"}),
    claim_for_a_part({"driver": DRIVER, "adminAccess": True}),
    claim_for_a_part({"driver": DRIVER, "device": "mig-0"}),  # a partition is never divided
]

NEGATIVE = claim_for_a_part(
    {"driver": "n", "pool": "p", "device": "d", "consumedCapacity": {"cores": "-2", "vram": "1"}}
)

SELECTS = f'device.driver == "{DRIVER}"'


def class_with_selectors(*expressions: str, config: list[Any] | None = None) -> dict[str, Any]:
    selectors = [{"cel": {"expression": text}} for text in expressions]
    return {"spec": {"selectors": selectors, "config": config or []}}


def configured_class(name: str, config: list[Any]) -> dict[str, Any]:
    return {"metadata": {"name": name}, **class_with_selectors(SELECTS, config=config)}


def several(version: str, count: int, *, device_class: str = "large") -> dict[str, Any]:
    """Return a cluster with a claim and a template for several GPUs of a class."""
    exactly = {"deviceClassName": device_class, "count": count}
    spec = {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}
    alternative = {"devices": {"requests": [{"firstAvailable": [exactly]}]}}
    metadata = {"namespace": "a", "name": "train"}
    return {
        VERSION: {"gitVersion": version},
        CLASSES: {"items": [configured_class("large", [])]},
        CLAIMS: {"items": [{"metadata": metadata, "spec": spec}]},
        TEMPLATES: {"items": [{"metadata": metadata, "spec": {"spec": alternative}}]},
    }


def kept_without(*dropped: str, version: str = "v1.36.0") -> dict[str, Any]:
    """Return an API server that stores a slice without these fields."""

    def stored(sent: Any) -> Any:
        (device,) = sent["spec"]["devices"]
        for field in dropped:
            holder = device["capacity"]["vram"] if field == "requestPolicy" else device
            del holder[field]
        return sent

    return {**of_version(version), f"POST {RESOURCE}/resourceslices": stored}


SHARING = ("allowMultipleAllocations", "requestPolicy")
BINDING = ("bindingConditions", "bindingFailureConditions")
SHARING_OFF = (Level.PROBLEM, "DRAConsumableCapacity is off")
TAINTS_OFF = (Level.NOTE, "DRADeviceTaints is off")


@pytest.mark.parametrize(
    ("check", "answers", "expected"),
    [
        (kubernetes.version, of_version("v1.34.8"), [(Level.PROBLEM, "Kubernetes v1.34.8")]),
        (kubernetes.version, of_version("v1.36.2-gke.100"), [OK]),
        (kubernetes.version, {VERSION: {}}, [OK]),
        (kubernetes.nodes, {}, [(Level.PROBLEM, "--node-name")]),
        (kubernetes.nodes, of_node("v1.34.8"), [OK, (Level.PROBLEM, "v1.35 or later")]),
        (kubernetes.nodes, of_node("v1.35.0"), [OK, OK]),
        (kubernetes.nodes, of_node(""), [OK, (Level.OK, "reports no version")]),
        (
            kubernetes.nodes,
            of_node(conditions=[{"type": "Ready", "status": "False", "message": "no CNI"}]),
            [(Level.PROBLEM, "Ready is False: no CNI"), OK],
        ),
        (kubernetes.nodes, of_node(conditions=[]), [(Level.PROBLEM, "Ready is Unknown"), OK]),
        (
            kubernetes.allocations,
            {CLAIMS: {"items": [claim_for_a_part({"driver": DRIVER})]}},
            [(Level.PROBLEM, "default/a got devices")],
        ),
        (kubernetes.allocations, {CLAIMS: {"items": PARTS}}, [OK]),
        (kubernetes.allocations, {CLAIMS: {"items": PARTS[1:]}}, []),
        (
            kubernetes.allocations,
            {CLAIMS: {"items": [NEGATIVE]}, **of_version("v1.38.0")},
            [(Level.PROBLEM, "no pod with claims is scheduled")],
        ),
        (
            kubernetes.allocations,
            {CLAIMS: {"items": [NEGATIVE]}, **of_version("v1.37.2")},
            [(Level.WARNING, 'device n/p/d: consumed capacity "cores" must not be negative')],
        ),
        (
            kubernetes.multi_gpu,
            several("v1.35.6", 4),
            [(Level.WARNING, "ResourceClaim a/train, ResourceClaimTemplate a/train: one request")],
        ),
        (kubernetes.multi_gpu, several("v1.35.6", 1), []),
        (kubernetes.multi_gpu, several("v1.35.6", 4, device_class="other"), []),
        (kubernetes.multi_gpu, several("v1.36.2", 4), []),
        (kubernetes.multi_gpu, several("", 4), []),
        (kubernetes.slice_gates, kept_without(), [OK]),
        (kubernetes.slice_gates, kept_without(*SHARING), [SHARING_OFF]),
        (kubernetes.slice_gates, kept_without("taints"), [TAINTS_OFF]),
        (kubernetes.slice_gates, kept_without("taints", *SHARING), [SHARING_OFF, TAINTS_OFF]),
        (
            kubernetes.slice_gates,
            kept_without(*BINDING),
            [(Level.WARNING, "DRADeviceBindingConditions is off")],
        ),
    ],
)
def test_versions_nodes_claims_and_feature_gates(
    canned: CannedApi,
    here: Here,
    check: CheckFunction,
    answers: dict[str, Any],
    expected: list[Expected],
) -> None:
    canned.answers |= answers

    findings.check(check(here(enforcer_wait_seconds=60)), expected)


def test_trial_slice_is_valid() -> None:
    for waits in (False, True):
        trial = kubernetes.trial_slice("node-01", waits=waits)
        assert object_rules.violations(trial["spec"]) == ()
    assert len(kubernetes.trial_slice("n" * 253)["metadata"]["name"]) <= 253


PROD_NODE = {"metadata": {"name": "node-01", "labels": {"tier": "prod"}}}


def selecting(value: str) -> dict[str, Any]:
    requirement = {"key": "tier", "operator": "In", "values": [value]}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [requirement]}]}
    return gpupool_document("prod", nodeManagerConfig={"nodeSelector": terms})


@pytest.mark.parametrize(
    ("source", "stored", "expected"),
    [
        ("settings", None, "the kubelet deletes those of a plugin"),
        ("node-labels", None, "the API server has no GPUPools"),
        ("node-labels", [], "node node-01: no GPUPool selects it"),
        ("node-labels", [selecting("test")], "node node-01: no GPUPool selects it"),
        ("node-labels", [selecting("prod")], "the kubelet deletes those of a plugin"),
        ("object", [], "GPUPool prod: found none of this name"),
        ("object", [selecting("test")], "the kubelet deletes those of a plugin"),
    ],
)
def test_missing_pool_is_named_as_the_cause_why_nothing_is_published(
    canned: CannedApi,
    here: Here,
    source: str,
    stored: list[dict[str, Any]] | None,
    expected: str,
) -> None:
    env = {"POOL_SOURCE": source, "GPUPOOL": "prod"}
    canned.answers |= {
        DAEMONSETS: {"items": [workload("a", **env)]},
        "GET /api/v1/nodes": {"items": [PROD_NODE]},
        "GET /api/v1/nodes/node-01": PROD_NODE,
        SLICES: {"items": []},
        POOLS: None if stored is None else {"items": stored},
    }

    (on_node,) = objects.published_slices(here(pool_source=source, gpupool="prod"))
    (elsewhere,) = objects.published_slices(here(place=Place.WORKSTATION))

    assert expected in f"{on_node.found} {on_node.expected}"
    assert (on_node == elsewhere) == ("GPUPool" in expected)


def of_pools(published: str, *known: str) -> dict[str, Any]:
    """Return a cluster whose nodes publish a pool, beside GPUPools."""
    stored = {"spec": {"pool": {"name": f"{published}/node-01"}}}
    return {SLICES: {"items": [stored]}, POOLS: {"items": list(map(gpupool_document, known))}}


def claim_template(namespace: str) -> dict[str, Any]:
    return {"metadata": {"namespace": namespace, "name": "tensor-fusion-gpu-template"}}


GOOD = {"apiVersion": "tensor-fusion.ai/v1alpha1", "kind": "GpuShare", "isolation": "hard"}
CONFIG = [
    {"opaque": {"driver": DRIVER, "parameters": GOOD}},
    {"opaque": {"driver": "gpu.nvidia.com", "parameters": {"any": 1}}},
    {"opaque": {"driver": DRIVER, "parameters": {**GOOD, "isolation": "hardest"}}},
]
PARTS_OF_CARD = {"requests": {"tflops": "78", "vram": "20Gi"}}
QUARTER = [{"opaque": {"driver": DRIVER, "parameters": {**GOOD, **PARTS_OF_CARD}}}]
BAD = (Level.PROBLEM, "DeviceClass a: isolation: found 'hardest'")
WHOLE = (Level.PROBLEM, "those that name no amounts take whole cards")


def filled(claim: Any) -> Any:
    """The webhook that fills claims of classes with amounts."""
    (request,) = claim["spec"]["devices"]["requests"]
    request["exactly"]["capacity"] = PARTS_OF_CARD
    return claim


def stored(count: int = 1, *more: Gpu) -> list[Any]:
    wanted = slices.wanted(devices(*gpus(count), *more), NODE, node_uid="uid")
    return [copy.deepcopy(dict(item)) for item in slices.plan(wanted, ()).create]


def switched(*, on: bool) -> list[Any]:
    """A slice of two cards whose node started or stopped oversubscribing, the first one in use."""
    ratios = replace(capacity.NO_MORE, tflops_percent=150)
    node = replace(NODE, oversubscription=ratios if on else None)
    cards = gpus(2)
    found = devices(*cards, node=node, shared={cards[0].uuid: not on})
    plan = slices.plan(slices.wanted(found, node, node_uid="uid"), ())
    return [copy.deepcopy(dict(item)) for item in plan.create]


def exclusive() -> list[Any]:
    """A slice of two devices that cannot be shared, and of a partition, which never is."""
    (item,) = stored(2, partition(card=2))
    for device in item["spec"]["devices"][:2]:
        del device["allowMultipleAllocations"]
    return [item]


@pytest.mark.parametrize(
    ("check", "answers", "expected"),
    [
        (objects.known_pools, of_pools("default"), []),
        (objects.known_pools, of_pools("prod", "prod"), []),
        (
            objects.known_pools,
            of_pools("default", "prod"),
            [(Level.WARNING, "nodes publish default, and the cluster's GPUPools are prod")],
        ),
        (objects.device_class, {CLASS: class_with_selectors(SELECTS)}, [OK]),
        (
            objects.device_class,
            {CLASS: class_with_selectors("true", f"device.driver=='{DRIVER}'")},
            [OK],
        ),
        (
            objects.device_class,
            {CLASS: class_with_selectors('device.driver == "gpu.nvidia.com"')},
            [(Level.WARNING, "do not name this driver")],
        ),
        (
            objects.device_class,
            {CLASS: class_with_selectors()},
            [(Level.WARNING, "selectors none")],
        ),
        (objects.device_class, {}, [(Level.PROBLEM, "not found")]),
        (objects.share_classes, {CLASSES: {"items": [configured_class("a", CONFIG)]}}, [BAD]),
        (objects.share_classes, {CLASSES: {"items": [configured_class("a", CONFIG[:2])]}}, []),
        (
            objects.share_classes,
            {
                CLASSES: {"items": [configured_class("a", QUARTER)]},
                NEW_CLAIM: lambda claim: claim,
            },
            [WHOLE],
        ),
        (
            objects.share_classes,
            {CLASSES: {"items": [configured_class("a", QUARTER)]}, NEW_CLAIM: filled},
            [(Level.OK, "claims get tflops 78, vram 20Gi")],
        ),
        (
            objects.templates,
            {TEMPLATES: {"items": [claim_template("a"), claim_template("b")]}},
            [(Level.OK, "in a, b")],
        ),
        (objects.templates, {}, [(Level.NOTE, "in no namespace")]),
        (objects.quotas, {}, []),
        (
            objects.quotas,
            {
                f"GET {QUOTAS}": {"items": [quota_document()]},
                "GET /api/v1/namespaces": {
                    "items": [{"metadata": {"name": "team-a", "labels": {LABEL_QUOTA: "off"}}}]
                },
            },
            [(Level.NOTE, "without a check while the webhook does not answer")],
        ),
        (
            objects.quotas,
            {
                f"GET {QUOTAS}": {"items": [quota_document()]},
                "GET /api/v1/namespaces": {
                    "items": [
                        {"metadata": {"name": "team-a", "labels": {LABEL_QUOTA: QUOTA_ENFORCED}}}
                    ]
                },
            },
            [],
        ),
        (objects.published_slices, {SLICES: {"items": stored(2)}}, [(Level.OK, "with 2 dev")]),
        (objects.published_slices, {}, [(Level.PROBLEM, "of node node-01: none")]),
        (objects.published_slices, {SLICES: {"items": stored(130)}}, [OK]),
        (
            objects.published_slices,
            {SLICES: {"items": stored(130)[:1]}},
            [(Level.WARNING, "the scheduler ignores an incomplete pool")],
        ),
        *(
            (
                objects.published_slices,
                {SLICES: {"items": switched(on=on)}},
                [OK, (Level.NOTE, f"1 of 2 are still shared by {text}: on node-01")],
            )
            for on, text in (
                (True, "tflops and vram, although their nodes oversubscribe"),
                (
                    False,
                    "virtual_tflops and virtual_vram, although their nodes do not oversubscribe",
                ),
            )
        ),
        (
            objects.published_slices,
            {SLICES: {"items": exclusive()}},
            [(Level.PROBLEM, "2 of 3 cannot be shared")],
        ),
    ],
)
def test_class_templates_pools_and_slices(
    canned: CannedApi,
    here: Here,
    check: CheckFunction,
    answers: dict[str, Any],
    expected: list[Expected],
) -> None:
    canned.answers |= answers

    findings.check(check(here()), expected)


LABEL: Final = "nvidia.com/gpu.present"
LINUX: Final = {"kubernetes.io/os": "linux"}


def term(key: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": "In", "values": ["true"]}]}


def installed(wanted: int = 0, there: int = 0, env: dict[str, str] | None = None) -> dict[str, Any]:
    terms = [term(LABEL), term("feature.node.kubernetes.io/pci-10de.present")]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    return {
        "metadata": {"namespace": "tensorfusion-dra", "name": "node-plugin"},
        "spec": {
            "template": {
                "spec": {
                    "runtimeClassName": "nvidia",
                    "nodeSelector": LINUX,
                    "affinity": {"nodeAffinity": required},
                    "containers": [
                        {
                            "env": [
                                {"name": name, "value": value}
                                for name, value in (env or {}).items()
                            ]
                        }
                    ],
                }
            }
        },
        "status": {"desiredNumberScheduled": wanted, "currentNumberScheduled": there},
    }


def labelled_node(**labels: str) -> dict[str, Any]:
    return {"metadata": {"name": "node-01", "labels": {**LINUX, **labels}}}


PLUGIN = "DaemonSet tensorfusion-dra/node-plugin"


@pytest.mark.parametrize(
    ("daemonset", "labels", "runtime_class", "subjects"),
    [
        (installed(1, 1), {LABEL: "true"}, {}, [PLUGIN]),
        (installed(), {}, {}, [PLUGIN]),
        (installed(), {}, None, ["RuntimeClass nvidia", PLUGIN]),
        (installed(1), {LABEL: "true"}, None, ["RuntimeClass nvidia"]),
        (installed(1), {LABEL: "true"}, {}, [PLUGIN]),
    ],
)
def test_daemonset_without_pods_is_a_problem_with_what_it_lacks(  # noqa: PLR0917
    canned: CannedApi,
    here: Here,
    daemonset: dict[str, Any],
    labels: dict[str, str],
    runtime_class: dict[str, Any] | None,
    subjects: list[str],
) -> None:
    canned.answers |= {
        DAEMONSETS: {"items": [daemonset]},
        "GET /api/v1/nodes": {"items": [labelled_node(**labels)]},
        "GET /apis/node.k8s.io/v1/runtimeclasses/nvidia": runtime_class,
    }

    found = list(objects.pods(here()))

    assert [each.subject for each in found] == subjects
    assert {each.level for each in found} == {Level.PROBLEM if found[0].remedy else Level.OK}
    if not labels:
        assert found[-1].found == (
            "no pods: none of 1 nodes has the labels kubernetes.io/os=linux and "
            "(nvidia.com/gpu.present=true or feature.node.kubernetes.io/pci-10de.present=true)"
        )


KINDS = {"gpupools": "draConfig", "schedulingconfigtemplates": "dra"}
"""Kinds of Tensor Fusion with the field by which their objects enable DRA."""


def definition_of(plural: str, *, drops: bool) -> Any:
    """Return the chart's definition, or what Tensor Fusion's own one has of it."""
    found: Any = yaml.safe_load((CHART / "tensor-fusion-crds" / f"{plural}.yaml").read_text())
    (version,) = found["spec"]["versions"]
    spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    if drops:
        spec.pop("x-kubernetes-preserve-unknown-fields", None)
        del spec["properties"][KINDS[plural]]
    return found


@pytest.mark.parametrize("plural", KINDS)
@pytest.mark.parametrize(
    ("drops", "is_sent", "expected"),
    [
        (None, False, []),
        (False, True, []),
        (True, False, [(Level.NOTE, "enable DRA")]),
        (True, True, [(Level.WARNING, "drops it")]),
    ],
)
def test_definition_that_drops_what_enables_dra_is_found(
    canned: CannedApi,
    here: Here,
    plural: str,
    expected: list[Expected],
    *,
    drops: bool | None,
    is_sent: bool,
) -> None:
    sent = json.dumps({"spec": {KINDS[plural]: {"enable": True}}}) if is_sent else "{}"
    annotations = {"kubectl.kubernetes.io/last-applied-configuration": sent}
    path = f"GET /apis/tensor-fusion.ai/v1/{plural}"
    canned.answers[path] = {"items": [{"metadata": {"name": "a", "annotations": annotations}}]}
    if drops is not None:
        definition = f"customresourcedefinitions/{plural}.tensor-fusion.ai"
        path = f"GET /apis/apiextensions.k8s.io/v1/{definition}"
        canned.answers[path] = definition_of(plural, drops=drops)

    findings.check(objects.pool_definition(here()), expected)


def test_every_check_of_the_clusters_objects_is_made() -> None:
    made = {check.run for check in CHECKS}

    assert {objects.rollout, objects.pool_definition, objects.quotas} <= made


OWN_PODS = "GET /api/v1/pods"
IMAGE = "reg.example/tensorfusion-dra:0.2"
PULLS = {"reason": "ErrImagePull", "message": f'failed to pull image "{IMAGE}": not found'}
BACK_OFF = {"reason": "CrashLoopBackOff", "message": "back-off 5m0s restarting failed container"}
EXITED = {"terminated": {"exitCode": 1, "reason": "Error"}}


def own_pod(
    name: str, *containers: dict[str, Any], phase: str = "Pending", **conditions: Any
) -> dict[str, Any]:
    """Return a pod of the driver, whose first container is an init container if there are two."""
    parts = {"initContainerStatuses": containers[:-1], "containerStatuses": containers[-1:]}
    return {
        "metadata": {"namespace": "gpu", "name": name},
        "spec": {"nodeName": "node-01"} if containers else {},
        "status": {
            "phase": phase,
            "conditions": [{"type": key, **value} for key, value in conditions.items()],
            **{key: list(value) for key, value in parts.items()},
        },
    }


def container(
    name: str, *, restarts: int = 0, last: dict[str, Any] | None = None, **state: Any
) -> dict[str, Any]:
    return {
        "name": name,
        "ready": False,
        "restartCount": restarts,
        "state": state,
        "lastState": last or {},
    }


WEBHOOK_LOG = "GET /api/v1/namespaces/gpu/pods/webhook-1/log"
CRASHED = own_pod(
    "webhook-1", container("webhook", restarts=4, last=EXITED, waiting=BACK_OFF), phase="Running"
)
UNPULLED = own_pod(
    "plugin-2",
    container("tenant-files", waiting=PULLS),
    container("node-plugin", waiting={"reason": "PodInitializing"}),
)
UNFIT = own_pod(
    "webhook-2", PodScheduled={"status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}
)
RUNNING = own_pod("plugin-1", phase="Running", Ready={"status": "True"})
UNREADY = own_pod(
    "plugin-3",
    container("node-plugin", restarts=2, last=EXITED, running={"startedAt": "now"}),
    phase="Running",
    Ready={"status": "False"},
)
ENDED = own_pod("test", container("test", terminated={"exitCode": 1}), phase="Failed")
REPLACED = {**CRASHED, "metadata": {**CRASHED["metadata"], "deletionTimestamp": "2026-01-01"}}


@pytest.mark.parametrize(
    ("pods", "log", "expected"),
    [
        ([], None, []),
        ([RUNNING, ENDED, REPLACED], None, [(Level.OK, "1 Ready")]),
        (
            [RUNNING, CRASHED],
            "ERROR no such socket\n",
            [
                (
                    Level.PROBLEM,
                    "pod gpu/webhook-1 on node-01: webhook: CrashLoopBackOff: back-off 5m0s "
                    "restarting failed container; restarted 4 times, last with exit code 1 "
                    "(Error); its log ends with: ERROR no such socket; Ready; "
                    "kubectl logs -n gpu webhook-1 -c webhook --previous",
                ),
                (Level.OK, "1 Ready"),
            ],
        ),
        ([CRASHED], (403, "pods/log is forbidden"), [(Level.PROBLEM, "pods/log is forbidden")]),
        (
            [UNPULLED],
            None,
            [(Level.PROBLEM, f'tenant-files: ErrImagePull: failed to pull image "{IMAGE}"')],
        ),
        ([UNFIT], None, [(Level.PROBLEM, "no node: Unschedulable: 0/3 nodes")]),
        ([UNREADY], "", [(Level.PROBLEM, "not Ready; restarted 2 times, last with exit code 1")]),
        (
            [own_pod("a", container("a", waiting={"reason": "ContainerCreating"}))],
            None,
            [(Level.WARNING, "ContainerCreating")],
        ),
        (
            [own_pod("plugin-3", container("a", running={}), phase="Running")],
            "gpus_awaited",
            [
                (
                    Level.WARNING,
                    "a: not Ready; its log ends with: gpus_awaited; Ready; "
                    "kubectl logs -n gpu plugin-3 -c a",
                )
            ],
        ),
    ],
)
def test_pods_that_are_not_ready_are_named_with_reason_and_end_of_their_log(
    canned: CannedApi, here: Here, pods: list[Any], log: Any, expected: list[Expected]
) -> None:
    canned.answers |= {
        OWN_PODS: {"items": pods},
        WEBHOOK_LOG: log,
        WEBHOOK_LOG.replace("webhook-1", "plugin-3"): log,
    }

    findings.check(objects.rollout(here()), expected)
    asked = [target for target, _ in canned.requests if "/log" in target]
    assert bool(asked) == (log is not None)
    for target in asked:
        assert "tailLines=1" in target
        # A container that did not restart has no earlier log.
        assert ("previous=true" in target) == (log != "gpus_awaited")


def test_this_drivers_webhooks_are_recognized_by_their_domain() -> None:
    names = ("vpod.kb.io", "pods.dra.tensor-fusion.ai", "mpod-v1.kb.io.tensor-fusion.ai")
    others = {"webhooks": [{"name": name} for name in names]}
    ours = {"webhooks": [{"name": "claims.dra.tensor-fusion.ai"}]}

    assert objects.webhooks([others, {"webhooks": None}, ours]) == [
        names[1],
        ours["webhooks"][0]["name"],
    ]

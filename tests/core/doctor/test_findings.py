"""The doctor's findings: levels, rights, Kubernetes, and this driver's objects in the cluster."""

import copy
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from dra_simulator.api import object_rules
from tensorfusion_dra.core.devices import slices
from tensorfusion_dra.core.doctor import finding, kubernetes, objects, permissions
from tensorfusion_dra.core.doctor.finding import Finding, Level
from tensorfusion_dra.core.doctor.objects import Source
from tensorfusion_dra.core.doctor.permissions import AccessAnswer
from tests.support import findings
from tests.support.builders.devices import NODE
from tests.support.builders.devices import published_devices as devices
from tests.support.builders.gpupools import gpupool_document
from tests.support.builders.gpus import gpus
from tests.support.findings import Expected


def of(level: Level) -> Finding:
    return Finding(level=level, subject="a", found="b")


@pytest.mark.parametrize(
    ("levels", "expected"),
    [
        ([], Level.OK),
        ([Level.NOTE, Level.OK], Level.NOTE),
        ([Level.WARNING, Level.NOTE], Level.WARNING),
        ([Level.COULD_NOT_LOOK, Level.WARNING], Level.COULD_NOT_LOOK),
        ([Level.OK, Level.PROBLEM, Level.COULD_NOT_LOOK], Level.PROBLEM),
    ],
)
def test_worst_finding_counts_and_could_not_look_is_worse_than_a_warning(
    levels: list[Level], expected: Level
) -> None:
    assert finding.worst(map(of, levels)) is expected


POOL = {"pool_source": "node-labels"}
HYPERVISOR = {"read_pods": False, "marks_pods": True}


@pytest.mark.parametrize(
    ("settings", "resource", "verbs"),
    [
        ({}, "resourceslices", {"list", "watch", "create", "update", "delete"}),
        ({}, "resourceclaims", {"get"}),
        ({"lists_claims": True}, "resourceclaims", {"get", "list"}),
        ({}, "nodes", {"get", "list", "watch"}),
        ({"releases_driver": False}, "nodes", {"get"}),
        ({}, "gpupools", set()),
        ({"pool_source": "object"}, "gpupools", {"list", "watch"}),
        ({"pool_source": "object"}, "nodes", {"get", "list", "watch"}),
        (POOL, "gpupools", {"list", "watch"}),
        (POOL, "nodes", {"get", "list", "watch"}),
        ({"read_pods": True}, "pods", {"get"}),
        ({"read_pods": False}, "pods", set()),
        (HYPERVISOR, "pods", {"get", "list", "watch", "patch"}),
    ],
)
def test_rights_of_the_node_plugin_follow_from_its_settings(
    settings: dict[str, Any], resource: str, verbs: set[str]
) -> None:
    table = permissions.of_node_plugin(**settings)

    assert {permission.verb for permission in table if permission.resource == resource} == verbs


def test_without_a_right_to_events_claims_are_prepared_all_the_same() -> None:
    events = [
        permission
        for permission in permissions.of_node_plugin(pool_source="object")
        if permission.resource == "events"
    ]

    assert [(permission.namespace, permission.vital) for permission in events] == [
        ("", False),
        ("default", False),
    ]


def test_the_webhook_reads_pools_and_pods_and_writes_nothing() -> None:
    table = permissions.of_webhook()

    assert {permission.verb for permission in table} == {"get", "list", "watch"}
    assert {permission.verb for permission in table if permission.resource == "gpupools"} == {
        "list",
        "watch",
    }
    assert [permission.verb for permission in table if permission.resource == "pods"] == ["get"]


TABLE = permissions.of_node_plugin()


def test_missing_right_is_a_problem_with_its_rule_and_purpose() -> None:
    permission = next(r for r in TABLE if r.verb == "watch")

    (finding,) = permissions.findings(
        "you", [AccessAnswer(permission, allowed=False, reason="no binding")]
    )

    assert finding.level is Level.PROBLEM
    assert finding.subject == "right to watch resourceslices.resource.k8s.io"
    assert "no binding" in finding.found
    assert permission.purpose in finding.expected
    assert 'apiGroups: ["resource.k8s.io"], resources: [resourceslices]' in finding.cure


def test_missing_granular_verb_for_the_status_of_claims_is_a_warning() -> None:
    (permission,) = (each for each in TABLE if each.resource == "resourceclaims/driver")

    (finding,) = permissions.findings("you", [AccessAnswer(permission, allowed=False)])

    assert finding.level is Level.WARNING
    assert finding.subject == (
        "right to associated-node:patch resourceclaims.resource.k8s.io/driver "
        "named tensor-fusion.ai.dra-driver"
    )
    assert "resourceNames: [tensor-fusion.ai.dra-driver]" in finding.cure


DRIVER = "tensor-fusion.ai.dra-driver"
OK = (Level.OK, "")


def of_kubelet(version: str) -> dict[str, Any]:
    info = {"kubeletVersion": version}
    return {"metadata": {"name": "node-01"}, "status": {"nodeInfo": info}}


def node(*conditions: dict[str, str]) -> dict[str, Any]:
    return {"metadata": {"name": "node-01"}, "status": {"conditions": list(conditions)}}


def of_versions(*served: str) -> dict[str, Any]:
    return {"versions": [{"version": version} for version in served]}


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
]


def several(
    count: int, *, device_class: str = "tensor-fusion.ai", kind: str = "ResourceClaim"
) -> Any:
    exactly = {"deviceClassName": device_class, "count": count}
    spec: dict[str, Any] = {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}
    if kind == "ResourceClaimTemplate":
        spec = {"spec": spec}
    return {"kind": kind, "metadata": {"namespace": "a", "name": "train"}, "spec": spec}


def several_in(version: str, *stored: Any) -> Iterable[Finding]:
    return kubernetes.one_request_for_several({"gitVersion": version}, stored, {"tensor-fusion.ai"})


ALTERNATIVE = {
    "metadata": {"namespace": "a", "name": "train"},
    "spec": {
        "devices": {
            "requests": [{"firstAvailable": [{"deviceClassName": "tensor-fusion.ai", "count": 2}]}]
        }
    },
}


def kept_without(*dropped: str) -> Iterable[Finding]:
    """Judge a slice that the API server stores without these fields."""
    sent = kubernetes.trial_slice("node-01", waits=True)
    stored: Any = copy.deepcopy(dict(sent))
    (device,) = stored["spec"]["devices"]
    for field in dropped:
        holder = device["capacity"]["vram"] if field == "requestPolicy" else device
        del holder[field]
    return kubernetes.kept_of_slice(sent, stored)


SHARING = ("allowMultipleAllocations", "requestPolicy")
BINDING = ("bindingConditions", "bindingFailureConditions")
SHARING_OFF = (Level.PROBLEM, "DRAConsumableCapacity is off")


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (kubernetes.version({"gitVersion": "v1.33.9"}), [(Level.PROBLEM, "Kubernetes v1.33.9")]),
        (kubernetes.version({"gitVersion": "v1.34.0"}), [OK]),
        (kubernetes.version({"gitVersion": "v1.36.2-gke.100"}), [OK]),
        (kubernetes.version({"gitVersion": "v1.40.0"}), [OK]),
        (kubernetes.scheduler({"gitVersion": "v1.34.8"}), [(Level.WARNING, "only the first card")]),
        (kubernetes.scheduler({"gitVersion": "v1.35.0"}), []),
        (kubernetes.served(of_versions("v1")), [(Level.OK, "v1 is used")]),
        (kubernetes.served(of_versions("v1beta2")), [(Level.PROBLEM, "v1beta2")]),
        (kubernetes.served(None), [(Level.PROBLEM, "not served")]),
        (kubernetes.kubelet(of_kubelet("v1.33.4")), [(Level.PROBLEM, "v1.34 or later")]),
        (kubernetes.kubelet(of_kubelet("v1.34.1")), [(Level.WARNING, "can stop calling")]),
        (kubernetes.kubelet(of_kubelet("v1.34.2")), [OK]),
        (kubernetes.kubelet(of_kubelet("")), [(Level.OK, "reports no version")]),
        (kubernetes.ready(node({"type": "Ready", "status": "True"})), [OK]),
        (
            kubernetes.ready(node({"type": "Ready", "status": "False", "message": "no CNI"})),
            [(Level.PROBLEM, "Ready is False: no CNI")],
        ),
        (kubernetes.ready(node()), [(Level.PROBLEM, "Ready is Unknown")]),
        (
            kubernetes.shares([claim_for_a_part({"driver": DRIVER})]),
            [(Level.PROBLEM, "default/a got devices")],
        ),
        (kubernetes.shares(PARTS), [OK]),
        (kubernetes.shares(PARTS[1:]), []),
        (
            several_in("v1.35.6", several(4)),
            [(Level.WARNING, "ResourceClaim a/train: one request has a count")],
        ),
        (
            several_in("v1.35.6", several(4, kind="ResourceClaimTemplate")),
            [(Level.WARNING, "one distinctAttribute tensor-fusion.ai.dra-driver/uuid over all")],
        ),
        (several_in("v1.34.2", ALTERNATIVE), [(Level.WARNING, "object a/train")]),
        (several_in("v1.35.6", several(1), several(4, device_class="other")), []),
        (several_in("v1.36.2", several(4)), []),
        (several_in("", several(4)), []),
        (kept_without(), [OK]),
        (kept_without(*SHARING), [SHARING_OFF]),
        (kept_without("taints"), [(Level.NOTE, "DRADeviceTaints is off")]),
        (kept_without("taints", *SHARING), [SHARING_OFF, (Level.NOTE, "DRADeviceTaints is off")]),
        (kept_without(*BINDING), [(Level.WARNING, "DRADeviceBindingConditions is off")]),
        (kept_without("attributes"), [(Level.WARNING, "look for an admission webhook")]),
    ],
)
def test_versions_nodes_claims_and_feature_gates(
    found: Iterable[Finding], expected: list[Expected]
) -> None:
    findings.check(found, expected)


def test_trial_slice_is_valid() -> None:
    for waits in (False, True):
        trial = kubernetes.trial_slice("node-01", waits=waits)
        assert object_rules.violations(trial["spec"]) == ()
    assert len(kubernetes.trial_slice("n" * 253)["metadata"]["name"]) <= 253


CRDS = Path(__file__).parents[3] / "daemonset" / "chart" / "tensor-fusion-crds"


def definition(**spec: Any) -> dict[str, Any]:
    schema = {"openAPIV3Schema": {"properties": {"spec": spec}}}
    return {"spec": {"versions": [{"name": "v1", "schema": schema}]}}


@pytest.mark.parametrize("name", objects.DEFINITIONS)
def test_definition_keeps_the_field_that_turns_dra_on(name: str) -> None:
    ours = yaml.safe_load((CRDS / f"{name.partition('.')[0]}.yaml").read_text())
    lenient = definition(**{"x-kubernetes-preserve-unknown-fields": True})
    others = definition(properties={"qosConfig": {}})

    assert ours["metadata"]["name"] == name
    findings.check([objects.definition(name, ours)], [OK])
    findings.check([objects.definition(name, lenient)], [OK])
    dropped = f"has no spec.{objects.DEFINITIONS[name]}, so the API server drops it"
    findings.check([objects.definition(name, others)], [(Level.NOTE, dropped)])


PROD_NODE = {"metadata": {"name": "node-01", "labels": {"tier": "prod"}}}


def selecting(value: str) -> dict[str, Any]:
    requirement = {"key": "tier", "operator": "In", "values": [value]}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [requirement]}]}
    return gpupool_document("prod", nodeManagerConfig={"nodeSelector": terms})


@pytest.mark.parametrize(
    ("kind", "stored", "found"),
    [
        ("settings", None, None),
        ("node-labels", None, "the API server has no GPUPools"),
        ("node-labels", [], "node node-01: no GPUPool selects it"),
        ("node-labels", [selecting("test")], "node node-01: no GPUPool selects it"),
        ("node-labels", [selecting("prod")], None),
        ("object", [], "GPUPool prod: found none of this name"),
        ("object", [selecting("test")], None),
    ],
)
def test_missing_pool_is_named_as_the_cause_why_nothing_is_published(
    kind: str, stored: list[dict[str, Any]] | None, found: str | None
) -> None:
    cause = objects.awaited_pool(objects.Source(kind=kind, gpupool="prod"), stored, [PROD_NODE])

    if found is None:
        assert cause is None
        return
    assert cause is not None
    assert (cause.level, cause.found.startswith(found)) == (Level.PROBLEM, True)
    for cure in ("crds.install", "nodeSelector", "pool-source=settings"):
        assert cure in cause.cure


@pytest.mark.parametrize(
    ("published", "stored_pools", "levels"),
    [
        ("default", [], []),
        ("prod", ["prod"], []),
        ("default", ["prod"], [Level.WARNING]),
    ],
)
def test_pools_of_settings_beside_gpupools_of_other_names_are_a_warning(
    published: str, stored_pools: list[str], levels: list[Level]
) -> None:
    stored = {"spec": {"pool": {"name": f"{published}/node-01"}}}

    found = list(
        objects.published_pools([stored], [gpupool_document(name) for name in stored_pools])
    )

    assert [each.level for each in found] == levels
    assert all(published in each.found and "prod" in each.found for each in found)


@pytest.mark.parametrize(
    ("named", "mode", "is_noted"),
    [("t", "LowLoadFirst", True), ("t", None, False), ("gone", "LowLoadFirst", False)],
)
def test_mode_of_placement_that_has_no_effect_is_noted(
    named: str, mode: str | None, *, is_noted: bool
) -> None:
    pool = gpupool_document("prod", schedulingConfigTemplate=named)
    template = {"metadata": {"name": "t"}, "spec": {"placement": {"mode": mode}}}

    found = list(objects.placement_modes([pool], [template]))

    assert [(each.level, each.subject) for each in found] == (
        [(Level.NOTE, "GPUPool prod")] if is_noted else []
    )


def class_with_selectors(*expressions: str, config: list[Any] | None = None) -> dict[str, Any]:
    selectors = [{"cel": {"expression": text}} for text in expressions]
    return {"spec": {"selectors": selectors, "config": config or []}}


def template_for_class(namespace: str, class_name: str) -> dict[str, Any]:
    exactly = {"deviceClassName": class_name}
    devices = {"requests": [{"name": "gpu-request", "exactly": exactly}]}
    return {"metadata": {"namespace": namespace}, "spec": {"spec": {"devices": devices}}}


SELECTS = f'device.driver == "{DRIVER}"'
GOOD = {"apiVersion": "tensor-fusion.ai/v1alpha1", "kind": "GpuShare", "isolation": "hard"}
CONFIG = [
    {"opaque": {"driver": DRIVER, "parameters": GOOD}},
    {"opaque": {"driver": "gpu.nvidia.com", "parameters": {"any": 1}}},
    {"opaque": {"driver": DRIVER, "parameters": {**GOOD, "isolation": "hardest"}}},
]
SUBREQUEST = {"firstAvailable": [{"name": "x", "deviceClassName": "tensor-fusion.ai"}]}
OF_SUBREQUEST = {
    "metadata": {"namespace": "a"},
    "spec": {"spec": {"devices": {"requests": [SUBREQUEST]}}},
}


def stored(count: int = 1) -> list[Any]:
    wanted = slices.wanted([each.as_api() for each in devices(*gpus(count))], NODE, node_uid="uid")
    return [copy.deepcopy(dict(item)) for item in slices.plan(wanted, ()).create]


def exclusive() -> list[Any]:
    """A slice of two devices that cannot be shared."""
    (item,) = stored(2)
    for device in item["spec"]["devices"]:
        del device["allowMultipleAllocations"]
    return [item]


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (objects.device_class(class_with_selectors(SELECTS)), [OK]),
        (objects.device_class(class_with_selectors("true", f"device.driver=='{DRIVER}'")), [OK]),
        (
            objects.device_class(class_with_selectors('device.driver == "gpu.nvidia.com"')),
            [(Level.WARNING, "do not name this driver")],
        ),
        (objects.device_class(class_with_selectors()), [(Level.WARNING, "selectors none")]),
        (objects.device_class(None), [(Level.PROBLEM, "not found")]),
        (
            objects.device_class(class_with_selectors(SELECTS, config=CONFIG)),
            [OK, (Level.PROBLEM, "config[2]: isolation: found 'hardest'")],
        ),
        (
            objects.templates(
                [template_for_class("a", "tensor-fusion.ai"), template_for_class("b", "other")],
                classes=["tensor-fusion.ai"],
            ),
            [OK, (Level.PROBLEM, "names DeviceClass other, which does not exist")],
        ),
        (objects.templates([OF_SUBREQUEST], classes=[]), [(Level.PROBLEM, "tensor-fusion.ai")]),
        (objects.templates([], classes=[]), [(Level.NOTE, "in no namespace")]),
        (objects.published(stored(2)), [(Level.OK, "1 on 1 nodes, with 2 dev")]),
        (objects.published([], node_name="a"), [(Level.PROBLEM, "of node a: none")]),
        (objects.published(stored(130)), [OK]),
        (objects.published([]), [(Level.PROBLEM, "none on any node")]),
        (
            objects.published(stored(130)[:1]),
            [(Level.WARNING, "the scheduler ignores an incomplete pool")],
        ),
        (objects.published(exclusive()), [(Level.PROBLEM, "2 of 2 cannot be shared")]),
    ],
)
def test_class_templates_and_slices(found: Iterable[Finding], expected: list[Expected]) -> None:
    findings.check(found, expected)


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


@pytest.mark.parametrize(
    ("wanted", "there", "labels", "has_class", "subjects"),
    [
        (1, 1, {LABEL: "true"}, True, ["DaemonSet tensorfusion-dra/node-plugin"]),
        (0, 0, {}, True, ["DaemonSet tensorfusion-dra/node-plugin"]),
        (0, 0, {}, False, ["RuntimeClass nvidia", "DaemonSet tensorfusion-dra/node-plugin"]),
        (1, 0, {LABEL: "true"}, False, ["RuntimeClass nvidia"]),
        (1, 0, {LABEL: "true"}, True, ["DaemonSet tensorfusion-dra/node-plugin"]),
    ],
)
def test_daemonset_without_pods_is_a_problem_with_what_it_lacks(
    wanted: int, there: int, labels: dict[str, str], has_class: bool, subjects: list[str]
) -> None:
    found = list(
        objects.pods(
            installed(wanted, there), [labelled_node(**labels)], has_runtime_class=has_class
        )
    )

    assert [each.subject for each in found] == subjects
    assert {each.level for each in found} == {Level.OK if there else Level.PROBLEM}


def test_missing_labels_are_named() -> None:
    (found,) = objects.pods(installed(), [labelled_node(), labelled_node()], has_runtime_class=True)

    assert found.found == (
        "no pods: none of 2 nodes has the labels kubernetes.io/os=linux and "
        "(nvidia.com/gpu.present=true or feature.node.kubernetes.io/pci-10de.present=true)"
    )


def test_pool_source_is_read_from_the_environment_of_the_pods() -> None:
    prefix = "TENSORFUSION_DRA_"
    chosen = installed(env={f"{prefix}POOL_SOURCE": "object", f"{prefix}GPUPOOL": "prod"})

    assert objects.pool_source(chosen) == Source(kind="object", gpupool="prod")
    assert objects.pool_source(installed()) == Source(kind="settings", gpupool="default")


def test_this_drivers_webhooks_are_recognized_by_their_domain() -> None:
    names = ("vpod.kb.io", "pods.dra.tensor-fusion.ai", "mpod-v1.kb.io.tensor-fusion.ai")
    others = {"webhooks": [{"name": name} for name in names]}
    ours = {"webhooks": [{"name": "claims.dra.tensor-fusion.ai"}]}

    assert objects.webhooks([others, {"webhooks": None}, ours]) == [
        names[1],
        ours["webhooks"][0]["name"],
    ]

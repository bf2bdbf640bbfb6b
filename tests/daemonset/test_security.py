"""The pods and roles have no more rights than they need, and the policies restrict the driver."""

import re
from collections.abc import Mapping
from typing import Any, Final

import pytest
from cel_expr_python import cel
from cel_expr_python.ext import ext_optional, ext_strings

from dra_simulator.api.requests import Asked
from dra_simulator.rest import EVENTS, GPUPOOLS, SLICES
from tensorfusion_dra.app.simulate.cluster import SimulatedCluster
from tensorfusion_dra.cluster.api import USER_AGENT
from tensorfusion_dra.core import names
from tensorfusion_dra.core.admission.dialects import Dialect
from tensorfusion_dra.core.admission.pod_admission import (
    KNOWN_ANNOTATIONS,
    OTHERS,
    WITHOUT_EFFECT,
)
from tensorfusion_dra.core.admission.pod_request import REQUESTING_ANNOTATIONS
from tensorfusion_dra.enforcers.tensor_fusion import marks
from tests.support import helm, installation, rbac
from tests.support.builders.gpupools import pool_of_all_nodes
from tests.support.builders.prepared_claims import POD, limit, prepared_claim, prepared_share
from tests.support.chart_variants import VARIANTS
from tests.support.helm import Document
from tests.support.installation import WEBHOOK
from tests.support.node_plugin_process import cluster_with, register, run_pod, start
from tests.support.rbac import Right

NODE_PLUGIN: Final = "tensorfusion-dra-node-plugin"
PLUGIN: Final = f"system:serviceaccount:tensorfusion-dra:{NODE_PLUGIN}"
SCHEDULER: Final = "system:serviceaccounts:tensor-fusion-sys"
PLAIN: Final = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
PRIVILEGED: Final = {"privileged": True, "readOnlyRootFilesystem": True}


def adding(*capabilities: str) -> Document:
    """Return the security context of a container with these capabilities alone."""
    return {**PLAIN, "capabilities": {"drop": ["ALL"], "add": [*capabilities]}}


OWN_FOLDERS: Final = {
    f"/var/lib/kubelet/plugins/{names.DRIVER}",
    "/var/lib/kubelet/plugins_registry",
    "/var/run/cdi",
    "/run/tensor-fusion",
}
USUAL: Final = {
    "node-plugin": (PLAIN, OWN_FOLDERS),
    "tenant-files": (PRIVILEGED, {"/run/tensor-fusion"}),
    "image-pull": (PLAIN, set()),
    "teardown-check": (PLAIN, set()),
}
WITHOUT_FILES: Final = {name: each for name, each in USUAL.items() if name != "tenant-files"}
MPS: Final = ["CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID"]


@pytest.mark.process
@pytest.mark.parametrize(
    ("variant", "expected"),
    [
        ("nvidia", USUAL),
        ("simulated", WITHOUT_FILES),
        ("webhook", {**USUAL, "webhook": (PLAIN, set())}),
        ("hami-core", USUAL),
        (
            "hami-core-install",
            {
                **USUAL,
                "install": (PLAIN, {"/usr/local/vgpu"}),
                "wait": ({**PLAIN, "runAsUser": 65532, "runAsGroup": 65532}, set()),
            },
        ),
        # The node plugin has no right for the memory limits, which it has another container set.
        (
            "nvidia-limits",
            {
                **WITHOUT_FILES,
                "memory-limits": (PRIVILEGED, {"/run/tensor-fusion", "/sys/fs/cgroup"}),
            },
        ),
        (
            "mps-exclusive-process",
            {
                **WITHOUT_FILES,
                "shm": (PRIVILEGED, {"/run/nvidia/mps"}),
                "compute-mode": (adding("SYS_ADMIN"), {"/run/nvidia/mps"}),
                "daemon": (
                    adding(*MPS),
                    {"/run/nvidia/mps/pipe", "/dev/shm", "/var/log/nvidia-mps"},
                ),
            },
        ),
    ],
)
def test_containers_have_only_these_rights_and_writable_folders(
    variant: str, expected: Document
) -> None:
    found = {
        each["name"]: (
            each["securityContext"],
            {
                mount["mountPath"]
                for mount in each.get("volumeMounts", ())
                if not mount.get("readOnly")
            },
        )
        for each in helm.containers(helm.render(VARIANTS[variant]))
    }

    assert found == expected


@pytest.mark.parametrize("name", installation.NAMES)
def test_no_pod_shares_host_namespaces_and_each_has_a_seccomp_profile(name: str) -> None:
    kinds = {"DaemonSet", "Deployment", "Pod"}
    specs = [item["spec"] for item in installation.documents(name) if item["kind"] in kinds]

    assert specs
    for spec in specs:
        pod = spec["template"]["spec"] if "template" in spec else spec
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()


@pytest.mark.parametrize(
    ("name", "elsewhere"), [("nvidia", {"driver-root": "/driver-root/usr"}), ("simulated", {})]
)
def test_volumes_are_mounted_at_their_path_on_the_host(
    name: str, elsewhere: dict[str, str]
) -> None:
    """The kubelet and the runtime know sockets and specs by these paths."""
    daemonset = helm.one(installation.documents(name), "DaemonSet")
    pod = daemonset["spec"]["template"]["spec"]

    mounts = {each["name"]: each["mountPath"] for each in pod["containers"][0]["volumeMounts"]}
    paths = {volume["name"]: volume["hostPath"]["path"] for volume in pod["volumes"]}
    assert mounts == {**paths, **elsewhere}


@pytest.mark.process
def test_policy_allows_exactly_the_marks_of_workers() -> None:
    """Those that a worker is marked with, and those that are taken from it."""
    documents = helm.render(VARIANTS["hypervisor"])
    policy = helm.one(documents, "ValidatingAdmissionPolicy", "tensorfusion-dra-pods")["spec"]
    (variable,) = [item for item in policy["variables"] if item["name"] == "marks"]
    share = prepared_share(limit=limit(25, 8))
    worker = marks.of_pod(POD, [prepared_claim(share, enforcer="tensor-fusion")])
    assert worker is not None
    replaced = dict.fromkeys(marks.ruling_marks(worker), "another")
    stored: Document = {"metadata": {"annotations": replaced}}

    listed = re.findall(r'"([a-z-]+)"[,\]]', variable["expression"])

    assert {names.ANNOTATION_PREFIX + name for name in listed} == {
        *marks.marks(worker, {}, 1),
        *marks.marks(worker, stored, 1),
    }
    assert policy["failurePolicy"] == "Fail"


CHECKED_BY_THE_SERVER = Right(
    group="resource.k8s.io",
    resource="resourceclaims/driver",
    verb="associated-node:patch",
    names=(names.DRIVER,),
)
"""The API server checks it when the status of a claim is written (1.36)."""


def allowed(values: Mapping[str, Any]) -> frozenset[Right]:
    """Return the rights of a node plugin that is installed with these values."""
    return rbac.rights(helm.render(values), NODE_PLUGIN)


@pytest.fixture(scope="module")
def sent() -> frozenset[Asked]:
    """Return all kinds of requests that a node plugin sends with its default settings."""
    with cluster_with() as cluster:
        start(cluster)
        run_pod(cluster, "a")
        cluster.until(
            "status written",
            lambda: any(claim["status"].get("devices") for claim in cluster.claims()),
        )
        change_add_and_delete_slices(cluster)
        cluster.delete("a")
        cluster.until("released", lambda: not cluster.claims())
        return cluster.server.requests.asked(USER_AGENT)


@pytest.fixture(scope="module")
def sent_with_pools() -> frozenset[Asked]:
    """Return all kinds of requests that a node plugin sends when it follows GPUPools."""
    with cluster_with(tensor_fusion=True) as cluster:
        cluster.plugin_flags.extend(["--pool-source", "node-labels"])
        register(cluster)
        stored = cluster.client.create(GPUPOOLS, pool_of_all_nodes("of-all", qos="medium"))
        cluster.until("published", lambda: bool(cluster.slices()))
        invalid = pool_of_all_nodes("of-all", qos="no-such-qos")["spec"]
        cluster.client.replace(GPUPOOLS, {**stored, "spec": invalid})
        cluster.until("event written", lambda: bool(cluster.client.list(EVENTS).items))
        return cluster.server.requests.asked(USER_AGENT)


def change_add_and_delete_slices(cluster: SimulatedCluster) -> None:
    """Damage the slices so that the node plugin repairs them: by update, deletion and creation."""
    (before,) = cluster.slices()
    devices = before["spec"]["devices"]
    cluster.client.replace(SLICES, {**before, "spec": {**before["spec"], "devices": devices[:1]}})
    cluster.until("updated", lambda: cluster.slices()[0]["spec"]["devices"] == devices)

    metadata = {"name": f"{before['metadata']['name']}-9"}
    cluster.client.create(SLICES, {**before, "metadata": metadata})
    cluster.until("deleted", lambda: len(cluster.slices()) == 1)

    cluster.client.delete(SLICES, before["metadata"]["name"])
    cluster.until("created", lambda: len(cluster.slices()) == 1)


@pytest.mark.process
def test_role_allows_every_request_of_the_node_plugin_and_nothing_else(
    sent: frozenset[Asked], sent_with_pools: frozenset[Asked]
) -> None:
    def refused(requests: frozenset[Asked], granted: frozenset[Right]) -> list[Asked]:
        return [each for each in requests if not any(right.allows(each) for right in granted)]

    pools = {"pool-source": "node-labels"}
    granted = allowed({"settings": {**WITHOUT_BRIDGE, **pools}})

    assert refused(sent, rbac.rights(installation.documents("nvidia"), NODE_PLUGIN)) == []
    assert refused(sent_with_pools, allowed({"settings": pools})) == []
    # Events report problems, and the only problem in these runs is an invalid GPUPool.
    used = sent | sent_with_pools
    unused = {right for right in granted if not any(right.allows(each) for each in used)}
    assert unused == {CHECKED_BY_THE_SERVER}


WITHOUT_BRIDGE: Final = {"enforcer": "hami-core,mps"}
BRIDGE: Final = {"pods list", "pods patch", "pods watch"}
TENSOR_FUSION: Final = {"enforcer": "tensor-fusion"}


@pytest.mark.process
@pytest.mark.parametrize(
    ("values", "taken", "given"),
    [
        (VARIANTS["hypervisor"], set(), set()),
        (VARIANTS["gpupools"], set(), {"gpupools list", "gpupools watch"}),
        # Nodes are watched only for their labels.
        ({"settings": {"release-driver": False}}, {"nodes list", "nodes watch"}, set()),
        ({"settings": {"enforcer-wait-seconds": 0}}, set(), set()),
        ({"settings": {"resize": False}}, {"resourceclaims list", "resourceclaims watch"}, set()),
        (
            {"settings": {"resize": False, "enforcer-wait-seconds": 90}},
            *({"resourceclaims watch"}, set()),
        ),
        # Pods are not read where the webhook copies their annotations.
        ({"settings": WITHOUT_BRIDGE}, BRIDGE, set()),
        ({"settings": {**WITHOUT_BRIDGE, "read-pods": False}}, {*BRIDGE, "pods get"}, set()),
        ({**WEBHOOK, "settings": TENSOR_FUSION}, {*BRIDGE, "pods get"}, set()),
        ({**WEBHOOK, "settings": {**TENSOR_FUSION, "read-pods": True}}, BRIDGE, set()),
        # These need to know which containers use a claim, and auto may choose one of them.
        (WEBHOOK, set(), set()),
        ({**WEBHOOK, "settings": {"enforcer": "hami-core"}}, BRIDGE, set()),
        ({**WEBHOOK, "settings": {"enforcer": "mps"}}, BRIDGE, set()),
        # It needs the pod that it marks.
        ({**WEBHOOK, **VARIANTS["hypervisor"]}, set(), set()),
    ],
)
def test_values_take_or_give_these_rights_of_the_node_plugin(
    values: Mapping[str, Any], taken: set[str], given: set[str]
) -> None:
    usual, found = (
        {f"{right.resource} {right.verb}" for right in allowed(each)} for each in ({}, values)
    )

    assert (usual - found, found - usual) == (taken, given)


def test_no_role_uses_wildcards() -> None:
    documents = installation.documents("nvidia", "webhook")
    rules = [item["rules"] for item in documents if item["kind"] in {"ClusterRole", "Role"}]

    assert rules
    assert "*" not in str(rules)


VARIANT: Final = {
    "slices": "nvidia",
    "marks": "hypervisor",
    "names": "webhook",
    "amounts": "webhook",
    "edits": "webhook",
    "labels": "webhook",
}
"""How the chart is installed for each policy."""
MARKED: Final = {names.MARK_DRA_MARKS: "index", names.MARK_INDEX: "1"}
WORKER: Final = {names.LABEL_COMPONENT: names.COMPONENT_WORKER}
GIVEN: Final = {names.MARK_INDEX: "1", names.MARK_GPU_IDS: "gpu-0"}
PLAIN_LIMIT: Final = {"tensor-fusion.ai/tflops-limit": "312"}


def pod(
    annotations: dict[str, str],
    labels: dict[str, str] | None = None,
    claims: tuple[str, ...] = (),
    made: tuple[str, ...] = (),
) -> Any:
    """Return a pod, some of whose claims are made; one without annotations has no such field."""
    fields = {"annotations": annotations, "labels": labels}
    metadata = {"name": "train", **{key: value for key, value in fields.items() if value}}
    spec = {"nodeName": "node-01", "resourceClaims": [{"name": each} for each in claims]}
    status = {"status": {"resourceClaimStatuses": [{"name": each} for each in made]}}
    return {"kind": "Pod", "metadata": metadata, "spec": spec, **(status if made else {})}


def denial(
    name: str, old: Any, new: Any, *, user: str = "tenant", group: str = "", node: str = ""
) -> str:
    """Return why a policy denies a write; "" if it admits it, or does not concern it."""
    rendered = helm.render(VARIANTS[VARIANT[name]])
    spec = helm.one(rendered, "ValidatingAdmissionPolicy", f"tensorfusion-dra-{name}")["spec"]
    extensions = [ext_strings.ExtStrings(2), ext_optional.ExtOptional()]
    roots = ("request", "object", "oldObject", "variables")
    environment = cel.NewEnv(variables=dict.fromkeys(roots, cel.Type.DYN), extensions=extensions)
    extra = {"authentication.kubernetes.io/node-name": [node]} if node else {}
    writer = {"username": user, "groups": [group], "extra": extra}
    data: dict[str, Any] = {
        "request": {"operation": "UPDATE" if old else "CREATE", "userInfo": writer},
        "object": new,
        "oldObject": old,
        "variables": {},
    }

    def value(expression: str) -> Any:
        found = environment.compile(expression, disable_check=True).eval(data=data)
        assert found.type() != cel.Type.ERROR, (expression, found.value())
        return found.plain_value()

    if not all(value(each["expression"]) for each in spec.get("matchConditions", ())):
        return ""
    for variable in spec.get("variables", ()):
        data["variables"][variable["name"]] = value(variable["expression"])
    for each in spec["validations"]:
        if not value(each["expression"]):
            return str(each["message"] if "message" in each else value(each["messageExpression"]))
    return ""


def check(expected: str, found: str) -> None:
    """Fail unless a denial has the expected part; "" is expected of what is admitted."""
    assert expected in found
    assert bool(found) is bool(expected)


def binding(annotations: dict[str, str]) -> Any:
    """Return what a scheduler posts to give a pod its node."""
    metadata = {"name": "train", **({"annotations": annotations} if annotations else {})}
    return {"metadata": metadata, "target": {"kind": "Node", "name": "node-01"}}


@pytest.mark.process
@pytest.mark.parametrize(
    ("old", "new", "group", "expected"),
    [
        (None, pod({}), "", ""),
        (None, pod(PLAIN_LIMIT), "", ""),
        (None, pod({names.MARK_GPU_IDS: "gpu-0"}, WORKER), "", "tensor-fusion.ai/gpu-ids: only"),
        (
            None,
            pod({names.MARK_DRA_MARKS: "gpu-ids"}),
            "",
            "no change of tensor-fusion.ai/dra",
        ),
        (pod(PLAIN_LIMIT), pod({}), "", ""),
        (
            pod(PLAIN_LIMIT),
            pod({**PLAIN_LIMIT, names.MARK_INDEX: "1"}),
            "",
            "tensor-fusion.ai/index: only the",
        ),
        (
            pod(GIVEN),
            pod({**GIVEN, names.MARK_DRA_MARKS: "gpu-ids"}),
            "",
            "tensor-fusion.ai/dra-marks",
        ),
        (pod(GIVEN), pod({}), "", "tensor-fusion.ai/index, tensor-fusion.ai/gpu-ids: only the"),
        (pod(GIVEN), pod({**GIVEN, **PLAIN_LIMIT, "app": "x"}), "", ""),
        (pod({}), pod({"app": "x"}, WORKER), "", ""),
        (pod(MARKED, WORKER), pod({**MARKED, "app": "x"}, {**WORKER, "app": "x"}), "", ""),
        (
            pod(MARKED, WORKER),
            pod({**MARKED, **PLAIN_LIMIT}, WORKER),
            "",
            "change of tensor-fusion.ai/tflops",
        ),
        (
            pod(MARKED, WORKER),
            pod({**MARKED, names.MARK_INDEX: "2"}, WORKER),
            "",
            "the node plugin owns",
        ),
        (pod(MARKED, WORKER), pod({}, WORKER), "", "the node plugin owns them"),
        (
            pod(MARKED, WORKER),
            pod(MARKED),
            "",
            "label tensor-fusion.ai/component: expected no change",
        ),
        # The API server copies the annotations of a binding to its pod.
        (None, binding({}), "", ""),
        (None, binding(MARKED), "", "tensor-fusion.ai/dra-marks"),
        (None, binding(GIVEN), "", "tensor-fusion.ai/gpu-ids"),
        # Tensor Fusion's scheduler gives cards to pods of its own.
        (None, binding(GIVEN), SCHEDULER, ""),
        (pod(PLAIN_LIMIT, WORKER), pod({**PLAIN_LIMIT, **GIVEN}, WORKER), SCHEDULER, ""),
        (pod(GIVEN, WORKER), pod({}, WORKER), SCHEDULER, ""),
        (
            pod(GIVEN),
            pod({**GIVEN, names.MARK_DRA_MARKS: "gpu-ids"}),
            SCHEDULER,
            "tensor-fusion.ai/dra-marks",
        ),
        (
            pod(MARKED, WORKER),
            pod({**MARKED, **GIVEN}, WORKER),
            SCHEDULER,
            "tensor-fusion.ai/gpu-ids: the node",
        ),
    ],
)
def test_marks_are_the_node_plugins_alone(old: Any, new: Any, group: str, expected: str) -> None:
    check(expected, denial("marks", old, new, group=group))
    assert denial("marks", old, new, user=PLUGIN) == ""


def workload(kind: str, own: dict[str, str], of_pods: dict[str, str]) -> Any:
    """Return a workload with annotations of its own, and those of its pods."""
    spec: Any = {"template": {"metadata": {"annotations": of_pods}}}
    if kind == "CronJob":
        spec = {"jobTemplate": {"spec": spec}}
    return {"kind": kind, "metadata": {"annotations": own} if own else {}, "spec": spec}


AMOUNT: Final = {names.ANNOTATION_VRAM_REQUEST: "16Gi"}
EDITED: Final = {**AMOUNT, names.ANNOTATION_GPU_MODEL: "A100"}
UNKNOWN: Final = {"tensor-fusion.ai/vram": "16Gi"}
READ_ONCE: Final = {
    text for name, text in vars(names).items() if name.startswith("ANNOTATION_")
} - {names.ANNOTATION_PREFIX, names.ANNOTATION_DEFAULT_POOL, names.ANNOTATION_FILLED}
"""The annotations of pods."""


@pytest.mark.process
@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (None, pod({}), ""),
        (None, pod({"app": "x", "tensor-fusion.ai/gang-min-members": "2"}), ""),
        (None, workload("Deployment", {}, AMOUNT), ""),
        (None, workload("Deployment", AMOUNT, AMOUNT), ""),
        (None, workload("CronJob", {"app": "x"}, {"app": "x"}), ""),
        # The webhook itself warns of what is wrong in a pod that asks for a share.
        (None, pod({**AMOUNT, **UNKNOWN}), ""),
        (
            None,
            pod(UNKNOWN),
            "tensor-fusion.ai/vram: unknown annotation, has no effect; amounts are",
        ),
        (
            None,
            workload("CronJob", {}, {**AMOUNT, **UNKNOWN}),
            "tensor-fusion.ai/vram: unknown annotation",
        ),
        *(
            (
                None,
                workload("Job", {}, {f"{group}/vram-request": "16Gi"}),
                f"{group}/vram-request: has no effect, expected a name that begins with tensor-fus",
            )
            for group in ("tensorfusion.ai", "tensor-fusion.io", "TensorFusion", "tensor_fusion.ai")
        ),
        (
            None,
            workload("StatefulSet", AMOUNT, {}),
            "tensor-fusion.ai/vram-request: has no effect on the StatefulSet itself, expected",
        ),
        (
            pod(AMOUNT, claims=("a",)),
            pod(EDITED, claims=("a",)),
            "tensor-fusion.ai/gpu-model: has no effect, because the pod's claim is made already",
        ),
        (
            pod(EDITED, claims=("a",)),
            pod(AMOUNT, claims=("a",)),
            "tensor-fusion.ai/gpu-model: has no",
        ),
        (
            pod(AMOUNT, claims=("a",)),
            pod({**AMOUNT, "app": "x", names.MARK_INDEX: "1"}, claims=("a",)),
            "",
        ),
        *(
            (
                pod(AMOUNT, claims=("a", names.POD_CLAIM), made=(names.POD_CLAIM,)),
                pod({**AMOUNT, each: "new"}, claims=(names.POD_CLAIM,), made=(names.POD_CLAIM,)),
                f"{each}: has no effect, because the pod's claim is made already",
            )
            for each in sorted(READ_ONCE - AMOUNT.keys())
        ),
        # The claim will have the limit, or the node reads it.
        (pod(AMOUNT), pod({**AMOUNT, **PLAIN_LIMIT}, claims=(names.POD_CLAIM,)), ""),
        (pod(AMOUNT), pod({**AMOUNT, **PLAIN_LIMIT}, claims=("a",), made=("a",)), ""),
        (pod(AMOUNT), pod(EDITED), ""),
    ],
)
def test_annotations_that_would_do_nothing_are_warned_of(old: Any, new: Any, expected: str) -> None:
    found = denial("names", old, new)

    check(expected, found)
    assert found.startswith(expected)
    assert len(found) < 256, "the API server cuts longer warnings"


def namespace(labels: dict[str, str], annotations: dict[str, str] | None = None) -> Any:
    fields = {"labels": labels, "annotations": annotations}
    return {"kind": "Namespace", "metadata": {key: each for key, each in fields.items() if each}}


@pytest.mark.process
@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (None, namespace({}), ""),
        (None, namespace({"app": "x", "tensor-fusion.ai/dialect-kai": "true"}), ""),
        (namespace({}), namespace({"tensor-fusion.ai/claim-template": "false"}), ""),
        (
            namespace({}),
            namespace({"tensor-fusion.ai/dialect-hammi": "true"}),
            "tensor-fusion.ai/dialect-hammi: unknown label, has no effect on a namespace; known ar",
        ),
        (
            None,
            namespace({"tensorfusion.ai/claim-template": "true"}),
            "tensorfusion.ai/claim-template: unknown label",
        ),
        (
            namespace({"tensor-fusion.ai/dialect-hami": "true"}),
            namespace({"tensor-fusion.ai/dialect-hami": "True"}),
            "tensor-fusion.ai/dialect-hami: found True, has no effect, expected true",
        ),
        # What was there before is not said again when somebody else changes the namespace.
        (
            namespace({"tensor-fusion.ai/dialect-hammi": "true"}),
            namespace({"tensor-fusion.ai/dialect-hammi": "true"}, {"app": "x"}),
            "",
        ),
    ],
)
def test_labels_of_a_namespace_that_would_do_nothing_are_warned_of(
    old: Any, new: Any, expected: str
) -> None:
    found = denial("names", old, new)

    check(expected, found)
    assert found.startswith(expected)
    assert len(found) < 256, "the API server cuts longer warnings"


@pytest.mark.process
def test_the_policy_of_names_knows_the_label_of_each_dialect() -> None:
    labels = {f"{names.LABEL_DIALECT}{each}": "true" for each in Dialect}

    assert denial("names", None, namespace(labels)) == ""


@pytest.mark.process
def test_the_policy_of_names_only_warns_and_knows_the_names_of_the_webhook() -> None:
    name, documents = "tensorfusion-dra-names", helm.render(VARIANTS["webhook"])
    spec = helm.one(documents, "ValidatingAdmissionPolicy", name)["spec"]
    bound = helm.one(documents, "ValidatingAdmissionPolicyBinding", name)["spec"]
    asking, once, known = (
        set(re.findall(r'"([^"]+)"', each["expression"]))
        for each in spec["variables"]
        if each["name"] in {"asking", "readOnce", "known"}
    )
    short = {each.removeprefix(names.ANNOTATION_PREFIX) for each in KNOWN_ANNOTATIONS}
    every = {*short, *OTHERS, *WITHOUT_EFFECT, "gang-min-members", "autoscale", "pool-a"}
    of_pods = {f"{names.ANNOTATION_PREFIX}{each}": "x" for each in every}

    assert (bound["validationActions"], spec["failurePolicy"]) == (["Warn"], "Ignore")
    assert (asking, once) == (set(REQUESTING_ANNOTATIONS), READ_ONCE)
    assert KNOWN_ANNOTATIONS == READ_ONCE
    assert denial("names", None, workload("Job", {}, of_pods)) == ""
    assert known <= of_pods.keys()


def requesting(*vram: str, kind: str = "ResourceClaim") -> Any:
    """Return a claim or template for memory; several amounts are alternatives."""
    each = [{"capacity": {"requests": {"vram": amount}}} for amount in vram]
    request = {"exactly": each[0]} if len(each) == 1 else {"firstAvailable": each}
    spec = {"devices": {"requests": [{"name": "any", "exactly": {}}, {"name": "gpu", **request}]}}
    return {"kind": kind, "spec": spec if kind == "ResourceClaim" else {"spec": spec}}


FRACTION: Final = "request gpu: found a fraction of less than a thousandth of a byte in vram"


@pytest.mark.process
@pytest.mark.parametrize(
    ("new", "expected"),
    [
        (requesting("1431619973939200u"), FRACTION),
        (requesting("1n", kind="ResourceClaimTemplate"), FRACTION),
        (requesting("16Gi", "1n"), FRACTION),
        (requesting("107374182400m"), ""),
        (requesting("16Gi", kind="ResourceClaimTemplate"), ""),
        ({"kind": "ResourceClaim", "spec": {}}, ""),
    ],
)
def test_a_fraction_of_a_byte_that_may_keep_pods_waiting_is_warned_of(
    new: Any, expected: str
) -> None:
    check(expected, denial("amounts", None, new))
    bound = helm.one(
        helm.render(VARIANTS["webhook"]),
        "ValidatingAdmissionPolicyBinding",
        "tensorfusion-dra-amounts",
    )
    assert bound["spec"]["validationActions"] == ["Warn"]


def edited_pod(
    *,
    limit: str = "",
    other: str = "",
    is_bound: bool = True,
    has_claims: bool = True,
    name: str = names.ANNOTATION_VRAM_LIMIT,
    **status: Any,
) -> Any:
    found = {name: limit, "example.com/other": other}
    return {
        "metadata": {
            "name": "a",
            "namespace": "team-a",
            "annotations": {name: text for name, text in found.items() if text},
        },
        "spec": {
            **({"nodeName": "node-01"} if is_bound else {}),
            **({"resourceClaims": [{"name": "gpu"}]} if has_claims else {}),
        },
        "status": status,
    }


def edit_of(name: str, **status: Any) -> tuple[Any, Any, str, str]:
    """Return a tenant's new limit of a running pod, which is warned of."""
    pods = [edited_pod(limit=limit, name=name, has_claims=not status, **status) for limit in "12"]
    return pods[0], pods[1], "tenant", "use kubectl tensorfusion resize a"


@pytest.mark.process
@pytest.mark.parametrize(
    ("old", "new", "user", "expected"),
    [
        (
            edited_pod(),
            edited_pod(limit="40Gi"),
            "tenant",
            "kubectl tensorfusion resize a -n team-a vram=40Gi",
        ),
        (edited_pod(limit="1Gi"), edited_pod(limit="40Gi"), "tenant", "limits of a pod that runs"),
        (edited_pod(limit="1Gi"), edited_pod(), "tenant", "or annotate its ResourceClaim"),
        edit_of(names.ANNOTATION_TFLOPS_LIMIT),
        edit_of(names.ANNOTATION_COMPUTE_PERCENT_LIMIT),
        edit_of(
            names.ANNOTATION_VRAM_LIMIT, extendedResourceClaimStatus={"resourceClaimName": "a-x"}
        ),
        (edited_pod(limit="1Gi"), edited_pod(limit="1Gi", other="1"), "tenant", ""),
        (edited_pod(is_bound=False), edited_pod(limit="1Gi", is_bound=False), "tenant", ""),
        (edited_pod(has_claims=False), edited_pod(limit="1Gi", has_claims=False), "tenant", ""),
        (
            *(edited_pod(), edited_pod(limit="1Gi")),
            *("system:serviceaccount:tensorfusion-dra:tensorfusion-dra-node-plugin", ""),
        ),
    ],
)
def test_an_edit_of_a_running_pods_limits_is_warned_of(
    old: Any, new: Any, user: str, expected: str
) -> None:
    found = denial("edits", old, new, user=user)

    check(expected, found)
    assert len(found) < 256, "the API server cuts longer warnings"
    bound = helm.one(
        helm.render(VARIANTS["webhook"]),
        "ValidatingAdmissionPolicyBinding",
        "tensorfusion-dra-edits",
    )
    assert bound["spec"]["validationActions"] == ["Warn"]


def labelled_claim(node: str, driver: str = "") -> Any:
    results = [{"driver": driver}] if driver else []
    return {
        "metadata": {"name": "a", **({"labels": {names.LABEL_NODE: node}} if node else {})},
        "spec": {},
        **({"status": {"allocation": {"devices": {"results": results}}}} if driver else {}),
    }


@pytest.mark.process
@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (None, labelled_claim("node-01"), "found it on a claim without a GPU"),
        (labelled_claim(""), labelled_claim("node-01"), "found it on a claim without a GPU"),
        (labelled_claim("node-01"), labelled_claim("node-02"), "without a GPU"),
        (*(labelled_claim(node, "nic.example.com") for node in ("", "node-01")), "without a GPU"),
        (labelled_claim("", names.DRIVER), labelled_claim("node-01", names.DRIVER), ""),
        (labelled_claim("node-01", names.DRIVER), labelled_claim("node-01"), ""),
        (labelled_claim("node-01"), labelled_claim(""), ""),
        (None, labelled_claim(""), ""),
    ],
)
def test_only_a_claim_with_a_gpu_gets_the_label_by_which_its_node_watches_it(
    old: Any, new: Any, expected: str
) -> None:
    check(expected, denial("labels", old, new))
    bound = helm.one(
        helm.render(VARIANTS["webhook"]),
        "ValidatingAdmissionPolicyBinding",
        "tensorfusion-dra-labels",
    )
    assert bound["spec"]["validationActions"] == ["Deny"]


@pytest.mark.parametrize("name", ["pods.dra.tensor-fusion.ai", "claims.dra.tensor-fusion.ai"])
def test_a_webhook_that_writes_events_says_that_a_dry_run_writes_none(name: str) -> None:
    (configuration,) = [
        each
        for each in installation.documents("webhook")
        if each["kind"] == "MutatingWebhookConfiguration"
    ]
    (webhook,) = [each for each in configuration["webhooks"] if each["name"] == name]

    assert webhook["sideEffects"] == "NoneOnDryRun"


@pytest.mark.process
@pytest.mark.parametrize(
    ("node", "spec", "expected"),
    [
        ("node-01", {}, ""),
        ("", {}, "the token names no node"),
        ("node-01", {"nodeName": "node-02"}, "spec.nodeName: found node-02"),
        ("node-01", {"driver": "other.example.com"}, "spec.driver: found other.example.com"),
        ("node-01", {"pool": {"name": "default/node-02"}}, "spec.pool.name: found default/node-02"),
        ("node-01", {"pool": {"name": "default/x-node-01"}}, "default/x-node-01, expected a pool"),
        ("node-01", {"pool": {"name": "node-01"}}, "expected a pool of the writer's node"),
        ("node-01", {"pool": {"name": "gold/node-01"}}, ""),
    ],
)
def test_node_plugin_writes_slices_of_its_own_node_and_pools_alone(
    node: str, spec: dict[str, Any], expected: str
) -> None:
    own = {"driver": names.DRIVER, "nodeName": "node-01", "pool": {"name": "default/node-01"}}

    check(expected, denial("slices", None, {"spec": own | spec}, user=PLUGIN, node=node))

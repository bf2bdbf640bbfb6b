"""The pods and roles have no more rights than they need, and the policies restrict the driver."""

import re
from typing import Any, Final

import pytest
from cel_expr_python import cel
from cel_expr_python.ext import ext_optional, ext_strings

from dra_simulator.api.requests import Asked
from dra_simulator.rest import EVENTS, GPUPOOLS, SLICES
from tensorfusion_dra.app.simulate.cluster import SimulatedCluster
from tensorfusion_dra.cluster.api import USER_AGENT
from tensorfusion_dra.core import names
from tensorfusion_dra.core.admission.pod_admission import (
    KNOWN_ANNOTATIONS,
    OTHERS,
    WITHOUT_EFFECT,
)
from tensorfusion_dra.core.admission.pod_request import REQUESTING_ANNOTATIONS
from tensorfusion_dra.enforcers.tensor_fusion import marks
from tests.app.node_plugin.test_node_plugin_process import (
    cluster_with,
    register,
    run_pod,
    start,
)
from tests.daemonset.test_manifests import VARIANTS
from tests.support import helm, installation, rbac
from tests.support.builders.prepared_claims import POD, limit, prepared_claim, prepared_share
from tests.support.helm import Document
from tests.support.installation import WEBHOOK
from tests.support.rbac import Right

WITHOUT_BRIDGE: Final = {"settings": {"enforcer": "hami-core,mps"}}


def one(documents: list[Document], kind: str, name: str = "") -> Document:
    (found,) = [
        item
        for item in documents
        if item["kind"] == kind and name in {"", item["metadata"]["name"]}
    ]
    return found


@pytest.mark.parametrize("name", installation.NAMES)
def test_no_container_can_escalate_privileges(name: str) -> None:
    for container in helm.containers(installation.documents(name)):
        if container["name"] == "tenant-files":
            continue  # see test_only_mounts_of_folders_for_containers_are_privileged
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }


@pytest.mark.parametrize("name", installation.NAMES)
def test_no_pod_shares_host_namespaces_and_each_has_a_seccomp_profile(name: str) -> None:
    workloads = [
        item for item in installation.documents(name) if item["kind"] in {"DaemonSet", "Deployment"}
    ]

    assert workloads
    for workload in workloads:
        pod = workload["spec"]["template"]["spec"]
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()


def test_only_the_drivers_own_host_folders_are_writable() -> None:
    pod = one(installation.documents("nvidia"), "DaemonSet")["spec"]["template"]["spec"]
    (container,) = pod["containers"]

    writable = {
        mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")
    }

    assert writable == {
        f"/var/lib/kubelet/plugins/{names.DRIVER}",
        "/var/lib/kubelet/plugins_registry",
        "/var/run/cdi",
        "/run/tensor-fusion",
    }


def test_socket_folders_have_the_same_path_in_pod_and_host() -> None:
    pod = one(installation.documents("simulated"), "DaemonSet")["spec"]["template"]["spec"]
    paths = {volume["name"]: volume["hostPath"]["path"] for volume in pod["volumes"]}

    for mount in pod["containers"][0]["volumeMounts"]:
        assert mount["mountPath"] == paths[mount["name"]]


def test_policy_denies_slices_of_others_to_the_node_plugins_service_account() -> None:
    documents, name = installation.documents("nvidia"), "tensorfusion-dra-slices"
    daemonset = one(documents, "DaemonSet")
    namespace = daemonset["metadata"]["namespace"]
    account = daemonset["spec"]["template"]["spec"]["serviceAccountName"]
    user = f"system:serviceaccount:{namespace}:{account}"

    policy = one(documents, "ValidatingAdmissionPolicy", name)["spec"]
    binding = one(documents, "ValidatingAdmissionPolicyBinding", name)["spec"]

    expressions = [each["expression"] for each in policy["matchConditions"]]
    assert expressions == [f'request.userInfo.username == "{user}"']
    assert one(documents, "ServiceAccount", account)["metadata"]["namespace"] == namespace
    operations = policy["matchConstraints"]["resourceRules"][0]["operations"]
    assert (policy["failurePolicy"], operations) == ("Fail", ["CREATE", "UPDATE", "DELETE"])
    assert binding == {"policyName": name, "validationActions": ["Deny"]}


@pytest.mark.process
@pytest.mark.parametrize(
    ("name", "component", "ports"),
    [("nvidia", "node-plugin", []), ("webhook", "webhook", ["https"])],
)
def test_network_policies_open_the_metrics_to_prometheus_only(
    name: str, component: str, ports: list[str]
) -> None:
    """Policies of a pod add up, so the metrics' own one cannot take anything away."""
    variant = helm.render({**VARIANTS["monitoring"], **WEBHOOK})
    own, added = (
        one(documents, "NetworkPolicy", f"tensorfusion-dra-{purpose}")
        for documents, purpose in ((installation.documents(name), component), (variant, "metrics"))
    )
    labels = {
        "app.kubernetes.io/name": "tensorfusion-dra",
        "app.kubernetes.io/component": component,
    }

    assert own["spec"]["podSelector"] == {"matchLabels": labels}
    assert own["spec"].get("ingress", []) == [{"ports": [{"port": port}]} for port in ports]
    (expression,) = added["spec"]["podSelector"]["matchExpressions"]
    assert component in expression["values"]
    ((source,), opened) = (added["spec"]["ingress"][0][key] for key in ("from", "ports"))
    assert len(added["spec"]["ingress"]) == 1
    assert source.keys() == {"namespaceSelector", "podSelector"}  # both have to match
    assert opened == [{"port": "health"}]


def test_device_class_has_the_name_that_claims_use() -> None:
    device_class = one(installation.documents("nvidia"), "DeviceClass")

    assert device_class["metadata"]["name"] == names.DEVICE_CLASS
    (selector,) = device_class["spec"]["selectors"]
    assert selector["cel"]["expression"] == f'device.driver == "{names.DRIVER}"'


def containers_of(name: str, variant: str) -> dict[str, Document]:
    """Return the containers of a DaemonSet by name."""
    pod = one(helm.render(VARIANTS[variant]), "DaemonSet", name)["spec"]["template"]["spec"]
    return {each["name"]: each for each in (*pod.get("initContainers", ()), *pod["containers"])}


@pytest.mark.process
@pytest.mark.parametrize(
    ("name", "variant", "expected"),
    [
        ("tensorfusion-dra-node-plugin", "nvidia", {"tenant-files"}),
        ("tensorfusion-dra-node-plugin", "hami-core", {"tenant-files"}),
        ("tensorfusion-dra-mps", "mps-exclusive-process", {"shm"}),
    ],
)
def test_only_mounts_of_folders_for_containers_are_privileged(
    name: str, variant: str, expected: set[str]
) -> None:
    found = containers_of(name, variant)

    privileged = [each for each in found.values() if each["securityContext"].get("privileged")]
    assert {each["name"] for each in privileged} == expected
    for each in privileged:
        assert [mount["mountPropagation"] for mount in each["volumeMounts"]] == ["Bidirectional"]
        assert each["securityContext"]["readOnlyRootFilesystem"] is True


@pytest.mark.process
def test_memory_limits_are_set_by_a_privileged_container_and_not_by_the_node_plugin() -> None:
    found = containers_of("tensorfusion-dra-node-plugin", "nvidia-limits")

    assert {name: each["securityContext"].get("privileged") for name, each in found.items()} == {
        "node-plugin": None,
        "memory-limits": True,
    }
    assert found["memory-limits"]["args"] == ["memory-limits"]
    mounts = {name: {m["mountPath"] for m in each["volumeMounts"]} for name, each in found.items()}
    assert "/sys/fs/cgroup" in mounts["memory-limits"] - mounts["node-plugin"]
    assert "ports" not in found["memory-limits"]
    assert "memory-limits" not in containers_of("tensorfusion-dra-node-plugin", "nvidia")


@pytest.mark.process
def test_mps_daemon_has_the_capabilities_that_it_needs_and_no_more() -> None:
    found = containers_of("tensorfusion-dra-mps", "mps-exclusive-process")

    added = {
        name: each["securityContext"]["capabilities"]["add"]
        for name, each in found.items()
        if name != "shm"
    }
    assert added == {
        "compute-mode": ["SYS_ADMIN"],
        "daemon": ["CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID"],
    }
    assert all(each["securityContext"]["readOnlyRootFilesystem"] for each in found.values())


@pytest.mark.process
def test_hami_cores_image_gets_no_right_but_to_its_folder() -> None:
    found = containers_of("tensorfusion-dra-hami-core", "hami-core-install")

    rights = {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    for each in found.values():
        assert {name: each["securityContext"][name] for name in rights} == rights
    mounts = {name: each.get("volumeMounts", []) for name, each in found.items()}
    assert [mount["mountPath"] for mount in mounts["install"]] == ["/usr/local/vgpu"]
    assert mounts["wait"] == []


@pytest.mark.process
@pytest.mark.parametrize(
    ("name", "variant"),
    [
        ("tensorfusion-dra-mps", "mps-daemon"),
        ("tensorfusion-dra-hami-core", "hami-core-install"),
    ],
)
def test_pods_of_enforcers_get_no_token_and_run_where_the_node_plugin_does(
    name: str, variant: str
) -> None:
    documents = helm.render(VARIANTS[variant])
    pod, plugin = (
        one(documents, "DaemonSet", each)["spec"]["template"]["spec"]
        for each in (name, "tensorfusion-dra-node-plugin")
    )

    assert pod["automountServiceAccountToken"] is False
    for field in ("affinity", "nodeSelector", "tolerations", "priorityClassName"):
        assert pod[field] == plugin[field]


@pytest.mark.process
def test_policy_allows_exactly_the_marks_of_workers() -> None:
    documents = helm.render(VARIANTS["hypervisor"])
    policy = one(documents, "ValidatingAdmissionPolicy", "tensorfusion-dra-pods")
    (variable,) = [item for item in policy["spec"]["variables"] if item["name"] == "marks"]

    listed = set(re.findall(r'"([a-z-]+)"[,\]]', variable["expression"]))

    assert {names.ANNOTATION_PREFIX + name for name in listed} == worker_marks()
    assert policy["spec"]["failurePolicy"] == "Fail"


def worker_marks() -> set[str]:
    """Return every annotation that a worker is marked with, or that is taken from it."""
    share = prepared_share(limit=limit(25, 8))
    worker = marks.of_pod(POD, [prepared_claim(share, enforcer="tensor-fusion")])
    assert worker is not None
    replaced = marks.ruling_marks(worker).keys()
    stored = {"metadata": {"annotations": dict.fromkeys(replaced, "another")}}
    return {*marks.marks(worker, {}, 1), *marks.marks(worker, stored, 1)}


ACCOUNT = "tensorfusion-dra-node-plugin"

CHECKED_BY_THE_SERVER = {
    Right(
        group="resource.k8s.io",
        resource="resourceclaims/driver",
        verb="associated-node:patch",
        names=(names.DRIVER,),
    ): "the API server checks it when the status of a claim is written (1.36)",
}


def allowed(documents: list[rbac.Document]) -> frozenset[Right]:
    return rbac.rights(documents, ACCOUNT)


@pytest.fixture(scope="module")
def sent() -> frozenset[Asked]:
    """Return all kinds of requests that a node plugin sends with its default settings."""
    with cluster_with() as cluster:
        start(cluster)
        run_pod(cluster, "a")
        cluster.until("status written", lambda: status_written(cluster))
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
        cluster.client.create(GPUPOOLS, pool("of-all", qos="medium"))
        cluster.until("published", lambda: bool(cluster.slices()))
        cluster.client.replace(
            GPUPOOLS, {**cluster.client.get(GPUPOOLS, "of-all"), "spec": pool_spec("no-such-qos")}
        )
        cluster.until("event written", lambda: bool(cluster.client.list(EVENTS).items))
        return cluster.server.requests.asked(USER_AGENT)


def pool(name: str, *, qos: str) -> rbac.Document:
    return {
        "apiVersion": "tensor-fusion.ai/v1",
        "kind": "GPUPool",
        "metadata": {"name": name},
        "spec": pool_spec(qos),
    }


def pool_spec(qos: str) -> rbac.Document:
    term = {"key": "kubernetes.io/hostname", "operator": "Exists"}
    selector = {"nodeSelectorTerms": [{"matchExpressions": [term]}]}
    return {
        "qosConfig": {"defaultQoS": qos},
        "nodeManagerConfig": {"nodeSelector": selector},
    }


def status_written(cluster: SimulatedCluster) -> bool:
    return any(claim["status"].get("devices") for claim in cluster.claims())


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


def refused(requests: frozenset[Asked], granted: frozenset[Right]) -> list[Asked]:
    return [each for each in requests if not any(right.allows(each) for right in granted)]


def unused(requests: frozenset[Asked], granted: frozenset[Right]) -> set[Right]:
    return {right for right in granted if not any(right.allows(each) for each in requests)}


@pytest.mark.process
def test_role_allows_every_request_of_the_node_plugin(sent: frozenset[Asked]) -> None:
    assert sent
    assert refused(sent, allowed(installation.documents("nvidia"))) == []


@pytest.mark.process
def test_role_allows_nothing_else(
    sent: frozenset[Asked], sent_with_pools: frozenset[Asked]
) -> None:
    granted = allowed(helm.render(WITHOUT_BRIDGE))

    # Events report problems, and the only problem in these runs is an invalid GPUPool.
    assert unused(sent | sent_with_pools, granted) == set(CHECKED_BY_THE_SERVER)


@pytest.mark.process
def test_pool_source_adds_exactly_the_rights_to_follow_pools(
    sent_with_pools: frozenset[Asked],
) -> None:
    base = allowed(installation.documents("nvidia"))
    granted = allowed(helm.render(VARIANTS["gpupools"]))

    assert refused(sent_with_pools, granted) == []
    assert unused(sent_with_pools, granted - base) == set()
    assert {(right.resource, right.verb) for right in granted - base} == {
        ("gpupools", "list"),
        ("gpupools", "watch"),
    }


@pytest.mark.process
def test_nodes_are_watched_only_for_their_labels() -> None:
    without = allowed(helm.render({"settings": {"release-driver": False}}))

    assert {(right.resource, right.verb) for right in allowed(helm.render({})) - without} == {
        ("nodes", "list"),
        ("nodes", "watch"),
    }


def test_no_role_uses_wildcards() -> None:
    for document in installation.documents("nvidia", "webhook"):
        if document["kind"] in {"ClusterRole", "Role"}:
            for rule in document["rules"]:
                assert "*" not in [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]


@pytest.mark.process
@pytest.mark.parametrize("values", [{}, VARIANTS["hypervisor"]], ids=["auto", "named"])
def test_bridge_to_the_hypervisor_adds_the_rights_to_watch_and_mark_pods(values: Any) -> None:
    base = allowed(helm.render(WITHOUT_BRIDGE))
    granted = allowed(helm.render(values))

    assert {(right.resource, right.verb) for right in granted - base} == {
        ("pods", "list"),
        ("pods", "watch"),
        ("pods", "patch"),
    }


PLUGIN: Final = "system:serviceaccount:tensorfusion-dra:tensorfusion-dra-node-plugin"
SCHEDULER: Final = "system:serviceaccounts:tensor-fusion-sys"
MARKED: Final = {names.MARK_DRA_MARKS: "index", names.MARK_INDEX: "1"}
WORKER: Final = {names.LABEL_COMPONENT: names.COMPONENT_WORKER}
GIVEN: Final = {names.MARK_INDEX: "1", names.MARK_GPU_IDS: "gpu-0"}
PLAIN: Final = {"tensor-fusion.ai/tflops-limit": "312"}


def pod(annotations: dict[str, str], labels: dict[str, str] | None = None) -> Any:
    """Return a pod; one without annotations has no such field."""
    fields = {"annotations": annotations, "labels": labels}
    metadata = {"name": "train", **{key: value for key, value in fields.items() if value}}
    return {"metadata": metadata, "spec": {"nodeName": "node-01"}}


def denial(
    name: str,
    old: Any,
    new: Any,
    *,
    user: str = "tenant",
    group: str = "",
    node: str = "",
    variant: str = "hypervisor",
) -> str:
    """Return why a policy denies a write; "" if it admits it, or does not concern it."""
    rendered = helm.render(VARIANTS[variant])
    spec = next(
        each["spec"]
        for each in rendered
        if each["kind"] == "ValidatingAdmissionPolicy" and each["metadata"]["name"] == name
    )
    extensions = [ext_strings.ExtStrings(2), ext_optional.ExtOptional()]
    roots = ("request", "object", "oldObject", "variables")
    environment = cel.NewEnv(variables=dict.fromkeys(roots, cel.Type.DYN), extensions=extensions)
    operation = "UPDATE" if old else "CREATE"
    extra = {"authentication.kubernetes.io/node-name": [node]} if node else {}
    writer = {"username": user, "groups": [group], "extra": extra}
    data: dict[str, Any] = {
        "request": {"operation": operation, "userInfo": writer},
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
    for variable in spec["variables"]:
        data["variables"][variable["name"]] = value(variable["expression"])
    for each in spec["validations"]:
        if not value(each["expression"]):
            return str(each["message"] if "message" in each else value(each["messageExpression"]))
    return ""


@pytest.mark.process
@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (None, pod({}), ""),
        (None, pod(PLAIN), ""),
        (
            None,
            pod({names.MARK_GPU_IDS: "gpu-0"}, WORKER),
            "tensor-fusion.ai/gpu-ids: only the node",
        ),
        (
            None,
            pod({names.MARK_DRA_MARKS: "gpu-ids"}),
            "expected no change of tensor-fusion.ai/dra-marks",
        ),
        (pod(PLAIN), pod({}), ""),
        (pod(PLAIN), pod({**PLAIN, names.MARK_INDEX: "1"}), "tensor-fusion.ai/index: only the"),
        (pod(GIVEN), pod({**GIVEN, names.MARK_DRA_MARKS: "gpu-ids"}), "tensor-fusion.ai/dra-marks"),
        (pod(GIVEN), pod({}), "tensor-fusion.ai/index, tensor-fusion.ai/gpu-ids: only the"),
        (pod(GIVEN), pod({**GIVEN, **PLAIN, "app": "x"}), ""),
        (pod({}), pod({"app": "x"}, WORKER), ""),
        (pod(MARKED, WORKER), pod({**MARKED, "app": "x"}, {**WORKER, "app": "x"}), ""),
        (
            pod(MARKED, WORKER),
            pod({**MARKED, **PLAIN}, WORKER),
            "change of tensor-fusion.ai/tflops",
        ),
        (
            pod(MARKED, WORKER),
            pod({**MARKED, names.MARK_INDEX: "2"}, WORKER),
            "the node plugin owns",
        ),
        (pod(MARKED, WORKER), pod({}, WORKER), "the node plugin owns them"),
        (pod(MARKED, WORKER), pod(MARKED), "label tensor-fusion.ai/component: expected no change"),
    ],
)
def test_marks_are_the_node_plugins_alone(old: Any, new: Any, expected: str) -> None:
    found = denial("tensorfusion-dra-marks", old, new)

    assert expected in found
    assert bool(found) is bool(expected)
    assert denial("tensorfusion-dra-marks", old, new, user=PLUGIN) == ""


@pytest.mark.process
@pytest.mark.parametrize("resource", ["pods/binding", "bindings"])
def test_marks_do_not_come_with_a_binding(resource: str) -> None:
    policy = one(
        helm.render(VARIANTS["hypervisor"]), "ValidatingAdmissionPolicy", "tensorfusion-dra-marks"
    )
    (rule,) = policy["spec"]["matchConstraints"]["resourceRules"]
    plain, marked, given = (binding(each) for each in ({}, MARKED, GIVEN))

    assert resource in rule["resources"]
    assert denial("tensorfusion-dra-marks", None, plain) == ""
    assert "tensor-fusion.ai/dra-marks" in denial("tensorfusion-dra-marks", None, marked)
    assert "tensor-fusion.ai/gpu-ids" in denial("tensorfusion-dra-marks", None, given)
    assert denial("tensorfusion-dra-marks", None, given, group=SCHEDULER) == ""


def binding(annotations: dict[str, str]) -> Any:
    """Return what a scheduler posts to give a pod its node."""
    metadata = {"name": "train", **({"annotations": annotations} if annotations else {})}
    return {"metadata": metadata, "target": {"kind": "Node", "name": "node-01"}}


@pytest.mark.process
@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (pod(PLAIN, WORKER), pod({**PLAIN, **GIVEN}, WORKER), ""),
        (pod(GIVEN, WORKER), pod({}, WORKER), ""),
        (pod(GIVEN), pod({**GIVEN, names.MARK_DRA_MARKS: "gpu-ids"}), "tensor-fusion.ai/dra-marks"),
        (
            pod(MARKED, WORKER),
            pod({**MARKED, **GIVEN}, WORKER),
            "tensor-fusion.ai/gpu-ids: the node",
        ),
    ],
)
def test_tensor_fusions_scheduler_gives_cards_to_pods_of_its_own(
    old: Any, new: Any, expected: str
) -> None:
    found = denial("tensorfusion-dra-marks", old, new, group=SCHEDULER)

    assert expected in found
    assert bool(found) is bool(expected)


def workload(kind: str, own: dict[str, str], of_pods: dict[str, str]) -> Any:
    """Return a workload with annotations of its own, and those of its pods."""
    spec: Any = {"template": {"metadata": {"annotations": of_pods}}}
    if kind == "CronJob":
        spec = {"jobTemplate": {"spec": spec}}
    return {"kind": kind, "metadata": {"annotations": own} if own else {}, "spec": spec}


AMOUNT: Final = {names.ANNOTATION_VRAM_REQUEST: "16Gi"}


@pytest.mark.process
@pytest.mark.parametrize(
    ("new", "expected"),
    [
        ({"kind": "Pod", **pod({})}, ""),
        ({"kind": "Pod", **pod({"app": "x", "tensor-fusion.ai/gang-min-members": "2"})}, ""),
        (workload("Deployment", {}, AMOUNT), ""),
        (workload("Deployment", AMOUNT, AMOUNT), ""),
        (workload("CronJob", {"app": "x"}, {"app": "x"}), ""),
        # The webhook itself warns of what is wrong in a pod that asks for a share.
        ({"kind": "Pod", **pod({**AMOUNT, "tensor-fusion.ai/vram": "16Gi"})}, ""),
        (
            {"kind": "Pod", **pod({"tensor-fusion.ai/vram": "16Gi"})},
            "tensor-fusion.ai/vram: unknown annotation, has no effect; amounts are",
        ),
        (
            workload("CronJob", {}, {**AMOUNT, "tensor-fusion.ai/vram": "16Gi"}),
            "tensor-fusion.ai/vram: unknown annotation",
        ),
        *(
            (
                workload("Job", {}, {f"{group}/vram-request": "16Gi"}),
                f"{group}/vram-request: has no effect, expected a name that begins with tensor-fus",
            )
            for group in ("tensorfusion.ai", "tensor-fusion.io", "TensorFusion", "tensor_fusion.ai")
        ),
        (
            workload("StatefulSet", AMOUNT, {}),
            "tensor-fusion.ai/vram-request: has no effect on the StatefulSet itself, expected",
        ),
    ],
)
def test_annotations_that_would_do_nothing_are_warned_of(new: Any, expected: str) -> None:
    found = denial("tensorfusion-dra-names", None, new, variant="webhook")

    assert found.startswith(expected)
    assert bool(found) is bool(expected)
    assert len(found) < 256, "the API server cuts longer warnings"


@pytest.mark.process
def test_an_edit_of_a_pod_whose_claim_is_made_is_warned_of() -> None:
    def of(annotations: dict[str, str], *claims: str) -> Any:
        made = {"kind": "Pod", **pod(annotations)}
        made["spec"] = {**made["spec"], "resourceClaims": [{"name": each} for each in claims]}
        return made

    def said(old: Any, new: Any) -> str:
        return denial("tensorfusion-dra-names", old, new, variant="webhook")

    edited = {**AMOUNT, names.ANNOTATION_GPU_MODEL: "A100"}
    assert said(of(AMOUNT, "a"), of(edited, "a")).startswith(
        "tensor-fusion.ai/gpu-model: has no effect, because the pod's claim is made already"
    )
    assert said(of(edited, "a"), of(AMOUNT, "a")).startswith("tensor-fusion.ai/gpu-model: has no")
    assert said(of(AMOUNT, "a"), of({**AMOUNT, "app": "x", names.MARK_INDEX: "1"}, "a")) == ""
    assert said(of(AMOUNT), of(edited)) == ""


@pytest.mark.process
def test_the_policy_of_names_only_warns_and_knows_the_names_of_the_webhook() -> None:
    documents = helm.render(VARIANTS["webhook"])
    spec = one(documents, "ValidatingAdmissionPolicy", "tensorfusion-dra-names")["spec"]
    binding = one(documents, "ValidatingAdmissionPolicyBinding", "tensorfusion-dra-names")["spec"]
    texts = {each["name"]: each["expression"] for each in spec["variables"]}
    named = {name: set(re.findall(r'"([a-z-]+)"', text)) for name, text in texts.items()}
    short = {each.removeprefix(names.ANNOTATION_PREFIX) for each in KNOWN_ANNOTATIONS}
    every = {*short, *OTHERS, *WITHOUT_EFFECT, "gang-min-members", "autoscale", "pool-a"}
    of_pods = {f"{names.ANNOTATION_PREFIX}{each}": "x" for each in every}

    assert (binding["validationActions"], spec["failurePolicy"]) == (["Warn"], "Ignore")
    assert named["asking"] == {
        each.removeprefix(names.ANNOTATION_PREFIX) for each in REQUESTING_ANNOTATIONS
    }
    assert (
        denial("tensorfusion-dra-names", None, workload("Job", {}, of_pods), variant="webhook")
        == ""
    )
    assert named["known"] <= every | {"gpu-indices"}


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

    found = denial("tensorfusion-dra-slices", None, {"spec": own | spec}, user=PLUGIN, node=node)

    assert expected in found
    assert bool(found) is bool(expected)


def test_volumes_and_mounts_match() -> None:
    for name in ("nvidia", "simulated"):
        pod = one(installation.documents(name), "DaemonSet")["spec"]["template"]["spec"]
        mounts = [mount["name"] for mount in pod["containers"][0]["volumeMounts"]]

        assert sorted(mounts) == sorted(volume["name"] for volume in pod["volumes"])


def test_grace_period_is_long_enough_for_calls_in_flight() -> None:
    pod = one(installation.documents("nvidia"), "DaemonSet")["spec"]["template"]["spec"]

    assert pod["terminationGracePeriodSeconds"] >= 45 + 15

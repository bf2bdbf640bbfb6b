"""The pods have no more privileges than they need, and the policy restricts the node plugin."""

import re

import pytest

from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims import workers
from tests.daemonset.test_manifests import VARIANTS
from tests.support import helm, installation
from tests.support.builders.prepared_claims import POD, limit, prepared_claim, prepared_share
from tests.support.helm import Document
from tests.support.installation import WEBHOOK


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


def test_webhook_does_not_run_as_root() -> None:
    pod = one(installation.documents("webhook"), "Deployment")["spec"]["template"]["spec"]

    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] == 65532


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


def test_policy_matches_only_the_node_plugins_service_account() -> None:
    documents = installation.documents("nvidia")
    daemonset = one(documents, "DaemonSet")
    namespace = daemonset["metadata"]["namespace"]
    account = daemonset["spec"]["template"]["spec"]["serviceAccountName"]

    (condition,) = one(documents, "ValidatingAdmissionPolicy")["spec"]["matchConditions"]

    user = f"system:serviceaccount:{namespace}:{account}"
    assert condition["expression"] == f'request.userInfo.username == "{user}"'
    assert one(documents, "ServiceAccount", account)["metadata"]["namespace"] == namespace


def test_policy_is_bound_and_denies() -> None:
    documents = installation.documents("nvidia")
    policy = one(documents, "ValidatingAdmissionPolicy")
    binding = one(documents, "ValidatingAdmissionPolicyBinding")["spec"]

    assert binding == {"policyName": policy["metadata"]["name"], "validationActions": ["Deny"]}
    assert policy["spec"]["failurePolicy"] == "Fail"
    assert policy["spec"]["matchConstraints"]["resourceRules"][0]["operations"] == [
        "CREATE",
        "UPDATE",
        "DELETE",
    ]


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
    return {each["name"]: each for each in (*pod["initContainers"], *pod["containers"])}


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


def test_hami_cores_image_gets_no_right_but_to_its_folder() -> None:
    found = containers_of("tensorfusion-dra-hami-core", "hami-core-install")

    for each in found.values():
        assert each["securityContext"]["allowPrivilegeEscalation"] is False
        assert each["securityContext"]["readOnlyRootFilesystem"] is True
        assert each["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    mounts = {name: each.get("volumeMounts", []) for name, each in found.items()}
    assert [mount["mountPath"] for mount in mounts["install"]] == ["/usr/local/vgpu"]
    assert mounts["wait"] == []


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


def test_mps_daemon_is_never_replaced_without_an_administrator() -> None:
    daemon = one(helm.render(VARIANTS["mps-daemon"]), "DaemonSet", "tensorfusion-dra-mps")

    assert daemon["spec"]["updateStrategy"] == {"type": "OnDelete"}


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
    worker = workers.of_pod(POD, [prepared_claim(share, enforcer="tensor-fusion")])
    assert worker is not None
    replaced = workers.ruling_marks(worker).keys()
    stored = {"metadata": {"annotations": dict.fromkeys(replaced, "another")}}
    return {*workers.marks(worker, {}, 1), *workers.marks(worker, stored, 1)}

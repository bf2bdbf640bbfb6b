"""Rights of the node plugin's account, its registration and slices, and the doctor's findings."""

import json
import re
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_simulator.api import object_rules
from tensorfusion_dra.cluster.api import Api
from tensorfusion_dra.cluster.cluster_lists import minor_version
from tensorfusion_dra.core import names
from tensorfusion_dra.core.errors import StatusError
from tensorfusion_dra.core.names import RESOURCE_GROUP
from tests.e2e.cluster import RESOURCE, Cluster, Json, Slices, path_of
from tests.e2e.drivers import LABEL_NAME, Driver
from tests.e2e.tenants import Tenants
from tests.support import installation, markdown

# Of daemonset/install/nvidia.yaml: what gives the account its rights and restricts them.
_KINDS = (
    "Namespace",
    "ServiceAccount",
    "ClusterRole",
    "ClusterRoleBinding",
    "Role",
    "RoleBinding",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """Service account of the node plugins.

    Attributes:
        reads_pods: False if their setting `read-pods` is, as the chart has it beside the webhook.
    """

    namespace: str
    name: str
    reads_pods: bool = True
    releases_driver: bool = True


@pytest.fixture
def account(cluster: Cluster, driver: Driver) -> Account:
    """Account of the DaemonSet; without a DaemonSet, that of the manifests, which are applied."""
    for daemonset in cluster.objects("DaemonSet", labelSelector=LABEL_NAME):
        pod = daemonset["spec"]["template"]["spec"]
        variables = {each["name"]: each.get("value") for each in pod["containers"][0]["env"]}
        return Account(
            namespace=daemonset["metadata"]["namespace"],
            name=pod["serviceAccountName"],
            reads_pods=variables.get("TENSORFUSION_DRA_READ_PODS") != "false",
            releases_driver=not variables.get("TENSORFUSION_DRA_SIMULATED_GPUS"),
        )
    for document in installation.documents("nvidia"):
        if document["kind"] in _KINDS:
            cluster.apply(document)
    return Account(namespace="tensorfusion-dra", name="tensorfusion-dra-node-plugin")


@pytest.fixture
def node_plugin(
    cluster: Cluster, tenants: Tenants, account: Account, kubeconfig: str, tmp_path: Path
) -> Iterator[Cluster]:
    """Client with the permissions of a node plugin: a token of a pod with its account."""
    name, namespace = f"e2e-{uuid.uuid4().hex[:8]}", account.namespace
    holder = tenants.document(name)
    holder["metadata"]["namespace"] = namespace
    holder["spec"]["serviceAccountName"] = account.name
    cluster.create(holder)
    try:
        cluster.until(
            "the account's pod to be scheduled",
            lambda: (cluster.find("Pod", name, namespace=namespace) or {})["spec"].get("nodeName"),
            seconds=60,
        )
        yield _with_token(Path(kubeconfig), tmp_path, _token(cluster, account, pod=name))
    finally:
        cluster.delete("Pod", name, namespace=namespace, grace_seconds=0)


def used_permissions(account: Account, minor: int) -> list[tuple[str, ...]]:
    """Return exactly the permissions that a node plugin uses: verb, group, resource, and name."""
    slices = ("list", "watch", "create", "update", "delete")
    watched = ("list", "watch") if account.releases_driver else ()
    # From 1.36 on, it covers only claims that are allocated on the node of the pod's token.
    status = ("associated-node:patch", RESOURCE_GROUP, "resourceclaims/driver", names.DRIVER)
    return [
        *(("get", "", "nodes"), ("create", "events.k8s.io", "events")),
        *((verb, RESOURCE_GROUP, "resourceslices") for verb in slices),
        *((verb, RESOURCE_GROUP, "resourceclaims") for verb in ("get", "list", "watch")),
        ("patch", RESOURCE_GROUP, "resourceclaims/status"),
        *([("get", "", "pods")] if account.reads_pods else []),
        *((verb, "", "nodes") for verb in watched),
        *([status] if minor >= 36 else []),
    ]


def test_feature_gates_are_on_from_the_release_that_the_page_says(cluster: Cluster) -> None:
    minor = minor_version(cluster.version())
    assert minor is not None
    answer = cluster.api.send("GET", "/metrics", accept="text/plain", wait_seconds=30)
    metrics = b"".join(answer.pieces()).decode()
    line = r'^kubernetes_feature_enabled\{name="(\w+)",stage="\w*"\} ([01])$'
    found = dict(re.findall(line, metrics, re.MULTILINE))

    rows = markdown.table(markdown.text(markdown.ROOT / "docs" / "advanced.md"), "gates")

    since = {markdown.codes(gate)[0]: minor_version(cell) for gate, _, cell, _ in rows}
    on = {gate for gate, first in since.items() if first is not None and first <= minor}
    assert {gate: found.get(gate) for gate in on} == dict.fromkeys(on, "1")
    if minor >= 36:  # where hack/e2e turns none on
        off = since.keys() - on
        assert {gate: found.get(gate, "0") for gate in off} == dict.fromkeys(off, "0")


def test_account_has_every_permission_that_the_driver_uses(
    node_plugin: Cluster, account: Account
) -> None:
    minor = minor_version(node_plugin.version())
    assert minor is not None
    used = used_permissions(account, minor)

    assert [each for each in used if not _is_allowed(node_plugin, *each)] == []


@pytest.mark.parametrize(
    ("verb", "group", "resource"),
    [
        ("list", "", "secrets"),
        ("create", "", "pods"),
        ("list", "", "pods"),
        ("update", "", "nodes"),
        ("create", "resource.k8s.io", "resourceclaims"),
        ("update", "resource.k8s.io", "resourceclaims/binding"),
        ("delete", "resource.k8s.io", "deviceclasses"),
        ("arbitrary-node:patch", "resource.k8s.io", "resourceclaims/driver"),
    ],
)
def test_account_has_no_other_permissions(
    node_plugin: Cluster, verb: str, group: str, resource: str
) -> None:
    assert not _is_allowed(node_plugin, verb, group, resource)


def test_node_plugin_may_write_slices_of_its_own_node_only(
    node_plugin: Cluster, slices: Slices, cluster: Cluster
) -> None:
    (own, *_) = slices()

    assert _dry_run(node_plugin, _slice_like(own))
    # The API server enforces a policy only some time after it was applied.
    other_node = _slice_like(own, nodeName="another-node")
    message = cluster.until(
        "the policy to deny another node's slice",
        lambda: _denial(node_plugin, other_node),
        seconds=60,
    )

    assert "another-node" in message
    assert "tensor-fusion.ai.dra-driver" in str(
        _denial(node_plugin, _slice_like(own, driver="gpu.example.com"))
    )
    pool = {"name": "default/another-node", "generation": 9, "resourceSliceCount": 1}
    assert "default/another-node" in str(_denial(node_plugin, _slice_like(own, pool=pool)))
    of_all = _slice_like(own, allNodes=True)
    del of_all["spec"]["nodeName"]
    assert _denial(node_plugin, of_all)


def test_token_without_node_may_not_write_slices(
    account: Account, cluster: Cluster, slices: Slices, kubeconfig: str, tmp_path: Path
) -> None:
    (own, *_) = slices()
    unbound = _with_token(Path(kubeconfig), tmp_path, _token(cluster, account, pod=""))

    message = cluster.until(
        "the policy to deny a token without a node",
        lambda: _denial(unbound, _slice_like(own)),
        seconds=60,
    )

    assert "names no node" in message


def _slice_like(own: Json, **spec: Any) -> Json:
    """Return a slice with one device, for the node of a given slice, in a pool of its own."""
    node = own["spec"]["nodeName"]
    pool = {
        "name": f"e2e-{uuid.uuid4().hex[:8]}/{node}",
        "generation": 1,
        "resourceSliceCount": 1,
    }
    wanted = {"driver": names.DRIVER, "nodeName": node, "pool": pool, **spec}
    return {
        "apiVersion": RESOURCE,
        "kind": "ResourceSlice",
        "metadata": {"name": f"e2e-{uuid.uuid4().hex[:8]}"},
        "spec": {**wanted, "devices": own["spec"]["devices"][:1]},
    }


def _dry_run(cluster: Cluster, document: Json) -> Json:
    """Create the slice in a dry run and return it as it would be stored."""
    return cluster.post(path_of("ResourceSlice"), document, dryRun="All")


def _denial(cluster: Cluster, document: Json) -> str | None:
    try:
        _dry_run(cluster, document)
    except StatusError as error:
        return str(error) if error.status == 403 else None
    return None


def _is_allowed(cluster: Cluster, verb: str, group: str, resource: str, name: str = "") -> bool:
    kind, _, subresource = resource.partition("/")
    attributes = {
        "verb": verb,
        "group": group,
        "resource": kind,
        "subresource": subresource,
        "name": name,
    }
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": {key: text for key, text in attributes.items() if text}},
    }
    reviewed = cluster.post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body)
    return bool(reviewed["status"]["allowed"])


def _token(cluster: Cluster, account: Account, *, pod: str) -> str:
    """Create a token of an account; a named pod binds it to that pod and thereby to its node."""
    spec: Json = {"expirationSeconds": 600}
    if pod:
        found = cluster.find("Pod", pod, namespace=account.namespace)
        assert found is not None
        spec["boundObjectRef"] = {
            "apiVersion": "v1",
            "kind": "Pod",
            "name": pod,
            "uid": found["metadata"]["uid"],
        }
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    path = f"{path_of('ServiceAccount', account.namespace, account.name)}/token"
    return str(cluster.post(path, body)["status"]["token"])


def _with_token(own: Path, folder: Path, token: str) -> Cluster:
    """Return a client of a kubeconfig's cluster whose only login is a token."""
    document = yaml.safe_load(own.read_text(encoding="utf-8"))
    current = next(c for c in document["contexts"] if c["name"] == document["current-context"])
    current["context"]["user"] = "node-plugin"
    document["users"] = [{"name": "node-plugin", "user": {"token": token}}]
    file = folder / "kubeconfig"
    file.write_text(yaml.safe_dump(document), encoding="utf-8")
    return Cluster(Api(file))


def test_kubelet_registers_the_driver(driver: Driver, cluster: Cluster) -> None:
    driver.start()

    cluster.until(
        "the kubelet's registration", lambda: '"event": "registered"' in driver.log(), seconds=60
    )


def test_slices_are_complete_and_owned_by_their_node(
    slices: Slices, cluster: Cluster, node_name: str
) -> None:
    node = cluster.find("Node", node_name)
    assert node is not None

    found = slices()

    pool = found[0]["spec"]["pool"]
    assert pool["name"].endswith(f"/{node_name}")
    assert len(found) == pool["resourceSliceCount"]
    for item in found:
        (owner,) = item["metadata"]["ownerReferences"]
        expected = {"kind": "Node", "name": node_name, "uid": node["metadata"]["uid"]}
        assert owner.items() >= expected.items()
        assert item["spec"]["nodeName"] == node_name
        assert object_rules.violations(item["spec"]) == ()


def test_api_server_drops_no_field_of_a_device(slices: Slices) -> None:
    devices = [device for item in slices() for device in item["spec"]["devices"]]

    assert devices
    for device in devices:
        assert device["allowMultipleAllocations"] is True
        assert {names.CAPACITY_TFLOPS, names.CAPACITY_VRAM} <= device["capacity"].keys()
        for capacity in device["capacity"].values():
            assert capacity["requestPolicy"]["validRange"]["min"]
        documented = {names.ATTR_MODEL, names.ATTR_UUID, names.ATTR_POOL_NAME, names.ATTR_QOS}
        assert documented <= device["attributes"].keys()


def test_deleted_slice_is_published_again(slices: Slices, cluster: Cluster) -> None:
    before = slices()

    cluster.delete("ResourceSlice", before[0]["metadata"]["name"])
    after = cluster.until(
        "the slice to be back",
        lambda: (
            found
            if (found := slices()) and found[0]["metadata"]["uid"] != before[0]["metadata"]["uid"]
            else None
        ),
        seconds=30,
    )

    assert [item["spec"]["devices"] for item in after] == [
        item["spec"]["devices"] for item in before
    ]


@pytest.mark.usefixtures("slices", "device_class")
def test_doctor_finds_no_problem_in_a_working_cluster(kubeconfig: str) -> None:
    doctor = [sys.executable, "-m", "tensorfusion_dra", "doctor", "--on", "workstation"]
    ended = subprocess.run(
        [*doctor, "--kubeconfig", kubeconfig, "-o", "json"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.stdout, ended.stderr

    found = json.loads(ended.stdout)["findings"]

    themes = {finding["theme"] for finding in found}
    assert {"kubernetes", "slices", "device class", "webhook"} <= themes
    assert [finding for finding in found if finding["level"] == "problem"] == []

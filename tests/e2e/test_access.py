"""What the node plugin's account may do, and what the API server refuses it."""

import copy
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tensorfusion_dra.cluster.api import Api, StatusError
from tensorfusion_dra.core import names
from tensorfusion_dra.core.doctor import required_rights as rights
from tensorfusion_dra.core.doctor.api_server import minor_version
from tests.e2e.cluster import RESOURCE, Cluster, Json, path_of
from tests.e2e.drivers import LABEL_NAME, Driver
from tests.e2e.tenants import Tenants

Slices = Callable[[], list[Json]]

BASE = Path(__file__).parents[2] / "daemonset" / "base"
_MANIFESTS = ("namespace.yaml", "rbac.yaml", "slice-policy.yaml")
_KEPT_SECONDS = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """The service account under which node plugins run."""

    namespace: str
    name: str


@pytest.fixture
def account(cluster: Cluster, driver: Driver) -> Account:
    """The installed one; without a DaemonSet that of the manifests, which are applied first."""
    for daemonset in cluster.objects("DaemonSet", labelSelector=LABEL_NAME):
        return Account(
            namespace=daemonset["metadata"]["namespace"],
            name=daemonset["spec"]["template"]["spec"]["serviceAccountName"],
        )
    for manifest in _MANIFESTS:
        for document in yaml.safe_load_all((BASE / manifest).read_text(encoding="utf-8")):
            cluster.apply(document)
    return Account(namespace="tensorfusion-dra", name="tensorfusion-dra-node-plugin")


@pytest.fixture
def node_plugin(
    cluster: Cluster, tenants: Tenants, account: Account, kubeconfig: str, tmp_path: Path
) -> Iterator[Cluster]:
    """The API server as a node plugin on the node sees it: by a token of a pod of its account."""
    name, namespace = f"e2e-{uuid.uuid4().hex[:8]}", account.namespace
    holder = copy.deepcopy(tenants.document(name))
    holder["metadata"]["namespace"] = namespace
    holder["spec"]["serviceAccountName"] = account.name
    cluster.create(holder)
    try:
        cluster.until(
            "the account's pod to be scheduled",
            lambda: (cluster.find("Pod", name, namespace=namespace) or {})["spec"].get("nodeName"),
            seconds=60,
        )
        file = tmp_path / "kubeconfig"
        _write_kubeconfig(file, Path(kubeconfig), token=_token(cluster, account, pod=name))
        yield Cluster(Api(file))
    finally:
        cluster.delete("Pod", name, namespace=namespace, grace_seconds=0)


def test_the_account_has_every_right_that_the_driver_uses(node_plugin: Cluster) -> None:
    minor = minor_version(node_plugin.version())
    assert minor is not None
    used = [right for right in rights.of_node_plugin() if right.since_minor <= minor]

    assert [str(right) for right in used if not _may(node_plugin, right)] == []


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
def test_the_account_has_no_right_beside(
    node_plugin: Cluster, verb: str, group: str, resource: str
) -> None:
    right = rights.Right(verb=verb, group=group, resource=resource, purpose="")

    assert not _may(node_plugin, right)


def test_a_node_plugin_writes_slices_of_its_own_node_alone(
    node_plugin: Cluster, slices: Slices, cluster: Cluster
) -> None:
    (own, *_) = slices()

    assert _try(node_plugin, _slice_like(own))
    # The policy is enforced a moment after it is applied.
    other_node = _slice_like(own, nodeName="another-node")
    said = cluster.until(
        "the policy to refuse another node's slice",
        lambda: _refusal(node_plugin, other_node),
        seconds=60,
    )

    assert "another-node" in said
    assert "tensor-fusion.ai.dra-driver" in str(
        _refusal(node_plugin, _slice_like(own, driver="gpu.example.com"))
    )
    without_node = _slice_like(own)
    del without_node["spec"]["nodeName"]
    assert _refusal(
        node_plugin, {**without_node, "spec": {**without_node["spec"], "allNodes": True}}
    )


def test_a_token_that_names_no_node_writes_no_slices(
    account: Account, cluster: Cluster, slices: Slices, kubeconfig: str, tmp_path: Path
) -> None:
    (own, *_) = slices()
    file = tmp_path / "unbound"
    _write_kubeconfig(file, Path(kubeconfig), token=_token(cluster, account, pod=""))
    unbound = Cluster(Api(file))

    said = cluster.until(
        "the policy to refuse a token without a node",
        lambda: _refusal(unbound, _slice_like(own)),
        seconds=60,
    )

    assert "names no node" in said


def _slice_like(own: Json, **spec: Any) -> Json:
    """A slice with one device, of the node of another one."""
    devices = own["spec"]["devices"][:1]
    pool = {"name": f"e2e/{uuid.uuid4().hex[:8]}", "generation": 1, "resourceSliceCount": 1}
    wanted = {"driver": names.DRIVER, "nodeName": own["spec"]["nodeName"], **spec}
    return {
        "apiVersion": RESOURCE,
        "kind": "ResourceSlice",
        "metadata": {"name": f"e2e-{uuid.uuid4().hex[:8]}"},
        "spec": {**wanted, "pool": pool, "devices": devices},
    }


def _try(cluster: Cluster, document: Json) -> Json:
    """The slice as it would have been stored."""
    return cluster.post(path_of("ResourceSlice"), document, dryRun="All")


def _refusal(cluster: Cluster, document: Json) -> str | None:
    try:
        _try(cluster, document)
    except StatusError as error:
        return str(error) if error.status == 403 else None
    return None


def _may(cluster: Cluster, right: rights.Right) -> bool:
    resource, _, subresource = right.resource.partition("/")
    attributes = {
        "verb": right.verb,
        "group": right.group,
        "resource": resource,
        "subresource": subresource,
        "name": right.name,
        "namespace": right.namespace,
    }
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": {key: text for key, text in attributes.items() if text}},
    }
    reviewed = cluster.post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body)
    return bool(reviewed["status"]["allowed"])


def _token(cluster: Cluster, account: Account, *, pod: str) -> str:
    """A token of an account; bound to a pod, and so to its node, if one is named."""
    spec: Json = {"expirationSeconds": _KEPT_SECONDS}
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


def _write_kubeconfig(file: Path, own: Path, *, token: str) -> None:
    """The caller's kubeconfig with another user in it."""
    document = yaml.safe_load(own.read_text(encoding="utf-8"))
    current = next(c for c in document["contexts"] if c["name"] == document["current-context"])
    current["context"]["user"] = "node-plugin"
    document["users"] = [{"name": "node-plugin", "user": {"token": token}}]
    file.write_text(yaml.safe_dump(document), encoding="utf-8")

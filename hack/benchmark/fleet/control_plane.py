"""A real API server and etcd from given binaries, on loopback, with the rights of the manifests."""

import http.client
import json
import signal
import ssl
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from benchmark.fleet import metrics
from benchmark.fleet.metrics import Metrics
from tensorfusion_dra.cluster.api import Api

AGENT: Final = "hack/fleet"
"""User-Agent of the tool itself, so that its requests are not taken for the driver's."""
NAMESPACE: Final = "tensorfusion-dra"
SLICES: Final = "/apis/resource.k8s.io/v1/resourceslices"
ACCOUNT: Final = "tensorfusion-dra-node-plugin"

_HOST: Final = "127.0.0.1"
_MANIFESTS: Final = Path(__file__).resolve().parents[3] / "daemonset"
_ACCESS: Final = (
    "Namespace",
    "ServiceAccount",
    "ClusterRole",
    "ClusterRoleBinding",
    "Role",
    "RoleBinding",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
)
"""Kinds that give the node plugin its rights and restrict them."""
_START_SECONDS: Final = 90.0
_STOP_SECONDS: Final = 90.0
_TOKEN_SECONDS: Final = 7200
PATHS: Final[Mapping[str, str]] = {
    "Namespace": "/api/v1/namespaces",
    "ServiceAccount": f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts",
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/default/roles",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings",
    "ValidatingAdmissionPolicy": (
        "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
    ),
    "ValidatingAdmissionPolicyBinding": (
        "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"
    ),
    "CustomResourceDefinition": "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
    "Node": "/api/v1/nodes",
    "GPUPool": "/apis/tensor-fusion.ai/v1/gpupools",
}
"""Collection of each kind that the tool creates."""


class StartError(Exception):
    """A process of the control plane has not become ready."""


class ControlPlane:
    """etcd and kube-apiserver on consecutive loopback ports, without any other component."""

    has_tls: bool = True

    def __init__(self, binaries: Path, folder: Path, *, port: int) -> None:
        """Store the arguments; start() starts both.

        Args:
            binaries: Folder with `etcd` and `kube-apiserver`.
            folder: Gets credentials, data and logs.
            port: Of the API server; etcd uses the next two.
        """
        self._binaries = binaries
        self._folder = folder
        self._port = port
        self._etcd: subprocess.Popen[bytes] | None = None
        self._server: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start both processes and create what the node plugins need.

        Raises:
            StartError: The API server is not ready in time.
        """
        self._make_credentials()
        client, peer = (f"http://{_HOST}:{self._port + n}" for n in (1, 2))
        self._etcd = self._spawn(
            "etcd",
            *("--data-dir", str(self._folder / "etcd"), "--unsafe-no-fsync"),
            *("--listen-client-urls", client, "--advertise-client-urls", client),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
            *("--initial-cluster", f"default={peer}"),
        )
        self.start_api_server()
        self.api = Api(self.kubeconfig("admin", certificate="admin"), user_agent=AGENT)
        self.create_from("install/nvidia.yaml", *_ACCESS)

    def stop(self) -> None:
        """Stop both processes."""
        for process in (self._server, self._etcd):
            if process is not None:
                _ended(process, signal.SIGTERM)

    def start_api_server(self) -> None:
        """Start the API server and return once it is ready."""
        pki = self._folder
        self._server = self._spawn(
            "kube-apiserver",
            f"--etcd-servers=http://{_HOST}:{self._port + 1}",
            *(f"--bind-address={_HOST}", f"--advertise-address={_HOST}"),
            *(f"--secure-port={self._port}", "--endpoint-reconciler-type=none"),
            *(f"--tls-cert-file={pki}/server.crt", f"--tls-private-key-file={pki}/server.key"),
            f"--client-ca-file={pki}/ca.crt",
            f"--service-account-key-file={pki}/accounts.key",
            f"--service-account-signing-key-file={pki}/accounts.key",
            "--service-account-issuer=https://kubernetes.default.svc",
            *("--authorization-mode=Node,RBAC", "--service-cluster-ip-range=10.96.0.0/16"),
        )
        self._until(lambda: self._get("/readyz") == "ok")

    def stop_api_server(self, *, gracefully: bool) -> None:
        """Stop or kill the API server, and return once it has ended."""
        assert self._server is not None
        _ended(self._server, signal.SIGTERM if gracefully else signal.SIGKILL)

    def counters(self) -> Mapping[str, float]:
        """Return what the API server has done since its start."""
        return metrics.counters(Metrics(self._get("/metrics")))

    def gauges(self) -> Mapping[str, float]:
        """Return the API server's present state."""
        return metrics.gauges(Metrics(self._get("/metrics")))

    def create_from(self, file: str, *kinds: str) -> None:
        """Create the objects of a manifest that are of the given kinds."""
        for document in yaml.safe_load_all((_MANIFESTS / file).read_text(encoding="utf-8")):
            if document["kind"] in kinds:
                self.create(document)

    def create(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """Create an object; return it as stored."""
        return self.api.call("POST", PATHS[document["kind"]], body=document)

    def delete_slices(self) -> None:
        """Delete the slices of all nodes, as their kubelets do when they start."""
        self.api.call("DELETE", SLICES)

    def let_pools_be_read(self) -> None:
        """Add the rights that the chart adds with pool-source, and the kind of GPUPools itself."""
        path = f"{PATHS['ClusterRole']}/{ACCOUNT}"
        role = self.api.call("GET", path)
        role["rules"] += [
            {"apiGroups": [group], "resources": [resource], "verbs": ["list", "watch"]}
            for group, resource in (("tensor-fusion.ai", "gpupools"), ("", "nodes"))
        ]
        self.api.call("PUT", path, body=role)
        self.create_from("chart/tensor-fusion-crds/gpupools.yaml", "CustomResourceDefinition")
        self._until(lambda: "GPUPoolList" in self._get(PATHS["GPUPool"]))

    def node_kubeconfig(self, node: Mapping[str, Any]) -> Path:
        """Write a kubeconfig with a token as a node plugin's pod has it, bound to the node."""
        metadata = node["metadata"]
        bound = {
            "kind": "Node",
            "apiVersion": "v1",
            "name": metadata["name"],
            "uid": metadata["uid"],
        }
        answer = self.api.call(
            "POST",
            f"{PATHS['ServiceAccount']}/{ACCOUNT}/token",
            body={"spec": {"boundObjectRef": bound, "expirationSeconds": _TOKEN_SECONDS}},
        )
        return self.kubeconfig(metadata["name"], token=answer["status"]["token"])

    def kubeconfig(self, name: str, *, certificate: str = "", token: str = "") -> Path:
        """Write a kubeconfig for this API server and return its path."""
        pki = self._folder
        user: dict[str, str] = {"token": token}
        if certificate:
            user = {
                "client-certificate": str(pki / f"{certificate}.crt"),
                "client-key": str(pki / f"{certificate}.key"),
            }
        cluster = {
            "server": f"https://{_HOST}:{self._port}",
            "certificate-authority": str(pki / "ca.crt"),
        }
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "fleet", "cluster": cluster}],
            "users": [{"name": name, "user": user}],
            "contexts": [{"name": "fleet", "context": {"cluster": "fleet", "user": name}}],
            "current-context": "fleet",
        }
        path = pki / f"{name}.kubeconfig"
        path.write_text(json.dumps(document), encoding="utf-8")
        return path

    def _get(self, path: str) -> str:
        context = ssl.create_default_context(cafile=self._folder / "ca.crt")
        context.load_cert_chain(self._folder / "admin.crt", self._folder / "admin.key")
        connection = http.client.HTTPSConnection(_HOST, self._port, timeout=10, context=context)
        try:
            connection.request("GET", path)
            return connection.getresponse().read().decode()
        except OSError:
            return ""
        finally:
            connection.close()

    def _make_credentials(self) -> None:
        pki = self._folder
        ca = ("-CA", pki / "ca.crt", "-CAkey", pki / "ca.key")
        _openssl("genrsa", "-out", pki / "accounts.key", "2048")
        new = ("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2")
        _openssl(*new, "-subj", "/CN=fleet", "-keyout", pki / "ca.key", "-out", pki / "ca.crt")
        for name, subject in (("server", "/CN=server"), ("admin", "/O=system:masters/CN=admin")):
            _openssl(
                *new,
                *(*ca, "-subj", subject, "-addext", f"subjectAltName=IP:{_HOST}"),
                *("-keyout", pki / f"{name}.key", "-out", pki / f"{name}.crt"),
            )

    def _spawn(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        with self._log(program).open("ab") as log:
            return subprocess.Popen(
                [self._binaries / program, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._folder,
                start_new_session=True,  # Ctrl-C reaches the tool alone, which then stops them
            )

    def _log(self, program: str) -> Path:
        return self._folder / f"{program}.log"

    def _until(self, condition: Callable[[], bool]) -> None:
        assert self._server is not None
        ends = time.monotonic() + _START_SECONDS
        while not condition():
            if self._server.poll() is not None or time.monotonic() > ends:
                raise StartError(f"kube-apiserver: not ready, see {self._log('kube-apiserver')}")
            time.sleep(0.1)


def _ended(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    process.send_signal(number)
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)

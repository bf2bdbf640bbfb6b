"""Kubernetes API server for tests and `simulate`, with the validation of releases 1.37 and 1.38."""

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

from dra_simulator.api import strategies
from dra_simulator.api.faults import Faults, RequestCounts
from dra_simulator.api.gates import DEFAULT_GATES
from dra_simulator.api.kinds import ADMISSION_GROUP, KINDS, RESOURCE_GROUP, Served
from dra_simulator.api.object_rules import CheckExpression, any_expression
from dra_simulator.api.registry import Registry, Target
from dra_simulator.api.rules import SCHEMA
from dra_simulator.api.schema import part
from dra_simulator.api.service import Listener, Service
from dra_simulator.api.store import Store
from dra_simulator.api.strategies import Setting
from dra_simulator.api.webhooks import Admitting, Condition, no_condition
from tensorfusion_dra.core.kubernetes import releases
from tensorfusion_dra.core.names import TENSOR_FUSION_GROUP, TENSOR_FUSION_VERSION


class ApiServer:
    """API server on a loopback port with the parts of the Kubernetes API that a DRA driver uses.

    It has no authentication and no authorization. It answers 401 or 403 only if `faults` injects
    that status.

    Attributes:
        faults: Faults to inject into requests.
        requests: Counts of the received requests.
    """

    def __init__(
        self,
        *,
        gates: Collection[str] = DEFAULT_GATES,
        release: int = releases.SIMULATED,
        resource_versions: tuple[str, ...] = ("v1",),
        tensor_fusion: bool = False,
        history: int = 1000,
        bookmark_seconds: float = 60.0,
        check_expression: CheckExpression = any_expression,
        condition_holds: Condition = no_condition,
        port: int = 0,
    ) -> None:
        """Create an API server; `start` makes it serve.

        Args:
            gates: Enabled feature gates. Fields of disabled ones are dropped silently.
            release: Minor version of Kubernetes that it reports. From 38 on objects are checked by
                the rules of 1.38, before by those of 1.37.
            resource_versions: Served versions of resource.k8s.io, the preferred one first; v1 and
                v1beta2 have the same JSON.
            tensor_fusion: Serve Tensor Fusion's GPUPools, templates and quotas, without
                validation.
            history: Number of changes of a resource that a watch can go back.
            check_expression: Returns the error in a CEL selector, or None. The limit on its
                length is enforced in any case.
            condition_holds: Evaluates match conditions of admission webhooks.
            port: Port to listen on; 0 for any free port.
        """
        served = Served(_versions(resource_versions, tensor_fusion=tensor_fusion), release)
        self.faults: Final = Faults()
        self.requests: Final = RequestCounts()
        self._store: Final = Store(history=history)
        setting = Setting(
            gates=frozenset(gates),
            release=release,
            check=check_expression,
            labels=self._namespace_labels,
        )
        writer = Registry(self._store, SCHEMA, strategies.of_kinds(setting))
        namespaces = next(kind for kind in KINDS if kind.plural == "namespaces")
        for name in ("default", "kube-system"):
            document: dict[str, object] = {"metadata": {"name": name}}
            writer.create(Target(kind=namespaces), document)
        service = Service(
            store=self._store,
            registry=writer,
            schema=SCHEMA,
            served=served,
            bookmark_seconds=bookmark_seconds,
            admitting=Admitting(writer, condition_holds),
        )
        self._service: Final = service
        self._listener = self._bound(port)

    @property
    def url(self) -> str:
        """URL of the server: ``http://127.0.0.1:<port>``."""
        return f"http://127.0.0.1:{self._listener.port}"

    def _bound(self, port: int) -> Listener:
        return Listener(self._service, self.faults, self.requests, port=port)

    def start(self) -> None:
        """Start serving requests.

        After a stop, the server keeps its port and its objects, as a restarted real one does.
        """
        if self._listener.stopping.is_set():
            self._store.closed = False
            self._listener = self._bound(self._listener.port)
        self._listener.start()

    def stop(self) -> None:
        """Close all watches and connections, and join all threads."""
        self._listener.stop()

    def __enter__(self) -> "ApiServer":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def kubeconfig(self, path: Path) -> Path:
        """Write a kubeconfig for this server and return its path."""
        entry = {"name": "simulated"}
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{**entry, "cluster": {"server": self.url}}],
            "users": [{**entry, "user": {}}],
            "contexts": [{**entry, "context": {"cluster": "simulated", "user": "simulated"}}],
            "current-context": "simulated",
        }
        path.write_text(json.dumps(document, indent=2), encoding="utf-8")
        return path

    def _namespace_labels(self, name: str) -> Mapping[str, object]:
        found = self._store.get("namespaces", "", name)
        return part(part(found.document, "metadata"), "labels") if found else {}

    def forget_history(self, resource: str) -> None:
        """End watches from before now with 410 Gone, as after a compaction of etcd."""
        self._store.forget(resource)


def _versions(
    resource_versions: tuple[str, ...], *, tensor_fusion: bool
) -> dict[str, tuple[str, ...]]:
    """Return the served versions by API group, the preferred one first."""
    versions: dict[str, tuple[str, ...]] = {
        **dict.fromkeys(("", "events.k8s.io", ADMISSION_GROUP), ("v1",)),
        RESOURCE_GROUP: resource_versions,
    }
    if tensor_fusion:
        versions[TENSOR_FUSION_GROUP] = (TENSOR_FUSION_VERSION,)
    return versions

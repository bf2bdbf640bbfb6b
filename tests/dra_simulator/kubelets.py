"""Small DRA plugins on real sockets, whose responses a test controls, and kubelets for them."""

import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc

from dra_simulator.kubelet import Kubelet
from dra_simulator.node.plugin import Entry, Timings
from dra_simulator.rest import CLAIMS, EVENTS, PODS, SLICES, Client
from dra_simulator.runtime import Runtime
from tensorfusion_dra.kubelet.pb import (
    dra_health_v1alpha1_pb2,
    dra_v1_pb2,
    dra_v1beta1_pb2,
    pluginregistration_v1_pb2,
)
from tests.support import objects
from tests.support.grpc_sockets import Services, serving, unary
from tests.support.objects import DRIVER, NODE, Json
from tests.support.waiting import awaited

_PACKAGE = "k8s.io.kubelet.pkg.apis.dra"

FAST = Timings(
    socket_poll_seconds=0.02,
    dial_seconds=0.3,
    registration_retry_seconds=0.05,
    health_retry_seconds=0.1,
    wipe_delay_seconds=0.5,
    prepare_retry_seconds=0.1,
    container_retry_seconds=0.1,
    unprepare_retry_seconds=0.1,
)


class TinyPlugin:
    """Plugin that prepares a claim by writing one CDI device, with the claim's UID in its env.

    Attributes:
        calls: Version, method and claim UIDs of each DRA call.
        statuses: Registration statuses that the kubelet sent, as success and error.
        prepare_error, unprepare_error: Error returned for every claim; "" for success.
        notify_errors: Number of coming registration notifications to fail.
        hides: Responses omit the claims.
        extra: UIDs to add to responses.
        slow: UIDs for which a call returns only when the plugin ends.
        services: Services that the plugin advertises.
    """

    def __init__(self, folder: Path, registration_dir: Path, *, name: str = "a") -> None:
        self.calls: list[tuple[str, tuple[str, ...]]] = []
        self.statuses: list[tuple[bool, str]] = []
        self.prepare_error = ""
        self.unprepare_error = ""
        self.notify_errors = 0
        self.hides = False
        self.extra: set[str] = set()
        self.slow: set[str] = set()
        self.services = ["v1.DRAPlugin", "v1beta1.DRAPlugin"]
        self.plugin_type = "DRAPlugin"
        self.cdi_dir = folder / "cdi"
        self.cdi_dir.mkdir(exist_ok=True)
        self.endpoint = folder / f"{name}.sock"
        self.registration = registration_dir / f"{name}-reg.sock"
        self.health: list[dra_health_v1alpha1_pb2.DeviceHealth] = []
        self._stopping = threading.Event()
        self._dra = ExitStack()
        self._registrar = ExitStack()

    @property
    def methods(self) -> list[str]:
        """Methods of the DRA calls so far: Prepare or Unprepare."""
        return [method.split()[1] for method, _ in self.calls]

    def serve(self) -> None:
        """Start serving the DRA socket."""
        self._stopping.clear()
        self._dra.enter_context(serving(self.endpoint, self._dra_services()))

    def announce(self) -> None:
        """Create the registration socket and serve it."""
        pb = pluginregistration_v1_pb2
        methods = {
            "GetInfo": unary(self._info, pb.InfoRequest),
            "NotifyRegistrationStatus": unary(self._notify, pb.RegistrationStatus),
        }
        services = {"pluginregistration.Registration": methods}
        self._registrar.enter_context(serving(self.registration, services))

    def withdraw(self) -> None:
        """Remove the registration socket."""
        self._registrar.close()

    def end(self) -> None:
        """Stop serving the DRA socket and remove it."""
        self._stopping.set()
        self._dra.close()

    def _info(self, _request: Any, _context: Any) -> Any:
        return pluginregistration_v1_pb2.PluginInfo(
            type=self.plugin_type,
            name=DRIVER,
            endpoint=str(self.endpoint),
            supported_versions=self.services,
        )

    def _notify(self, request: Any, context: Any) -> Any:
        self.statuses.append((request.plugin_registered, request.error))
        if self.notify_errors:
            self.notify_errors -= 1
            context.abort(grpc.StatusCode.INTERNAL, "not now")
        return pluginregistration_v1_pb2.RegistrationStatusResponse()

    def _dra_services(self) -> Services:
        modules: dict[str, Any] = {"v1": dra_v1_pb2, "v1beta1": dra_v1beta1_pb2}
        pb = dra_health_v1alpha1_pb2
        watch = grpc.unary_stream_rpc_method_handler(
            self._watch_health,
            pb.NodeWatchResourcesRequest.FromString,
            pb.NodeWatchResourcesResponse.SerializeToString,
        )
        return {
            "v1alpha1.DRAResourceHealth": {"NodeWatchResources": watch},
            **{
                f"{_PACKAGE}.{version}.DRAPlugin": {
                    f"Node{verb}Resources": unary(
                        self._answer(module, verb, version),
                        getattr(module, f"Node{verb}ResourcesRequest"),
                    )
                    for verb in ("Prepare", "Unprepare")
                }
                for version, module in modules.items()
            },
        }

    def _answer(self, pb: Any, verb: str, version: str) -> Any:
        def answer(request: Any, _context: Any) -> Any:
            uids = tuple(claim.uid for claim in request.claims)
            self.calls.append((f"{version} {verb}", uids))
            if self.slow & set(uids):
                self._stopping.wait()
            answers = {
                uid: self._prepared(pb, uid) if verb == "Prepare" else self._unprepared(pb, uid)
                for uid in (set() if self.hides else set(uids)) | self.extra
            }
            return getattr(pb, f"Node{verb}ResourcesResponse")(claims=answers)

        return answer

    def _prepared(self, pb: Any, uid: str) -> Any:
        if self.prepare_error:
            return pb.NodePrepareResourceResponse(error=self.prepare_error)
        device = {"name": uid, "containerEdits": {"env": [f"CLAIM={uid}"]}}
        spec = {"cdiVersion": "0.5.0", "kind": "example.com/gpu", "devices": [device]}
        self._spec(uid).write_text(json.dumps(spec))
        given = pb.Device(
            pool_name="node-a", device_name="gpu-0", cdi_device_ids=[f"example.com/gpu={uid}"]
        )
        return pb.NodePrepareResourceResponse(devices=[given])

    def _unprepared(self, pb: Any, uid: str) -> Any:
        if not self.unprepare_error:
            self._spec(uid).unlink(missing_ok=True)
        return pb.NodeUnprepareResourceResponse(error=self.unprepare_error)

    def _spec(self, uid: str) -> Path:
        return self.cdi_dir / f"example.com-gpu_{uid}.json"

    def _watch_health(self, _request: Any, context: Any) -> Iterator[Any]:
        while not self._stopping.is_set() and context.is_active():
            yield dra_health_v1alpha1_pb2.NodeWatchResourcesResponse(devices=self.health)
            self._stopping.wait(0.05)


class NodeUnderTest:
    """A node's folder and runtime, which outlive its kubelets and end with the test."""

    def __init__(self, url: str, folder: Path, stack: ExitStack) -> None:
        self.client = Client(url)
        self.folder = folder
        self.runtime = Runtime([folder / "cdi"])
        self.kubelet: Kubelet
        self._url = url
        self._stack = stack
        self._running = ExitStack()

    def start(self, *, timings: Timings = FAST, wipe_at_start: bool = False) -> Kubelet:
        """Start a new kubelet."""
        self.kubelet = Kubelet(
            self._url,
            NODE,
            root_dir=self.folder / "k",
            runtime=self.runtime,
            timings=timings,
            wipe_at_start=wipe_at_start,
        )
        self._running = self._stack.enter_context(ExitStack())
        return self._running.enter_context(self.kubelet)

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Stop the kubelet for the block; the runtime's containers and the sockets remain."""
        self._running.close()
        yield
        self.start()

    def plugin(
        self, name: str = "a", *, announced: bool = True, **attributes: object
    ) -> TinyPlugin:
        """Return a plugin of the node that serves its DRA socket, and if announced, the other."""
        plugin = TinyPlugin(self.folder, self.kubelet.registration_dir, name=name)
        self._stack.callback(plugin.end)
        self._stack.callback(plugin.withdraw)
        vars(plugin).update(attributes)
        plugin.serve()
        if announced:
            plugin.announce()
        return plugin

    def connected(self) -> list[str]:
        """Return the endpoints of the driver's connected plugins, the oldest first."""
        plugins = self.kubelet.registered.get(DRIVER, ())
        return [plugin.endpoint for plugin in plugins if plugin.is_connected]

    def happened(self, event: str) -> list[Entry]:
        """Return the journal's entries of an event."""
        return [entry for entry in self.kubelet.journal if entry.event == event]

    def event(self, reason: str = "FailedPrepareDynamicResources") -> str:
        """Return the latest message of the pods' Events with this reason; "" if there is none."""
        found = [event for event in self.client.list(EVENTS).items if event["reason"] == reason]
        return str(found[-1]["message"]) if found else ""

    def slices(self) -> list[str]:
        """Return the names of all slices."""
        return [found["metadata"]["name"] for found in self.client.list(SLICES).items]

    def pod(self, name: str = "pod", *, claim: Json) -> None:
        """Create a pod on the node and reserve a claim for it."""
        made = objects.pod(name, claim_name=claim["metadata"]["name"])
        made = self.client.create(PODS, made)
        claim = self.client.get(CLAIMS, claim["metadata"]["name"], "default")
        consumers = [*claim["status"].get("reservedFor", ()), objects.consumer(made)]
        claim["status"]["reservedFor"] = consumers
        self.client.replace_status(CLAIMS, claim)
        self.client.bind(made, NODE)

    def run(self, name: str = "pod", *, claim: Json | None = None) -> str:
        """Create a pod as `pod` does, and return its claim's UID once it runs."""
        claim = claim or self.claim()
        self.pod(name, claim=claim)
        awaited(lambda: self.phase(name) == "Running")
        return str(claim["metadata"]["uid"])

    def claim(self, name: str = "claim") -> Json:
        """Create a claim and allocate a device of the node to it."""
        claim = self.client.create(CLAIMS, objects.claim(name=name))
        return self.client.replace_status(CLAIMS, {**claim, "status": objects.allocated()})

    def delete(self, pod: str = "pod", *, force: bool = False) -> None:
        """Delete a pod as a user does."""
        self.client.delete(PODS, pod, "default", grace_seconds=0 if force else None)

    def phase(self, pod: str = "pod") -> str:
        """Return the pod's phase; "" if it is gone."""
        found = self.client.find(PODS, pod, "default")
        return str(found["status"]["phase"]) if found else ""

    def env(self, pod: str = "pod") -> dict[str, str]:
        """Return the environment of the pod's container; empty without a container."""
        containers = self.kubelet.containers("default", pod)
        return dict(containers["main"].env) if "main" in containers else {}

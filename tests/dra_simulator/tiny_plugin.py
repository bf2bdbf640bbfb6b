"""Small DRA plugin on real sockets, whose responses a test controls."""

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc

from tensorfusion_dra.kubelet.pb import (
    dra_health_v1alpha1_pb2,
    dra_v1_pb2,
    dra_v1beta1_pb2,
    pluginregistration_v1_pb2,
)
from tests.dra_simulator.waiting import eventually
from tests.support.objects import DRIVER

_PACKAGE = "k8s.io.kubelet.pkg.apis.dra"


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
        is_slow: True while such a call is waiting.
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
        self.is_slow = False
        self.services = ["v1.DRAPlugin", "v1beta1.DRAPlugin"]
        self.plugin_type = "DRAPlugin"
        self.cdi_dir = folder / "cdi"
        self.cdi_dir.mkdir(exist_ok=True)
        self.endpoint = folder / f"{name}.sock"
        self.registration = registration_dir / f"{name}-reg.sock"
        self.health: list[dra_health_v1alpha1_pb2.DeviceHealth] = []
        self._stopping = threading.Event()
        self._dra: grpc.Server | None = None
        self._registrar: grpc.Server | None = None
        self._pools: list[ThreadPoolExecutor] = []

    @property
    def methods(self) -> list[str]:
        """Methods of the DRA calls so far: Prepare or Unprepare."""
        return [method.split()[1] for method, _ in self.calls]

    def serve(self) -> None:
        """Start serving the DRA socket."""
        self._stopping.clear()
        handlers = [*self._dra_handlers(), self._health_handler()]
        self._dra = self._server(self.endpoint, handlers)

    def announce(self) -> None:
        """Create the registration socket and serve it."""
        self._registrar = self._server(self.registration, [self._registration_handler()])

    def withdraw(self) -> None:
        """Remove the registration socket."""
        _stop(self._registrar, self.registration)
        self._registrar = None

    def end(self) -> None:
        """Stop serving the DRA socket and remove it."""
        self._stopping.set()
        _stop(self._dra, self.endpoint)
        self._dra = None
        for pool in self._pools:
            pool.shutdown()
        self._pools.clear()

    def _server(self, path: Path, handlers: list[grpc.GenericRpcHandler]) -> grpc.Server:
        pool = ThreadPoolExecutor(4)
        self._pools.append(pool)
        server = grpc.server(pool)
        server.add_generic_rpc_handlers(handlers)
        server.add_insecure_port(f"unix:{path}")
        server.start()
        return server

    def _registration_handler(self) -> grpc.GenericRpcHandler:
        pb = pluginregistration_v1_pb2

        def get_info(_request: Any, _context: Any) -> Any:
            return pb.PluginInfo(
                type=self.plugin_type,
                name=DRIVER,
                endpoint=str(self.endpoint),
                supported_versions=self.services,
            )

        def notify(request: Any, context: Any) -> Any:
            self.statuses.append((request.plugin_registered, request.error))
            if self.notify_errors:
                self.notify_errors -= 1
                context.abort(grpc.StatusCode.INTERNAL, "not now")
            return pb.RegistrationStatusResponse()

        return grpc.method_handlers_generic_handler(
            "pluginregistration.Registration",
            {
                "GetInfo": _unary(get_info, pb.InfoRequest, pb.PluginInfo),
                "NotifyRegistrationStatus": _unary(
                    notify, pb.RegistrationStatus, pb.RegistrationStatusResponse
                ),
            },
        )

    def _dra_handlers(self) -> Iterator[grpc.GenericRpcHandler]:
        modules: dict[str, Any] = {"v1": dra_v1_pb2, "v1beta1": dra_v1beta1_pb2}
        for version, pb in modules.items():
            yield grpc.method_handlers_generic_handler(
                f"{_PACKAGE}.{version}.DRAPlugin",
                {
                    f"Node{verb}Resources": _unary(
                        self._answer(pb, verb, version),
                        getattr(pb, f"Node{verb}ResourcesRequest"),
                        getattr(pb, f"Node{verb}ResourcesResponse"),
                    )
                    for verb in ("Prepare", "Unprepare")
                },
            )

    def _answer(self, pb: Any, verb: str, version: str) -> Any:
        def answer(request: Any, _context: Any) -> Any:
            uids = tuple(claim.uid for claim in request.claims)
            self.calls.append((f"{version} {verb}", uids))
            if self.slow & set(uids):
                self.is_slow = True
                self._stopping.wait()
                self.is_slow = False
            answers = {
                uid: self._prepared(pb, uid) if verb == "Prepare" else self._unprepared(pb, uid)
                for uid in (set() if self.hides else set(uids)) | self.extra
            }
            return getattr(pb, f"Node{verb}ResourcesResponse")(claims=answers)

        return answer

    def _prepared(self, pb: Any, uid: str) -> Any:
        if self.prepare_error:
            return pb.NodePrepareResourceResponse(error=self.prepare_error)
        edits = {"env": [f"CLAIM={uid}"]}
        spec = {
            "cdiVersion": "0.5.0",
            "kind": "example.com/gpu",
            "devices": [{"name": uid, "containerEdits": edits}],
        }
        self._spec(uid).write_text(json.dumps(spec))
        device = pb.Device(
            pool_name="node-a", device_name="gpu-0", cdi_device_ids=[f"example.com/gpu={uid}"]
        )
        return pb.NodePrepareResourceResponse(devices=[device])

    def _unprepared(self, pb: Any, uid: str) -> Any:
        if not self.unprepare_error:
            self._spec(uid).unlink(missing_ok=True)
        return pb.NodeUnprepareResourceResponse(error=self.unprepare_error)

    def _spec(self, uid: str) -> Path:
        return self.cdi_dir / f"example.com-gpu_{uid}.json"

    def _health_handler(self) -> grpc.GenericRpcHandler:
        pb = dra_health_v1alpha1_pb2

        def watch(_request: Any, context: Any) -> Iterator[Any]:
            while not self._stopping.is_set() and context.is_active():
                yield pb.NodeWatchResourcesResponse(devices=self.health)
                self._stopping.wait(0.05)

        handler = grpc.unary_stream_rpc_method_handler(
            watch,
            request_deserializer=pb.NodeWatchResourcesRequest.FromString,
            response_serializer=pb.NodeWatchResourcesResponse.SerializeToString,
        )
        return grpc.method_handlers_generic_handler(
            "v1alpha1.DRAResourceHealth", {"NodeWatchResources": handler}
        )


def _unary(function: Any, request: Any, response: Any) -> Any:
    return grpc.unary_unary_rpc_method_handler(
        function,
        request_deserializer=request.FromString,
        response_serializer=response.SerializeToString,
    )


def _stop(server: grpc.Server | None, path: Path) -> None:
    """Stop the server and wait until grpc has removed its socket, which may take a moment."""
    if server is not None:
        server.stop(grace=None).wait()
        eventually(lambda: not path.exists())

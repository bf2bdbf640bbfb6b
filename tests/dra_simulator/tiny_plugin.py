"""Small DRA plugin on real sockets, whose responses a test controls."""

import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc

from tensorfusion_dra.kubelet.pb import (
    dra_health_v1alpha1_pb2,
    dra_v1_pb2,
    dra_v1beta1_pb2,
    pluginregistration_v1_pb2,
)
from tests.support.grpc_sockets import Services, serving, unary
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

"""Tests of another driver on the simulated cluster: docs/simulator.md's example.

The driver is a stand-in for the process that you would start.
"""

import json
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import yaml

from dra_simulator.apiserver import ApiServer
from dra_simulator.kubelet import Kubelet
from dra_simulator.node.plugin import ClaimRef
from dra_simulator.rest import CLAIMS, CLASSES, PODS, SLICES, Client
from dra_simulator.runtime import Runtime
from dra_simulator.scheduler import Scheduler
from tensorfusion_dra.kubelet.pb import dra_v1_pb2 as dra
from tensorfusion_dra.kubelet.pb import pluginregistration_v1_pb2 as registration
from tensorfusion_dra.scheduling import cel_evaluation

DRIVER = "gpu.example.com"
SECONDS = 60.0
OBJECTS = """
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: gpu}
spec:
  selectors:
  - cel: {expression: 'device.driver == "gpu.example.com"'}
---
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: node-a-gpus}
spec:
  driver: gpu.example.com
  nodeName: node-a
  pool: {name: node-a, generation: 1, resourceSliceCount: 1}
  devices:
  - {name: gpu-0, attributes: {model: {string: small}}}
  - {name: gpu-1, attributes: {model: {string: large}}}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: large, namespace: default}
spec:
  devices:
    requests:
    - name: gpu
      exactly:
        deviceClassName: gpu
        selectors:
        - cel: {expression: 'device.attributes["gpu.example.com"].model == "large"'}
---
apiVersion: v1
kind: Pod
metadata: {name: trainer, namespace: default}
spec:
  resourceClaims: [{name: gpu, resourceClaimName: large}]
  containers: [{name: main, image: any, resources: {claims: [{name: gpu}]}}]
"""


def prepare(request: Any, client: Client, cdi_folder: Path) -> Any:
    """Read the allocation of each claim, write a CDI spec and return its devices."""
    answer = dra.NodePrepareResourcesResponse()
    for ref in request.claims:
        claim = client.get(CLAIMS, ref.name, ref.namespace)
        for result in claim["status"]["allocation"]["devices"]["results"]:
            device = {"name": ref.uid, "containerEdits": {"env": [f"GPU={result['device']}"]}}
            spec = {"cdiVersion": "0.5.0", "kind": "example.com/gpu", "devices": [device]}
            (cdi_folder / f"{ref.uid}.json").write_text(json.dumps(spec))
            answer.claims[ref.uid].devices.add(
                pool_name=result["pool"],
                device_name=result["device"],
                cdi_device_ids=[f"example.com/gpu={ref.uid}"],
            )
    return answer


def method(function: Callable[[Any], Any], request: Any) -> Any:
    """Return the handler of a method that takes a message of this type."""
    return grpc.unary_unary_rpc_method_handler(
        lambda message, _: function(message),
        request.FromString,
        lambda answer: answer.SerializeToString(),
    )


@contextmanager
def serving(socket: Path, service: str, methods: dict[str, Any]) -> Iterator[None]:
    """Serve a gRPC service on a Unix socket for the block."""
    with ThreadPoolExecutor(4) as pool:
        server = grpc.server(pool)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, methods),))
        server.add_insecure_port(f"unix:{socket}")
        server.start()
        try:
            yield
        finally:
            server.stop(grace=None).wait()


@contextmanager
def driver(client: Client, folder: Path, registration_dir: Path) -> Iterator[None]:
    """Serve the sockets of a driver that prepares claims and unprepares nothing."""
    info = registration.PluginInfo(
        type="DRAPlugin",
        name=DRIVER,
        endpoint=f"{folder}/dra.sock",
        supported_versions=["v1.DRAPlugin"],
    )
    registered = registration.RegistrationStatusResponse()
    registrar = {
        "GetInfo": method(lambda _: info, registration.InfoRequest),
        "NotifyRegistrationStatus": method(lambda _: registered, registration.RegistrationStatus),
    }
    plugin = {
        "NodePrepareResources": method(
            lambda request: prepare(request, client, folder / "cdi"),
            dra.NodePrepareResourcesRequest,
        ),
    }
    with (
        serving(folder / "dra.sock", "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin", plugin),
        serving(registration_dir / "reg.sock", "pluginregistration.Registration", registrar),
    ):
        yield


def awaited(find: Callable[[], Any]) -> Any:
    """Call the function until it returns something true, and return that."""
    deadline = time.monotonic() + SECONDS
    while not (found := find()):
        assert time.monotonic() < deadline, f"found nothing within {SECONDS:g} s"
        time.sleep(0.01)
    return found


def test_a_pod_gets_the_large_gpu() -> None:
    with (
        tempfile.TemporaryDirectory(dir="/tmp") as name,  # short, because sockets lie in it
        ApiServer(check_expression=cel_evaluation.check_expression) as server,
        Scheduler(server.url),
    ):
        folder, client = Path(name), Client(server.url)
        (folder / "cdi").mkdir()
        kubelet = Kubelet(
            server.url, "node-a", root_dir=folder / "kubelet", runtime=Runtime([folder / "cdi"])
        )
        with kubelet, driver(client, folder, kubelet.registration_dir):
            (plugin,) = awaited(lambda: kubelet.registered.get(DRIVER, ()))
            resources = (CLASSES, SLICES, CLAIMS, PODS)
            for resource, document in zip(resources, yaml.safe_load_all(OBJECTS), strict=True):
                client.create(resource, document)

            containers = awaited(lambda: kubelet.containers("default", "trainer"))

            assert containers["main"].env["GPU"] == "gpu-1"
            # The kubelet may call again at any time; the answer has to stay the same.
            uid = client.get(CLAIMS, "large", "default")["metadata"]["uid"]
            again = plugin.prepare([ClaimRef("default", "large", uid)])
            assert [device.device for device in again[uid]] == ["gpu-1"]

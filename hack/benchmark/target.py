"""The driver to measure: its socket, and the claims that it is given."""

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from dra_simulator.node.plugin import ClaimRef, Plugin, Timings
from tensorfusion_dra.cluster.api import Api
from tensorfusion_dra.core import names
from tensorfusion_dra.core.errors import StatusError

AGENT: Final = "hack/bench"
"""User-Agent of the bench, so that its requests do not count as the driver's."""
SERVICES: Final = ("v1.DRAPlugin", "v1beta1.DRAPlugin")

_RESOURCE_V1: Final = "resource.k8s.io/v1"
_RESOURCES: Final = f"/apis/{_RESOURCE_V1}"
_WRITERS: Final = 8
_GATE: Final = "bench"
_NOT_FOUND: Final = 404

Json = dict[str, Any]


class TargetError(Exception):
    """The driver, or the text that names it, is not as expected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A driver to measure.

    Attributes:
        socket: Its DRA socket.
        driver: Its name, as in its ResourceSlices.
        device_class: The DeviceClass that its claims name.
        capacity: What a claim consumes of a device that can be shared. The rest is the device's
            own default, as when a scheduler allocates it.
        service: Version of its DRA service, one of SERVICES.
    """

    socket: Path
    driver: str
    device_class: str
    capacity: Mapping[str, str] = field(default_factory=dict)
    service: str = SERVICES[0]


def parsed(text: str) -> Target:
    """Return the target of ``SOCKET[,driver=NAME][,class=NAME][,service=NAME][,CAPACITY=AMOUNT]``.

    The driver is the name of the socket's folder unless given, as in the kubelet's plugin folder.

    Raises:
        TargetError: The text has another form.
    """
    socket, *pairs = text.split(",")
    values: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not (name and equals and value):
            raise TargetError(f"{text}: found {pair!r}, expected NAME=VALUE")
        values[name] = value
    path = Path(socket)
    driver = values.pop("driver", path.absolute().parent.name)
    device_class = values.pop("class", driver)
    service = values.pop("service", SERVICES[0])
    if not socket or service not in SERVICES:
        raise TargetError(f"{text}: expected a socket, and a service of {', '.join(SERVICES)}")
    return Target(
        socket=path, driver=driver, device_class=device_class, capacity=values, service=service
    )


def connected(target: Target) -> Plugin:
    """Return a client of the driver, as the kubelet is one. It connects with its first call."""
    return Plugin(
        target.driver,
        str(target.socket),
        services=(target.service, "v1.DRAResourceHealth"),
        timings=Timings(),
        changed=lambda: None,
    )


def api_of(kubeconfig: Path) -> Api:
    """Return the bench's own connections to the API server."""
    return Api(kubeconfig, user_agent=AGENT)


_FILLED: Final = {names.ANNOTATION_TFLOPS_LIMIT: "0"}
"""Marks a claim as filled by the webhook, so that the node plugin need not read its pod."""


class Claims:
    """Claims that are written with their allocation, as a scheduler does."""

    def __init__(
        self,
        api: Api,
        target: Target,
        *,
        namespace: str = "default",
        with_pods: bool = True,
        only: str = "",
    ) -> None:
        """Read the driver's devices.

        Args:
            with_pods: Reserve each claim for a pod of its own, as in a cluster. The pods have a
                scheduling gate, so that they never run.
            only: Name of the device to allocate; "" for all of them.

        Raises:
            TargetError: The driver has published no devices.
        """
        self._api = api
        self._target = target
        self._namespace = namespace
        self._with_pods = with_pods
        found = _devices(api, target.driver)
        self._devices = [each for each in found if only in ("", each[1]["name"])]
        if not self._devices:
            raise TargetError(f"{target.driver}: found no devices in ResourceSlices, expected some")
        self._next = 0
        self._names: set[str] = set()  # of all claims and pods that were not deleted yet

    @property
    def device_count(self) -> int:
        """Number of published devices."""
        return len(self._devices)

    def create(self, count: int, *, devices: int = 1) -> list[ClaimRef]:
        """Create allocated claims; the devices follow each other over all claims.

        Args:
            devices: Devices of each claim, each for a request of its own.
        """
        first, self._next = self._next, self._next + count * devices
        starts = range(first, self._next, devices)
        with ThreadPoolExecutor(_WRITERS) as writers:
            return list(writers.map(lambda start: self._create(start, devices), starts))

    def delete(self, refs: Iterable[ClaimRef]) -> None:
        """Delete claims and their pods; the claims are no longer prepared."""
        self._delete_each([ref.name for ref in refs])

    def delete_rest(self) -> None:
        """Delete what is left: the claims that were created by a call that failed."""
        self._delete_each(list(self._names))

    def has_status(self, ref: ClaimRef) -> bool:
        """Return True if the driver has reported its devices in the claim's status."""
        found = self._api.call("GET", f"{self._path('resourceclaims')}/{ref.name}")
        return bool(found.get("status", {}).get("devices"))

    def _create(self, start: int, count: int) -> ClaimRef:
        name = f"bench-{uuid4().hex[:12]}"
        self._names.add(name)
        chosen = [self._devices[n % len(self._devices)] for n in range(start, start + count)]
        requests = [
            {"name": f"gpu-{n}", "exactly": {"deviceClassName": self._target.device_class}}
            for n in range(count)
        ]
        body = {
            **_object(_RESOURCE_V1, "ResourceClaim", name, self._namespace),
            "spec": {"devices": {"requests": requests}},
        }
        body["metadata"]["annotations"] = _FILLED
        stored = self._api.call("POST", self._path("resourceclaims"), body=body)
        results = [self._result(f"gpu-{n}", *device) for n, device in enumerate(chosen)]
        stored["status"] = {"allocation": {"devices": {"results": results}}}
        if self._with_pods:
            stored["status"]["reservedFor"] = [self._create_pod(name)]
        self._api.call("PUT", f"{self._path('resourceclaims')}/{name}/status", body=stored)
        return ClaimRef(namespace=self._namespace, name=name, uid=stored["metadata"]["uid"])

    def _create_pod(self, name: str) -> Json:
        container = {"name": "app", "image": "app", "resources": {"claims": [{"name": "gpu"}]}}
        body = {
            **_object("v1", "Pod", name, self._namespace),
            "spec": {
                "schedulingGates": [{"name": f"{_GATE}.example.com/never"}],
                "resourceClaims": [{"name": "gpu", "resourceClaimName": name}],
                "containers": [container],
            },
        }
        stored = self._api.call("POST", self._path("pods"), body=body)
        return {"resource": "pods", "name": name, "uid": stored["metadata"]["uid"]}

    def _result(self, request: str, pool: str, device: Json) -> Json:
        result = {
            "request": request,
            "driver": self._target.driver,
            "pool": pool,
            "device": device["name"],
        }
        if device.get("allowMultipleAllocations"):
            result["shareID"] = str(uuid4())
            result["consumedCapacity"] = consumed(device, self._target.capacity)
        return result

    def _delete_each(self, names: Sequence[str]) -> None:
        with ThreadPoolExecutor(_WRITERS) as writers:
            list(writers.map(self._delete, names))

    def _delete(self, name: str) -> None:
        for plural in ("resourceclaims", *(("pods",) if self._with_pods else ())):
            try:
                self._api.call("DELETE", f"{self._path(plural)}/{name}")
            except StatusError as error:
                if error.status != _NOT_FOUND:
                    raise
        self._names.discard(name)

    def _path(self, plural: str) -> str:
        root = "/api/v1" if plural == "pods" else _RESOURCES
        return f"{root}/namespaces/{self._namespace}/{plural}"


def consumed(device: Json, wanted: Mapping[str, str]) -> Mapping[str, str]:
    """Return what a share consumes of each capacity of a device: what is wanted, or its default."""
    amounts = {}
    for name, capacity in (device.get("capacity") or {}).items():
        default = (capacity.get("requestPolicy") or {}).get("default", capacity["value"])
        amounts[name] = wanted.get(name, default)
    return amounts


def _devices(api: Api, driver: str) -> Sequence[tuple[str, Json]]:
    """Return the pool and the content of every device of a driver."""
    slices = api.call("GET", f"{_RESOURCES}/resourceslices").get("items") or []
    specs = [each["spec"] for each in slices if each["spec"]["driver"] == driver]
    return [
        (spec["pool"]["name"], device) for spec in specs for device in spec.get("devices") or []
    ]


def _object(api_version: str, kind: str, name: str, namespace: str) -> Json:
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata}

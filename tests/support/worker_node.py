"""A node with the bridge to Tensor Fusion's hypervisor, for which there is a stand-in.

The stand-in has the hypervisor's device plugin and keeps its shared memory. It behaves as the real
one (NexusGPU/tensor-fusion, pkg/hypervisor): it sees the pods with the label of workers, finds one
by its index only while the pod is pending and has cards, waits for one that it does not see,
allocates once for each pod, ignores cards that it does not know, recovers running pods at its start
and forgets a pod that loses the label. Only one thing is quicker: it creates the shared memory
before it answers Allocate, not within a second.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Condition
from typing import Any, Final

import grpc

from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims.claim import ClaimRef, PodRef
from tensorfusion_dra.core.claims.enforcer import NodeAccess
from tensorfusion_dra.core.claims.ports import Loop
from tensorfusion_dra.core.claims.prepared import Limit, PreparedClaim
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.core.kubernetes.projection import Projection, projected
from tensorfusion_dra.enforcers.tensor_fusion import shared_memory
from tensorfusion_dra.enforcers.tensor_fusion.device_plugin import socket_name
from tensorfusion_dra.enforcers.tensor_fusion.enforcer import TensorFusion
from tensorfusion_dra.enforcers.tensor_fusion.workers import Workers
from tensorfusion_dra.kubelet.pb import deviceplugin_v1beta1_pb2 as pb
from tests.support import enforcer_files
from tests.support.builders.stored_claims import stored_claim
from tests.support.prepared_node import GPU_0, GPU_1, Setup, share_result
from tests.support.waiting import PATIENCE_SECONDS

Pod = dict[str, Any]


class WorkerPodsInMemory:
    """The pods of one node at the API server; stands for Pods and WorkerPods."""

    def __init__(self) -> None:
        self.changed = Condition()  # guards all below
        self.stored: dict[str, Pod] = {}
        self.patches: list[Mapping[str, str | None]] = []
        self.lists = 0
        self.reads = 0
        self.refuses_marks = False
        self.unlabelled: set[str] = set()  # UIDs of pods that lost the label, or are gone

    def put(self, name: str, *, uid: str = "", phase: str = "Pending", **fields: Any) -> PodRef:
        """Store a pod of namespace default, as the kubelet's calls find it.

        Another pod of this name is deleted by that, as `kubectl delete --force` does.
        """
        ref = PodRef(namespace="default", name=name, uid=uid or f"uid-of-{name}")
        metadata = {"namespace": "default", "name": name, "uid": ref.uid, "labels": {}}
        pod = {"metadata": {"annotations": {}, **metadata}, "status": {"phase": phase}, **fields}
        with self.changed:
            if gone := self.stored.get(name):
                self.unlabelled.add(gone["metadata"]["uid"])
            self.stored[name] = pod
            self.changed.notify_all()
        return ref

    def set_phase(self, name: str, phase: str) -> None:
        with self.changed:
            self.stored[name]["status"]["phase"] = phase
            self.changed.notify_all()

    def annotations(self, name: str) -> dict[str, str]:
        return dict(self.stored[name]["metadata"]["annotations"])

    def labels(self, name: str) -> dict[str, str]:
        return dict(self.stored[name]["metadata"]["labels"])

    def find(self, pod: PodRef, *, wait_seconds: float) -> Mapping[str, Any] | None:
        assert wait_seconds > 0
        with self.changed:
            self.reads += 1
            stored = self.stored.get(pod.name)
            return deepcopy(stored) if stored and stored["metadata"]["uid"] == pod.uid else None

    def of_node(self, keep: Projection, *, wait_seconds: float) -> Sequence[Mapping[str, Any]]:
        assert wait_seconds > 0
        with self.changed:
            self.lists += 1
            workers = deepcopy([pod for pod in self.stored.values() if is_worker(pod)])
        return [pod for each in workers if (pod := projected(each, keep))]

    def mark(
        self,
        pod: PodRef,
        *,
        labels: Mapping[str, str | None],
        annotations: Mapping[str, str | None],
        wait_seconds: float,
    ) -> None:
        assert wait_seconds > 0
        if self.refuses_marks:
            raise RetryableError(f"pod {pod}: 403 Forbidden")
        with self.changed:
            self.patches.append({**labels, **annotations})
            metadata = self.stored[pod.name]["metadata"]
            if labels.get(names.LABEL_COMPONENT, "") is None:
                self.unlabelled.add(pod.uid)
            for field, values in (("labels", labels), ("annotations", annotations)):
                for key, text in values.items():
                    if text is None:
                        metadata[field].pop(key, None)
                    else:
                        metadata[field][key] = text
            self.changed.notify_all()

    def watch(self, keep: object, on_list: object, on_event: object) -> Loop:
        """Return a watch that sees nothing; tests call the workers' methods."""
        return NoWatch()


class NoWatch:
    """A watch that tests do not run."""

    def run(self) -> None:
        raise AssertionError

    stop = run


def is_worker(pod: Pod) -> bool:
    labels: dict[str, str] = pod["metadata"]["labels"]
    return labels.get(names.LABEL_COMPONENT) == names.COMPONENT_WORKER


class StandInHypervisor:
    """A hypervisor of one node; it serves from start() to stop(), and may be started again."""

    def __init__(
        self,
        folder: Path,
        pods: WorkerPodsInMemory,
        *,
        cards: Sequence[str],
        sockets: tuple[int, ...],
    ) -> None:
        """Serve nothing yet.

        Args:
            folder: For its sockets and its shared memory.
            pods: The pods that it watches.
            cards: UUIDs of the cards that it knows.
            sockets: The numbers of the sockets that it serves; the real one serves 0 to 15.
        """
        self.sockets = folder / "dp"
        self.shm = folder / "shm"
        self.allocated: dict[str, tuple[str, ...]] = {}  # cards by pod UID
        self.calls: list[int] = []
        self.answer: bytes | None = None  # sent in place of each answer
        self.before_answer: Callable[[], object] = lambda: None  # called once, by the next call
        self._pods = pods
        self.cards = [card.lower() for card in cards]
        self._numbers = sockets
        self._servers: list[grpc.Server] = []
        self.sockets.mkdir()

    def start(self) -> None:
        self.allocated = {}
        for pod in self._pods.stored.values():
            if is_worker(pod) and pod["status"]["phase"] == "Running":
                self._allocate(pod)
        for number in self._numbers:
            server = grpc.server(ThreadPoolExecutor(4))
            server.add_generic_rpc_handlers((_service(self, number),))
            server.add_insecure_port(f"unix:{self.sockets / socket_name(number)}")
            server.start()
            self._servers.append(server)

    def stop(self) -> None:
        for server in self._servers:
            server.stop(grace=None).wait()
        self._servers = []
        for number in self._numbers:
            (self.sockets / socket_name(number)).unlink(missing_ok=True)

    def beat(self, pod: PodRef, *, at: float) -> None:
        """Write the heartbeat of a pod."""
        limits = shared_memory.read(str(self.file(pod))).limits
        self.file(pod).write_bytes(enforcer_files.shared_memory(limits, heartbeat=int(at)))

    def limits(self, pod: PodRef) -> dict[str, tuple[int, int]]:
        """Return percent and bytes by UUID, as a limiter reads them."""
        memory = shared_memory.read(str(self.file(pod)))
        return {
            f"gpu-{uuid.lower()}": (limit.sm_percent, limit.vram_bytes)
            for uuid, limit in memory.limits.items()
        }

    def rate(self, name: str) -> int:
        """Return the percent at which the rate of a pod's kernels is regulated, as the real one.

        It takes the limit from the annotations, and none if there are both kinds of it.
        """
        annotations = self._pods.annotations(name)
        percent = annotations.get("tensor-fusion.ai/compute-percent-limit")
        tflops = annotations.get("tensor-fusion.ai/tflops-limit")
        if percent and not tflops:
            return int(percent)
        return min(100, -(-int(tflops) * 100 // 312)) if tflops and not percent else 100

    def file(self, pod: PodRef) -> Path:
        return self.shm / pod.namespace / pod.name / "shm"

    def allocate(
        self, number: int, request: pb.AllocateRequest, context: grpc.ServicerContext
    ) -> pb.AllocateResponse:
        (container,) = request.container_requests
        index = len(container.devices_ids) + 8 * number
        self.calls.append(index)
        act, self.before_answer = self.before_answer, lambda: None
        act()
        with self._pods.changed:
            while (pod := self._pending(index)) is None:
                self._pods.changed.wait(0.05)
                if not context.is_active():
                    return pb.AllocateResponse()
            cards = self._allocate(pod)
        visible = ",".join(f"GPU-{uuid[4:]}" for uuid in cards)
        envs = {"NVIDIA_VISIBLE_DEVICES": visible} if cards else {}
        return pb.AllocateResponse(container_responses=[pb.ContainerAllocateResponse(envs=envs)])

    def _pending(self, index: int) -> Pod | None:
        for pod in self._pods.stored.values():
            annotations = pod["metadata"]["annotations"]
            is_pending = is_worker(pod) and pod["status"]["phase"] == "Pending"
            has_index = annotations.get("tensor-fusion.ai/index") == str(index)
            if is_pending and has_index and annotations.get("tensor-fusion.ai/gpu-ids"):
                return pod
        return None

    def _allocate(self, pod: Pod) -> tuple[str, ...]:
        while self._pods.unlabelled:
            self.allocated.pop(self._pods.unlabelled.pop(), None)
        uid = pod["metadata"]["uid"]
        if uid not in self.allocated:
            annotations = pod["metadata"]["annotations"]
            wanted = annotations["tensor-fusion.ai/gpu-ids"].split(",")
            self.allocated[uid] = tuple(card for card in wanted if card in self.cards)
            if self.allocated[uid]:
                self._create(pod, self.allocated[uid])
        return self.allocated[uid]

    def _create(self, pod: Pod, cards: Sequence[str]) -> None:
        metadata, annotations = pod["metadata"], pod["metadata"]["annotations"]
        limit = Limit(
            sm_percent=int(annotations.get("tensor-fusion.ai/compute-percent-limit", 100)),
            vram_bytes=int(annotations["tensor-fusion.ai/vram-limit"]),
        )
        # The real one leaves out the prefix, and writes upper case.
        limits = {card.removeprefix("gpu-").upper(): limit for card in cards}
        file = self.shm / metadata["namespace"] / metadata["name"] / "shm"
        file.parent.mkdir(parents=True, exist_ok=True)
        if not file.exists() or pod["status"]["phase"] != "Running":  # else it is opened again
            file.write_bytes(enforcer_files.shared_memory(limits, heartbeat=int(time.time())))


def _service(hypervisor: StandInHypervisor, number: int) -> grpc.GenericRpcHandler:
    def serialized(response: pb.AllocateResponse) -> bytes:
        return response.SerializeToString() if hypervisor.answer is None else hypervisor.answer

    handler = grpc.unary_unary_rpc_method_handler(
        lambda request, context: hypervisor.allocate(number, request, context),
        request_deserializer=pb.AllocateRequest.FromString,
        response_serializer=serialized,
    )
    return grpc.method_handlers_generic_handler("v1beta1.DevicePlugin", {"Allocate": handler})


PREFIX: Final = "tensor-fusion.ai/"


class WorkerNode:
    """A node with a hypervisor."""

    def __init__(
        self, setup: Setup, pods: WorkerPodsInMemory, hypervisor: StandInHypervisor
    ) -> None:
        self.setup = setup
        self.pods = pods
        self.hypervisor = hypervisor
        enforcer = TensorFusion(root=str(hypervisor.shm.parent), bridge=str(hypervisor.sockets))
        workers = enforcer.loops(NodeAccess(setup.store.claims, pods, pods))["workers"]
        assert isinstance(workers, Workers)
        self.workers = workers
        setup.enforcers[enforcer.name] = enforcer
        setup.use(enforcer=enforcer)

    def restarted(self) -> "WorkerNode":
        """Return the node with a new driver, on the same disk."""
        return WorkerNode(self.setup.restarted(), self.pods, self.hypervisor)

    def prepare(self, ref: ClaimRef, *, seconds: float = PATIENCE_SECONDS) -> Any:
        outcomes = self.setup.preparer.prepare([ref], deadline=time.monotonic() + seconds)
        return outcomes[ref.uid]

    def prepared(self, ref: ClaimRef) -> PreparedClaim:
        """Prepare a claim that is not refused."""
        return self.setup.prepared(ref)

    def refused(self, ref: ClaimRef) -> str:
        """Prepare a claim that is refused; return the error."""
        return self.setup.refused(ref)

    def run(
        self, name: str = "train", *results: Any, **annotations: str
    ) -> tuple[PodRef, ClaimRef]:
        """Create a pod with a claim of the same name, and prepare the claim."""
        pod, ref = self.pods.put(name), self.put(name, *results, **annotations)
        self.prepared(ref)
        return pod, ref

    def follow(self) -> None:
        """Write the annotations that have to follow changes."""
        self.workers.follow_annotations()

    def repair(self, times: int = 1) -> None:
        """Register again the pods that the hypervisor lost."""
        for _ in range(times):
            self.workers.repair()

    def put(
        self,
        name: str,
        *results: Any,
        pod: str = "",
        pod_uid: str = "",
        uid: str = "",
        **annotations: str,
    ) -> ClaimRef:
        claim = stored_claim(name, *(results or [share_result()]), uid=uid)
        if pod:
            claim["status"]["reservedFor"][0] |= {"name": pod, "uid": pod_uid or f"uid-of-{pod}"}
        ref = self.setup.claims.put(claim)
        self.setup.annotate(ref, **annotations)
        return ref


@contextmanager
def worker_node(folder: Path, *, sockets: tuple[int, ...] = (0, 15)) -> Iterator[WorkerNode]:
    """Run a node with a hypervisor that serves."""
    with TemporaryDirectory() as short:  # paths of unix sockets are short
        pods = WorkerPodsInMemory()
        hypervisor = StandInHypervisor(Path(short), pods, cards=[GPU_0, GPU_1], sockets=sockets)
        hypervisor.start()
        yield WorkerNode(Setup(folder), pods, hypervisor)
        hypervisor.stop()

"""Enforcer tensor-fusion: Tensor Fusion's own limiter and hypervisor, by isolation mode.

- `soft`: the limiter library in the container reads its limits from shared memory that the
  hypervisor on the node writes, so they can change while the container runs.
- `hard`: another limiter reads its limits from the environment, once. It is not public and comes
  with the image of Tensor Fusion's own workers, so this enforcer mounts none.
- `shared`: there is no limiter.

With a bridge to the hypervisor's device plugin, workers.py has the hypervisor keep a claim's pod,
and such a claim has exactly one pod. Without a bridge, nobody tells the hypervisor of pods.

Source: NexusGPU/tensor-fusion, internal/utils/compose.go.
"""

import socket
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from tensorfusion_dra.core import names, printable
from tensorfusion_dra.core.claims import enforcer, prepared, verdicts
from tensorfusion_dra.core.claims.enforcer import (
    Advice,
    Edits,
    Enforcer,
    EnforcerSettings,
    Folder,
    Needs,
    NodeAccess,
    Records,
    Sign,
)
from tensorfusion_dra.core.claims.ports import Loop
from tensorfusion_dra.core.claims.prepared import Mount, PreparedClaim, PreparedShare
from tensorfusion_dra.core.claims.verdicts import Verdict
from tensorfusion_dra.core.devices.gpu import Isolation
from tensorfusion_dra.core.kubernetes import node_fit, untyped_json
from tensorfusion_dra.core.kubernetes.quantity import MIB
from tensorfusion_dra.enforcers import preload
from tensorfusion_dra.enforcers.preload import PreloadMethod
from tensorfusion_dra.enforcers.tensor_fusion import marks, shared_memory, soft_verdict
from tensorfusion_dra.enforcers.tensor_fusion.declaration import TENSOR_FUSION
from tensorfusion_dra.enforcers.tensor_fusion.shared_memory import (
    REGISTERED_FOLDER,
    SHM_FILE,
    WorkerMemory,
)
from tensorfusion_dra.enforcers.tensor_fusion.workers import Workers
from tensorfusion_dra.state import unix_sockets

HYPERVISOR_MISSING: Final = "HypervisorMissing"
"""Reason: nothing is seen of the hypervisor, but the limiter is there."""
LIMITER_FILE: Final = "libcuda_limiter.so"
_LIMITER_IN_CONTAINER: Final = f"/tensor-fusion-limiter/{LIMITER_FILE}"
_SHM_IN_CONTAINER: Final = "/run/tensor-fusion/shm"
_SHM_MODE: Final = 0o755
_NOT_LENT: Final = "compute that the card's other shares reserve is not lent while it is idle"
_HEALTHZ: Final = "/healthz"
_HEALTHZ_SECONDS: Final = 1.0
_LIVE: Final = frozenset({"Pending", "Running", "Unknown"})
_NO_ADDRESS: Final = Advice(
    subject="address of Tensor Fusion's hypervisor (hypervisor-address)",
    found="not set: a limiter that asks the hypervisor for its pod ends every process",
    expected="the address at which containers reach the hypervisor, such as the node's",
    remedy="set --hypervisor-address; the chart does, from the pod's host IP",
)
"""Seen with the open limiter (NexusGPU/vgpu.rs): without HYPERVISOR_IP every process ends at its
start."""


@dataclass(kw_only=True)
class TensorFusion(Enforcer):
    """Tensor Fusion's limiter as an enforcer.

    Attributes:
        root: The hypervisor's folder on the host, which contains the limiter library.
        hypervisor_ip: Address at which containers reach the hypervisor; "" leaves it to the pod.
        hypervisor_port: The hypervisor's HTTP port.
        method: How processes load the limiter.
        bridge: Folder of the device plugin sockets by which it is told of pods; "" if it is not.
        device_plugins: The kubelet's folder of device plugins, in which its sockets usually are.
        workers: The bridge, while it runs.
    """

    name = TENSOR_FUSION.name
    facts = TENSOR_FUSION.facts
    root: str = "/run/tensor-fusion"
    hypervisor_ip: str = ""
    hypervisor_port: int = 8001
    method: PreloadMethod = PreloadMethod.FILE
    bridge: str = ""
    device_plugins: str = "/var/lib/kubelet/device-plugins"
    workers: Workers | None = field(default=None, init=False)

    @classmethod
    def from_settings(cls, settings: EnforcerSettings) -> "TensorFusion":
        host, _, port = settings.values["hypervisor-address"].rpartition(":")
        usual = f"{settings.values['kubelet-root']}/device-plugins"
        return cls(
            root=settings.values["tensor-fusion-root"],
            hypervisor_ip=host.strip("[]"),
            hypervisor_port=int(port or 0),
            method=PreloadMethod(settings.values["preload"]),
            bridge=settings.values["hypervisor-sockets"] or (usual if settings.is_choice else ""),
            device_plugins=usual,
        )

    @property
    def tenants_folder(self) -> str:
        return f"{self.root}/shm"

    def pod_folder(self, claim: PreparedClaim) -> str:
        limited = [share for share in claim.shares if share.limit]
        is_soft = any(share.isolation is Isolation.SOFT for share in limited)
        return self._shm_folder(claim) if is_soft and not enforcer.is_simulated(limited) else ""

    def needs(self, claim: PreparedClaim) -> Needs:
        folder = self.pod_folder(claim)
        if not folder:
            return Needs()
        return Needs(
            files=(self._limiter,),
            folders=(Folder(path=folder, mode=_SHM_MODE),),
            texts=preload.preload_files(self.method, _LIMITER_IN_CONTAINER, self._preload_file()),
        )

    def edits(self, claim: PreparedClaim, shares: Sequence[PreparedShare]) -> Edits:
        isolation = shares[0].isolation
        env = {names.ENV_ISOLATION_MODE: isolation.value, **dict.fromkeys(names.ENV_BYPASSES, "")}
        limited = [share for share in shares if share.limit is not None]
        if not limited:
            return Edits(env={names.ENV_ISOLATION_MODE: isolation.value})
        env |= _limit_env(claim, limited)
        if isolation is not Isolation.SOFT:
            return Edits(env=env)
        env |= {
            names.ENV_SHM_PATH: f"{_SHM_IN_CONTAINER}/{SHM_FILE}",
            names.ENV_SHM_FOLDER: _SHM_IN_CONTAINER,
            names.ENV_POD_NAMESPACE: claim.ref.namespace,
        }
        if claim.pods:
            env[names.ENV_POD_NAME] = claim.pods[0].name
        if self.hypervisor_ip:
            env[names.ENV_HYPERVISOR_IP] = self.hypervisor_ip
            env[names.ENV_HYPERVISOR_PORT] = str(self.hypervisor_port)
        if enforcer.is_simulated(limited):
            return Edits(env=env)
        loading = preload.preload_edits(self.method, _LIMITER_IN_CONTAINER, self._preload_file())
        return Edits(
            env={**env, **loading.env},
            mounts=(
                Mount(host_path=self._limiter, container_path=_LIMITER_IN_CONTAINER),
                Mount(
                    host_path=self._shm_folder(claim),
                    container_path=_SHM_IN_CONTAINER,
                    read_only=False,
                ),
                *loading.mounts,
            ),
        )

    def of_record(self, share: PreparedShare) -> Verdict | None:
        if share.isolation is Isolation.SOFT:
            return None
        return verdicts.unknown(
            verdicts.LIMITER_IN_IMAGE,
            f"isolation {share.isolation.value}: the limiter is part of the container's image and "
            "leaves no sign on the node",
        )

    def sign(self) -> Sign:
        advice = preload.advice(self._limiter)
        advice += () if self.hypervisor_ip else (_NO_ADDRESS,)
        if reason := preload.library_reason(self._limiter):
            found = verdicts.not_enforced(verdicts.LIMITER_MISSING, reason)
            return Sign(verdict=found, advice=advice)
        asked = []
        for place, reason in self._signs_of_life():
            if not reason:
                found = verdicts.enforced(verdicts.ENFORCER_ALIVE, f"{place} answers")
                return Sign(verdict=found, advice=advice)
            asked.append(f"{place}: {reason}")
        text = f"no sign of a hypervisor ({'; '.join(asked)})"
        found = verdicts.not_enforced(HYPERVISOR_MISSING, text)
        return Sign(verdict=found, advice=advice, may_be_missing=True)

    def examine(
        self, node: Mapping[str, Any], workers: Sequence[Mapping[str, Any]] | None
    ) -> Iterator[Advice]:
        """Judge whether Tensor Fusion's scheduler allocates the same cards.

        The hypervisor registers the resources tensor-fusion.ai/index_0 to index_f, which
        distinguish its worker pods. The hypervisor itself is no problem: it enforces soft limits.
        """
        if not node_fit.extended_resources(node, names.TENSOR_FUSION_INDEX):
            return
        running = [
            pod
            for pod in workers or ()
            if (pod.get("status") or {}).get("phase") in _LIVE
            # A pod that this driver marked got its cards from Kubernetes' scheduler.
            and names.MARK_DRA_MARKS not in (pod["metadata"].get("annotations") or {})
        ]
        shown = [f"{p['metadata']['namespace']}/{p['metadata']['name']}" for p in running]
        advice = Advice(
            subject=f"Tensor Fusion's hypervisor on node {node['metadata']['name']}",
            found=f"{printable.first(shown)} got cards of this node from "
            f"{names.TENSOR_FUSION_SCHEDULER}",
            expected="one scheduler for each card: neither counts the other's allocations",
            remedy="run pods without dra-enabled, which Tensor Fusion's scheduler places, on nodes "
            "of another GPUPool",
        )
        if workers is None:
            text = "present; its worker pods could not be listed"
            advice = replace(advice, level="note", found=text)
        elif not running:
            text = "present, without worker pods of Tensor Fusion's scheduler"
            advice = replace(advice, level="ok", found=text, expected="", remedy="")
        yield advice

    def _signs_of_life(self) -> Iterator[tuple[str, str]]:
        """Yield each place where the hypervisor may answer, and why it does not; cheap ones first.

        Heartbeats of pods are no evidence, because each pod can write its own.
        """
        pattern = Path(self.bridge or self.device_plugins) / "tensor-fusion-index-*.sock"
        found = min(pattern.parent.glob(pattern.name), default=pattern)
        yield f"device plugin {found}", unix_sockets.reason(str(found))
        # With a bridge it has the sockets, and a pod in the host's network could answer on its port
        # while no hypervisor does.
        if self.hypervisor_ip and not self.bridge:
            host, port = self.hypervisor_ip, self.hypervisor_port
            yield f"http://{host}:{port}{_HEALTHZ}", _http_reason(host, port)

    def judge(
        self,
        claim: PreparedClaim,
        shares: Sequence[PreparedShare],
        others: Iterable[PreparedClaim],
        *,
        is_new: bool,
    ) -> Sequence[Verdict]:
        path = f"{self._shm_folder(claim)}/{SHM_FILE}"
        if claim.pods:
            note = f"{self.root}/shm/{REGISTERED_FOLDER}/{claim.pods[0].uid}"
            memory = shared_memory.read_registered(path, note)
        else:
            memory = shared_memory.read(path)
        read_at = time.time()  # after the reading, so that no heartbeat is in the future
        limiter_reason = preload.library_reason(self._limiter)
        of_pod = (claim, *enforcer.beside(claim, others))
        expected = marks.told_limits(
            [share for each in of_pod for share in marks.soft_shares(each)]
        )
        found = []
        for each in shares:
            verdict = soft_verdict.of_card(
                each.gpu_uuid,
                expected[each.gpu_uuid],
                memory,
                read_at=read_at,
                limiter_reason=limiter_reason,
                is_new=is_new,
            )
            if each.wanted.sm_percent > each.reserved.sm_percent:
                verdict = replace(verdict, text=f"{verdict.text}; {_NOT_LENT}")
            found.append(verdict)
        return found

    def apply(self, claim: PreparedClaim, records: Records, deadline: float) -> None:
        if self.workers is not None:
            self.workers.apply(claim, deadline)

    def release(self, claim: PreparedClaim, records: Records) -> None:
        if self.workers is not None:
            self.workers.release(claim)

    def loops(self, node: NodeAccess) -> Mapping[str, Loop]:
        if not self.bridge:
            return {}
        # Imported here so that other commands and nodes without a bridge do not load gRPC for it.
        from tensorfusion_dra.enforcers.tensor_fusion.device_plugin import (  # noqa: PLC0415
            DevicePlugin,
        )

        memory = WorkerMemory(Path(self.tenants_folder))
        self.is_told = True
        self.workers = workers = Workers(node, DevicePlugin(Path(self.bridge)), memory)
        watch = node.worker_pods.watch(marks.WORKER_POD, workers.on_pods, workers.on_event)
        return {"workers": workers, "worker-watch": watch}

    @property
    def _limiter(self) -> str:
        return f"{self.root}/{LIMITER_FILE}"

    def _preload_file(self) -> str:
        """Return the file that names the limiter, apart from those of the hypervisor."""
        return f"{self.root}/preload/ld.so.preload"

    def _shm_folder(self, claim: PreparedClaim) -> str:
        """Return the hypervisor's folder for the pod, or for the claim if it has no pod.

        Pods that share a claim share the folder of the first pod (docs/adr/0012): the kubelet does
        not call the driver for the later ones.
        """
        owner = claim.pods[0].name if claim.pods else claim.ref.uid
        return f"{self.root}/shm/{claim.ref.namespace}/{owner}"


def _limit_env(claim: PreparedClaim, shares: Sequence[PreparedShare]) -> dict[str, str]:
    """Return the limit variables for the containers of one request.

    A container may use one request of the claim or all of them. With all of them, the last of the
    variables with the same name wins. So the maps by UUID of every request name all cards of the
    claim, and no card is ever without a limit. If several requests share a card, the map of each
    request has that request's own amounts.

    The scalar limits are the smallest of all cards of requests that consume the same amounts.
    Example: a pod's `gpu-count: 4` is four such requests. If 50 TFLOPS are 17 % of one card and
    77 % of another, each request sets 17 %, because any of them may be the last.
    """
    own = prepared.by_uuid(shares)
    every = {**prepared.by_uuid(claim.shares), **own}
    alike = [
        limit
        for others in enforcer.enforced(claim).values()
        if others[0].consumed == shares[0].consumed
        for limit in prepared.by_uuid(others).values()
    ]
    memory_mib = min(limit.vram_bytes for limit in alike) // MIB
    return {
        names.ENV_SM_PERCENT_LIMIT: str(min(limit.sm_percent for limit in alike)),
        names.ENV_MEMORY_LIMIT: str(memory_mib),
        names.ENV_MEMORY_LIMIT_OLD: str(memory_mib),
        names.ENV_UP_LIMIT_BY_UUID: untyped_json.compact_json(
            {uuid: limit.sm_percent for uuid, limit in every.items()}
        ),
        names.ENV_MEM_LIMIT_BY_UUID: untyped_json.compact_json(
            {uuid: limit.vram_bytes for uuid, limit in every.items()}
        ),
    }


def _http_reason(host: str, port: int) -> str:
    """Return why the hypervisor's HTTP server does not call itself healthy; "" if it does.

    Prepares wait for the answer if the settings require an enforcer, so the whole question is
    bounded: one wait to connect, one for the first bytes, which have the status. http.client has no
    such bound. It reads all headers, and its timeout starts again with each piece: a server that
    sends a byte now and then would hold up a prepare for as long as it likes.
    """
    try:
        with socket.create_connection((host, port), timeout=_HEALTHZ_SECONDS) as client:
            client.sendall(f"GET {_HEALTHZ} HTTP/1.0\r\nHost: {host}\r\n\r\n".encode())
            first = client.recv(64).partition(b"\r\n")[0]
    except TimeoutError:
        return f"no answer within {_HEALTHZ_SECONDS:g} s"
    except OSError as error:
        return error.strerror or str(error)
    if first.startswith(b"HTTP/") and b" 200 " in first + b" ":
        return ""
    return f"found {first[:40].decode('ascii', errors='replace').strip()!r}, expected 200"

"""Workers: pods as Tensor Fusion's hypervisor knows them.

The hypervisor learns a pod's cards and limits from the pod itself: it watches the pods of its node
that have the label `tensor-fusion.ai/component: worker`, and reads their annotations. This module
decides what to mark a pod with so that the hypervisor keeps the limits of the pod's claims.

The hypervisor regulates compute by these annotations, whatever the shared memory says, and a tenant
can write them: with `compute-percent-limit: "100"` a claim for 1 % had the whole card, and with
`tflops-limit` beside it no limit at all. A pod's `tflops-limit` is also its wish, of which less may
be granted. So the driver owns all annotations that rule a worker: it replaces or removes those of
the pod, and puts its own back when they are changed. The former values are kept under other names.
Whatever else the pod has stays. What the driver added is named in `dra-marks`.

Example: a pod with a claim for 25 % and 20Gi of gpu-a gets

    tensor-fusion.ai/component: worker            (label)
    tensor-fusion.ai/index: "128"
    tensor-fusion.ai/gpu-ids: gpu-a
    tensor-fusion.ai/compute-percent-limit: "25"
    tensor-fusion.ai/vram-limit: "21474836480"
    tensor-fusion.ai/dra-marks: component,compute-percent-limit,gpu-ids,index,vram-limit

and if it had `tflops-limit: "312"`, that becomes `dra-tflops-limit: "312"`.

Source: NexusGPU/tensor-fusion, pkg/hypervisor/backend/kubernetes/pod_cache.go, and
internal/utils/resource.go (ComposeAllocationRequest).
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims import enforcer as enforcer_rules
from tensorfusion_dra.core.claims import prepared, share_policy
from tensorfusion_dra.core.claims.claim import PodRef
from tensorfusion_dra.core.claims.prepared import Limit, PreparedClaim, PreparedShare
from tensorfusion_dra.core.claims.share_policy import (
    RULING,
    original_annotations,
    pod_annotations,
)
from tensorfusion_dra.core.devices import capacity
from tensorfusion_dra.core.devices.gpu import Isolation
from tensorfusion_dra.core.errors import ClaimError, RetryableError
from tensorfusion_dra.core.kubernetes import resource_claims, untyped_json
from tensorfusion_dra.core.kubernetes.projection import Projection, projected
from tensorfusion_dra.core.kubernetes.untyped_json import as_list, as_map, name_of

NAME: Final = "tensor-fusion"
LAST_INDEX: Final = 128
"""16 sockets with 8 indices each (IndexKeyLength, IndexModLength)."""
INDICES_PER_SOCKET: Final = 8
_SOCKETS: Final = frozenset("0123456789abcdef")
_FINISHED: Final = frozenset({"Succeeded", "Failed"})
_MOST_LENT: Final = 99
"""Percent of a card's compute; NexusGPU/vgpu.rs, crates/cuda-limiter/src/limiter.rs, rate_limiter.
"""
_TEXT: Final = 4096
"""Characters of an annotation that are kept: more than any that this driver writes has."""
_COMPUTE_REQUESTS: Final = frozenset(
    {names.ANNOTATION_COMPUTE_PERCENT_REQUEST, names.ANNOTATION_TFLOPS_REQUEST}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """A pod with soft limits, which the hypervisor has to keep.

    Attributes:
        limits: What the pod may use of each card, by GPU UUID; never empty. See told_limits().
        claims: The pod's claims with soft limits.
    """

    pod: PodRef
    limits: Mapping[str, Limit]
    claims: tuple[PreparedClaim, ...]

    @property
    def gpu_ids(self) -> tuple[str, ...]:
        """The pod's cards as the hypervisor spells them: in lower case."""
        return tuple(sorted(uuid.lower() for uuid in self.limits))


def soft_shares(claim: PreparedClaim) -> Sequence[PreparedShare]:
    """Return the shares of a claim whose limits the hypervisor keeps."""
    if claim.enforcer != NAME:
        return ()
    return [
        share
        for shares in enforcer_rules.enforced(claim).values()
        for share in shares
        if share.limit and share.isolation is Isolation.SOFT
    ]


def told_limits(shares: Sequence[PreparedShare]) -> Mapping[str, Limit]:
    """Return a pod's limits by GPU UUID as hypervisor and limiter are told them.

    The claims of a pod on one card add up, as the hypervisor counts all containers of a pod
    together. The open limiter takes 100 percent for no limit, and does not read it again for 60
    seconds. So compute that is not all reserved, and may be taken back, is at most 99 percent.

    Args:
        shares: All of the pod's shares with soft limits.
    """
    reserved = prepared.by_uuid(replace(share, limit=share.reserved) for share in shares)
    return {
        uuid: replace(
            limit, sm_percent=min(limit.sm_percent, max(_MOST_LENT, reserved[uuid].sm_percent))
        )
        for uuid, limit in prepared.by_uuid(shares).items()
    }


def of_pod(pod: PodRef, claims: Iterable[PreparedClaim]) -> Worker | None:
    """Return the worker that a pod is; None if none of its claims among these has soft limits."""
    soft = {claim.ref.uid: claim for claim in claims if pod in claim.pods and soft_shares(claim)}
    ordered = tuple(soft[uid] for uid in sorted(soft))
    limits = told_limits([share for claim in ordered for share in soft_shares(claim)])
    return Worker(pod=pod, limits=limits, claims=ordered) if ordered else None


def of_claims(claims: Iterable[PreparedClaim]) -> Sequence[Worker]:
    """Return the workers that the pods of these claims are."""
    by_pod: dict[PodRef, list[PreparedClaim]] = {}
    for claim in claims:
        if len(claim.pods) == 1:
            by_pod.setdefault(claim.pods[0], []).append(claim)
    found = (of_pod(pod, claims_of_pod) for pod, claims_of_pod in by_pod.items())
    return [worker for worker in found if worker is not None]


def of_other_pods(pod: PodRef, claims: Iterable[PreparedClaim]) -> Sequence[PreparedClaim]:
    """Return the claims with soft limits of pods that have this one's name, but another UID."""
    return [
        claim
        for claim in claims
        if soft_shares(claim)
        and any(str(each) == str(pod) and each.uid != pod.uid for each in claim.pods)
    ]


def the_pod(claim: PreparedClaim) -> PodRef:
    """Return the one pod of a claim with soft limits.

    Raises:
        ClaimError: Several pods share the claim, or none uses it.
    """
    if len(claim.pods) == 1:
        return claim.pods[0]
    found = ", ".join(map(str, claim.pods)) or "none"
    raise ClaimError(
        f"claim {claim.ref}: pods: found {found}, expected exactly one, as Tensor Fusion's "
        f"hypervisor keeps limits by pod"
    )


def socket_of(index: int) -> tuple[int, int]:
    """Return the number of an index's socket, and how many device IDs name the index there."""
    socket, rest = divmod(index - 1, INDICES_PER_SOCKET)
    return socket, rest + 1


def marks(worker: Worker, stored: Mapping[str, Any], index: int) -> dict[str, str | None]:
    """Return the annotations that make a worker of a pod; None removes one.

    Args:
        worker: What the hypervisor has to know.
        stored: The pod, perhaps with marks of an earlier call.
        index: One that no other worker of the node uses.
    """
    shares = [share for claim in worker.claims for share in soft_shares(claim)]
    foreign = original_annotations(stored)
    wanted = {names.ANNOTATION_QOS: shares[0].qos.value, **_requests(shares)}
    if foreign.keys() & _COMPUTE_REQUESTS:  # the hypervisor refuses both of them together
        wanted = {key: value for key, value in wanted.items() if key not in _COMPUTE_REQUESTS}
    own = {key: value for key, value in wanted.items() if key not in foreign}
    ruling = ruling_marks(worker)
    own |= {key: value for key, value in ruling.items() if value and foreign.get(key) != value}
    for key in RULING:
        if key in foreign and foreign[key] != ruling[key]:
            own[share_policy.kept_key(key)] = str(foreign[key])
    own[names.MARK_INDEX] = str(index)
    own[names.MARK_GPU_IDS] = ",".join(worker.gpu_ids)
    own[names.MARK_CONTAINER_GPUS] = untyped_json.compact_json(_container_gpus(worker, stored))
    keys = sorted([*own, names.LABEL_COMPONENT])
    own[names.MARK_DRA_MARKS] = ",".join(key.removeprefix(names.ANNOTATION_PREFIX) for key in keys)
    removed = [key for key in RULING if key in pod_annotations(stored) and ruling[key] is None]
    return {**own, **dict.fromkeys(removed)}


def ruling_marks(worker: Worker) -> dict[str, str | None]:
    """Return the annotations that rule a worker; None for one that must not be there.

    The hypervisor knows one limit of each kind for all cards of a pod. It drops all limits of a pod
    with both kinds of compute limit.
    """
    return {
        names.ANNOTATION_COMPUTE_PERCENT_LIMIT: str(
            min(each.sm_percent for each in worker.limits.values())
        ),
        names.ANNOTATION_GPU_COUNT: str(len(worker.limits)),
        names.MARK_GPU_INDICES: None,
        names.ANNOTATION_ISOLATION: Isolation.SOFT.value,
        names.ANNOTATION_TFLOPS_LIMIT: None,
        names.ANNOTATION_VRAM_LIMIT: str(min(each.vram_bytes for each in worker.limits.values())),
    }


def overruled(worker: Worker, stored: Mapping[str, Any]) -> dict[str, str | None]:
    """Return the marks that a worker should have and has not: they were changed, or follow.

    A pod without the label of workers is to be registered again instead.
    """
    labels = as_map(as_map(stored.get("metadata")).get("labels"))
    if labels.get(names.LABEL_COMPONENT) != names.COMPONENT_WORKER:
        return {}
    wanted = {**ruling_marks(worker), names.MARK_GPU_IDS: ",".join(worker.gpu_ids)}
    found = pod_annotations(stored)
    return {key: value for key, value in wanted.items() if found.get(key) != value}


def unmarks(marked: Mapping[str, object]) -> dict[str, str | None]:
    """Return the change that removes the marks from annotations and restores what was kept."""
    own = share_policy.added_keys(marked) | {names.MARK_DRA_MARKS}
    kept = {
        key: str(text)
        for key, text in share_policy.replaced_annotations(marked).items()
        if text is not None
    }
    return {**dict.fromkeys(sorted(own - {names.LABEL_COMPONENT})), **kept}


def _marks(found: object) -> dict[str, str]:
    given = as_map(found)
    return {key: str(given[key])[:_TEXT] for key in _COMPARED if key in given}


def _with_index(found: object) -> Sequence[object]:
    """Return the first extended resource of an index, as its container has it, and nothing else."""
    for container in as_list(found):
        limits = as_map(as_map(as_map(container).get("resources")).get("limits"))
        for key in filter(lambda each: each.startswith(names.TENSOR_FUSION_INDEX), limits):
            return [{"resources": {"limits": {key: limits[key]}}}]  # _indices() reads no others
    return []


_COMPARED: Final = frozenset(
    {
        *RULING,
        *map(share_policy.kept_key, RULING),
        *(names.MARK_INDEX, names.MARK_GPU_IDS, names.MARK_DRA_MARKS),
    }
)
WORKER_POD: Final[Projection] = {
    "metadata!": {
        "namespace!": str,
        "name!": str,
        "uid!": str,
        "labels": {names.LABEL_COMPONENT: str},
        "annotations": _marks,
    },
    "spec": {"containers": _with_index},
    "status": {"phase": str},
}
"""What is kept of the node's workers, which any tenant may make in any number and size."""


def unfinished_pod(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what is kept of a worker that may run; nothing of one that has ended."""
    found = projected(pod, WORKER_POD)
    return {} if is_finished(found) else found


def is_finished(stored: Mapping[str, Any]) -> bool:
    """Return True if no container of the pod will ever run again."""
    return _phase(stored) in _FINISHED


def is_running(stored: Mapping[str, Any]) -> bool:
    """Return True for phase Running: then the hypervisor allocates by itself, and not on call."""
    return _phase(stored) == "Running"


def _requests(shares: Iterable[PreparedShare]) -> dict[str, str]:
    """Return what is requested of each card; Tensor Fusion's scheduler counts it as taken."""
    vram: dict[str, int] = {}
    tflops: dict[str, int] = {}
    for share in shares:
        amount = capacity.consumed_amount(share.consumed, names.CAPACITY_TFLOPS)
        vram[share.gpu_uuid] = vram.get(share.gpu_uuid, 0) + share.reserved.vram_bytes
        tflops[share.gpu_uuid] = tflops.get(share.gpu_uuid, 0) + amount.ceil()
    return {
        names.ANNOTATION_VRAM_REQUEST: str(max(vram.values())),
        names.ANNOTATION_TFLOPS_REQUEST: str(max(tflops.values())),
    }


def _container_gpus(worker: Worker, stored: Mapping[str, Any]) -> Mapping[str, Sequence[str]]:
    """Return the cards of each container that uses a claim."""
    spec = as_map(stored.get("spec"))
    claims = resource_claims.names_by_entry(stored)
    by_name = {claim.ref.name: claim for claim in worker.claims}
    found: dict[str, Sequence[str]] = {}
    for container in [*as_list(spec.get("initContainers")), *as_list(spec.get("containers"))]:
        cards: set[str] = set()
        for use in as_list(as_map(as_map(container).get("resources")).get("claims")):
            claim = by_name.get(claims.get(name_of(use), ""))
            request = str(as_map(use).get("request", ""))
            cards |= {
                share.gpu_uuid.lower()
                for share in (soft_shares(claim) if claim else ())
                if request in {"", share.request}
            }
        if cards:
            found[name_of(container)] = sorted(cards)
    return found


def _phase(stored: Mapping[str, Any]) -> object:
    return as_map(stored.get("status")).get("phase")


def free_index(others: Iterable[Mapping[str, Any]], chosen: Iterable[int] = ()) -> int:
    """Return an index that no other worker of the node uses; the highest one.

    Tensor Fusion's own scheduler counts upwards from 1.

    Args:
        others: The node's other workers.
        chosen: Indices that other pods get at present.

    Raises:
        RetryableError: All are in use.
    """
    used = {index for pod in others if not is_finished(pod) for index in _indices(pod)}
    used |= {*chosen}
    for index in range(LAST_INDEX, 0, -1):
        if index not in used:
            return index
    raise RetryableError(f"worker index: found all {LAST_INDEX} in use, expected a free one")


def check_holders(
    worker: Worker,
    stored: Mapping[str, Any],
    others: Iterable[Mapping[str, Any]],
    own: Collection[str],
) -> None:
    """Check that Tensor Fusion's own scheduler gave none of the worker's cards to a pod.

    Args:
        worker: To be registered.
        stored: Its pod.
        others: The node's other workers.
        own: UIDs of the pods with recorded claims: this driver gave them what they have. Marks do
            not show that, because a tenant may have written them.

    Raises:
        ClaimError: It gave cards to this very pod.
        RetryableError: It gave one to another pod, which has not ended.
    """
    foreign = original_annotations(stored)
    if given := foreign.get(names.MARK_GPU_IDS):
        raise ClaimError(
            f"pod {worker.pod}: {names.MARK_GPU_IDS}: found {given}, set by Tensor Fusion's "
            f"scheduler, expected none in a pod with a claim"
        )
    mode = foreign.get(names.ANNOTATION_ISOLATION, Isolation.SOFT.value)
    if mode != Isolation.SOFT.value:
        raise ClaimError(
            f"pod {worker.pod}: {names.ANNOTATION_ISOLATION}: found {mode}, expected soft as in "
            f"its claim: the hypervisor reads the annotation"
        )
    for other in others:
        metadata = as_map(other.get("metadata"))
        if metadata.get("uid") in own or is_finished(other):
            continue
        ids = str(pod_annotations(other).get(names.MARK_GPU_IDS, ""))
        both = {*worker.gpu_ids} & {each.strip().lower() for each in ids.split(",")}
        if both:
            raise RetryableError(
                f"pod {worker.pod}: {min(both)}: found in use by pod {metadata.get('namespace')}/"
                f"{metadata.get('name')} of Tensor Fusion's scheduler, expected a card that it "
                f"does not hand out"
            )


def _indices(pod: Mapping[str, Any]) -> set[int]:
    """Return the indices of a worker: its annotation's, and that of its extended resource.

    A worker has one such resource. Of more only the first counts, so that no pod takes all indices.
    """
    annotated = str(pod_annotations(pod).get(names.MARK_INDEX, ""))
    found = {int(annotated)} if _is_short(annotated) else set()
    for container in as_list(as_map(pod.get("spec")).get("containers")):
        amounts = as_map(as_map(as_map(container).get("resources")).get("limits"))
        for resource, amount in amounts.items():
            socket = resource.removeprefix(names.TENSOR_FUSION_INDEX)
            if socket in _SOCKETS and _is_short(str(amount)):
                return {*found, int(str(amount)) + INDICES_PER_SOCKET * int(socket, 16)}
    return found


def _is_short(text: str) -> bool:
    """Return True for a number that may be an index; int() refuses those of 5,000 digits."""
    return text.isdecimal() and len(text) <= len(str(LAST_INDEX))

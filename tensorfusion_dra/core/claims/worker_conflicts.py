"""Conflicts of a worker with the other workers of its node: their indices and their cards."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims import workers
from tensorfusion_dra.core.claims.workers import Worker
from tensorfusion_dra.core.devices.sharing import Isolation
from tensorfusion_dra.core.errors import ClaimError, RetryableError
from tensorfusion_dra.core.kubernetes.untyped_json import as_list, as_map

_SOCKETS: Final = frozenset("0123456789abcdef")


def free_index(others: Iterable[Mapping[str, Any]]) -> int:
    """Return an index that no other worker of the node uses; the highest one.

    Tensor Fusion's own scheduler counts upwards from 1.

    Raises:
        RetryableError: All are in use.
    """
    used = {index for pod in others if not workers.is_finished(pod) for index in _indices(pod)}
    for index in range(workers.LAST_INDEX, 0, -1):
        if index not in used:
            return index
    raise RetryableError(
        f"worker index: found all {workers.LAST_INDEX} in use, expected a free one"
    )


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
    foreign = workers.foreign_annotations(stored)
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
        if metadata.get("uid") in own or workers.is_finished(other):
            continue
        ids = str(workers.annotations(other).get(names.MARK_GPU_IDS, ""))
        both = {*worker.gpu_ids} & {each.strip().lower() for each in ids.split(",")}
        if both:
            raise RetryableError(
                f"pod {worker.pod}: {min(both)}: found in use by pod {metadata.get('namespace')}/"
                f"{metadata.get('name')} of Tensor Fusion's scheduler, expected a card that it "
                f"does not hand out"
            )


def _indices(pod: Mapping[str, Any]) -> set[int]:
    """Return the indices of a worker: its annotation's, and that of its extended resource."""
    found = {str(workers.annotations(pod).get(names.MARK_INDEX, ""))}
    for container in as_list(as_map(pod.get("spec")).get("containers")):
        amounts = as_map(as_map(as_map(container).get("resources")).get("limits"))
        for resource, amount in amounts.items():
            socket = resource.removeprefix(names.TENSOR_FUSION_INDEX)
            if socket in _SOCKETS and _is_short(str(amount)):
                found.add(str(int(str(amount)) + workers.INDICES_PER_SOCKET * int(socket, 16)))
    return {int(text) for text in found if _is_short(text)}


def _is_short(text: str) -> bool:
    """Return True for a number that may be an index; int() refuses those of 5,000 digits."""
    return text.isdecimal() and len(text) <= len(str(workers.LAST_INDEX))

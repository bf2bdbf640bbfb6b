"""The steps of `why`: read, diagnose. Loaded only with the extra `cel`."""

from dataclasses import replace
from typing import Final

from tensorfusion_dra.app.why import answers, diagnosis, observed, pod_file, workloads
from tensorfusion_dra.app.why.diagnosis import Diagnosis, State
from tensorfusion_dra.app.why.observed import Observed
from tensorfusion_dra.app.why.text import document, lines
from tensorfusion_dra.app.why.workloads import Workload
from tensorfusion_dra.cluster.api import Api, StatusError
from tensorfusion_dra.cluster.cluster_lists import ClusterLists
from tensorfusion_dra.core.doctor.finding import Level, problem
from tensorfusion_dra.core.errors import InputError, RetryableError

__all__ = ["answer", "document", "exit_code", "lines"]

_TRY_AGAIN: Final = "Correct what the message names; the controller tries again."
_FORBIDDEN: Final = 403
_MOST_PODS: Final = 50
"""Diagnose at most this many pods of a workload of which none waits."""


def answer(api: Api, *, namespace: str, target: str, file: str | None) -> Diagnosis:
    """Return the diagnosis of a pod of the cluster, of a workload's pods, or of a file.

    Args:
        target: Name of a pod, or a workload such as ``deploy/train``.

    Raises:
        InputError: There is no such pod or workload, or an object is malformed.
        RetryableError: The API server did not answer, or the right to read the pod is missing.
    """
    try:
        return _answer(ClusterLists(api), namespace=namespace, target=target, file=file)
    except StatusError as error:
        if error.status != _FORBIDDEN:
            raise
        raise RetryableError(f"{error}. {answers.ELSEWHERE}") from error


def _answer(lists: ClusterLists, *, namespace: str, target: str, file: str | None) -> Diagnosis:
    if file is not None:
        given = pod_file.read(file, namespace=namespace, name=target)
        near = str(given.pod["metadata"]["namespace"])
        cluster = given.beside(observed.read(lists, near))
        return diagnosis.diagnose(given.pod, cluster, is_created=False)
    kind, name = workloads.kind_and_name(target)
    if kind != "Pod":
        workload = workloads.read(lists, kind, namespace=namespace, name=name)
        return _of_workload(workload, observed.read(lists, namespace, workload.pods))
    found = observed.pod(lists, namespace, name)
    if found is None:
        raise InputError(f"pod {namespace}/{name}: found none, expected its name and -n NAMESPACE")
    return diagnosis.diagnose(found, observed.read(lists, namespace, [found]))


def _of_workload(found: Workload, cluster: Observed) -> Diagnosis:
    """Return the diagnosis of the pod that represents the others.

    That is one that waits; if none can be created, the pod of the template; else one with a fault.
    """
    failed = [
        problem(str(found), f"creates no more pods: {text}", expected="", cure=_TRY_AGAIN)
        for text in filter(None, [found.failure])
    ]
    if found.waiting:
        waits = diagnosis.diagnose(found.waiting[0], cluster)
        count = f"{len(found.waiting)} of {len(found.pods)} pods of {found} wait."
        return replace(waits, answer=f"{count} {waits.answer}", findings=[*waits.findings, *failed])
    template = pod_file.pod_of(found.document)
    if template is not None and (failed or not found.pods):
        made = diagnosis.diagnose(template, cluster, is_created=False)
        has = "creates no more pods" if found.pods else "has no pods"
        text = f"{found} {has}: {found.no_pods}".removesuffix(".")
        if not failed:
            return replace(made, answer=f"{text}. One of its pods: {made.answer}")
        helps = made.helps or [_TRY_AGAIN]
        return replace(made, answer=f"{text}.", state=State.WAITS, helps=helps)
    every = [diagnosis.diagnose(pod, cluster) for pod in found.pods[:_MOST_PODS]]
    worst = next((each for each in every if each.findings), every[0])
    return replace(worst, answer=f"No pod of {found} waits. {worst.answer}")


def exit_code(found: Diagnosis) -> int:
    """Return 0 if the pod can be scheduled, or is and has no problem; else 1."""
    has_problem = any(finding.level is Level.PROBLEM for finding in found.findings)
    is_bad = found.state is State.BOUND and has_problem
    return 1 if found.state is State.WAITS or is_bad else 0

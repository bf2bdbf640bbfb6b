"""The steps of `why`: read, diagnose. Loaded only with the extra `cel`."""

from tensorfusion_dra.app.why import diagnosis, observed, pod_file
from tensorfusion_dra.app.why.diagnosis import Diagnosis, State
from tensorfusion_dra.app.why.text import document, lines
from tensorfusion_dra.cluster.api import Api
from tensorfusion_dra.cluster.cluster_lists import ClusterLists
from tensorfusion_dra.core.doctor.finding import Level
from tensorfusion_dra.core.errors import InputError

__all__ = ["answer", "document", "exit_code", "lines"]


def answer(api: Api, *, namespace: str, pod: str, file: str | None) -> Diagnosis:
    """Return the diagnosis of a pod of the cluster, or of a file.

    Raises:
        InputError: There is no such pod, or an object is malformed.
        RetryableError: The API server did not answer, or a right is missing.
    """
    lists = ClusterLists(api)
    if file is not None:
        given = pod_file.read(file, namespace=namespace, name=pod)
        near = str(given.pod["metadata"]["namespace"])
        cluster = given.beside(observed.read(lists, near))
        return diagnosis.diagnose(given.pod, cluster, is_created=False)
    found = observed.pod(lists, namespace, pod)
    if found is None:
        raise InputError(f"pod {namespace}/{pod}: found none, expected its name and -n NAMESPACE")
    return diagnosis.diagnose(found, observed.read(lists, namespace))


def exit_code(found: Diagnosis) -> int:
    """Return 0 if the pod can be scheduled, or is and has no problem; else 1."""
    has_problem = any(finding.level is Level.PROBLEM for finding in found.findings)
    is_bad = found.state is State.BOUND and has_problem
    return 1 if found.state is State.WAITS or is_bad else 0

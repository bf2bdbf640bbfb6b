"""How `doctor` runs its checks: on which machine, with what access, and in which order."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from http import HTTPStatus
from pathlib import Path

from tensorfusion_dra.app.shared.node_settings import Settings
from tensorfusion_dra.cluster.cluster_lists import ClusterLists
from tensorfusion_dra.core.errors import DriverError, InputError, RetryableError, StatusError
from tensorfusion_dra.core.finding import Finding, not_checked, note, problem


class Place(StrEnum):
    """Kind of machine that the doctor runs on."""

    NODE = "node"
    WORKSTATION = "workstation"


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Settings, surroundings and flags that the checks read.

    Attributes:
        own_namespace: See own_namespace().
        cluster: Reader of the API server.
        namespace: Namespace of the dry run of a pod.
    """

    settings: Settings
    place: Place
    own_namespace: str
    cluster: ClusterLists
    namespace: str = "default"

    @property
    def in_pod(self) -> bool:
        """True if this process runs in a pod that has a service account."""
        return bool(self.own_namespace)


def own_namespace() -> str:
    """Return the namespace of this process's pod; "" outside of pods with a service account."""
    file = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
    is_in_pod = os.environ.get("KUBERNETES_SERVICE_HOST") and file.exists()
    return file.read_text().strip() if is_in_pod else ""


CheckFunction = Callable[[Context], Iterable[Finding]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One check of the doctor.

    Attributes:
        theme: Heading of its findings in the report.
        run: Yields findings; an exception that it raises becomes a finding, too.
        needs_api: Whether it reads from the API server. It is skipped if that does not answer.
        places: Kinds of machine on which it runs.
    """

    theme: str
    run: CheckFunction
    needs_api: bool = False
    places: frozenset[Place] = frozenset(Place)


def run_checks(checks: Sequence[Check], context: Context) -> Iterator[tuple[str, Finding]]:
    """Run the checks of this place in their order; yield each finding with its theme."""
    unreachable = _api_unreachable(context)
    if unreachable is not None:
        yield "kubernetes", unreachable
    for check in checks:
        if context.place in check.places and not (check.needs_api and unreachable is not None):
            for finding in _findings(check, context):
                yield check.theme, finding


def _api_unreachable(context: Context) -> Finding | None:
    """Return the reason why the API server cannot be read; None if it can."""
    lost = "feature gates, slices and webhook are not checked"
    try:
        context.cluster.find("/version")
    except StatusError:
        return None  # it answers; each check reports its own refusal
    except InputError as error:
        return not_checked(
            "API server",
            f"{error}; {lost}",
            remedy="name a usable kubeconfig with --kubeconfig",
        )
    except RetryableError as error:
        return problem(
            "API server",
            f"{error}; {lost}",
            expected="an answer",
            remedy="check the server of the kubeconfig, and the network from here to it",
        )
    return None


def _findings(check: Check, context: Context) -> Iterator[Finding]:
    try:
        yield from check.run(context)
    except InputError as error:
        yield problem(
            check.theme, str(error), expected="usable settings", remedy="correct the settings"
        )
    except StatusError as error:
        if error.status == HTTPStatus.FORBIDDEN and context.in_pod:
            yield note(
                check.theme,
                "not checked: this pod's service account has no right to read it",
                remedy="run this from a workstation as well",
            )
        else:
            remedy = ""
            if error.status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
                remedy = "run this with a kubeconfig that may read it, such as an administrator's"
            yield not_checked(check.theme, str(error), remedy=remedy)
    except DriverError as error:
        yield not_checked(check.theme, str(error))
    except Exception as error:  # noqa: BLE001 - a bug in one check must not end the others
        yield not_checked(
            check.theme, f"error in the check itself: {error!r}", remedy="report it with this line"
        )

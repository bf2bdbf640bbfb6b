"""Runs checks, each on its own: one that breaks costs its findings, not the others'."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from tensorfusion_dra.app.doctor.context import Context
from tensorfusion_dra.app.doctor.options import Place
from tensorfusion_dra.cluster.api import StatusError
from tensorfusion_dra.cluster.cluster_probe import ClusterProbe
from tensorfusion_dra.core.doctor.finding import Finding, could_not_look, note, problem
from tensorfusion_dra.core.errors import DriverError, InputError, RetryableError

Look = Callable[[Context], Iterable[Finding]]

_EVERYWHERE: Final = frozenset(Place)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One look at one thing.

    Attributes:
        theme: The heading that its findings stand under.
        look: Yields findings; what it raises is a finding, too.
        needs_api: It asks the API server, and is left out if that does not answer.
    """

    theme: str
    look: Look
    needs_api: bool = False
    places: frozenset[Place] = _EVERYWHERE


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The findings of one check."""

    theme: str
    findings: tuple[Finding, ...]


def examined(checks: Sequence[Check], context: Context) -> Iterator[Result]:
    """What each check of this place found, in their order."""
    silence = api_silence(context)
    if silence is not None:
        yield Result(theme="kubernetes", findings=(silence,))
    for check in checks:
        if context.place not in check.places:
            continue
        if check.needs_api and silence is not None:
            continue
        yield Result(theme=check.theme, findings=tuple(_looked(check, context)))


def api_silence(context: Context) -> Finding | None:
    """Why the API server cannot be asked anything; None if it can."""
    if context.api is None:
        return could_not_look(
            "API server",
            "no kubeconfig: rights, feature gates, slices and webhook are not looked at",
            cure="name one with --kubeconfig",
        )
    try:
        ClusterProbe(context.api).find("/version")
    except StatusError:
        return None  # it answers; what it refuses is for the checks to say
    except InputError as error:
        return problem(
            "API server",
            str(error),
            expected="a kubeconfig that can be used",
            cure="name another with --kubeconfig",
        )
    except RetryableError as error:
        return problem(
            "API server",
            f"{error}; rights, feature gates, slices and webhook are not looked at",
            expected="an answer",
            cure="check the server of the kubeconfig, and the network from here to it",
        )
    return None


def _looked(check: Check, context: Context) -> Iterator[Finding]:
    try:
        yield from check.look(context)
    except InputError as error:
        yield problem(
            check.theme, str(error), expected="settings that can be used", cure="correct them"
        )
    except StatusError as error:
        yield _refused(check, context, error)
    except DriverError as error:
        yield could_not_look(check.theme, str(error))
    except Exception as error:  # noqa: BLE001 - the other checks still have something to say
        yield could_not_look(
            check.theme, f"the check itself broke: {error!r}", cure="report it with this line"
        )


def _refused(check: Check, context: Context, error: StatusError) -> Finding:
    if error.status == 403 and context.in_pod:
        return note(
            check.theme,
            "not looked at: this pod's service account has no right to",
            cure="run this from a workstation as well",
        )
    cure = ""
    if error.status in {401, 403}:
        cure = "run this with a kubeconfig that may read it, such as an administrator's"
    return could_not_look(check.theme, str(error), cure=cure)

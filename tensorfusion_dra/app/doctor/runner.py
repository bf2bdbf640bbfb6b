"""Runner of the checks; a check that fails does not affect the others."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from tensorfusion_dra.app.doctor.context import Context
from tensorfusion_dra.app.doctor.options import Place
from tensorfusion_dra.cluster.api import StatusError
from tensorfusion_dra.cluster.cluster_lists import ClusterProbe
from tensorfusion_dra.core.doctor.finding import Finding, not_checked, note, problem
from tensorfusion_dra.core.errors import DriverError, InputError, RetryableError

CheckFunction = Callable[[Context], Iterable[Finding]]

_EVERYWHERE: Final = frozenset(Place)


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
    places: frozenset[Place] = _EVERYWHERE


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The findings of one check."""

    theme: str
    findings: tuple[Finding, ...]


def run_checks(checks: Sequence[Check], context: Context) -> Iterator[Result]:
    """Run the checks of this place in their order and yield their results."""
    unreachable = _api_unreachable(context)
    if unreachable is not None:
        yield Result(theme="kubernetes", findings=(unreachable,))
    for check in checks:
        if context.place not in check.places:
            continue
        if check.needs_api and unreachable is not None:
            continue
        yield Result(theme=check.theme, findings=tuple(_findings(check, context)))


def _api_unreachable(context: Context) -> Finding | None:
    """Return the reason why the API server cannot be read; None if it can."""
    if context.api is None:
        return not_checked(
            "API server",
            "no kubeconfig: rights, feature gates, slices and webhook are not checked",
            cure="name one with --kubeconfig",
        )
    try:
        ClusterProbe(context.api).find("/version")
    except StatusError:
        return None  # it answers; each check reports its own refusal
    except InputError as error:
        return problem(
            "API server",
            str(error),
            expected="a usable kubeconfig",
            cure="name another with --kubeconfig",
        )
    except RetryableError as error:
        return problem(
            "API server",
            f"{error}; rights, feature gates, slices and webhook are not checked",
            expected="an answer",
            cure="check the server of the kubeconfig, and the network from here to it",
        )
    return None


def _findings(check: Check, context: Context) -> Iterator[Finding]:
    try:
        yield from check.run(context)
    except InputError as error:
        yield problem(
            check.theme, str(error), expected="usable settings", cure="correct the settings"
        )
    except StatusError as error:
        yield _refused(check, context, error)
    except DriverError as error:
        yield not_checked(check.theme, str(error))
    except Exception as error:  # noqa: BLE001 - a bug in one check must not end the others
        yield not_checked(
            check.theme, f"error in the check itself: {error!r}", cure="report it with this line"
        )


def _refused(check: Check, context: Context, error: StatusError) -> Finding:
    if error.status == 403 and context.in_pod:
        return note(
            check.theme,
            "not checked: this pod's service account has no right to read it",
            cure="run this from a workstation as well",
        )
    cure = ""
    if error.status in {401, 403}:
        cure = "run this with a kubeconfig that may read it, such as an administrator's"
    return not_checked(check.theme, str(error), cure=cure)

"""View of the providers: what each gives to which device, in what time, and what went wrong.

The cards are read once and the providers called as the node plugin calls them.
"""

import json
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

import yaml

from tensorfusion_dra.app.shared import node_parts, providers, streams
from tensorfusion_dra.app.shared.node_settings import Settings
from tensorfusion_dra.app.shared.tables import table
from tensorfusion_dra.core.claims.enforcers.kinds import KINDS
from tensorfusion_dra.core.errors import InputError, RetryableError
from tensorfusion_dra.core.printable import one_line
from tensorfusion_dra.discovery.host.sizes import HostSizes
from tensorfusion_dra.driver.catalog import DeviceCatalog
from tensorfusion_dra.driver.providers import Kind, Outcome, Registered, Report, State

_COLUMNS: Final = ("KIND", "PROVIDER", "PACKAGE", "STATE", "TIME", "GIVES")
_OWN: Final = "this driver"


def run(settings: Settings, *, form: str) -> int:
    """Print the providers and what they give; return 1 if one failed or the cards are unreadable.

    Raises:
        InputError: A setting cannot be used.
    """
    with streams.own_output():
        found, trouble = _read(settings)
    sys.stdout.write(_text(found, form) + "\n")
    if trouble:
        sys.stderr.write(f"tensorfusion-dra: {trouble}\n")
    bad = {State.FAILED.value, State.LATE.value}
    return 1 if trouble or any(each["state"] in bad for each in found["providers"]) else 0


def _read(settings: Settings) -> tuple[dict[str, Any], str]:
    """Return the view as a JSON object, and why the cards are unreadable; "" if they are not."""
    loaded = providers.load(settings)
    trouble = ""
    with node_parts.discovery(settings) as discovery:
        reader = DeviceCatalog(
            discovery,
            node_parts.node(settings),
            host=HostSizes(settings.disk_folder),
            providers=loaded,
        )
        try:
            reader.refresh()
        except RetryableError as error:
            trouble = str(error)
    every = providers.registered(settings)
    reports = (*loaded.reports(), *_enforcers(settings, every))
    loaded.close()
    found = {
        "node": settings.node_name,
        "providers": [
            _as_json(each) for kind in Kind for each in reports if each.registered.kind is kind
        ],
        "unknownDisabled": list(providers.unknown_names(settings, every)),
    }
    return found, trouble


def _enforcers(settings: Settings, every: Sequence[Registered]) -> Iterator[Report]:
    """Yield the enforcers; only that of the settings is loaded."""
    own = (Registered(kind=Kind.ENFORCER, name=name, load=kind) for name, kind in KINDS.items())
    for each in (*own, *(other for other in every if other.kind is Kind.ENFORCER)):
        outcome = Outcome(state=State.UNUSED if each.unused else State.NEW)
        if each.name == settings.enforcer and not each.unused:
            began, errors = time.monotonic(), {}
            try:
                node_parts.chosen_enforcer(settings)
            except InputError as error:
                errors[""] = str(error)
            outcome = Outcome(
                state=State.FAILED if errors else State.OK,
                seconds=time.monotonic() - began,
                errors=errors,
            )
        yield Report(registered=each, outcome=outcome)


def _as_json(report: Report) -> dict[str, Any]:
    registered, outcome = report.registered, report.outcome
    seconds = outcome.seconds
    return {
        "kind": registered.kind.value,
        "name": registered.name,
        "package": registered.package or _OWN,
        "state": outcome.state.value,
        "reason": registered.unused,
        "seconds": None if seconds is None else round(seconds, 6),
        "errors": dict(outcome.errors),
        "given": {device: list(given) for device, given in report.given.items()},
        "refused": {
            device: [{"name": each.name, "reason": each.reason} for each in refused]
            for device, refused in report.refused.items()
        },
    }


def _text(found: dict[str, Any], form: str) -> str:
    if form == "json":
        return json.dumps(found, indent=2)
    if form == "yaml":
        return str(yaml.safe_dump(found, sort_keys=False)).rstrip()
    every: Sequence[dict[str, Any]] = found["providers"]
    lines = [*table([_COLUMNS, *map(_row, every)])]
    for each in every:
        lines += [one_line(line) for line in _troubles(each)]
    lines += [
        f"  disable-provider: found {name}, which no provider has"
        for name in found["unknownDisabled"]
    ]
    return "\n".join(lines)


def _row(each: dict[str, Any]) -> tuple[object, ...]:
    seconds = each["seconds"]
    return (
        each["kind"],
        one_line(each["name"]),
        one_line(each["package"]),
        each["state"],
        "-" if seconds is None else f"{1000 * seconds:.1f} ms",
        _gives(each),
    )


def _gives(each: dict[str, Any]) -> str:
    """Return the names that it gives, and to how many devices."""
    given = sorted({name for names in each["given"].values() for name in names})
    devices = len(each["given"])
    if each["kind"] == Kind.ENFORCER.value and each["state"] == State.OK.value:
        return "limits of new claims"
    return f"{', '.join(given)} on {devices} device{'' if devices == 1 else 's'}" if given else "-"


def _troubles(each: dict[str, Any]) -> Iterator[str]:
    if each["reason"]:
        yield f"  unused: {each['name']}: {each['reason']}"
    for gpu, error in each["errors"].items():
        yield f"  {each['state']}: {each['name']}: {f'{gpu}: ' if gpu else ''}{error}"
    for device, refused in each["refused"].items():
        for refusal in refused:
            yield f"  left out: {each['name']}: {device}: {refusal['name']}: {refusal['reason']}"

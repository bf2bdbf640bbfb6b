"""The verb `inspect`: show this node's GPUs, devices, shares of prepared claims and CDI specs.

It is the view of the status page and the metrics, read from NVML and the node's disk alone, without
the kubelet or the API server.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

from tensorfusion_dra.app.shared import (
    logging,
    node_parts,
    node_settings,
    providers,
    setting_sources,
    streams,
    version,
)
from tensorfusion_dra.app.shared.node_settings import Settings
from tensorfusion_dra.core import names, observed
from tensorfusion_dra.core.claims.ports import Discovery
from tensorfusion_dra.core.claims.verdicts import CurrentVerdict, State
from tensorfusion_dra.core.devices import slices
from tensorfusion_dra.core.devices.gpu import Inventory
from tensorfusion_dra.core.errors import DriverError, InputError, RetryableError
from tensorfusion_dra.core.printable import one_line
from tensorfusion_dra.discovery.host import MachineSizes
from tensorfusion_dra.driver.node_observer import NodeObserver
from tensorfusion_dra.driver.providers import (
    ProviderKind,
    ProviderOutcome,
    ProviderState,
    Registered,
    Report,
)
from tensorfusion_dra.driver.publish import CatalogBuilder, OtherUsersReader
from tensorfusion_dra.enforcers import registered

Json = dict[str, Any]

_ZEROS: Final = "00000000-0000-0000-0000-"


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `inspect` and the node plugin's settings."""
    streams.add_exit_codes(parser, "everything is known", "a part is unknown, or of no use")
    streams.add_form(parser)
    parser.add_argument(
        "--raw", action="store_true", help="print NVML's answer to each query, as JSON"
    )
    parser.add_argument(
        "--providers",
        action="store_true",
        help="print who gives which attribute and capacity, in what time, and what went wrong",
    )
    parser.add_argument(
        "--as-template",
        action="store_true",
        help="print the ResourceSlices that another node with such GPUs would publish, as YAML",
    )
    parser.add_argument("--model", help="GPU model to take instead of this node's GPUs, as A10")
    parser.add_argument("--count", type=int, default=1, help="how many of the model; default: 1")
    setting_sources.add_flags(parser, Settings, is_hidden=True)


def run(flags: argparse.Namespace) -> int:
    """Print the node's GPUs, devices, shares and CDI specs; return 1 if a part is unknown.

    With --providers print these and what they give; return 1 if one is of no use. With
    --as-template print the slices of another such node.

    Raises:
        InputError: A setting, or a file that the settings name, cannot be used.
        RetryableError: The NVIDIA driver cannot be recorded, or its cards cannot be read as a
            template.
    """
    if flags.model:
        flags.simulated_gpus = f"{flags.count}x{flags.model}"
    if flags.as_template:
        flags.node_name = flags.node_name or "template"
    settings = node_settings.from_flags(flags, os.environ)
    logging.configure(level="error", form="console")
    with node_parts.discovery(settings) as discovery:
        if flags.raw:
            sys.stdout.write(json.dumps(asdict(discovery.raw()), indent=2) + "\n")
            return 0
        with streams.own_output():
            read = _read_providers if flags.providers else _read
            if flags.as_template:
                read = _template
            found, reasons = read(settings, discovery)
    if flags.as_template and flags.model:  # a model alone does not say everything of its node
        if settings.is_choice:
            reasons.append(
                f"enforcer: found {settings.enforcer}, expected the name of the nodes' enforcer; "
                f"the template shows {settings.candidates[0]}"
            )
        if settings.oversubscription and settings.oversubscription.expands_memory:
            reasons.append(
                "the template expands memory by that of this host; take it on a node of the pool"
            )
    form = "yaml" if flags.as_template and flags.form in streams.FOR_PEOPLE else flags.form
    lines: Iterable[str] = ()
    if form in streams.FOR_PEOPLE:
        lines = _provider_lines(found) if flags.providers else _lines(found)
    sys.stdout.write(streams.formatted(form, found, lines))
    for reason in reasons:
        sys.stderr.write(f"tensorfusion-dra: {reason}\n")
    good = {ProviderState.OK.value, ProviderState.NEW.value, ProviderState.UNUSED.value}
    is_good = all(each["state"] in good for each in found.get("providers", ()))
    return 0 if is_good and not reasons else 1


def _read(settings: Settings, discovery: Discovery) -> tuple[Json, list[str]]:
    """Return the view as a JSON object, and an error text for each part that is unknown."""
    reasons = _pool_reasons(settings)
    try:
        claims = node_parts.recorded(settings)
    except DriverError as error:
        claims = ()
        reasons.append(str(error))
    # The same catalog as the node plugin's, with the health records so far; nothing is written.
    reader = CatalogBuilder(
        discovery,
        node_parts.node(settings),
        host=MachineSizes(settings.disk_folder),
        providers=providers.load(settings),
        tracker=node_parts.health_tracker(settings, lambda: claims, saves=False),
        taint_effect=node_parts.taint_effect(settings),
        other_users=OtherUsersReader(node_parts.allocations(settings)),
        enforcement=node_parts.node_enforcer(settings).of_devices,
    )
    try:
        reader.refresh()
    except RetryableError as error:
        reasons.append(str(error))
    catalog = reader.catalog.current()
    reasons += catalog.host_size_errors if catalog else ()
    now = datetime.now(UTC)  # the verdicts are new: since when they have held is not known here
    current_verdicts = {
        claim.ref.uid: [CurrentVerdict(verdict=verdict, since=now) for verdict in verdicts]
        for claim, verdicts in zip(claims, node_parts.verdicts_now(settings, claims), strict=True)
    }
    observer = NodeObserver(
        catalog=reader.catalog,
        claims=lambda: claims,
        current_verdicts=lambda: current_verdicts,
        node=settings.node_name,
        version=version.current(),
    )
    view = observed.as_json(observer.view())
    devices = catalog.devices if catalog else ()
    for card, device in zip(view["cards"], devices, strict=True):
        card["tflopsSource"] = device.gpu.tflops_source.value
    return {
        "node": {
            "name": settings.node_name,
            "pool": None
            if node_parts.follows_gpupool(settings)
            else node_parts.node(settings).pool,
        },
        # The parts of the view that need no running node plugin.
        "cards": view["cards"],
        "leftOut": view["leftOut"],
        "shares": view["shares"],
        "devices": [device.as_api() for device in devices],
        "cdiSpecs": sorted(map(str, Path(settings.cdi_dir).glob(f"{names.CDI_FILE_PREFIX}*.json"))),
    }, reasons


def _pool_reasons(settings: Settings) -> list[str]:
    if not node_parts.follows_gpupool(settings):
        return []
    return [
        f"pool-source {settings.pool_source}: the pool's values are in the API server, which "
        "inspect does not read; the devices are shown with the values of the settings"
    ]


@dataclass(frozen=True, slots=True)
class _OfTemplate:
    """The GPUs of a discovery, healthy, and without the UUIDs that only this node has."""

    discovery: Discovery

    def read(self) -> Inventory:
        found = self.discovery.read()
        return replace(
            found,
            gpus=tuple(
                replace(
                    gpu,
                    uuid=f"MIG-{_ZEROS}{place:012}" if gpu.partition else card,
                    parent_uuid=card if gpu.partition else "",
                )
                for place, gpu in enumerate(found.gpus)
                for card in (f"GPU-{_ZEROS}{gpu.index:012}",)
            ),
            recovery={},
        )


def _template(settings: Settings, discovery: Discovery) -> tuple[Json, list[str]]:
    """Return the ResourceSlices that another node with these GPUs and settings would publish.

    A cluster autoscaler uses them as the template of a node that it could add.
    """
    reader = CatalogBuilder(
        _OfTemplate(discovery),
        node_parts.node(settings),
        host=MachineSizes(settings.disk_folder),
        providers=providers.load(settings),
        enforcement=node_parts.node_enforcer(settings).of_devices,
    )
    reader.refresh()
    catalog = reader.catalog.current()
    assert catalog is not None  # the cards were read and the node is known
    wanted = slices.wanted(catalog.devices, catalog.node, node_uid="")
    items = slices.plan(wanted, ()).create
    for item in items:
        del item["metadata"]["ownerReferences"]  # of a Node that is not there
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSliceList",
        "items": [{"apiVersion": "resource.k8s.io/v1", **item} for item in items],
    }, [
        *_pool_reasons(settings),
        *catalog.host_size_errors,
        *(f"left out: {each.subject}: {each.reason}" for each in catalog.left_out),
    ]


def _lines(found: Json) -> list[str]:
    cards = [
        (
            card["index"],
            card["uuid"],
            card["model"],
            f"{card['physical']['tflops']:g} ({card['tflopsSource']})",
            streams.shown_bytes(card["totalVramBytes"]),
            streams.shown_bytes(card["totalVramBytes"] - card["physical"]["vramBytes"]),
            card["productName"],
            card["health"]["reason"] or "healthy",
        )
        for card in found["cards"]
    ]
    shares = [
        (
            f"{share['namespace']}/{share['claim']}",
            share["claimUID"],
            share["request"],
            share["device"],
            "admin access"
            if share["adminAccess"]
            else f"tflops {share['requested']['tflops']:g}, "
            f"vram {streams.shown_bytes(share['requested']['vramBytes'])}",
            _limits(share),
            f"{share['enforcement']['state']} ({share['enforcement']['reason']})",
        )
        for share in found["shares"]
    ]
    unhealthy = [card for card in found["cards"] if not card["health"]["healthy"]]
    advisory = [each for each in found["shares"] if each["enforcement"]["state"] != State.ENFORCED]
    return streams.sections(
        [f"Node {found['node']['name']}, pool {found['node']['pool']}"],
        [
            "GPUs",
            *streams.table(
                [
                    ("INDEX", "UUID", "MODEL", "TFLOPS", "VRAM", "RESERVED", "NAME", "HEALTH"),
                    *cards,
                ]
            ),
            *(
                f"  unhealthy since {card['health']['since']}: {card['uuid']}: "
                f"{card['health']['message']}"
                for card in unhealthy
            ),
            *(f"  left out: {item['subject']}: {item['reason']}" for item in found["leftOut"]),
        ],
        [
            "Prepared claims",
            *streams.table(
                [("CLAIM", "UID", "REQUEST", "DEVICE", "TAKES", "LIMITS", "STATE"), *shares]
            ),
            *(
                f"  {share['enforcement']['state']}: {share['namespace']}/{share['claim']} on "
                f"{share['device']}: {share['enforcement']['message']}"
                for share in advisory
            ),
        ],
        ["CDI specs", *(f"  {path}" for path in found["cdiSpecs"])],
    )


def _limits(share: Json) -> str:
    """Return the limits as text: ``soft: 33 % (of 50 % wanted), 20Gi``."""
    limit, wanted = share["limit"], share["wanted"]
    if limit is None:
        return f"{share['isolation']}: none"
    parts = [
        form(limit[name])
        + (f" (of {form(wanted[name])} wanted)" if limit[name] < wanted[name] else "")
        for name, form in (("computePercent", "{} %".format), ("vramBytes", streams.shown_bytes))
    ]
    return f"{share['isolation']}: {', '.join(parts)}"


def _read_providers(settings: Settings, discovery: Discovery) -> tuple[Json, list[str]]:
    """Read the cards once and call the providers, as the node plugin does.

    Return what each gives to which device, and why the cards are unreadable, if they are.
    """
    loaded = providers.load(settings)
    reader = CatalogBuilder(
        discovery,
        node_parts.node(settings),
        host=MachineSizes(settings.disk_folder),
        providers=loaded,
    )
    reasons = []
    try:
        reader.refresh()
    except RetryableError as error:
        reasons.append(str(error))
    every = providers.registered(settings)
    reports = (*loaded.reports(), *_enforcers(settings, every))
    return {
        "node": settings.node_name,
        "providers": [
            {
                "kind": each.registered.kind.value,
                "name": each.registered.name,
                "package": each.registered.package or "this driver",
                "state": each.state.value,
                "reason": each.registered.unused,
                "seconds": each.outcome.seconds and round(each.outcome.seconds, 6),
                "errors": dict(each.outcome.errors),
                "given": {device: list(given) for device, given in each.given.items()},
                "refused": {
                    device: [{"name": name, "reason": why} for name, why in refused.items()]
                    for device, refused in each.refused.items()
                },
            }
            for kind in ProviderKind
            for each in reports
            if each.registered.kind is kind
        ],
        "unknownDisabled": list(providers.unknown_names(settings, every)),
    }, reasons


def _enforcers(settings: Settings, every: Sequence[Registered]) -> Iterator[Report]:
    """Yield the enforcers; only those of the settings are loaded."""
    own = (
        Registered(kind=ProviderKind.ENFORCER, name=name, load=partial(registered.kind, name))
        for name in registered.OWN
    )
    for each in (*own, *(other for other in every if other.kind is ProviderKind.ENFORCER)):
        outcome = ProviderOutcome(state=ProviderState.UNUSED if each.unused else ProviderState.NEW)
        if each.name in settings.candidates and not each.unused:
            began, errors = time.monotonic(), {}
            try:
                node_parts.candidates(replace(settings, enforcer=each.name))
            except InputError as error:
                errors[""] = str(error)
            outcome = ProviderOutcome(
                state=ProviderState.FAILED if errors else ProviderState.OK,
                seconds=time.monotonic() - began,
                errors=errors,
            )
        yield Report(registered=each, outcome=outcome)


def _provider_lines(found: Json) -> Iterator[str]:
    every = found["providers"]
    heads = ("KIND", "PROVIDER", "PACKAGE", "STATE", "TIME", "GIVES")
    yield from streams.table([heads, *map(_provider_row, every)])
    for each in every:
        yield from map(one_line, _provider_reasons(each))
    for name in found["unknownDisabled"]:
        yield f"  disable-provider: found {name}, which no provider has"


def _provider_row(each: Json) -> tuple[object, ...]:
    seconds = each["seconds"]
    given = sorted({name for names in each["given"].values() for name in names})
    devices = len(each["given"])
    gives = f"{', '.join(given)} on {devices} device{'' if devices == 1 else 's'}" if given else "-"
    if each["kind"] == ProviderKind.ENFORCER.value and each["state"] == ProviderState.OK.value:
        gives = "limits of new claims"
    return (
        each["kind"],
        one_line(each["name"]),
        one_line(each["package"]),
        each["state"],
        "-" if seconds is None else f"{1000 * seconds:.1f} ms",
        gives,
    )


def _provider_reasons(each: Json) -> Iterator[str]:
    if each["reason"]:
        yield f"  unused: {each['name']}: {each['reason']}"
    for gpu, error in each["errors"].items():
        yield f"  {each['state']}: {each['name']}: {f'{gpu}: ' if gpu else ''}{error}"
    for device, refused in each["refused"].items():
        for refusal in refused:
            yield f"  left out: {each['name']}: {device}: {refusal['name']}: {refusal['reason']}"

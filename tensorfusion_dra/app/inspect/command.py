"""The verb `inspect`: show this node's GPUs, devices, shares of prepared claims and CDI specs.

It is the view of the status page and the metrics, read from NVML and the node's disk alone, without
the kubelet or the API server.
"""

import argparse
import json
import os
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import yaml

from tensorfusion_dra.app.inspect import providers_view
from tensorfusion_dra.app.shared import (
    logging,
    node_parts,
    node_settings,
    providers,
    streams,
    version,
)
from tensorfusion_dra.app.shared.node_settings import Settings
from tensorfusion_dra.app.shared.tables import table
from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims.enforcement.verdict import Standing, State
from tensorfusion_dra.core.errors import DriverError, RetryableError
from tensorfusion_dra.core.observed import document
from tensorfusion_dra.discovery.host.sizes import HostSizes
from tensorfusion_dra.driver.catalog import DeviceCatalog
from tensorfusion_dra.driver.node_observer import NodeObserver, Sources
from tensorfusion_dra.driver.ports.discovery import Discovery
from tensorfusion_dra.state import ledger_reading

_FORMS: Final = ("table", "json", "yaml")
_OF_THE_VIEW: Final = ("cards", "leftOut", "shares")
"""The parts of the view that need no running node plugin."""
_CARD_COLUMNS: Final = (
    *("INDEX", "UUID", "MODEL", "TFLOPS", "VRAM MiB", "RESERVED MiB", "NAME", "HEALTH"),
)
_SHARE_COLUMNS: Final = ("CLAIM", "UID", "REQUEST", "DEVICE", "TAKES", "LIMITS", "STATE")

Json = dict[str, Any]


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `inspect` and the node plugin's settings."""
    parser.add_argument("-o", dest="form", choices=_FORMS, default="table", help="output format")
    parser.add_argument(
        "--raw", action="store_true", help="print NVML's answer to each query, as JSON"
    )
    parser.add_argument(
        "--providers",
        action="store_true",
        help="print who gives which attribute and capacity, in what time, and what went wrong",
    )
    node_settings.add_flags(parser)


def run(flags: argparse.Namespace) -> int:
    """Print the node's GPUs, devices, shares and CDI specs; return 1 if a part is unknown.

    Raises:
        InputError: A setting, or a file that the settings name, cannot be used.
        RetryableError: The NVIDIA driver cannot be recorded.
    """
    settings = node_settings.from_flags(flags, os.environ)
    logging.configure(level="error", form="console")
    if flags.providers:
        return providers_view.run(settings, form=flags.form)
    with node_parts.discovery(settings) as discovery:
        if flags.raw:
            sys.stdout.write(json.dumps(discovery.raw(), indent=2) + "\n")
            return 0
        with streams.own_output():
            found, troubles = _read(settings, discovery)
    if flags.form == "json":
        text = json.dumps(found, indent=2)
    elif flags.form == "yaml":
        text = yaml.safe_dump(found, sort_keys=False).rstrip()
    else:
        text = "\n".join(_lines(found))
    sys.stdout.write(text + "\n")
    for trouble in troubles:
        sys.stderr.write(f"tensorfusion-dra: {trouble}\n")
    return 1 if troubles else 0


def _read(settings: Settings, discovery: Discovery) -> tuple[Json, list[str]]:
    """Return the view as a JSON object, and an error text for each part that is unknown."""
    troubles: list[str] = []
    if follows := node_parts.follows_gpupool(settings):
        troubles.append(
            f"pool-source {settings.pool_source}: the pool's values are in the API server, which "
            "inspect does not read; the devices are shown with the values of the settings"
        )
    try:
        claims = ledger_reading.claims(settings.data_folder)
    except DriverError as error:
        claims = ()
        troubles.append(str(error))
    # The same catalog as the node plugin's, with the health records so far; nothing is written.
    reader = DeviceCatalog(
        discovery,
        node_parts.node(settings),
        host=HostSizes(settings.disk_folder),
        providers=providers.load(settings),
        tracker=node_parts.health_tracker(settings, lambda: claims, saves=False),
        taint_effect=node_parts.taint_effect(settings),
    )
    try:
        reader.refresh()
    except RetryableError as error:
        troubles.append(str(error))
    catalog = reader.current()
    troubles += catalog.host_size_errors if catalog else ()
    now = datetime.now(UTC)  # the verdicts are new: since when they have held is not known here
    standings = {
        claim.ref.uid: [Standing(verdict=verdict, since=now) for verdict in verdicts]
        for claim, verdicts in zip(claims, node_parts.verdicts_now(settings, claims), strict=True)
    }
    observer = NodeObserver(
        Sources(catalog=reader, claims=lambda: claims, standings=lambda: standings),
        node=settings.node_name,
        version=version.current(),
    )
    view = document.as_json(observer.view())
    devices = catalog.devices if catalog else ()
    for card, device in zip(view["cards"], devices, strict=True):
        card["tflopsSource"] = device.gpu.tflops_source.value
    pool = None if follows else node_parts.node(settings).pool
    return {
        "node": {"name": settings.node_name, "pool": pool},
        **{part: view[part] for part in _OF_THE_VIEW},
        "devices": [device.as_api() for device in devices],
        "cdiSpecs": sorted(map(str, Path(settings.cdi_dir).glob(f"{names.CDI_FILE_PREFIX}*.json"))),
    }, troubles


def _lines(found: Json) -> Iterator[str]:
    yield f"Node {found['node']['name']}, pool {found['node']['pool']}"
    yield from ("", "GPUs")
    yield from table([_CARD_COLUMNS, *map(_card_row, found["cards"])])
    for card in found["cards"]:
        if not card["health"]["healthy"]:
            health = card["health"]
            yield f"  unhealthy since {health['since']}: {card['uuid']}: {health['message']}"
    for item in found["leftOut"]:
        yield f"  left out: {item['subject']}: {item['reason']}"
    yield from ("", "Prepared claims")
    yield from table([_SHARE_COLUMNS, *map(_share_row, found["shares"])])
    for share in found["shares"]:
        verdict = share["enforcement"]
        if verdict["state"] != State.ENFORCED:
            claim = f"{share['namespace']}/{share['claim']}"
            yield f"  {verdict['state']}: {claim} on {share['device']}: {verdict['message']}"
    yield from ("", "CDI specs")
    yield from (f"  {path}" for path in found["cdiSpecs"])


def _card_row(card: Json) -> tuple[object, ...]:
    return (
        card["index"],
        card["uuid"],
        card["model"],
        f"{card['physical']['tflops']:g} ({card['tflopsSource']})",
        card["totalVramBytes"] // 2**20,
        -(-(card["totalVramBytes"] - card["physical"]["vramBytes"]) // 2**20),
        card["productName"],
        card["health"]["reason"] or "healthy",
    )


def _share_row(share: Json) -> tuple[object, ...]:
    takes, verdict = share["requested"], share["enforcement"]
    return (
        f"{share['namespace']}/{share['claim']}",
        share["claimUID"],
        share["request"],
        share["device"],
        "admin access"
        if share["adminAccess"]
        else f"{takes['tflops']:g} tflops, {takes['vramBytes'] // 2**20} MiB",
        _limits(share),
        f"{verdict['state']} ({verdict['reason']})",
    )


def _limits(share: Json) -> str:
    """Return the limits as text: ``soft: 33 % (of 50 % wanted), 20480 MiB``."""
    limit, wanted = share["limit"], share["wanted"]
    if limit is None:
        return f"{share['isolation']}: none"
    compute = _of_wanted(limit["computePercent"], wanted["computePercent"], "%")
    memory = _of_wanted(limit["vramBytes"] // 2**20, wanted["vramBytes"] // 2**20, "MiB")
    return f"{share['isolation']}: {compute}, {memory}"


def _of_wanted(granted: int, wanted: int, unit: str) -> str:
    return f"{granted} {unit}" + (f" (of {wanted} {unit} wanted)" if granted < wanted else "")

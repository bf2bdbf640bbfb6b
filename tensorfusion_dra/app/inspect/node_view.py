"""View of this node's GPUs, devices, prepared claims and CDI specs.

It is read from NVML and the node's disk alone, without the kubelet or the API server.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from tensorfusion_dra.app.inspect import limits_view
from tensorfusion_dra.app.node_plugin import pool_source
from tensorfusion_dra.app.shared import card_health, node_parts, own_output, providers
from tensorfusion_dra.app.shared.node_settings import Settings
from tensorfusion_dra.app.shared.tables import table
from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims.prepared import PreparedClaim
from tensorfusion_dra.core.devices.health import Sickness
from tensorfusion_dra.core.errors import DriverError, RetryableError
from tensorfusion_dra.discovery.host.sizes import HostSizes
from tensorfusion_dra.driver.catalog import Catalog, DeviceCatalog
from tensorfusion_dra.driver.ports.discovery import Discovery
from tensorfusion_dra.state import ledger_reading

FORMS: Final = ("table", "json", "yaml")

_GPU_COLUMNS: Final = (
    *("INDEX", "UUID", "MODEL", "TFLOPS", "VRAM MiB", "RESERVED MiB", "NAME", "HEALTH"),
)
_CLAIM_COLUMNS: Final = ("CLAIM", "UID", "REQUEST", "DEVICE", "TAKES", "LIMITS", "STATE")


def run(settings: Settings, *, form: str, raw: bool) -> int:
    """Print the node's GPUs, devices, prepared claims and CDI specs; return 1 if a part is unknown.

    Args:
        form: One of FORMS.
        raw: Print a recording instead: the NVIDIA driver's answer to each query.

    Raises:
        InputError: A file that the settings name cannot be used.
    """
    with node_parts.discovery(settings) as discovery:
        if raw:
            try:
                recording = discovery.raw()
            except RetryableError as error:
                sys.stderr.write(f"tensorfusion-dra: {error}\n")
                return 1
            _print(json.dumps(recording, indent=2))
            return 0
        with own_output.only():
            found, troubles = _read(settings, discovery)
    if form == "json":
        _print(json.dumps(found, indent=2))
    elif form == "yaml":
        _print(yaml.safe_dump(found, sort_keys=False).rstrip())
    else:
        _print("\n".join(_lines(found)))
    for trouble in troubles:
        sys.stderr.write(f"tensorfusion-dra: {trouble}\n")
    return 1 if troubles else 0


def _read(settings: Settings, cards: Discovery) -> tuple[dict[str, Any], list[str]]:
    """Return the view as a JSON object, and an error text for each part that is unknown."""
    troubles: list[str] = []
    found: dict[str, Any] = {"node": settings.node_name, "pool": node_parts.node(settings).pool}
    if pool_source.follows(settings):
        found["pool"] = None
        troubles.append(
            f"pool-source {settings.pool_source}: the pool's values are in the API server, which "
            f"inspect does not read; the devices are shown with the values of the settings"
        )
    claims = _claims(settings.data_folder, troubles)
    # The same catalog as the node plugin's, with the health records so far; nothing is written.
    reader = DeviceCatalog(
        cards,
        node_parts.node(settings),
        host=HostSizes(settings.disk_folder),
        providers=providers.load(settings),
        tracker=card_health.tracker(settings, lambda: claims or (), saves=False),
        taint_effect=card_health.taint_effect(settings),
    )
    try:
        reader.refresh()
    except RetryableError as error:
        troubles.append(str(error))
    catalog = reader.current()
    troubles += catalog.host_size_errors if catalog else ()
    found["gpus"] = _gpus(catalog) if catalog else []
    found["leftOut"] = [
        {"subject": item.subject, "reason": item.reason}
        for item in (catalog.left_out if catalog else ())
    ]
    found["devices"] = [device.as_api() for device in catalog.devices] if catalog else []
    if claims is not None:
        found["claims"] = limits_view.claims(settings, claims)
    found["cdiSpecs"] = _specs(Path(settings.cdi_dir))
    return found, troubles


def _gpus(catalog: Catalog) -> list[dict[str, Any]]:
    return [
        {
            "index": device.gpu.index,
            "uuid": device.gpu.uuid,
            "productName": device.gpu.product_name,
            "model": device.gpu.model,
            "tflops": device.gpu.milli_tflops / 1000,
            "tflopsSource": device.gpu.tflops_source.value,
            "vramBytes": device.gpu.vram_bytes,
            "reservedBytes": device.gpu.reserved_bytes,
            "pciBusID": device.gpu.pci_bus_id,
            "driverVersion": device.gpu.driver_version,
            "health": _health(catalog.sick.get(device.name)),
        }
        for device in catalog.devices
    ]


def _claims(data_folder: Path, troubles: list[str]) -> Sequence[PreparedClaim] | None:
    try:
        return ledger_reading.claims(data_folder)
    except DriverError as error:
        troubles.append(str(error))
        return None


def _health(sickness: Sickness | None) -> dict[str, Any]:
    if sickness is None:
        return {"healthy": True}
    return {
        "healthy": False,
        "reason": sickness.worst.reason,
        "message": sickness.worst.text,
        "since": sickness.since.isoformat(timespec="seconds"),
    }


def _specs(folder: Path) -> list[str]:
    try:
        return sorted(str(path) for path in folder.glob(f"{names.CDI_FILE_PREFIX}*.json"))
    except OSError:
        return []


def _lines(found: dict[str, Any]) -> list[str]:
    return [
        f"Node {found['node']}, pool {found['pool']}",
        "",
        "GPUs",
        *table([_GPU_COLUMNS, *map(_gpu_row, found["gpus"])]),
        *(
            f"  unhealthy since {gpu['health']['since']}: {gpu['uuid']}: {gpu['health']['message']}"
            for gpu in found["gpus"]
            if not gpu["health"]["healthy"]
        ),
        *(f"  left out: {item['subject']}: {item['reason']}" for item in found["leftOut"]),
        "",
        "Prepared claims",
        *table(
            [
                _CLAIM_COLUMNS,
                *(
                    _claim_row(claim, share)
                    for claim in found.get("claims", [])
                    for share in claim["shares"]
                ),
            ]
        ),
        *limits_view.lines(found.get("claims", [])),
        "",
        "CDI specs",
        *(f"  {path}" for path in found["cdiSpecs"]),
    ]


def _gpu_row(gpu: dict[str, Any]) -> tuple[object, ...]:
    return (
        gpu["index"],
        gpu["uuid"],
        gpu["model"],
        f"{gpu['tflops']:g} ({gpu['tflopsSource']})",
        gpu["vramBytes"] // 2**20,
        -(-gpu["reservedBytes"] // 2**20),
        gpu["productName"],
        gpu["health"].get("reason", "healthy"),
    )


def _claim_row(claim: dict[str, Any], share: dict[str, Any]) -> tuple[object, ...]:
    consumed = ", ".join(f"{amount} {name}" for name, amount in share["consumed"].items())
    return (
        f"{claim['namespace']}/{claim['name']}",
        claim["uid"],
        share["request"],
        share["device"],
        consumed or "admin access",
        _limits(share),
        limits_view.state(share),
    )


def _limits(share: dict[str, Any]) -> str:
    """Return the limits as text: ``soft: 33 % (of 50 % wanted), 20480 MiB``."""
    limit = share["limit"]
    if limit is None:
        return f"{share['isolation']}: none"
    compute = _of_wanted(limit["smPercent"], share["wantedSmPercent"], "%")
    memory = _of_wanted(limit["vramBytes"] // 2**20, share["wantedVramBytes"] // 2**20, "MiB")
    return f"{share['isolation']}: {compute}, {memory}"


def _of_wanted(granted: int, wanted: int, unit: str) -> str:
    return f"{granted} {unit}" + (f" (of {wanted} {unit} wanted)" if granted < wanted else "")


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")

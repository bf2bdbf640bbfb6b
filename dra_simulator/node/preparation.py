"""Prepared claims of a node, and the pods that use them.

Source: pkg/kubelet/cm/dra: manager.go, claiminfo.go and state, release 1.36.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any, Final

from dra_simulator import podclaims
from dra_simulator.node.plugin import ClaimRef, PluginError, PreparedDevice
from dra_simulator.node.plugins import Plugins
from dra_simulator.rest import CLAIMS, Client, Json, RestError
from tensorfusion_dra.core.errors import DriverError

Document = Mapping[str, Any]

_PREPARE: Final = "prepare dynamic resources"
_UNPREPARE: Final = "unprepare dynamic resources"


class PreparationError(DriverError):
    """A pod's claims cannot be prepared or unprepared now; the kubelet retries."""


@dataclass(slots=True)
class _TrackedClaim:
    """Claim that is prepared or that a plugin was called to prepare.

    Attributes:
        pods: UIDs of the pods that use the claim.
        devices: Devices by driver, as returned by the plugins.
        is_prepared: False after a restart, so that claims are then prepared again.
    """

    ref: ClaimRef
    drivers: tuple[str, ...]
    pods: set[str] = field(default_factory=set)
    devices: dict[str, tuple[PreparedDevice, ...]] = field(default_factory=dict)
    is_prepared: bool = False


class Preparation:
    """Claims of one node; calls for different pods run concurrently."""

    def __init__(self, client: Client, plugins: Plugins, *, checkpoint: Path) -> None:
        self._client: Final = client
        self._plugins: Final = plugins
        self._checkpoint: Final = checkpoint
        self._lock: Final = Lock()  # guards _tracked and the checkpoint
        self._tracked: Final[dict[tuple[str, str], _TrackedClaim]] = {}
        for tracked in _loaded(checkpoint):
            self._tracked[tracked.ref.namespace, tracked.ref.name] = tracked

    @property
    def pods(self) -> set[str]:
        """UIDs of all pods that use the claims."""
        with self._lock:
            return {pod for tracked in self._tracked.values() for pod in tracked.pods}

    def prepare(self, pod: Document) -> None:
        """Prepare those of the pod's claims that are not prepared yet.

        Raises:
            PreparationError: One of them could not be prepared.
        """
        try:
            claims = self._checked_claims(pod)
            for driver, wanted in self._track(pod, claims).items():
                answers = self._plugins.plugin(driver).prepare([tracked.ref for tracked in wanted])
                with self._lock:
                    for tracked in wanted:
                        tracked.devices[driver] = answers[tracked.ref.uid]
        except (PluginError, RestError, podclaims.ClaimNotCreatedError, PreparationError) as error:
            raise PreparationError(f"{_PREPARE}: {error}") from error
        with self._lock:
            for claim in claims:
                if _key(claim) in self._tracked:
                    self._tracked[_key(claim)].is_prepared = True
            self._save()

    def _checked_claims(self, pod: Document) -> list[Document]:
        """Return the pod's claims after the checks that need no call to a plugin.

        No claim is tracked before all checks pass. Otherwise a pod whose driver was never
        registered could not be deleted, because the kubelet would have to unprepare its claims.

        Raises:
            PreparationError: A claim cannot be fetched, belongs to another pod, is not reserved for
                the pod, or is not allocated.
            ClaimNotCreatedError: A claim has not been created from its template yet.
            PluginError: The driver of a claim is not registered.
        """
        namespace = pod["metadata"]["namespace"]
        claims: list[Document] = []
        for entry in podclaims.claim_entries(pod):
            name = podclaims.claim_name(pod, entry)
            if name is None:
                continue
            try:
                claim = self._client.get(CLAIMS, name, namespace)
            except RestError as error:
                raise PreparationError(f"fetch ResourceClaim {name}: {error}") from error
            if not entry.get("resourceClaimName") and not podclaims.is_owner(pod, claim):
                raise PreparationError(
                    f"ResourceClaim {podclaims.text(claim)} was not created for Pod"
                    f" {podclaims.text(pod)} (Pod is not owner)"
                )
            if not podclaims.is_reserved(claim, pod):
                raise PreparationError(
                    f"pod {pod['metadata']['name']} ({podclaims.uid(pod)}) is not allowed to use"
                    f" ResourceClaim {name} ({podclaims.uid(claim)})"
                )
            for driver in _drivers(claim):
                self._plugins.plugin(driver)
            claims.append(claim)
        return claims

    def _track(self, pod: Document, claims: Sequence[Document]) -> dict[str, list[_TrackedClaim]]:
        """Track the pod's claims and return the unprepared ones by driver.

        From here on `unprepare` calls the plugins for these claims.
        """
        batches: dict[str, list[_TrackedClaim]] = {}
        with self._lock:
            for claim in claims:
                tracked = self._tracked.get(_key(claim))
                if tracked is None:
                    ref = ClaimRef(*_key(claim), podclaims.uid(claim))
                    tracked = self._tracked[_key(claim)] = _TrackedClaim(ref, _drivers(claim))
                elif tracked.ref.uid != podclaims.uid(claim):
                    raise PreparationError(
                        f"old ResourceClaim with same name {tracked.ref.name} and different UID"
                        f" {tracked.ref.uid} still exists (previous pod force-deleted?!)"
                    )
                tracked.pods.add(podclaims.uid(pod))
                if not tracked.is_prepared:
                    for driver in tracked.drivers:
                        batches.setdefault(driver, []).append(tracked)
            self._save()
        return batches

    def unprepare(self, pod_uid: str) -> None:
        """Unprepare those of the pod's claims that no other pod uses, and forget the pod.

        Raises:
            PreparationError: One of them could not be unprepared.
        """
        batches: dict[str, list[ClaimRef]] = {}
        with self._lock:
            mine = [tracked for tracked in self._tracked.values() if pod_uid in tracked.pods]
            last = [tracked for tracked in mine if tracked.pods == {pod_uid}]
            for tracked in mine:
                if tracked not in last:
                    tracked.pods.discard(pod_uid)
            for tracked in last:
                # A pod that starts to use the claim during the call has to prepare it again.
                tracked.is_prepared = False
                for driver in tracked.drivers:
                    batches.setdefault(driver, []).append(tracked.ref)
        try:
            for driver, refs in batches.items():
                self._plugins.plugin(driver).unprepare(refs)
        except PluginError as error:
            raise PreparationError(f"{_UNPREPARE}: {error}") from error
        with self._lock:
            for tracked in last:
                tracked.pods.discard(pod_uid)
                if not tracked.pods:
                    self._tracked.pop((tracked.ref.namespace, tracked.ref.name), None)
            self._save()

    def cdi_ids(self, pod: Document, container: Document) -> list[str]:
        """Return the CDI devices of a container, in the order of the claims in its resources."""
        entries = {entry["name"]: entry for entry in podclaims.claim_entries(pod)}
        namespace = pod["metadata"]["namespace"]
        found: list[str] = []
        with self._lock:
            for use in (container.get("resources") or {}).get("claims") or ():
                name = podclaims.claim_name(pod, entries[use["name"]])
                if name is not None:
                    tracked = self._tracked[namespace, name]
                    found += _cdi_ids(tracked, use.get("request") or "")
        return found

    def _save(self) -> None:
        """Write the checkpoint; the caller has the lock."""
        documents = [
            {
                "ref": asdict(tracked.ref),
                "drivers": tracked.drivers,
                "pods": sorted(tracked.pods),
                "devices": {
                    driver: [asdict(device) for device in devices]
                    for driver, devices in tracked.devices.items()
                },
            }
            for tracked in self._tracked.values()
        ]
        fresh = self._checkpoint.with_suffix(".new")
        fresh.write_text(json.dumps(documents, indent=1))
        fresh.replace(self._checkpoint)


def _loaded(checkpoint: Path) -> Iterable[_TrackedClaim]:
    if not checkpoint.exists():
        return
    for document in json.loads(checkpoint.read_text()):
        devices = {
            driver: tuple(_device(device) for device in found)
            for driver, found in document["devices"].items()
        }
        ref, drivers = ClaimRef(**document["ref"]), tuple(document["drivers"])
        yield _TrackedClaim(ref, drivers, set(document["pods"]), devices)


def _device(document: Json) -> PreparedDevice:
    lists = {name: tuple(document[name]) for name in ("requests", "cdi_ids")}
    return PreparedDevice(**{**document, **lists})


def _key(claim: Document) -> tuple[str, str]:
    return claim["metadata"]["namespace"], claim["metadata"]["name"]


def _drivers(claim: Document) -> tuple[str, ...]:
    """Return the drivers of a claim's devices.

    Raises:
        PreparationError: The claim is not allocated.
    """
    allocation = (claim.get("status") or {}).get("allocation")
    if not allocation:
        raise PreparationError(f"ResourceClaim {claim['metadata']['name']}: not allocated")
    results = (allocation.get("devices") or {}).get("results") or ()
    return tuple(dict.fromkeys(result["driver"] for result in results))


def _cdi_ids(tracked: _TrackedClaim, request: str) -> Iterable[str]:
    for devices in tracked.devices.values():
        for device in devices:
            if not request or not device.requests or request in device.requests:
                yield from device.cdi_ids

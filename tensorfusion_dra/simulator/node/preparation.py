"""Which claims are prepared on a node, and for which pods.

pkg/kubelet/cm/dra: manager.go, claiminfo.go and state, release 1.36.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any, Final

from tensorfusion_dra.core.errors import DriverError
from tensorfusion_dra.simulator import podclaims
from tensorfusion_dra.simulator.answers import RestError
from tensorfusion_dra.simulator.node.plugin import ClaimRef, PluginError, PreparedDevice
from tensorfusion_dra.simulator.node.plugins import Plugins
from tensorfusion_dra.simulator.rest import CLAIMS, Client, Json

Document = Mapping[str, Any]

_PREPARE: Final = "prepare dynamic resources"
_UNPREPARE: Final = "unprepare dynamic resources"


class PreparationError(DriverError):
    """A pod's claims cannot be prepared or unprepared now; the kubelet tries again."""


@dataclass(slots=True)
class _Held:
    """A claim that may be prepared.

    Attributes:
        pods: UIDs of the pods that use it.
        devices: By driver, as the plugins answered.
        is_prepared: Not known any more after a restart, when claims are prepared again.
    """

    ref: ClaimRef
    drivers: tuple[str, ...]
    pods: set[str] = field(default_factory=set)
    devices: dict[str, tuple[PreparedDevice, ...]] = field(default_factory=dict)
    is_prepared: bool = False


class Preparation:
    """The claims of one node; calls for different pods run at the same time."""

    def __init__(self, client: Client, plugins: Plugins, *, checkpoint: Path) -> None:
        self._client: Final = client
        self._plugins: Final = plugins
        self._checkpoint: Final = checkpoint
        self._lock: Final = Lock()  # guards _held and the checkpoint
        self._held: Final[dict[tuple[str, str], _Held]] = {}
        for held in _loaded(checkpoint):
            self._held[held.ref.namespace, held.ref.name] = held

    @property
    def pods(self) -> set[str]:
        """UIDs of all pods that claims are held for."""
        with self._lock:
            return {pod for held in self._held.values() for pod in held.pods}

    def prepare(self, pod: Document) -> None:
        """All of the pod's claims are prepared; those that were are not asked for again.

        Raises:
            PreparationError: One of them could not be.
        """
        try:
            claims = self._checked_claims(pod)
            for driver, wanted in self._reserve(pod, claims).items():
                answers = self._plugins.plugin(driver).prepare([held.ref for held in wanted])
                with self._lock:
                    for held in wanted:
                        held.devices[driver] = answers[held.ref.uid]
        except (PluginError, RestError, podclaims.ClaimNotCreatedError, PreparationError) as error:
            raise PreparationError(f"{_PREPARE}: {error}") from error
        with self._lock:
            for claim in claims:
                if _key(claim) in self._held:
                    self._held[_key(claim)].is_prepared = True
            self._save()

    def _checked_claims(self, pod: Document) -> list[Document]:
        """The pod's claims, if all of them could be prepared as far as can be seen from here.

        Nothing is remembered before: a pod whose driver was never there must not hang in deletion.
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

    def _reserve(self, pod: Document, claims: Sequence[Document]) -> dict[str, list[_Held]]:
        """What is left to prepare, by driver; from here on `unprepare` has something to undo."""
        batches: dict[str, list[_Held]] = {}
        with self._lock:
            for claim in claims:
                held = self._held.get(_key(claim))
                if held is None:
                    ref = ClaimRef(*_key(claim), podclaims.uid(claim))
                    held = self._held[_key(claim)] = _Held(ref, _drivers(claim))
                elif held.ref.uid != podclaims.uid(claim):
                    raise PreparationError(
                        f"old ResourceClaim with same name {held.ref.name} and different UID"
                        f" {held.ref.uid} still exists (previous pod force-deleted?!)"
                    )
                held.pods.add(podclaims.uid(pod))
                if not held.is_prepared:
                    for driver in held.drivers:
                        batches.setdefault(driver, []).append(held)
            self._save()
        return batches

    def unprepare(self, pod_uid: str) -> None:
        """The pod holds no claims any more; those that no other pod holds are unprepared.

        Raises:
            PreparationError: One of them could not be.
        """
        batches: dict[str, list[ClaimRef]] = {}
        with self._lock:
            mine = [held for held in self._held.values() if pod_uid in held.pods]
            last = [held for held in mine if held.pods == {pod_uid}]
            for held in mine:
                if held not in last:
                    held.pods.discard(pod_uid)
            for held in last:
                # A pod that comes to the claim during the call has to prepare it again.
                held.is_prepared = False
                for driver in held.drivers:
                    batches.setdefault(driver, []).append(held.ref)
        try:
            for driver, refs in batches.items():
                self._plugins.plugin(driver).unprepare(refs)
        except PluginError as error:
            raise PreparationError(f"{_UNPREPARE}: {error}") from error
        with self._lock:
            for held in last:
                held.pods.discard(pod_uid)
                if not held.pods:
                    self._held.pop((held.ref.namespace, held.ref.name), None)
            self._save()

    def cdi_ids(self, pod: Document, container: Document) -> list[str]:
        """The CDI devices of a container, in the order of the pod's claims."""
        entries = {entry["name"]: entry for entry in podclaims.claim_entries(pod)}
        namespace = pod["metadata"]["namespace"]
        found: list[str] = []
        with self._lock:
            for use in (container.get("resources") or {}).get("claims") or ():
                name = podclaims.claim_name(pod, entries[use["name"]])
                if name is not None:
                    held = self._held[namespace, name]
                    found += _cdi_ids(held, use.get("request") or "")
        return found

    def _save(self) -> None:
        """Writes the checkpoint; the lock is held."""
        documents = [
            {
                "ref": asdict(held.ref),
                "drivers": held.drivers,
                "pods": sorted(held.pods),
                "devices": {
                    driver: [asdict(device) for device in devices]
                    for driver, devices in held.devices.items()
                },
            }
            for held in self._held.values()
        ]
        fresh = self._checkpoint.with_suffix(".new")
        fresh.write_text(json.dumps(documents, indent=1))
        fresh.replace(self._checkpoint)


def _loaded(checkpoint: Path) -> Iterable[_Held]:
    if not checkpoint.exists():
        return
    for document in json.loads(checkpoint.read_text()):
        devices = {
            driver: tuple(_device(device) for device in found)
            for driver, found in document["devices"].items()
        }
        ref, drivers = ClaimRef(**document["ref"]), tuple(document["drivers"])
        yield _Held(ref, drivers, set(document["pods"]), devices)


def _device(document: Json) -> PreparedDevice:
    lists = {name: tuple(document[name]) for name in ("requests", "cdi_ids")}
    return PreparedDevice(**{**document, **lists})


def _key(claim: Document) -> tuple[str, str]:
    return claim["metadata"]["namespace"], claim["metadata"]["name"]


def _drivers(claim: Document) -> tuple[str, ...]:
    """The drivers of a claim's devices.

    Raises:
        PreparationError: It has none, as it is not allocated.
    """
    allocation = (claim.get("status") or {}).get("allocation")
    if not allocation:
        raise PreparationError(f"ResourceClaim {claim['metadata']['name']}: not allocated")
    results = (allocation.get("devices") or {}).get("results") or ()
    return tuple(dict.fromkeys(result["driver"] for result in results))


def _cdi_ids(held: _Held, request: str) -> Iterable[str]:
    for devices in held.devices.values():
        for device in devices:
            if not request or not device.requests or request in device.requests:
                yield from device.cdi_ids

"""Strategies of the kinds of resource.k8s.io."""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Final

from dra_simulator.api import allocation_rules, claim_rules, gates, meta_rules
from dra_simulator.api.schema import elements
from dra_simulator.api.strategy import Json, Strategy, part
from tensorfusion_dra.core.kubernetes import name_rules, slice_rules
from tensorfusion_dra.core.kubernetes.field_errors import FieldError, forbidden, invalid, too_many

ADMIN_LABEL: Final = "resource.kubernetes.io/admin-access"


class SliceStrategy(Strategy):
    """Strategy of ResourceSlices."""

    def prepare(self, document: Json, old: Json | None) -> None:
        """Set the time of new taints and drop fields of disabled gates."""
        spec = part(document, "spec")
        for device in elements(spec.get("devices")):
            for taint in elements(device.get("taints")):
                taint.setdefault("timeAdded", datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))
        gates.drop_from_slice(spec, part(old or {}, "spec"), self.setting.gates)

    def errors(self, document: Json, old: Json | None) -> Iterator[FieldError]:
        """Return the errors by the rules of core.kubernetes.slice_rules."""
        return slice_rules.slice_errors(part(document, "spec"))


class ClaimStrategy(Strategy):
    """Strategy of ResourceClaims."""

    def prepare(self, document: Json, old: Json | None) -> None:
        """Set the default mode and count of requests and drop fields of disabled gates."""
        super().prepare(document, old)
        _prepare_spec(part(document, "spec"), part(old or {}, "spec"), self.setting.gates)

    def errors(self, document: Json, old: Json | None) -> Iterator[FieldError]:
        """Yield the errors in a new spec; an update cannot change it."""
        if old is not None:
            return
        spec = part(document, "spec")
        yield from _admin_errors(self, document, spec)
        yield from claim_rules.spec_errors("spec", spec, self.setting.check)

    def prepare_status(self, document: Json, old: Json) -> None:
        """Drop fields of disabled gates and the status of devices that are no longer allocated."""
        status, old_status = part(document, "status"), part(old, "status")
        for result in elements(allocation_rules.results(status)):
            _default_operators(result)
        gates.drop_from_status(status, old_status, part(old, "spec"), self.setting.gates)
        gone = allocation_rules.allocated_devices(old_status) - allocation_rules.allocated_devices(
            status
        )
        if isinstance(status.get("devices"), list):
            status["devices"] = [
                device
                for device in elements(status["devices"])
                if allocation_rules.device_key(device) not in gone
            ]

    def status_errors(self, document: Json, old: Json) -> Iterator[FieldError]:
        """Yield errors: an allocation is immutable; it and its consumers must be valid."""
        old_results = allocation_rules.results(part(old, "status"))
        if not _is_admin(old_results):
            for index, result in enumerate(
                elements(allocation_rules.results(part(document, "status")))
            ):
                if result.get("adminAccess") is True and not self._admin_allowed(document):
                    where = f"status.allocation.devices.results[{index}].adminAccess"
                    yield forbidden(where, _ADMIN_TEXT)
        yield from allocation_rules.status_errors(document, old)

    def _admin_allowed(self, document: Json) -> bool:
        namespace = str(part(document, "metadata").get("namespace", ""))
        return self.setting.labels(namespace).get(ADMIN_LABEL) == "true"


class TemplateStrategy(Strategy):
    """Strategy of ResourceClaimTemplates."""

    def prepare(self, document: Json, old: Json | None) -> None:
        """Set defaults and drop fields as for a claim."""
        spec, old_spec = part(document, "spec"), part(old or {}, "spec")
        _prepare_spec(part(spec, "spec"), part(old_spec, "spec"), self.setting.gates)

    def errors(self, document: Json, old: Json | None) -> Iterator[FieldError]:
        """Yield the errors in the spec and in the metadata of the claims to be made."""
        spec = part(document, "spec")
        metadata = part(spec, "metadata")
        yield from _admin_errors(self, document, part(spec, "spec"))
        yield from meta_rules.map_errors("spec.metadata", metadata)
        for name in metadata:
            if name not in {"labels", "annotations"} and metadata[name]:
                yield forbidden(f"spec.metadata.{name}", "cannot be set")
        yield from claim_rules.spec_errors("spec.spec", part(spec, "spec"), self.setting.check)


class ClassStrategy(Strategy):
    """Strategy of DeviceClasses."""

    def prepare(self, document: Json, old: Json | None) -> None:
        """Drop a new extendedResourceName if its gate is disabled."""
        spec, old_spec = part(document, "spec"), part(old or {}, "spec")
        if (
            "DRAExtendedResource" not in self.setting.gates
            and "extendedResourceName" not in old_spec
        ):
            spec.pop("extendedResourceName", None)

    def errors(self, document: Json, old: Json | None) -> Iterator[FieldError]:
        """Yield the errors in selectors and configs; unchanged selectors are not compiled again."""
        spec, old_spec = part(document, "spec"), part(old or {}, "spec")
        selectors = spec.get("selectors")
        known = old is not None and selectors == old_spec.get("selectors")
        check = claim_rules.any_expression if known else self.setting.check
        yield from claim_rules.selectors_errors("spec.selectors", selectors, check)
        configs = list(elements(spec.get("config")))
        if len(configs) > claim_rules.MOST_CONFIGS:
            yield too_many("spec.config", len(configs), claim_rules.MOST_CONFIGS)
            return
        for index, config in enumerate(configs):
            yield from claim_rules.config_errors(f"spec.config[{index}]", config)
        name = spec.get("extendedResourceName")
        if name is not None and not _is_extended_resource(str(name)):
            text = "must be a valid extended resource name"
            yield invalid("spec.extendedResourceName", name, text)


_ADMIN_TEXT: Final = (
    f"admin access to devices requires the `{ADMIN_LABEL}: true` label on the containing namespace"
)


def _prepare_spec(spec: Json, old: Json, enabled_gates: frozenset[str]) -> None:
    for request in elements(part(spec, "devices").get("requests")):
        exactly = request.get("exactly")
        wanted = [exactly] if isinstance(exactly, dict) else []
        for devices in (*wanted, *elements(request.get("firstAvailable"))):
            if not devices.get("allocationMode"):
                devices["allocationMode"] = "ExactCount"
            if devices["allocationMode"] == "ExactCount" and not devices.get("count"):
                devices["count"] = 1
            _default_operators(devices)
    gates.drop_from_claim(spec, old, enabled_gates)


def _default_operators(tolerating: Json) -> None:
    for toleration in elements(tolerating.get("tolerations")):
        if not toleration.get("operator"):
            toleration["operator"] = "Equal"


def _admin_errors(strategy: Strategy, document: Json, spec: Json) -> Iterator[FieldError]:
    namespace = str(part(document, "metadata").get("namespace", ""))
    if strategy.setting.labels(namespace).get(ADMIN_LABEL) == "true":
        return
    for index, request in enumerate(elements(part(spec, "devices").get("requests"))):
        if part(request, "exactly").get("adminAccess") is True:
            yield forbidden(f"spec.devices.requests[{index}].adminAccess", _ADMIN_TEXT)
            return


def _is_admin(results: Iterable[object]) -> bool:
    return any(isinstance(r, dict) and r.get("adminAccess") is True for r in results)


def _is_extended_resource(name: str) -> bool:
    if "/" not in name or "kubernetes.io/" in name or name.startswith("requests."):
        return False
    return not any(name_rules.label_key("", f"requests.{name}"))

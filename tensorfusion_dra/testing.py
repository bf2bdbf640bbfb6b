"""Conformance tests for packages that extend this driver, and builders for their own tests.

Each check calls a provider as the node plugin does, with common and odd cards, and raises an
AssertionError that says what is wrong. They need no GPU, no cluster and no plugin of pytest:

    from tensorfusion_dra import testing

    def test_conforms() -> None:
        testing.check_attributes(rack)
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

from tensorfusion_dra.core import names
from tensorfusion_dra.core.claims import cdi, share_policy, verdicts
from tensorfusion_dra.core.claims import enforcer as enforcer_rules
from tensorfusion_dra.core.claims.claim import ClaimRef
from tensorfusion_dra.core.devices import device as device_facts
from tensorfusion_dra.core.devices.gpu import Inventory, Qos
from tensorfusion_dra.core.errors import DriverError
from tensorfusion_dra.core.kubernetes import cdi_rules
from tensorfusion_dra.core.kubernetes.quantity import GIB, Quantity
from tensorfusion_dra.driver.providers import ProviderKind, Providers, Registered, Report
from tensorfusion_dra.enforcers.guarded import GuardedEnforcer
from tensorfusion_dra.extend import (
    BUDGET_SECONDS,
    ClaimError,
    Edits,
    EnforcerSettings,
    Gpu,
    Isolation,
    Limit,
    Node,
    PreparedClaim,
    PreparedShare,
    Reading,
    State,
    TflopsSource,
)

__all__ = [
    "ODD_GPUS",
    "check_attributes",
    "check_capacities",
    "check_enforcer",
    "check_health_source",
    "claim",
    "enforcer_settings",
    "gpu",
    "node",
    "reading",
    "share",
]

T = TypeVar("T")

_ROOT: Final = "/run/tensor-fusion"
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def gpu(index: int = 0, **changes: Any) -> Gpu:
    """Return an A100 with 80Gi; changes set its other attributes."""
    card = Gpu(
        uuid=f"GPU-00000000-0000-4000-8000-{index:012x}",
        index=index,
        minor=index,
        product_name="NVIDIA A100-SXM4-80GB",
        model="A100",
        milli_tflops=312_000,
        tflops_source=TflopsSource.TABLE,
        vram_bytes=80 * GIB,
        brand="NVIDIA",
        architecture="ampere",
        compute_capability=(8, 0),
        driver_version="580.95.05",
        cuda_driver_version=(13, 0),
        pci_bus_id=f"0000:{index + 1:02x}:00.0",
        pcie_root="pci0000:00",
        numa_node=0,
    )
    return replace(card, **changes)


ODD_GPUS: Final[tuple[Gpu, ...]] = (
    Gpu(  # of an old driver, which reports next to nothing
        uuid="GPU-odd-1",
        index=90,
        minor=None,
        product_name="",
        model="",
        milli_tflops=1,
        tflops_source=TflopsSource.ESTIMATE,
        vram_bytes=0,
    ),
    gpu(91, product_name="é" * 200, model="x" * 200, numa_node=None, pcie_root=None),
    gpu(92, simulated=True, minor=None, pci_bus_id=None),
    gpu(93, vram_bytes=2**50, milli_tflops=10**9, numa_node=-1),
)
"""Cards without memory, without bus, with long names: providers have to survive them."""


def node(**changes: Any) -> Node:
    """Return the node `node-01` of the pool `default`; changes set its other attributes."""
    return replace(Node(name="node-01", gpupool="default", qos="medium"), **changes)


def reading(*gpus: Gpu) -> Reading:
    """Return a reading of the node() with these cards, for a provider's method `begin`."""
    return Reading(inventory=Inventory(gpus=gpus), node=node())


def share(card: int = 0, *, percent: int = 25, vram_gib: int = 20, **changes: Any) -> PreparedShare:
    """Return a share of the nth card with these limits; changes set its other attributes."""
    given: dict[str, Any] = {
        "request": "gpu",
        "pool": node().pool,
        "device": gpu(card).uuid.lower(),
        "gpu_uuid": gpu(card).uuid,
        "share_id": f"00000000-0000-4000-8000-{card:012x}",
        "consumed": {
            names.CAPACITY_TFLOPS: Quantity.whole(78),
            names.CAPACITY_VRAM: Quantity.of_bytes(vram_gib * GIB),
        },
        "exclusive": False,
        "admin_access": False,
        "device_nodes": (f"/dev/nvidia{card}",),
        "isolation": Isolation.SOFT,
        "qos": Qos.MEDIUM,
        "toolkit_device": None,
        "pci_bus_id": gpu(card).pci_bus_id or "",
        "wanted_vram_bytes": vram_gib * GIB,
        "wanted_sm_percent": percent,
        "requested_sm_percent": percent,
        "limit": Limit(sm_percent=percent, vram_bytes=vram_gib * GIB),
    }
    return PreparedShare(**{**given, **changes})


def claim(*shares: PreparedShare, name: str = "a") -> PreparedClaim:
    """Return a prepared claim with these shares."""
    ref = ClaimRef(namespace="default", name=name, uid=f"uid-{name}")
    return PreparedClaim(ref=ref, shares=shares, common_nodes=("/dev/nvidiactl",))


def enforcer_settings(name: str, **values: str) -> EnforcerSettings:
    """Return the settings of an enforcer; values are settings by flag name, with underscores."""
    folder = f"{_ROOT}/{name}"
    given = {"tensor-fusion-root": _ROOT, "preload": "file"}
    return EnforcerSettings(
        folder=folder,
        claims_root=f"{folder}/claims",
        values=given | {key.replace("_", "-"): value for key, value in values.items()},
    )


def check_attributes(
    provider: object, *, gpus: Sequence[Gpu] = (), budget_seconds: float = BUDGET_SECONDS
) -> Mapping[str, Mapping[str, Any]]:
    """Check a provider of attributes; return what it gave by GPU UUID.

    Args:
        provider: What the entry point names: a callable, or a class.
        gpus: Cards for which to call the provider, beside some odd ones; two A100s if empty.
        budget_seconds: Time for all of them.

    Raises:
        AssertionError: It fails, is late, gives what a device cannot have, or changes its answers.
    """
    return _given(ProviderKind.ATTRIBUTES, provider, gpus, budget_seconds)


def check_capacities(
    provider: object, *, gpus: Sequence[Gpu] = (), budget_seconds: float = BUDGET_SECONDS
) -> Mapping[str, Mapping[str, Any]]:
    """Check a provider of capacities; return what it gave by GPU UUID. See check_attributes()."""
    return _given(ProviderKind.CAPACITIES, provider, gpus, budget_seconds)


def check_health_source(
    source: object, *, gpus: Sequence[Gpu] = (), budget_seconds: float = BUDGET_SECONDS
) -> Mapping[str, Sequence[str]]:
    """Check a health source; return the reasons that it gave by GPU UUID.

    Raises:
        AssertionError: It fails, is late, answers with no problems, or changes its answers.
    """
    inventory = Inventory(gpus=(*(gpus or (gpu(0), gpu(1))), *ODD_GPUS))
    first, _ = _called_twice(
        ProviderKind.HEALTH, source, budget_seconds, lambda providers: providers.problems(inventory)
    )
    return {uuid: [each.reason for each in found] for uuid, found in first.items() if found}


def _given(
    kind: ProviderKind, provider: object, gpus: Sequence[Gpu], budget_seconds: float
) -> Mapping[str, Mapping[str, Any]]:
    asked = reading(*(gpus or (gpu(0), gpu(1))), *ODD_GPUS)
    own = device_facts.build_devices(asked)
    first, report = _called_twice(
        kind, provider, budget_seconds, lambda providers: providers.extended(own, asked)
    )
    for device, refused in report.refused.items():
        name, reason = next(iter(refused.items()))
        raise AssertionError(f"{device}: {name}: {reason}")
    return {
        device.gpu.uuid: {
            name: device.attributes.get(name, device.capacity.get(name))
            for name in report.given[device.name]
        }
        for device in first
        if device.name in report.given
    }


def _called_twice(
    kind: ProviderKind, provider: object, budget_seconds: float, call: Callable[[Providers], T]
) -> tuple[T, Report]:
    """Return what a call of the provider gives, and the report of it; both calls are checked."""
    tested = Registered(kind=kind, name="conformance", package="of it", load=lambda: provider)
    providers = Providers([tested], budget_seconds=budget_seconds)
    first, _ = call(providers), _checked_report(providers)
    second, report = call(providers), _checked_report(providers)
    assert first == second, (
        "two calls differ, and every change is written to the API server: "
        f"found {second}, expected {first}"[:2000]
    )
    return first, report


def _checked_report(providers: Providers) -> Report:
    (report,) = providers.reports()
    for uuid, error in report.outcome.errors.items():
        raise AssertionError(f"{uuid or 'the provider'}: {error}")
    return report


_EXAMPLES: Final[tuple[tuple[PreparedClaim, bool], ...]] = (
    (claim(share()), False),
    (claim(share(percent=100, vram_gib=80)), False),
    (claim(share(limit=None, isolation=Isolation.SHARED)), False),
    (claim(share(device_nodes=())), False),
    (claim(share(), share(1, request="monitor", admin_access=True, limit=None)), True),
    (claim(share(0), share(1)), True),
    (claim(share(0), share(1, percent=50, vram_gib=40)), True),
)
"""Claims, and whether the enforcer may refuse one that it cannot express."""
_LENT: Final = tuple(
    Limit(sm_percent=percent, vram_bytes=vram_bytes)
    for percent, vram_bytes in (
        (25, 20 * GIB),
        (26, 20 * GIB + 1),
        (61, 47 * GIB - 1),
        (99, 80 * GIB - 1),
        (100, 80 * GIB),
    )
)
"""Limits of a share that reserves the first one and wants the last one."""


def check_enforcer(
    kind: Any,
    *,
    limits_of: Callable[[Edits], Sequence[Limit]],
    settings: EnforcerSettings | None = None,
    budget_seconds: float = BUDGET_SECONDS,
) -> None:
    """Check the class of an enforcer.

    Args:
        kind: What the entry point names.
        limits_of: Returns the limits that the software would read from these edits, as it reads
            them: one for each card, in the order of the PCI bus. It is what shows that no limit is
            above what the share has.
        settings: From enforcer_settings(), if it needs other values.
        budget_seconds: Time for each call.

    Raises:
        AssertionError: It fails, is late, returns what no container can have, allows more than a
            share's limit, changes its answers, or refuses a limit between request and wanted limit
            in an isolation in which its facts do not say that the limit is fixed.
    """
    name = getattr(kind, "name", None)
    assert isinstance(name, str), f"name: found {name!r}, expected the name of the entry point"
    chosen = settings or enforcer_settings(name)
    first, second = (
        GuardedEnforcer(name, lambda: kind, chosen, budget_seconds=budget_seconds) for _ in range(2)
    )
    try:
        first.check()
    except DriverError as error:
        raise AssertionError(str(error)) from error
    for example, may_refuse in _EXAMPLES:
        _check_claim(first, second, example, limits_of, may_refuse=may_refuse)
    fixed = {Isolation.SHARED, *first.facts.fixed_memory}
    for isolation in (each for each in share_policy.OF_CARDS if each not in fixed):
        for limit in _LENT:
            lent = share(isolation=isolation, limit=limit, wanted_vram_bytes=80 * GIB)
            if isolation in first.facts.fixed_compute:
                granted = _LENT[0]
                limit = replace(limit, sm_percent=granted.sm_percent)  # noqa: PLW2901
                lent = replace(lent, limit=limit, granted=granted, divides_memory=True)
            try:
                _check_claim(first, second, claim(lent), limits_of, may_refuse=False)
            except AssertionError as error:
                text = f"isolation {isolation.value}: limit of {limit}: {error}"
                raise AssertionError(
                    f"{text}; expected any limit from the request to the wanted one, or this "
                    "isolation in facts.fixed_compute or facts.fixed_memory"
                ) from error


def _check_claim(
    enforcer: GuardedEnforcer,
    other: GuardedEnforcer,
    example: PreparedClaim,
    limits_of: Callable[[Edits], Sequence[Limit]],
    *,
    may_refuse: bool,
) -> None:
    limited = [each for each in example.shares if not each.admin_access]
    try:
        edits = _checked_edits(enforcer, other, example, limited)
    except ClaimError as error:
        if may_refuse and f"enforcer {enforcer.name}: " not in str(error):
            return
        raise AssertionError(str(error)) from error
    expected = [each.limit for each in limited if each.limit is not None]
    if len(expected) == len(limited):
        found = limits_of(edits)
        assert len(found) == len(expected), (
            f"found {len(found)} limits, expected one for each of {len(expected)} cards"
        )
        for limit, most in zip(found, expected, strict=True):
            assert 0 < limit.vram_bytes <= most.vram_bytes, (
                f"found {limit.vram_bytes} bytes of memory, expected 1 to {most.vram_bytes}"
            )
            assert 0 < limit.sm_percent <= most.sm_percent, (
                f"found {limit.sm_percent} percent of compute, expected 1 to {most.sm_percent}"
            )
    _check_verdicts(enforcer, replace(example, enforcer=enforcer.name))


def _checked_edits(
    enforcer: GuardedEnforcer,
    other: GuardedEnforcer,
    example: PreparedClaim,
    limited: Sequence[PreparedShare],
) -> Edits:
    """Return the edits, which make a valid spec and are the same each time."""
    needs, edits = enforcer.needs(example), enforcer.edits(example, limited)
    for again in (enforcer, other):
        found = (again.needs(example), again.edits(example, limited))
        assert found == (needs, edits), f"two calls differ: found {found}, expected {needs, edits}"
    for name in edits.env:
        assert _VARIABLE.fullmatch(name), f"env: found {name!r}, expected the name of a variable"
    mounted = (path for each in edits.mounts for path in (each.host_path, each.container_path))
    for path in (*needs.files, *needs.sockets, *mounted):
        assert path.startswith("/"), f"found {path!r}, expected an absolute path"
    spec = cdi.spec(example, enforcer)
    assert spec is not None
    try:
        cdi_rules.check(spec)
    except cdi_rules.CdiError as error:
        raise AssertionError(f"the CDI spec is invalid: {error}") from error
    return edits


def _check_verdicts(enforcer: GuardedEnforcer, example: PreparedClaim) -> None:
    """Check that limits do not count as enforced without evidence."""
    for found in enforcer_rules.judged(example, enforcer, (), is_new=False):
        assert found.reason != verdicts.UNREADABLE, found.text
        is_shown = found.state is State.ENFORCED and found.reason != verdicts.NO_LIMIT
        assert not is_shown, f"found Enforced without a sign of life: {found}"

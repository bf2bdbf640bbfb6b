"""Checks of providers of attributes and capacities, and of health sources."""

from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any, Final

from tensorfusion_dra.conformance.builders import ODD_GPUS, gpu, node
from tensorfusion_dra.core.devices.device import Device
from tensorfusion_dra.core.devices.gpu import Inventory
from tensorfusion_dra.core.devices.health import Trouble
from tensorfusion_dra.driver.providers.called import State
from tensorfusion_dra.driver.providers.providers import OWN, Providers, Report
from tensorfusion_dra.driver.providers.registered import Kind, Registered
from tensorfusion_dra.extend import BUDGET_SECONDS, Gpu, Reading

_NAME: Final = "conformance"


def check_attributes(
    provider: object, *, gpus: Sequence[Gpu] = (), budget_seconds: float = BUDGET_SECONDS
) -> Mapping[str, Mapping[str, Any]]:
    """Check a provider of attributes; return what it gave by GPU UUID.

    Args:
        provider: What the entry point names: a callable, or a class.
        gpus: Cards that are called with beside the odd ones; two A100s if empty.
        budget_seconds: Time for all of them.

    Raises:
        AssertionError: It fails, is late, gives what a device cannot have, or changes its answers.
    """
    return _checked(Kind.ATTRIBUTES, provider, gpus, budget_seconds)


def check_capacities(
    provider: object, *, gpus: Sequence[Gpu] = (), budget_seconds: float = BUDGET_SECONDS
) -> Mapping[str, Mapping[str, Any]]:
    """Check a provider of capacities; return what it gave by GPU UUID. See check_attributes()."""
    return _checked(Kind.CAPACITIES, provider, gpus, budget_seconds)


def check_health_source(
    source: object, *, gpus: Sequence[Gpu] = (), budget_seconds: float = BUDGET_SECONDS
) -> Mapping[str, Sequence[str]]:
    """Check a health source; return the reasons that it gave by GPU UUID.

    Raises:
        AssertionError: It fails, is late, answers with no problems, or changes its answers.
    """
    cards = (*(gpus or (gpu(0), gpu(1))), *ODD_GPUS)
    with closing(_providers(Kind.HEALTH, source, budget_seconds)) as providers:
        first = providers.troubles(Inventory(gpus=cards))
        _check_outcome(providers)
        second = providers.troubles(Inventory(gpus=cards))
        _check_outcome(providers)
    _check_equal(first, second)
    return {uuid: _reasons(troubles) for uuid, troubles in first.items() if troubles}


def _checked(
    kind: Kind, provider: object, gpus: Sequence[Gpu], budget_seconds: float
) -> Mapping[str, Mapping[str, Any]]:
    cards = (*(gpus or (gpu(0), gpu(1))), *ODD_GPUS)
    reading = Reading(inventory=Inventory(gpus=cards), node=node())
    with closing(_providers(kind, provider, budget_seconds)) as providers:
        first = providers.devices(reading)
        _check_outcome(providers)
        second = providers.devices(reading)
        report = _check_outcome(providers)
    for device, refused in report.refused.items():
        raise AssertionError(f"{device}: {refused[0].name}: {refused[0].reason}")
    _check_equal(first, second)
    return {
        device.gpu.uuid: _given(kind, device, report.given[device.name])
        for device in first
        if device.name in report.given
    }


def _given(kind: Kind, device: Device, given: Sequence[str]) -> Mapping[str, Any]:
    entries: Mapping[str, Any] = device.attributes if kind is Kind.ATTRIBUTES else device.capacity
    return {name: entries[name] for name in given}


def _providers(kind: Kind, provider: object, budget_seconds: float) -> Providers:
    tested = Registered(kind=kind, name=_NAME, package=_NAME, load=lambda: provider)
    return Providers([*OWN, tested], budget_seconds=budget_seconds)


def _check_outcome(providers: Providers) -> Report:
    report = next(each for each in providers.reports() if each.registered.name == _NAME)
    for uuid, error in report.outcome.errors.items():
        raise AssertionError(f"{uuid or 'the provider'}: {error}")
    assert report.outcome.state is State.OK
    return report


def _check_equal(first: object, second: object) -> None:
    assert first == second, (
        "two calls differ, and every change is written to the API server: "
        f"found {second}, expected {first}"[:2000]
    )


def _reasons(troubles: Sequence[Trouble]) -> Sequence[str]:
    return [trouble.reason for trouble in troubles]

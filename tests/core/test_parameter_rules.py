"""Opaque parameters for this driver are checked where they are written."""

from typing import Any

import pytest

from tensorfusion_dra.core import parameter_rules
from tests.support.admission import Json

GOOD = {"apiVersion": "tensor-fusion.ai/v1alpha1", "kind": "GpuShare", "limits": {"vram": "8Gi"}}
PATHS = {kind: ".".join(path) for kind, path in parameter_rules.CONFIG_PATHS.items()}


def configured(kind: str, *parameters: Any, driver: str = "tensor-fusion.ai.dra-driver") -> Json:
    """An object with these parameters where its kind has them."""
    opaque = [{"opaque": {"driver": driver, "parameters": each}} for each in parameters]
    document: Any = opaque
    for name in reversed(parameter_rules.CONFIG_PATHS[kind]):
        document = {name: document}
    return dict(document)


def errors(kind: str, found: Json, old: Json | None = None) -> list[str]:
    return [str(error) for error in parameter_rules.errors(kind, found, old or {})]


@pytest.mark.parametrize("kind", PATHS)
def test_good_parameters_pass(kind: str) -> None:
    assert errors(kind, configured(kind, GOOD)) == []


@pytest.mark.parametrize("kind", PATHS)
def test_every_error_comes_with_its_path(kind: str) -> None:
    bad = {**GOOD, "qos": "best", "limits": {"vram": "-1", "gpus": 2}}

    found = errors(kind, configured(kind, GOOD, bad))

    where = f"{PATHS[kind]}[1].opaque.parameters"
    assert found == [
        f"{where}.limits.gpus: found this field, expected one of tflops, vram",
        f"{where}.limits.vram: found '-1', expected more than 0",
        f"{where}.qos: found 'best', expected one of low, medium, high, critical",
    ]


@pytest.mark.parametrize("parameters", [None, 7, "text", []])
def test_parameters_that_are_no_object_are_refused(parameters: Any) -> None:
    found = errors("ResourceClaim", configured("ResourceClaim", parameters))

    where = "spec.devices.config[0].opaque.parameters"
    assert found[0] == f"{where}: found {parameters!r}, expected an object"


def test_what_only_an_administrator_may_say_stands_in_a_class_alone() -> None:
    trusted = {**GOOD, "limiter": False}

    assert errors("DeviceClass", configured("DeviceClass", trusted)) == []
    assert errors("ResourceClaim", configured("ResourceClaim", trusted)) != []


def test_parameters_of_other_drivers_are_theirs_to_check() -> None:
    other = configured("ResourceClaim", {"kind": "Nic"}, driver="nic.example.com")

    assert errors("ResourceClaim", other) == []


def test_what_is_stored_already_does_not_keep_anybody_from_changing_the_rest() -> None:
    stored = configured("DeviceClass", {"kind": "Old"})

    assert errors("DeviceClass", stored, stored) == []
    assert errors("DeviceClass", configured("DeviceClass", {"kind": "New"}), stored) != []


@pytest.mark.parametrize("spec", [None, [], {"config": {}}, {"config": [None, 1, {"opaque": 2}]}])
def test_an_object_without_configurations_has_no_errors(spec: Any) -> None:
    assert errors("DeviceClass", {"spec": spec}) == []

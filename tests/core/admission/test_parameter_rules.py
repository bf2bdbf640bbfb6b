"""Opaque parameters for this driver are checked at admission."""

from typing import Any

import pytest

from tensorfusion_dra.core.admission import claim_admission
from tests.support.admission import Json

GOOD = {"apiVersion": "tensor-fusion.ai/v1alpha1", "kind": "GpuShare", "limits": {"vram": "8Gi"}}
PATHS = {kind: ".".join(path) for kind, path in claim_admission.CONFIG_PATHS.items()}


def configured(kind: str, *parameters: Any, driver: str = "tensor-fusion.ai.dra-driver") -> Json:
    """Return an object of a kind with these parameters."""
    opaque = [{"opaque": {"driver": driver, "parameters": each}} for each in parameters]
    document: Any = opaque
    for name in reversed(claim_admission.CONFIG_PATHS[kind]):
        document = {name: document}
    return dict(document)


def errors(
    kind: str, found: Json, old: Json | None = None, *, enforces_hard: bool = False
) -> list[str]:
    found_errors = claim_admission.errors(kind, found, old or {}, enforces_hard=enforces_hard)
    return [str(error) for error in found_errors]


@pytest.mark.parametrize("kind", PATHS)
def test_valid_parameters_pass(kind: str) -> None:
    assert errors(kind, configured(kind, GOOD)) == []


@pytest.mark.parametrize("kind", PATHS)
def test_every_error_has_its_path(kind: str) -> None:
    bad = {**GOOD, "qos": "best", "limits": {"vram": "-1", "gpus": 2}}

    found = errors(kind, configured(kind, GOOD, bad))

    where = f"{PATHS[kind]}[1].opaque.parameters"
    assert found == [
        f"{where}.limits.gpus: found this field, expected one of tflops, vram",
        f"{where}.limits.vram: found '-1', expected more than 0",
        f"{where}.qos: found 'best', expected one of low, medium, high, critical",
    ]


def test_parameters_of_other_drivers_are_not_checked() -> None:
    other = configured("ResourceClaim", {"kind": "Nic"}, driver="nic.example.com")

    assert errors("ResourceClaim", other) == []


def test_stored_parameters_are_not_checked_again() -> None:
    stored = configured("DeviceClass", {"kind": "Old"})

    assert errors("DeviceClass", stored, stored) == []
    assert errors("DeviceClass", configured("DeviceClass", {"kind": "New"}), stored) != []


@pytest.mark.parametrize("spec", [None, [], {"config": {}}, {"config": [None, 1, {"opaque": 2}]}])
def test_object_without_configurations_has_no_errors(spec: Any) -> None:
    assert errors("DeviceClass", {"spec": spec}) == []


OF_TENANTS = [kind for kind in PATHS if kind != "DeviceClass"]


def with_requests(kind: str, parameters: Any, *requests: Json, to: list[str] | None = None) -> Json:
    """Return an object with these parameters, for all its requests unless some are named."""
    document = configured(kind, parameters)
    devices: Any = document
    for name in claim_admission.CONFIG_PATHS[kind][:-1]:
        devices = devices[name]
    devices["requests"] = list(requests)
    if to is not None:
        devices["config"][0]["requests"] = to
    return document


def amounts(**named: str) -> Json:
    return {"capacity": {"requests": named}}


HARD = {**GOOD, "isolation": "hard"}
SHARED = {**GOOD, "isolation": "shared"}


@pytest.mark.parametrize("kind", OF_TENANTS)
def test_tenant_may_choose_hard_if_the_enforcer_brings_a_limiter_for_it(kind: str) -> None:
    assert errors(kind, configured(kind, HARD), enforces_hard=True) == []
    (found,) = errors(kind, configured(kind, HARD))

    assert found.startswith(
        f"{PATHS[kind]}[0].opaque.parameters.isolation: found hard, expected an enforcer that "
        "brings one (hami-core, mps), or hard from an administrator"
    )


@pytest.mark.parametrize("kind", OF_TENANTS)
@pytest.mark.parametrize(
    ("request_of_it", "refused"),
    [
        ({"exactly": amounts(vram="1Mi")}, "gpu"),
        ({"exactly": amounts(tflops="0")}, "gpu"),
        ({"exactly": amounts(virtual_vram="1Mi")}, "gpu"),
        ({"exactly": amounts(**{"tensor-fusion.ai.dra-driver/vram": "1Mi"})}, "gpu"),
        ({"firstAvailable": [{"name": "a"}, {"name": "b", **amounts(vram="1Gi")}]}, "gpu/b"),
        ({"exactly": {"count": 2}}, ""),
        ({"exactly": {"adminAccess": True, **amounts(vram="1Mi")}}, ""),
        ({"exactly": amounts(bandwidth="1G")}, ""),
        ({"firstAvailable": [{"name": "a"}]}, ""),
    ],
)
def test_tenant_may_choose_shared_only_for_whole_cards(
    kind: str, request_of_it: Json, refused: str
) -> None:
    found = errors(kind, with_requests(kind, SHARED, {"name": "gpu", **request_of_it}))

    where = f"{PATHS[kind]}[0].opaque.parameters.isolation"
    expected = f"{where}: found shared and amounts in request {refused}, expected the whole card"
    assert [text[: len(expected)] for text in found] == ([expected] if refused else [])


@pytest.mark.parametrize(
    ("to", "is_refused"),
    [(["gpu"], True), (["gpu/b"], True), (["gpu/a"], False), (["other"], False), ([], True)],
)
def test_shared_is_checked_only_for_the_requests_of_its_config(
    to: list[str], *, is_refused: bool
) -> None:
    request = {"name": "gpu", "firstAvailable": [{"name": "a"}, {"name": "b", **amounts(vram="1")}]}

    found = errors("ResourceClaim", with_requests("ResourceClaim", SHARED, request, to=to))

    assert bool(found) is is_refused

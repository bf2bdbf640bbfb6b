"""Findings about the DeviceClass and the claim templates."""

from typing import Any

import pytest

from tensorfusion_dra.core.doctor import classes
from tensorfusion_dra.core.doctor.finding import Level

DRIVER = "tensor-fusion.ai.dra-driver"


def class_with_selectors(*expressions: str, config: list[Any] | None = None) -> dict[str, Any]:
    selectors = [{"cel": {"expression": text}} for text in expressions]
    return {"spec": {"selectors": selectors, "config": config or []}}


@pytest.mark.parametrize(
    ("stored", "level"),
    [
        (class_with_selectors(f'device.driver == "{DRIVER}"'), Level.OK),
        (class_with_selectors("true", f"device.driver=='{DRIVER}'"), Level.OK),
        (class_with_selectors('device.driver == "gpu.nvidia.com"'), Level.WARNING),
        (class_with_selectors(), Level.WARNING),
        (None, Level.PROBLEM),
    ],
)
def test_class_must_exist_and_select_this_driver(
    stored: dict[str, Any] | None, level: Level
) -> None:
    (finding,) = classes.device_class(stored)

    assert finding.level is level


def test_malformed_parameters_are_a_problem() -> None:
    good = {"apiVersion": "tensor-fusion.ai/v1alpha1", "kind": "GpuShare", "isolation": "hard"}
    config = [
        {"opaque": {"driver": DRIVER, "parameters": good}},
        {"opaque": {"driver": "gpu.nvidia.com", "parameters": {"any": 1}}},
        {"opaque": {"driver": DRIVER, "parameters": {**good, "isolation": "hardest"}}},
    ]
    stored = class_with_selectors(f'device.driver == "{DRIVER}"', config=config)

    fine, wrong = classes.device_class(stored)

    assert (fine.level, wrong.level) == (Level.OK, Level.PROBLEM)
    assert "config[2]" in wrong.subject
    assert "hardest" in wrong.found


def template_for_class(namespace: str, class_name: str) -> dict[str, Any]:
    exactly = {"deviceClassName": class_name}
    devices = {"requests": [{"name": "gpu-request", "exactly": exactly}]}
    return {"metadata": {"namespace": namespace}, "spec": {"spec": {"devices": devices}}}


def test_templates_must_name_existing_classes() -> None:
    stored = [
        template_for_class("a", "tensor-fusion.ai"),
        template_for_class("b", "tensor-fusion-gpu"),
    ]

    fine, wrong = classes.templates(stored, classes=["tensor-fusion.ai"])

    assert (fine.level, wrong.level) == (Level.OK, Level.PROBLEM)
    assert "tensor-fusion-gpu" in wrong.found


def test_classes_of_subrequests_are_checked_too() -> None:
    stored = template_for_class("a", "tensor-fusion.ai")
    (request,) = stored["spec"]["spec"]["devices"]["requests"]
    request["firstAvailable"] = [{"name": "x", **request.pop("exactly")}]

    assert [f.level for f in classes.templates([stored], classes=[])] == [Level.PROBLEM]


def test_missing_template_is_only_a_note() -> None:
    (finding,) = classes.templates([], classes=[])

    assert finding.level is Level.NOTE

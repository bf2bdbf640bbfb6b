"""Policies about the marks of workers, evaluated as an API server does."""

from typing import Any, Final

import pytest
from cel_expr_python import cel
from cel_expr_python.ext import ext_optional, ext_strings

from tensorfusion_dra.core import names
from tests.daemonset.test_manifests import VARIANTS
from tests.support import helm

PLUGIN: Final = "system:serviceaccount:tensorfusion-dra:tensorfusion-dra-node-plugin"
SCHEDULER: Final = "system:serviceaccounts:tensor-fusion-sys"
MARKED: Final = {names.MARK_DRA_MARKS: "index", names.MARK_INDEX: "1"}
WORKER: Final = {names.LABEL_COMPONENT: names.COMPONENT_WORKER}
GIVEN: Final = {names.MARK_INDEX: "1", names.MARK_GPU_IDS: "gpu-0"}
PLAIN: Final = {"tensor-fusion.ai/tflops-limit": "312"}


def pod(annotations: dict[str, str], labels: dict[str, str] | None = None) -> Any:
    """Return a pod; one without annotations has no such field."""
    fields = {"annotations": annotations, "labels": labels}
    metadata = {"name": "train", **{key: value for key, value in fields.items() if value}}
    return {"metadata": metadata, "spec": {"nodeName": "node-01"}}


def denial(name: str, old: Any, new: Any, *, user: str = "tenant", group: str = "") -> str:
    """Return why a policy denies a write; "" if it admits it, or does not concern it."""
    rendered = helm.render(VARIANTS["hypervisor"])
    spec = next(
        each["spec"]
        for each in rendered
        if each["kind"] == "ValidatingAdmissionPolicy" and each["metadata"]["name"] == name
    )
    extensions = [ext_strings.ExtStrings(2), ext_optional.ExtOptional()]
    roots = ("request", "object", "oldObject", "variables")
    environment = cel.NewEnv(variables=dict.fromkeys(roots, cel.Type.DYN), extensions=extensions)
    operation = "UPDATE" if old else "CREATE"
    data: dict[str, Any] = {
        "request": {"operation": operation, "userInfo": {"username": user, "groups": [group]}},
        "object": new,
        "oldObject": old,
        "variables": {},
    }

    def value(expression: str) -> Any:
        found = environment.compile(expression, disable_check=True).eval(data=data)
        assert found.type() != cel.Type.ERROR, (expression, found.value())
        return found.plain_value()

    if not all(value(each["expression"]) for each in spec["matchConditions"]):
        return ""
    for variable in spec["variables"]:
        data["variables"][variable["name"]] = value(variable["expression"])
    for each in spec["validations"]:
        if not value(each["expression"]):
            return str(each["message"] if "message" in each else value(each["messageExpression"]))
    return ""


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (None, pod({}), ""),
        (None, pod(PLAIN), ""),
        (
            None,
            pod({names.MARK_GPU_IDS: "gpu-0"}, WORKER),
            "tensor-fusion.ai/gpu-ids: only the node",
        ),
        (
            None,
            pod({names.MARK_DRA_MARKS: "gpu-ids"}),
            "expected no change of tensor-fusion.ai/dra-marks",
        ),
        (pod(PLAIN), pod({}), ""),
        (pod(PLAIN), pod({**PLAIN, names.MARK_INDEX: "1"}), "tensor-fusion.ai/index: only the"),
        (pod(GIVEN), pod({**GIVEN, names.MARK_DRA_MARKS: "gpu-ids"}), "tensor-fusion.ai/dra-marks"),
        (pod(GIVEN), pod({}), "tensor-fusion.ai/index, tensor-fusion.ai/gpu-ids: only the"),
        (pod(GIVEN), pod({**GIVEN, **PLAIN, "app": "x"}), ""),
        (pod({}), pod({"app": "x"}, WORKER), ""),
        (pod(MARKED, WORKER), pod({**MARKED, "app": "x"}, {**WORKER, "app": "x"}), ""),
        (
            pod(MARKED, WORKER),
            pod({**MARKED, **PLAIN}, WORKER),
            "change of tensor-fusion.ai/tflops",
        ),
        (
            pod(MARKED, WORKER),
            pod({**MARKED, names.MARK_INDEX: "2"}, WORKER),
            "the node plugin owns",
        ),
        (pod(MARKED, WORKER), pod({}, WORKER), "the node plugin owns them"),
        (pod(MARKED, WORKER), pod(MARKED), "label tensor-fusion.ai/component: expected no change"),
    ],
)
def test_marks_are_the_node_plugins_alone(old: Any, new: Any, expected: str) -> None:
    found = denial("tensorfusion-dra-marks", old, new)

    assert expected in found
    assert bool(found) is bool(expected)
    assert denial("tensorfusion-dra-marks", old, new, user=PLUGIN) == ""


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (pod(PLAIN, WORKER), pod({**PLAIN, **GIVEN}, WORKER), ""),
        (pod(GIVEN, WORKER), pod({}, WORKER), ""),
        (pod(GIVEN), pod({**GIVEN, names.MARK_DRA_MARKS: "gpu-ids"}), "tensor-fusion.ai/dra-marks"),
        (
            pod(MARKED, WORKER),
            pod({**MARKED, **GIVEN}, WORKER),
            "tensor-fusion.ai/gpu-ids: the node",
        ),
    ],
)
def test_tensor_fusions_scheduler_gives_cards_to_pods_of_its_own(
    old: Any, new: Any, expected: str
) -> None:
    found = denial("tensorfusion-dra-marks", old, new, group=SCHEDULER)

    assert expected in found
    assert bool(found) is bool(expected)

"""Amounts of a DeviceClass, in the claims that name none."""

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import pytest

from tensorfusion_dra.core import names
from tensorfusion_dra.core.admission import class_admission, quota
from tensorfusion_dra.core.claims.share_policy import ParameterError, ShareParameters
from tensorfusion_dra.core.errors import InputError
from tests.support.builders.classes import share_class

Json = dict[str, Any]

QUARTER = {"tflops": "25", "vram": "20Gi"}
VIRTUAL = {"virtual_tflops": "25", "virtual_vram": "20Gi"}
UNIQUE = f"{names.DRIVER}/uuid"


def classes(requests: Mapping[str, str] = QUARTER, **fields: Any) -> dict[str, ShareParameters]:
    """Return the parameters of the class `quarter`, and of `half`, which is for 40Gi."""
    made = {
        "quarter": share_class("quarter", requests=requests, **fields),
        "half": share_class("half", requests={"vram": "40Gi"}),
    }
    found = {name: class_admission.of_class(document) for name, document in made.items()}
    return {name: parameters for name, parameters in found.items() if parameters}


def exactly(**fields: Any) -> Json:
    return {"deviceClassName": "quarter", "allocationMode": "ExactCount", "count": 1, **fields}


def claim(*requests: Json, **devices: Any) -> Json:
    return {"metadata": {"name": "a"}, "spec": {"devices": {"requests": [*requests], **devices}}}


def one(**fields: Any) -> Json:
    return {"name": "gpu", "exactly": exactly(**fields)}


def filled(document: Json, found: dict[str, ShareParameters], *, splits: bool = False) -> Json:
    """Return the devices of the filled claim."""
    apart = class_admission.several(document, found)
    devices: Json = class_admission.filled(document, found, apart, splits=splits)["spec"]["devices"]
    return devices


@pytest.mark.parametrize(
    ("named", "requests", "expected"),
    [
        ({}, QUARTER, QUARTER),
        ({}, {"tflops": "1.00055", "vram": "1.3333Gi"}, {"tflops": "1001m", "vram": "1431619974"}),
        ({"vram": "1Gi"}, QUARTER, {"vram": "1Gi", "tflops": "25"}),
        ({f"{names.DRIVER}/vram": "1Gi"}, {"vram": "20Gi"}, {f"{names.DRIVER}/vram": "1Gi"}),
        ({"tflops": "1", "vram": "1Gi"}, QUARTER, {"tflops": "1", "vram": "1Gi"}),
        ({}, VIRTUAL, VIRTUAL),
        ({"vram": "1Gi"}, VIRTUAL, {"vram": "1Gi", "virtual_tflops": "25"}),
        ({"virtual_vram": "1Gi"}, QUARTER, {"virtual_vram": "1Gi", "tflops": "25"}),
        ({"rack.example/power": "1"}, QUARTER, {"rack.example/power": "1", **QUARTER}),
    ],
)
def test_request_gets_the_amounts_that_it_does_not_name(
    named: Json, requests: Json, expected: Json
) -> None:
    devices = filled(claim(one(capacity={"requests": named})), classes(requests))

    assert devices["requests"][0]["exactly"]["capacity"]["requests"] == expected


def test_alternatives_get_the_amounts_of_their_own_class_and_others_none() -> None:
    of_classes = [{"name": n, "deviceClassName": n, "count": 1} for n in ("half", "quarter", "nic")]
    admin = {"name": "admin", "exactly": exactly(adminAccess=True)}
    asked = claim({"name": "gpu", "firstAvailable": of_classes}, admin)

    first, second = filled(asked, classes())["requests"]

    amounts = [each.get("capacity") for each in first["firstAvailable"]]
    assert amounts == [{"requests": {"vram": "40Gi"}}, {"requests": QUARTER}, None]
    assert second == admin


@pytest.mark.parametrize(
    ("named", "error"),
    [
        (QUARTER, ""),
        ({"tflops": "25000m"}, ""),
        ({"tflops": "26"}, "tflops: 26, expected 25"),
        ({f"{names.DRIVER}/virtual_vram": "1"}, "virtual_vram: 1, expected none"),
    ],
)
def test_amounts_of_its_own_are_refused_where_the_class_forbids_them(
    named: Json, error: str
) -> None:
    asked = claim(one(capacity={"requests": named}))

    refused = pytest.raises(InputError, match=f"request gpu: found {error}: DeviceClass quarter")
    with refused if error else nullcontext():
        filled(asked, classes(overridable=False))


def test_several_cards_of_a_request_are_kept_apart_by_one_constraint() -> None:
    devices = filled(claim(one(count=4), {"name": "one", "exactly": exactly()}), classes())

    assert [each["exactly"]["count"] for each in devices["requests"]] == [4, 1]
    assert devices["constraints"] == [{"requests": ["gpu"], "distinctAttribute": UNIQUE}]
    assert filled({"spec": {"devices": devices}}, classes()) == devices


def test_several_cards_become_a_request_each_where_a_request_may_get_one_twice() -> None:
    asked = claim(one(count=3), config=[{"requests": ["gpu"], "opaque": {}}])

    every = ["gpu", "gpu-2", "gpu-3"]
    amounts = exactly(capacity={"requests": QUARTER})
    assert filled(asked, classes(), splits=True) == {
        "requests": [{"name": name, "exactly": amounts} for name in every],
        "constraints": [{"requests": every, "distinctAttribute": UNIQUE}],
        "config": [{"requests": every, "opaque": {}}],
    }


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (
            {"name": "gpu", "firstAvailable": [{"name": "a", **exactly(count=2)}]},
            "request gpu: found several GPUs, expected `exactly`",
        ),
        (one(count=10**12), "a count of at most 32"),
    ],
)
def test_what_cannot_be_split_is_refused_by_name(request_: Json, error: str) -> None:
    with pytest.raises(InputError, match=error):
        filled(claim(request_), classes(), splits=True)


def test_containers_that_name_a_request_for_several_cards_are_found() -> None:
    asked = claim(one(count=2))
    asked["metadata"]["annotations"] = {"resource.kubernetes.io/pod-claim-name": "share"}
    uses = [{"name": "other", "request": "gpu"}, {"name": "share", "request": "gpu"}]
    pod = {"spec": {"containers": [{"name": "app", "resources": {"claims": uses}}]}}

    found = [*class_admission.named_by_containers(pod, asked, ["gpu", "gpu-2"])]

    assert [error.path for error in found] == ["pod spec.containers[0].resources.claims[1].request"]


@pytest.mark.parametrize(
    "found", [share_class("a", requests={"x": "1"}, driver="gpu.nvidia.com"), {"spec": {}}]
)
def test_class_without_parameters_of_this_driver_is_none_of_its_classes(found: Json) -> None:
    assert class_admission.of_class(found) is None


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"requests": {"vram": "0"}}, "requests.vram: found '0', expected more than 0"),
        ({"requests": {"memory": "1Gi"}}, "requests.memory: found this field"),
        ({"requests": None}, "requests: found None, expected an object"),
        (
            {"requests": QUARTER, "isolation": "shared"},
            "isolation: found shared beside requests",
        ),
        (
            {"requests": QUARTER, "limits": {"vram": "19Gi"}},
            "limits.vram: found 19Gi, expected at least its request 20Gi",
        ),
    ],
)
def test_amounts_that_no_claim_could_have_are_errors_of_the_class(fields: Any, error: str) -> None:
    with pytest.raises(ParameterError, match=error):
        class_admission.of_class(share_class("a", **fields))


@pytest.mark.parametrize(
    ("overridable", "own", "expected"),
    [(True, {"tflops": "50"}, "100"), (False, {"tflops": "50"}, "80"), (True, {}, "80")],
)
def test_quotas_count_the_limits_of_the_class_or_of_the_claim(
    own: Json, expected: str, *, overridable: bool
) -> None:
    config = share_class("a", limits=own)["spec"]["config"]
    asked = claim(one(count=2, capacity={"requests": QUARTER}), config=config)
    found = classes(limits={"tflops": "40"}, overridable=overridable)

    counted = quota.counted(asked, found)

    assert {name: str(amount) for name, amount in counted.items()} == {
        "requests.tflops": "50",
        "requests.vram": "40Gi",
        "limits.tflops": expected,
        "limits.vram": "40Gi",
        "workers": "1",
    }
    assert quota.counted(asked) == {}


def template(*requests: Json, **annotations: str) -> Json:
    spec = claim(*requests)["spec"]
    return {"metadata": {"name": "a", "annotations": annotations}, "spec": {"spec": spec}}


def test_template_gets_the_amounts_of_its_class_and_says_so() -> None:
    found = class_admission.of_template(template(one(count=2), {"name": "nic"}), classes())

    gpu, nic = found["spec"]["spec"]["devices"]["requests"]
    assert gpu["exactly"] == exactly(count=2, capacity={"requests": QUARTER})
    assert nic == {"name": "nic"}
    assert found["metadata"]["annotations"] == {names.ANNOTATION_FILLED: "gpu:tflops,gpu:vram"}
    assert "constraints" not in found["spec"]["spec"]["devices"], "the claim's own review adds it"
    assert class_admission.of_template(found, classes()) is found
    assert list(class_admission.outdated(found, classes())) == []


@pytest.mark.parametrize(
    ("named", "at_first", "now", "expected"),
    [
        ({}, {"vram": "20Gi"}, {"vram": "40Gi"}, [("vram 20Gi", "40Gi")]),
        ({}, QUARTER, {"vram": "20Gi"}, [("tflops 25", "none")]),
        ({}, {"vram": "20Gi"}, QUARTER, [("tflops none", "25")]),
        ({}, {"vram": "20Gi"}, None, [("vram 20Gi", "none")]),
        ({}, None, QUARTER, [("tflops none", "25"), ("vram none", "20Gi")]),
        ({}, QUARTER, {"tflops": "25000m", "vram": "20480Mi"}, []),
        # Amounts that the template names itself are none of the class.
        ({"vram": "1Gi"}, QUARTER, {"tflops": "25", "vram": "40Gi"}, []),
        ({"vram": "1Gi"}, QUARTER, {"tflops": "50"}, [("tflops 25", "50")]),
        ({"vram": "1Gi"}, VIRTUAL, VIRTUAL, []),
        ({"vram": "1Gi"}, {"vram": "20Gi"}, {"vram": "40Gi"}, []),
    ],
)
def test_amounts_of_a_filled_template_are_outdated_once_the_class_has_others(
    named: Json, at_first: Json | None, now: Json | None, expected: list[tuple[str, str]]
) -> None:
    own = template(one(capacity={"requests": named}))

    filled_in = class_admission.of_template(own, classes(at_first) if at_first else {})
    current = classes(now) if now else {}
    found = list(class_admission.outdated(filled_in, current))

    assert found == [
        (f"request gpu: {had}", f"{has}, which its class has now") for had, has in expected
    ]


def test_template_that_is_filled_again_keeps_the_names_of_what_was_filled() -> None:
    first = class_admission.of_template(template(one()), classes({"vram": "20Gi"}))

    again = class_admission.of_template(first, classes(QUARTER))

    assert again["metadata"]["annotations"] == {names.ANNOTATION_FILLED: "gpu:vram,gpu:tflops"}
    assert [each for each, _ in class_admission.outdated(again, classes({"vram": "1Gi"}))] == [
        "request gpu: tflops 25",
        "request gpu: vram 20Gi",
    ]

"""Amounts of a DeviceClass, in the claims that name none."""

from collections.abc import Mapping
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
    found = class_admission.of_class(share_class("quarter", requests=requests, **fields))
    assert found is not None
    return {"quarter": found}


def exactly(**fields: Any) -> Json:
    return {"deviceClassName": "quarter", "allocationMode": "ExactCount", "count": 1, **fields}


def claim(*requests: Json, **devices: Any) -> Json:
    return {"metadata": {"name": "a"}, "spec": {"devices": {"requests": [*requests], **devices}}}


def one(**fields: Any) -> Json:
    return {"name": "gpu", "exactly": exactly(**fields)}


def filled(document: Json, found: dict[str, ShareParameters], *, splits: bool = False) -> Json:
    """Return the devices of the filled claim."""
    apart = class_admission.several(document, found)
    result = class_admission.filled(document, found, apart, splits=splits)
    devices: Json = result["spec"]["devices"]
    return devices


@pytest.mark.parametrize(
    ("named", "requests", "expected"),
    [
        ({}, QUARTER, QUARTER),
        ({"vram": "1Gi"}, QUARTER, {"vram": "1Gi", "tflops": "25"}),
        ({f"{names.DRIVER}/vram": "1Gi"}, {"vram": "20Gi"}, {f"{names.DRIVER}/vram": "1Gi"}),
        ({"tflops": "1", "vram": "1Gi"}, QUARTER, {"tflops": "1", "vram": "1Gi"}),
        ({}, VIRTUAL, VIRTUAL),
        ({"vram": "1Gi"}, VIRTUAL, {"vram": "1Gi", "virtual_tflops": "25"}),
        ({"rack.example/power": "1"}, QUARTER, {"rack.example/power": "1", **QUARTER}),
    ],
)
def test_request_gets_the_amounts_that_it_does_not_name(
    named: Json, requests: Json, expected: Json
) -> None:
    devices = filled(claim(one(capacity={"requests": named})), classes(requests))

    assert devices["requests"][0]["exactly"]["capacity"]["requests"] == expected


def test_alternatives_get_the_amounts_of_their_own_class_and_others_none() -> None:
    found = classes()
    found["half"] = ShareParameters(requests=classes({"vram": "40Gi"})["quarter"].requests)
    choices = [
        {"name": name, "deviceClassName": name, "count": 1} for name in ("half", "quarter", "nic")
    ]
    admin = {"name": "admin", "exactly": exactly(adminAccess=True)}

    first, second = filled(claim({"name": "gpu", "firstAvailable": choices}, admin), found)[
        "requests"
    ]

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

    if not error:
        filled(asked, classes(overridable=False))
        return
    with pytest.raises(InputError, match=f"request gpu: found {error}: DeviceClass quarter"):
        filled(asked, classes(overridable=False))


def test_several_cards_of_a_request_are_kept_apart_by_one_constraint() -> None:
    asked = claim(one(count=4), {"name": "one", "exactly": exactly()})

    devices = filled(asked, classes())

    assert [each["exactly"]["count"] for each in devices["requests"]] == [4, 1]
    assert devices["constraints"] == [{"requests": ["gpu"], "distinctAttribute": UNIQUE}]
    assert filled({**asked, "spec": {"devices": devices}}, classes()) == devices


def test_several_cards_become_a_request_each_where_a_request_may_get_one_twice() -> None:
    devices = filled(
        claim(one(count=3), config=[{"requests": ["gpu"], "opaque": {}}]), classes(), splits=True
    )

    every = ["gpu", "gpu-2", "gpu-3"]
    assert [each["name"] for each in devices["requests"]] == every
    assert [each["exactly"] for each in devices["requests"]] == [
        exactly(capacity={"requests": QUARTER})
    ] * 3
    assert devices["constraints"] == [{"requests": every, "distinctAttribute": UNIQUE}]
    assert devices["config"] == [{"requests": every, "opaque": {}}]


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

    (error,) = class_admission.named_by_containers(pod, asked, ["gpu"])

    assert error.path == "pod spec.containers[0].resources.claims[1].request"
    assert not [*class_admission.named_by_containers(pod, asked, ["gpu-2"])]


def test_class_without_parameters_of_this_driver_is_none_of_its_classes() -> None:
    foreign = share_class("a", requests={"x": "1"}, driver="gpu.nvidia.com")

    assert class_admission.of_class(foreign) is None
    assert class_admission.of_class({"spec": {}}) is None


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
            "limits.vram: found 19Gi, expected at least the request of 20Gi",
        ),
    ],
)
def test_amounts_that_no_claim_could_have_are_errors_of_the_class(fields: Any, error: str) -> None:
    with pytest.raises(ParameterError, match=error):
        class_admission.of_class(share_class("a", **fields))


@pytest.mark.parametrize(
    ("overridable", "own", "expected"),
    [(True, "50", "50"), (False, "50", "40"), (True, "", "40")],
)
def test_quotas_count_the_limits_of_the_class_or_of_the_claim(
    own: str, expected: str, *, overridable: bool
) -> None:
    parameters = {
        "apiVersion": "tensor-fusion.ai/v1alpha1",
        "kind": "GpuShare",
        "limits": {"tflops": own} if own else {},
    }
    config = [{"opaque": {"driver": names.DRIVER, "parameters": parameters}}]
    asked = claim(one(count=2, capacity={"requests": QUARTER}), config=config)

    found = class_admission.spelled_out(
        asked, classes(limits={"tflops": "40"}, overridable=overridable)
    )

    counted = {name: str(amount) for name, amount in quota.counted(found).items()}
    assert counted == {
        "requests.tflops": "50",
        "requests.vram": "40Gi",
        "limits.tflops": str(int(expected) * 2),
        "limits.vram": "40Gi",
        "workers": "1",
    }
    assert quota.counted(asked) == {}

"""Devices that claims get, as in Kubernetes: none is over-allocated; several cards; taint rules."""

import copy
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dra_simulator import allocation_results
from tensorfusion_dra.core import names
from tensorfusion_dra.core.admission import cards as published_cards
from tensorfusion_dra.core.admission import claim_admission, class_admission, pod_request
from tensorfusion_dra.core.admission.pod_request import PodRequest
from tensorfusion_dra.core.devices import slices
from tensorfusion_dra.core.devices.capacity import Oversubscription
from tensorfusion_dra.core.kubernetes import quantity, releases
from tensorfusion_dra.core.kubernetes.quantity import Quantity
from tensorfusion_dra.scheduling import allocation
from tensorfusion_dra.scheduling import devices as scheduling_devices
from tensorfusion_dra.scheduling.allocation import NoFitError
from tensorfusion_dra.scheduling.devices import (
    DeviceId,
    Policy,
    PublishedCapacity,
    PublishedDevice,
    SchedulingError,
    with_rules,
)
from tests.support.builders.classes import share_class
from tests.support.builders.devices import NODE as GPU_NODE
from tests.support.builders.devices import published_devices
from tests.support.builders.documents import class_document
from tests.support.builders.gpus import gpus
from tests.support.builders.stored_claims import template_claim
from tests.support.hostile_selectors import LISTS
from tests.support.objects import (
    CLASS,
    DRIVER,
    NODE,
    Json,
    claim,
    device,
    device_class,
    exactly,
    expressions,
    node,
    resource_slice,
    shared,
)
from tests.support.tally import examples

UUID4 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
OPAQUE = {"opaque": {"driver": DRIVER, "parameters": {"mode": "soft"}}}
CLASSES = [
    device_class("of A100", f'device.attributes["{DRIVER}"].model == "A100"'),
    device_class("configured", config=[OPAQUE]),
]
GPUS = [resource_slice(device("gpu-0"), device("gpu-1"))]
ONE_GPU = [resource_slice(device("gpu-0"))]
SHARED = [resource_slice(shared("gpu-0", uuid="a"), shared("gpu-1", uuid="b"))]
ONE_SHARED = [resource_slice(shared("gpu-0", uuid="a"))]
NUMA = [resource_slice(device("gpu-0", numa=0), device("gpu-1", numa=1))]
LISTED = [
    resource_slice(
        *({"name": n, "attributes": {"numa": {"ints": [0]}}} for n in ("nic-0", "nic-1"))
    )
]
SAME = f"does not satisfy matchAttribute {DRIVER}/numa"
SAME_NUMA = {"matchAttribute": f"{DRIVER}/numa"}
OTHER_NUMA = {"distinctAttribute": f"{DRIVER}/numa"}
OTHER_CARD = {"distinctAttribute": f"{DRIVER}/uuid"}
ALL = exactly(allocationMode="All")
HALF = {"tflops": "50", "vram": "20Gi"}
SMALL = {"tflops": "1", "vram": "1Gi"}
MOST = {"tflops": "60", "vram": "1Gi"}
ADMIN = exactly(adminAccess=True)


def allocate(
    *claims: Json,
    slices: Sequence[Json],
    classes: Iterable[Json] = (),
    existing: Iterable[Json] = (),
    release: int = releases.NEWEST,
) -> list[Json]:
    """Return the allocations of a pod's claims on node-a."""
    cluster = allocation.cluster(
        slices=slices,
        classes=[device_class(), *classes],
        claims=[*existing, *claims],
        release=release,
    )
    return allocation_results.allocate(claims, cluster, node())


def allocated(document: Json, slices: Sequence[Json], existing: Iterable[Json] = ()) -> Json:
    """Return the claim with its allocation."""
    (found,) = allocate(document, slices=slices, existing=existing)
    return {**copy.deepcopy(document), "status": {"allocation": found}}


def devices(found: Json) -> list[str]:
    """Return the names of the allocated devices."""
    return [result["device"] for result in found["devices"]["results"]]


def of_model(model: str, name: str = "gpu") -> Json:
    text = f'device.attributes["{DRIVER}"].model == "{model}"'
    return exactly(name, selectors=expressions(text))


def first_available(*alternatives: Json) -> Json:
    """A request with these alternatives."""
    subrequests = [
        {"name": alternative["name"], **alternative["exactly"]} for alternative in alternatives
    ]
    return {"name": "gpu", "firstAvailable": subrequests}


def halves(count: int) -> list[Json]:
    """Claims for half of a card each."""
    return [claim(exactly(capacity=HALF), name=f"half-{number}") for number in range(count)]


def placed(document: Json, **spec: Any) -> Json:
    """The slice with other fields than nodeName: node-a."""
    kept = {key: value for key, value in document["spec"].items() if key != "nodeName"}
    return {**document, "spec": {**kept, **spec}}


UNREPRESENTABLE = (
    'capacity "c": capacity request cannot be represented in the device\'s range arithmetic'
)
NOT_MILLI = (
    UNREPRESENTABLE.replace('"c"', '"{}"') + ": request {} is not a representable milli value"
)
TOO_LARGE = f"{UNREPRESENTABLE}: request {{}} exceeds MaxInt64"
LARGEST = str(2**63 - 1)
TOO_FAR = f"{UNREPRESENTABLE}: rounding request {{}} up to the next step passes {{}}"
NEGATIVE = 'capacity "{}": capacity value is negative'


def checking(name: str, error: str) -> str:
    """The error of a request's amounts on a device of node-a."""
    where = f"device {DRIVER}/node-a/{name}"
    return f"claim default/claim, request gpu: checking capacity for {where}: {error}"


def rejected(**reasons: str) -> dict[str, str]:
    """The reasons by device of node-a, with underscores for the hyphens of its name."""
    return {f"{DRIVER}/node-a/{name.replace('_', '-')}": text for name, text in reasons.items()}


def outcome(
    claims: Sequence[Json], slices: Sequence[Json], held: Sequence[Json] = (), **release: int
) -> Any:
    """Return the devices of each claim, the reason by rejected device, or the error's text.

    Args:
        held: Claims that are allocated before, one after the other.
    """
    existing: list[Json] = []
    for document in held:
        existing.append(allocated(document, slices, existing))
    try:
        found = allocate(*claims, slices=slices, classes=CLASSES, existing=existing, **release)
    except NoFitError as error:
        return error.devices
    except SchedulingError as error:
        return str(error)
    return [devices(each) for each in found]


@pytest.mark.parametrize(
    ("claims", "slices", "held", "expected"),
    [
        pytest.param([claim()], GPUS, [claim(name="first")], [["gpu-1"]], id="one in use"),
        pytest.param(
            [claim()], ONE_GPU, [claim(name="first")], rejected(gpu_0="in use"), id="none is free"
        ),
        pytest.param(halves(1), SHARED, halves(1), [["gpu-0"]], id="shares fill a device"),
        pytest.param(halves(1), SHARED, halves(2), [["gpu-1"]], id="then they get the next"),
        pytest.param(
            [claim(exactly(capacity={"tflops": "1m", "vram": "0"}))],
            SHARED,
            halves(4),
            rejected(
                gpu_0="tflops 100 of 100 taken, 1m more do not fit",
                gpu_1="tflops 100 of 100 taken, 1m more do not fit",
            ),
            id="no share is left",
        ),
        pytest.param(
            [claim()], SHARED, halves(1), [["gpu-1"]], id="without amounts, all of a device"
        ),
        pytest.param(
            [claim(exactly(capacity={"gpc": "1"}))],
            ONE_SHARED,
            [],
            rejected(gpu_0="has no capacity gpc"),
            id="no device has the capacity",
        ),
        pytest.param(
            [claim(exactly("a", capacity=HALF), exactly("b", capacity=HALF))],
            SHARED,
            [],
            [["gpu-0", "gpu-0"]],
            id="two requests on one device",
        ),
        pytest.param(
            [claim(exactly(capacity=HALF, count=2))],
            SHARED,
            [],
            [["gpu-0", "gpu-1"]],
            id="one request for two devices",
        ),
        pytest.param(
            [claim(exactly(capacity=HALF, count=2))],
            ONE_SHARED,
            [],
            {},
            id="one request cannot get a device twice",
        ),
        pytest.param(
            [claim(exactly("a", capacity=MOST), exactly("b", capacity=MOST))],
            ONE_SHARED,
            [],
            rejected(gpu_0="tflops 60 of 100 taken, 60 more do not fit"),
            id="two requests on one device add up",
        ),
        pytest.param(
            [claim(name="any"), claim(of_model("A"), name="picky")],
            [resource_slice(device("gpu-0", model="A"), device("gpu-1", model="B"))],
            [],
            [["gpu-1"], ["gpu-0"]],
            id="the search goes back until all claims fit",
        ),
        pytest.param(
            [
                claim(
                    exactly(
                        allocationMode="All",
                        selectors=expressions(
                            f'device.attributes["{DRIVER}"].?model.orValue("") == "A"'
                        ),
                    )
                )
            ],
            [resource_slice(device("0", model="A"), device("1"), device("2", model="A"))],
            [],
            [["0", "2"]],
            id="all that match",
        ),
        pytest.param(
            [claim(ALL)], GPUS, [claim(name="first")], rejected(gpu_0="in use"), id="all, one used"
        ),
        pytest.param([claim(ALL)], [resource_slice()], [], {}, id="all of none"),
        pytest.param(
            [
                claim(
                    exactly(count=19, selectors=expressions(f'device.attributes["{DRIVER}"].free'))
                )
            ],
            [
                resource_slice(
                    *(
                        device(f"{number:02}", free=number < 18 or number > 30)
                        for number in range(32)
                    )
                )
            ],
            [claim(name="first")],
            rejected(**{"00": "in use"})
            | rejected(**{f"{n}": "does not match the selectors" for n in range(18, 31)}),
            id="18 are free of 19",
        ),
        pytest.param(
            [claim(exactly(deviceClassName="of A100", selectors=expressions("false")))],
            ONE_GPU,
            [],
            "class of A100: selector #1 on device gpu.example.com/node-a/gpu-0: CEL runtime error: "
            "no such key: model",
            id="the class is evaluated first",
        ),
        pytest.param(
            [claim(of_model("A100"))],
            [resource_slice(device("gpu-0"), device("gpu-1", model="A100"))],
            [],
            "claim default/claim: selector #0 on device gpu.example.com/node-a/gpu-0: CEL runtime "
            "error: no such key: model",
            id="a selector fails on one device",
        ),
        pytest.param(
            [claim(exactly(selectors=expressions(LISTS)))],
            ONE_GPU,
            [],
            "claim default/claim: selector #0: CEL compile error: compilation failed: ERROR: "
            "<input>:1:198: found more than 20000 steps to evaluate, expected fewer: a limit of "
            "this driver",
            id="a selector takes too much",
        ),
        pytest.param(
            [claim(exactly(capacity={"tflops": "1", "vram": "1.3333Gi"}))],
            SHARED,
            [],
            checking("gpu-0", NOT_MILLI.format(f"{DRIVER}/vram", "1431619973939200u")),
            id="an amount with a fraction of a thousandth",
        ),
        pytest.param(
            [claim(exactly(capacity={"tflops": "1", "vram": "1e19"}))],
            SHARED,
            [],
            checking("gpu-0", NOT_MILLI.format(f"{DRIVER}/vram", "10e18")),
            id="an amount above 64 bits",
        ),
        pytest.param(
            [claim(exactly(deviceClassName="none"))],
            [],
            [],
            "request gpu: device class none does not exist",
            id="no such class",
        ),
        pytest.param([claim(ADMIN)], ONE_GPU, [claim(name="owner")], [["gpu-0"]], id="admin"),
        pytest.param(
            [claim()], ONE_GPU, [claim(ADMIN, name="admin")], [["gpu-0"]], id="beside an admin"
        ),
        pytest.param(
            [claim(exactly("a", adminAccess=True), exactly("b", adminAccess=True))],
            ONE_GPU,
            [],
            rejected(gpu_0="in use by the same claim"),
            id="an admin gets a device once",
        ),
        pytest.param(
            [claim(exactly(count=33))],
            [],
            [],
            "claim default/claim: number of requested devices 33 exceeds the claim limit of 32",
            id="more than 32 devices",
        ),
        pytest.param(
            [claim(exactly(count=5))],
            [
                resource_slice(device("d1"), device("d0"), name="z", pool="b", count=2),
                resource_slice(device("d2"), name="y", pool="b", count=2),
                resource_slice(device("d3"), name="x", pool="c"),
                resource_slice(device("d4"), name="w", pool="a"),
            ],
            [],
            [["d4", "d2", "d1", "d0", "d3"]],
            id="order of pool, slice and publication",
        ),
        pytest.param(
            [claim(ALL)],
            [resource_slice(device("gpu-0"), count=2)],
            [],
            {f"{DRIVER}/node-a": "1 of 2 slices"},
            id="all of a pool that is being updated",
        ),
        pytest.param(
            [claim()],
            [resource_slice(device("gpu-0"), count=2)],
            [],
            {f"{DRIVER}/node-a": "1 of 2 slices"},
            id="incomplete pool",
        ),
        pytest.param(
            [claim()],
            [
                resource_slice(device("old"), name="a", generation=1),
                resource_slice(device("new"), name="b", generation=2),
            ],
            [],
            [["new"]],
            id="newest generation",
        ),
        pytest.param(
            [claim()],
            [
                resource_slice(device("gpu-0"), name="a", pool="p", generation=1, count=2),
                placed(
                    resource_slice(device("gpu-0"), name="b", pool="p", generation=2),
                    nodeName="node-b",
                ),
            ],
            [],
            {},
            id="newer generation on another node",
        ),
        pytest.param(
            [claim()],
            [
                resource_slice(device("gpu-0"), name="a", pool="p", count=2),
                placed(
                    resource_slice(device("gpu-1"), name="b", pool="p", count=2),
                    nodeName="node-b",
                ),
            ],
            [],
            [["gpu-0"]],
            id="slices of other nodes complete a pool",
        ),
        pytest.param(
            [claim()],
            [
                resource_slice(device("gpu-0"), name="a", count=2),
                resource_slice(device("gpu-0"), name="b", count=2),
            ],
            [],
            {f"{DRIVER}/node-a": "duplicate device name gpu-0"},
            id="duplicate names in a pool",
        ),
        pytest.param(
            [claim()],
            [
                placed(
                    ONE_GPU[0],
                    nodeSelector={
                        "nodeSelectorTerms": [
                            {
                                "matchExpressions": [
                                    {"key": "cards", "operator": "Gt", "values": ["many"]}
                                ]
                            }
                        ]
                    },
                )
            ],
            [],
            "node selector: nodeSelectorTerms[0].matchExpressions[0]: found values ['many'], "
            "expected one whole number",
            id="bound that is no number",
        ),
        pytest.param(
            [claim()], [placed(ONE_GPU[0], nodeName="node-b")], [], {}, id="devices of other nodes"
        ),
        pytest.param(
            [claim()],
            [resource_slice({**device("gpu-0"), "consumesCounters": [{"counterSet": "a"}]})],
            [],
            rejected(gpu_0="uses consumesCounters, which this scheduler does not support"),
            id="unsupported feature",
        ),
        pytest.param(
            [claim(exactly(count=2), constraints=[SAME_NUMA])],
            [resource_slice(device("0", numa=0), device("1", numa=1), device("2", numa=1))],
            [],
            [["1", "2"]],
            id="same value of an attribute",
        ),
        pytest.param(
            [claim(exactly("a"), exactly("b"), constraints=[{**SAME_NUMA, "requests": ["a"]}])],
            NUMA,
            [],
            [["gpu-0", "gpu-1"]],
            id="constraint of another request",
        ),
        pytest.param(
            [claim(constraints=[SAME_NUMA])],
            ONE_GPU,
            [],
            rejected(gpu_0=f"does not satisfy matchAttribute {DRIVER}/numa"),
            id="without the attribute of a constraint",
        ),
        pytest.param(
            [claim(exactly(count=2), constraints=[SAME_NUMA])],
            [resource_slice(device("gpu-0", numa=1), device("gpu-1", numa=True))],
            [],
            rejected(gpu_1=f"does not satisfy matchAttribute {DRIVER}/numa"),
            id="values of different kinds do not match",
        ),
        pytest.param(
            [
                claim(
                    exactly("a", capacity=HALF),
                    exactly("b", capacity=HALF),
                    constraints=[OTHER_CARD],
                )
            ],
            SHARED,
            [],
            [["gpu-0", "gpu-1"]],
            id="distinct attribute",
        ),
        pytest.param(
            [claim(ALL, constraints=[SAME_NUMA])],
            NUMA,
            [],
            f"claim default/claim, request gpu: cannot add device {DRIVER}/node-a/gpu-1 because a "
            "claim constraint would not be satisfied",
            id="all, and one violates a constraint",
        ),
        pytest.param(
            [
                claim(
                    exactly("one", capacity=HALF),
                    exactly("every", allocationMode="All", capacity=MOST),
                    constraints=[OTHER_CARD],
                )
            ],
            ONE_SHARED,
            [],
            f"claim default/claim, request every: cannot add device {DRIVER}/node-a/gpu-0 because "
            "a claim constraint would not be satisfied",
            id="all checks constraints before capacity",
        ),
        pytest.param(
            [
                claim(
                    exactly("first", capacity=HALF),
                    first_available(
                        exactly("every", allocationMode="All", capacity={"tflops": "60"}),
                        exactly("one", capacity=SMALL),
                    ),
                    constraints=[{**OTHER_CARD, "requests": ["gpu"]}],
                )
            ],
            SHARED,
            [],
            [["gpu-0", "gpu-0"]],
            id="all removes a device without capacity from its constraints",
        ),
    ],
)
def test_claims_get(
    claims: list[Json], slices: list[Json], held: list[Json], expected: object
) -> None:
    assert outcome(claims, slices, held) == expected


def test_the_result_names_request_device_and_node() -> None:
    gpus = resource_slice(device("gpu-0", model="V100"), device("gpu-1", model="A100"))

    (found,) = allocate(claim(of_model("A100")), slices=[gpus])

    assert found == {
        "devices": {
            "results": [{"request": "gpu", "driver": DRIVER, "pool": NODE, "device": "gpu-1"}]
        },
        "nodeSelector": {
            "nodeSelectorTerms": [
                {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [NODE]}]}
            ]
        },
    }


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        ({"allNodes": True}, None),
        (
            selector := {
                "nodeSelector": {
                    "nodeSelectorTerms": [
                        {"matchExpressions": [{"key": "zone", "operator": "Exists"}]}
                    ]
                }
            },
            selector["nodeSelector"],
        ),
    ],
)
def test_devices_of_several_nodes_are_available_where_their_slice_allows(
    selection: Json, expected: Json | None
) -> None:
    wide = placed(ONE_GPU[0], **selection)
    cluster = allocation.cluster(slices=[wide], classes=[device_class()], claims=[])

    (found,) = allocation_results.allocate([claim()], cluster, node("node-b", zone="east"))

    assert found.get("nodeSelector") == expected


@pytest.mark.parametrize(
    ("amounts", "consumed"),
    [
        ({"tflops": "71.2"}, {"tflops": "71200m", "vram": "40Gi"}),
        ({}, {"tflops": "100", "vram": "40Gi"}),
    ],
)
def test_a_share_has_its_own_id_and_consumes_every_capacity(
    amounts: dict[str, str], consumed: dict[str, str]
) -> None:
    (found,) = allocate(claim(exactly(capacity=amounts, count=2)), slices=SHARED)

    results = found["devices"]["results"]
    assert all(UUID4.fullmatch(result["shareID"]) for result in results)
    assert len({result["shareID"] for result in results}) == 2
    assert [result["consumedCapacity"] for result in results] == [consumed, consumed]


@pytest.mark.parametrize(
    ("effects", "tolerations", "is_tolerated"),
    [
        (["NoSchedule"], [], False),
        (["NoExecute"], [], False),
        (["NoSchedule"], [{"key": "sick", "operator": "Equal", "value": "ecc"}], False),
        (["NoSchedule"], [{"key": "other", "operator": "Exists"}], False),
        (["NoSchedule"], [{"key": "sick", "operator": "Exists", "effect": "NoExecute"}], False),
        (["None"], [], True),
        (["NoSchedule"], [{"key": "sick", "operator": "Exists"}], True),
        (["NoExecute"], [{"operator": "Exists"}], True),
        (["NoSchedule"], [{"key": "sick", "operator": "Equal", "value": "xid"}], True),
        (["NoSchedule"], [{"key": "sick", "value": "xid"}], True),
        # Each of several taints has to be tolerated.
        (["NoSchedule", "NoExecute"], [{"operator": "Exists"}], True),
        (["NoSchedule", "NoExecute"], [{"operator": "Exists", "effect": "NoSchedule"}], False),
        (["NoSchedule", "NoExecute"], [{"operator": "Exists", "effect": "NoExecute"}], False),
    ],
)
def test_a_taint_repels_a_claim_that_does_not_tolerate_it(
    effects: list[str], tolerations: list[Json], *, is_tolerated: bool
) -> None:
    taints = [{"key": "sick", "value": "xid", "effect": effect} for effect in effects]
    sick = {**device("gpu-0"), "taints": taints}
    wanted = claim(exactly(tolerations=tolerations) if tolerations else exactly())
    gpus = [resource_slice(sick)]

    if is_tolerated:
        (found,) = allocate(wanted, slices=gpus)
        assert found["devices"]["results"][0].get("tolerations", []) == tolerations
    else:
        assert outcome([wanted], gpus) == rejected(gpu_0="taint sick is not tolerated")


@pytest.mark.parametrize(
    ("requests", "expected"),
    [
        ([ADMIN], ["gpu"]),
        ([first_available(of_model("B", "best"), of_model("A", "good"))], ["gpu/good"]),
        (
            [exactly("other"), first_available(exactly("many", count=32), exactly("few"))],
            ["other", "gpu/few"],
        ),
    ],
    ids=["admin", "first alternative that fits", "alternative within the limit of a claim"],
)
def test_results_name_the_alternative_and_admin_access(
    requests: list[Json], expected: list[str]
) -> None:
    gpus = [resource_slice(*(device(f"gpu-{number}", model="A") for number in range(33)))]

    (found,) = allocate(claim(*requests), slices=gpus)

    results = found["devices"]["results"]
    assert [result["request"] for result in results] == expected
    assert results[0].get("adminAccess") is (True if requests == [ADMIN] else None)


def test_configuration_of_the_class_precedes_the_claims_and_names_its_requests() -> None:
    hard = {"opaque": {"driver": DRIVER, "parameters": {"mode": "hard"}}}
    of_class = [exactly(name, deviceClassName="configured") for name in ("a", "b")]
    big_or_small = first_available(exactly("big", count=2), exactly("small"))
    gpus = [resource_slice(*(device(f"gpu-{number}") for number in range(3)))]
    named = [{**hard, "requests": [name]} for name in ("a", "gpu/big", "gpu/small")]

    wanted = claim(*of_class, big_or_small, config=[hard, *named])
    (found,) = allocate(wanted, slices=gpus, classes=CLASSES)

    assert found["devices"]["config"] == [
        {**OPAQUE, "source": "FromClass", "requests": ["a", "b"]},
        {**hard, "source": "FromClaim"},
        {**hard, "source": "FromClaim", "requests": ["a"]},
        {**hard, "source": "FromClaim", "requests": ["gpu/small"]},
    ]


wanted_requests = st.lists(
    st.tuples(
        st.fixed_dictionaries(
            {},
            optional={
                "tflops": st.sampled_from(
                    ["-100", "0", "1m", "25", "33.3", "71200m", "100", "101", "200"]
                ),
                "vram": st.sampled_from(["-1Gi", "1", "20000000001", "16Gi", "40Gi", "41Gi"]),
            },
        ),
        st.integers(1, 3),
    ),
    min_size=1,
    max_size=3,
)


@settings(max_examples=examples(60))
@given(st.lists(wanted_requests, max_size=8))
def test_no_sequence_of_claims_exceeds_the_capacity_of_a_device(
    sequence: list[list[tuple[dict[str, str], int]]],
) -> None:
    gpus = [resource_slice(shared("gpu-0"), shared("gpu-1", tflops="71.2", vram="24Gi"))]
    existing: list[Json] = []
    for number, requests in enumerate(sequence):
        entries = [
            exactly(f"r{index}", capacity=capacity, count=count)
            for index, (capacity, count) in enumerate(requests)
        ]
        with suppress(NoFitError, SchedulingError):
            existing.append(allocated(claim(*entries, name=f"c{number}"), gpus, existing))

    taken = Counter[tuple[str, str]]()
    for document in existing:
        for result in document["status"]["allocation"]["devices"]["results"]:
            for name, text in result["consumedCapacity"].items():
                amount = quantity.parse(text).nano
                assert amount >= 0
                taken[result["device"], name] += amount
    limits = {("gpu-0", "tflops"): "100", ("gpu-0", "vram"): "40Gi"}
    limits |= {("gpu-1", "tflops"): "71.2", ("gpu-1", "vram"): "24Gi"}
    assert all(amount <= quantity.parse(limits[key]).nano for key, amount in taken.items())


CARDS: Final = [resource_slice(*(shared(f"gpu-{name}", uuid=name) for name in "abcd"))]

SOME_EQUAL = [resource_slice(*(shared(f"gpu-{n}", uuid=uuid) for n, uuid in enumerate("xyx")))]
UNEQUAL = [resource_slice(shared("used"), shared("free"), shared("small", vram="10Gi"))]


def of_cards(count: int, *constraints: Json) -> list[Json]:
    return [claim(exactly(count=count, capacity=SMALL), constraints=[*constraints])]


def of_all(vram: str) -> list[Json]:
    return [claim(exactly(allocationMode="All", capacity={"tflops": "1", "vram": vram}))]


@pytest.mark.parametrize(
    ("claims", "slices", "held", "release", "expected"),
    [
        # Before 1.36 one request may get a card several times.
        (of_cards(4), CARDS, [], 36, [["gpu-a", "gpu-b", "gpu-c", "gpu-d"]]),
        (of_cards(4), CARDS, [], 35, [["gpu-a"] * 4]),
        (of_cards(4, OTHER_CARD), CARDS, [], 35, [["gpu-a", "gpu-b"] * 2]),
        (of_cards(4, OTHER_CARD), CARDS, [], 37, [["gpu-a", "gpu-b", "gpu-c", "gpu-d"]]),
        # A distinct attribute is compared with all devices of a request from 1.37 on.
        (of_cards(3, OTHER_CARD), SOME_EQUAL, [], 36, [["gpu-0", "gpu-1", "gpu-2"]]),
        (
            of_cards(3, OTHER_CARD),
            SOME_EQUAL,
            [],
            37,
            rejected(gpu_2=f"does not satisfy distinctAttribute {DRIVER}/uuid"),
        ),
        # A list matches nothing, and is an error from 1.38 on; but one device has no other.
        ([claim(constraints=[SAME_NUMA])], LISTED, [], 37, [["nic-0"]]),
        ([claim(constraints=[OTHER_NUMA])], LISTED, [], 37, [["nic-0"]]),
        ([claim(exactly(count=2), constraints=[SAME_NUMA])], LISTED, [], 37, rejected(nic_1=SAME)),
        (
            [claim(constraints=[OTHER_NUMA])],
            LISTED,
            [],
            38,
            f"claim default/claim, request gpu: device {DRIVER}/node-a/nic-0: unsupported "
            f"attribute value for {DRIVER}/numa",
        ),
        # All devices need enough left from 1.37 on, if they ever had it.
        (of_all("20Gi"), UNEQUAL, halves(1), 36, [["used", "free"]]),
        (of_all("20Gi"), UNEQUAL, halves(1), 37, [["used", "free"]]),
        (of_all("40Gi"), UNEQUAL, halves(1), 36, [["free"]]),
        (
            of_all("40Gi"),
            UNEQUAL,
            halves(1),
            37,
            rejected(used="vram 20Gi of 40Gi taken, 40Gi more do not fit"),
        ),
        (of_all("80Gi"), UNEQUAL, halves(1), 36, {}),
        (of_all("80Gi"), UNEQUAL, halves(1), 37, {}),
    ],
)
def test_claims_get_of_a_release(
    claims: list[Json], slices: list[Json], held: list[Json], *, release: int, expected: object
) -> None:
    assert outcome(claims, slices, held, release=release) == expected


def test_negative_amount_of_any_claim_stops_the_allocation_of_claims() -> None:
    taken = allocated(halves(1)[0], SHARED)
    (result,) = taken["status"]["allocation"]["devices"]["results"]
    result |= {"device": "gone", "pool": "elsewhere", "consumedCapacity": {"vram": "-5"}}
    others = [{**taken, "metadata": {"namespace": "z", "name": name}} for name in ("y", "x")]
    error = f'device {DRIVER}/elsewhere/gone: consumed capacity "vram" must not be negative, got -5'

    assert devices(allocate(claim(), slices=SHARED, existing=[taken], release=37)[0]) == ["gpu-0"]
    assert allocate(slices=SHARED, existing=[taken], release=38) == []
    with pytest.raises(SchedulingError, match=f"^claim default/half-0, {error}$"):
        allocate(claim(), slices=SHARED, existing=[taken], release=38)
    with pytest.raises(SchedulingError, match=r"^claim z/x, .* \(and 1 more claims with invalid"):
        allocate(claim(), slices=SHARED, existing=others, release=38)


@pytest.mark.parametrize("release", [35, 36, 37])
@pytest.mark.parametrize("count", [2, 3, 4])
def test_claim_filled_by_the_webhook_gets_as_many_cards_as_its_pod_requests(
    count: int, release: int
) -> None:
    wanted = PodRequest(count=count, tflops=Quantity.whole(1), vram=Quantity.whole(2**30))
    made = template_claim()
    made["metadata"]["name"] = "train"
    made["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"] = CLASS
    filled = claim_admission.filled(made, [wanted], pool="")
    for request in filled["spec"]["devices"]["requests"]:
        del request["exactly"]["selectors"]  # the cards of this test lack the driver's attributes
    (constraint,) = filled["spec"]["devices"]["constraints"]
    assert constraint["distinctAttribute"] == f"{names.DRIVER}/{names.ATTR_UUID}"
    constraint |= OTHER_CARD

    cards = ["gpu-a", "gpu-b", "gpu-c", "gpu-d"][:count]
    assert outcome([filled], CARDS, release=release) == [cards]


@pytest.mark.parametrize(
    ("known", "release", "requests"),
    [(35, 35, 3), (36, 36, 1), (37, 37, 1), (None, 35, 3), (None, 37, 3)],
)
def test_claim_for_cards_of_a_class_gets_each_once_with_as_few_requests_as_its_release_needs(
    known: int | None, release: int, requests: int
) -> None:
    of_class = class_admission.of_class(share_class(CLASS, requests=SMALL))
    splits = not class_admission.keeps_cards_apart(known)
    asked = claim(exactly(count=3))
    filled = class_admission.filled(asked, {CLASS: of_class}, ["gpu"], splits=splits)
    (constraint,) = filled["spec"]["devices"]["constraints"]
    constraint |= OTHER_CARD

    assert len(filled["spec"]["devices"]["requests"]) == requests
    assert outcome([filled], CARDS, release=release) == [["gpu-a", "gpu-b", "gpu-c"]]


def test_claims_filled_for_both_kinds_of_amounts_fill_cards_of_both_kinds() -> None:
    cards = gpus(2)
    ratios = Oversubscription(tflops_percent=150, host_memory_percent=0, host_disk_percent=0)
    switched = replace(GPU_NODE, oversubscription=ratios)
    found = published_devices(*cards, node=switched, shared={cards[0].uuid: False})
    plan = slices.plan(slices.wanted(found, switched, node_uid="u"), [])
    kinds = published_cards.of_slices(plan.create)
    wanted = PodRequest(tflops=Quantity.whole(156), vram=Quantity.of_bytes(2**30))
    both = pod_request.by_kind([wanted], kinds, pool="default", virtual=False)

    existing: list[Json] = []
    with suppress(NoFitError):
        while True:
            made = claim_admission.filled(template_claim(), both, pool="default")
            made["metadata"]["name"] = f"claim-{len(existing)}"
            cluster = allocation.cluster(
                slices=plan.create, classes=[class_document()], claims=[*existing, made]
            )
            (got,) = allocation_results.allocate([made], cluster, node(GPU_NODE.name))
            existing.append({**made, "status": {"allocation": got}})

    consumed = [each["status"]["allocation"]["devices"]["results"][0] for each in existing]
    assert Counter(
        (
            each["device"],
            *(name for name, text in each["consumedCapacity"].items() if text == "156"),
        )
        for each in consumed
    ) == {(cards[1].uuid.lower(), "virtual_tflops"): 3, (cards[0].uuid.lower(), "tflops"): 2}


OWN_TAINT = {"key": "tensor-fusion.ai/unhealthy", "effect": "NoSchedule"}
ADDED = {"key": "maintenance", "value": "tonight", "effect": "NoExecute"}


def published(pool: str, *names: str) -> dict[str, Any]:
    devices = [{"name": name} for name in names]
    return {"spec": {"driver": "mine", "pool": {"name": pool}, "devices": devices}}


def rule(**selector: str) -> dict[str, Any]:
    return {"spec": {"taint": ADDED, "deviceSelector": selector}}


@pytest.mark.parametrize(
    ("rules", "added"),
    [
        ([{"spec": {"taint": ADDED}}], {}),
        ([rule()], {"a": 1, "b": 1, "c": 1}),
        ([rule(driver="mine")], {"a": 1, "b": 1, "c": 1}),
        ([rule(driver="other")], {}),
        ([rule(pool="two")], {"c": 1}),
        ([rule(device="b")], {"b": 1}),
        ([rule(driver="mine", pool="two", device="b")], {}),
        # The taints of several rules add up.
        ([rule(pool="one"), rule(device="a")], {"a": 2, "b": 1}),
    ],
)
def test_a_rule_taints_what_all_of_its_criteria_select(
    rules: list[Json], added: dict[str, int]
) -> None:
    slices = [published("one", "a", "b"), published("two", "c")]
    slices[0]["spec"]["devices"][0]["taints"] = [OWN_TAINT]
    before = copy.deepcopy(slices)

    found = [device for each in with_rules(rules, slices) for device in each["spec"]["devices"]]

    own = {"a": [OWN_TAINT]}
    expected = {name: own.get(name, []) + [ADDED] * added.get(name, 0) for name in "abc"}
    assert {device["name"]: device.get("taints", []) for device in found} == expected
    assert slices == before, "the slices stay as they are"


Q = quantity.parse


def having(capacity: PublishedCapacity) -> PublishedDevice:
    return PublishedDevice(id=DeviceId(DRIVER, NODE, "gpu-0"), capacity={"c": capacity})


def ranged(
    value: str, least: str, *, most: str | None = None, step: str | None = None, default: str = ""
) -> PublishedCapacity:
    """A capacity with a validRange; the default is all of it unless another is given."""
    policy = Policy(
        default=Q(default or value),
        least=Q(least),
        most=None if most is None else Q(most),
        step=None if step is None else Q(step),
    )
    return PublishedCapacity(Q(value), policy)


TFLOPS = ranged("312", "0")
VRAM = ranged("40Gi", "1Mi", step="1Mi")
STEPS = ranged("100", "10", most="50", step="20", default="10")
FRACTION_STEPS = ranged("100", "200m", step="1", default="200m")
VALUES = PublishedCapacity(
    Q("40"), Policy(default=Q("40"), valid_values=(Q("10"), Q("20"), Q("40")))
)
LARGE_STEPS = ranged("9P", "0", step="4e15")
HUGE_STEPS = ranged("9E", "0", most="9E", step="4e18")
DEFAULT_ONLY = PublishedCapacity(Q("40"), Policy(default=Q("5")))
PLAIN = PublishedCapacity(Q("40"))


@pytest.mark.parametrize(
    ("capacity", "requested", "expected"),
    [
        (TFLOPS, "71200m", "71200m"),
        (TFLOPS, "71.2", "71200m"),
        (TFLOPS, "0", "0"),
        (TFLOPS, "-100", {37: "0", 38: f"{NEGATIVE.format(f'{DRIVER}/c')}: request -100"}),
        (TFLOPS, None, "312"),
        (VRAM, "20000000001", "19074Mi"),
        (VRAM, "16Gi", "16Gi"),
        (VRAM, "0.0001Gi", "1Mi"),
        (
            VRAM,
            "1.3333Gi",
            {36: "1366Mi", 38: NOT_MILLI.format(f"{DRIVER}/c", "1431619973939200u")},
        ),
        (
            VRAM,
            "100.0001Mi",
            {36: "101Mi", 38: NOT_MILLI.format(f"{DRIVER}/c", "104857704857600u")},
        ),
        (VRAM, "1", "1Mi"),
        (VRAM, "-1Gi", {37: "1Mi", 38: f"{NEGATIVE.format(f'{DRIVER}/c')}: request -1Gi"}),
        (VRAM, None, "40Gi"),
        (STEPS, "10", "10"),
        (STEPS, "11", "30"),
        (STEPS, "30500m", "50"),
        (FRACTION_STEPS, "100m", "200m"),
        # Quantity.Value() rounds the range's minimum up as well.
        (FRACTION_STEPS, "500m", {36: "1", 38: "1200m"}),
        (FRACTION_STEPS, "1500m", {36: "2", 38: "2200m"}),
        (FRACTION_STEPS, "1500001u", {36: "2", 38: NOT_MILLI.format(f"{DRIVER}/c", "1500001u")}),
        # A step that is finer than a thousandth.
        (ranged("100", "0", step="500u"), "1500100u", "2"),
        # Beyond 64 bits.
        (VRAM, "10E", {37: TOO_LARGE.format("10E"), 38: NOT_MILLI.format(f"{DRIVER}/c", "10E")}),
        (
            VRAM,
            "8Ei",
            {37: TOO_FAR.format(LARGEST, "MaxInt64"), 38: NOT_MILLI.format(f"{DRIVER}/c", LARGEST)},
        ),
        (
            LARGE_STEPS,
            "8.5e15",
            {
                36: "11718750000000Ki",
                37: "12e15",
                38: TOO_FAR.replace('"c"', f'"{DRIVER}/c"').format(
                    "8500e12", "the milli-value range"
                ),
            },
        ),
        (HUGE_STEPS, "8.5e18", {37: TOO_FAR.format("8500e15", "MaxInt64")}),
        (HUGE_STEPS, "1e19", {37: TOO_LARGE.format("10e18")}),
        (VALUES, "1", "10"),
        (VALUES, "15", "20"),
        (VALUES, "41", "41"),
        (DEFAULT_ONLY, None, "5"),
        (DEFAULT_ONLY, "7", "7"),
        (DEFAULT_ONLY, "-7", {36: "-7", 37: NEGATIVE.format("c")}),
        (PLAIN, None, "40"),
        (PLAIN, "7", "7"),
        (PLAIN, "-7", {36: "-7", 37: NEGATIVE.format("c")}),
    ],
)
def test_a_request_consumes_the_rounded_or_the_default_amount(
    capacity: PublishedCapacity, requested: str | None, expected: str | dict[int, str]
) -> None:
    amounts = {} if requested is None else {"c": quantity.parse(requested, is_capped=False)}
    by_release = dict.fromkeys([36, 37, 38], expected) if isinstance(expected, str) else expected

    for release, text in by_release.items():
        try:
            found = str(scheduling_devices.consumed(amounts, having(capacity), release)["c"])
        except SchedulingError as error:
            found = str(error)
        assert found == text, release


@pytest.mark.parametrize(
    ("capacity", "requested", "taken", "reason"),
    [
        (TFLOPS, "312", "0", None),
        (TFLOPS, "312", "1n", "c 1n of 312 taken, 312 more do not fit"),
        (TFLOPS, "71200m", "240800m", None),
        (TFLOPS, "71200m", "240801m", "do not fit"),
        (TFLOPS, "312001m", "0", "do not fit"),
        (STEPS, "50", "0", None),
        (STEPS, "51", "0", "c 70 is not allowed by its requestPolicy"),
        (VALUES, "40", "0", None),
        (VALUES, "41", "0", "c 41 is not allowed by its requestPolicy"),
        (PLAIN, None, "0", None),
        (PLAIN, None, "1", "do not fit"),
        (PLAIN, "39", "1", None),
    ],
)
def test_a_request_fits_or_is_refused_with_a_reason(
    capacity: PublishedCapacity, requested: str | None, taken: str, reason: str | None
) -> None:
    amounts = {} if requested is None else {"c": Q(requested)}

    found = scheduling_devices.shortage(amounts, having(capacity), {"c": Q(taken)}, 37)

    assert (reason is None) == (found is None)
    assert found is None or str(reason) in found.text


def test_without_a_minimum_a_negative_request_frees_capacity() -> None:
    taken = scheduling_devices.consumed({"c": Q("-40")}, having(PLAIN), 36)

    assert scheduling_devices.shortage({"c": Q("80")}, having(PLAIN), taken, 36) is None

"""Devices that claims get, as in Kubernetes: none is over-allocated; several cards; taint rules."""

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import combinations
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dra_simulator import allocation_results
from tensorfusion_dra.core import names
from tensorfusion_dra.core.admission import claim_admission
from tensorfusion_dra.core.admission.pod_request import PodRequest
from tensorfusion_dra.core.devices import slices
from tensorfusion_dra.core.devices.device import Enforcement
from tensorfusion_dra.core.devices.health import HealthProblem, ProblemKind, Unhealthy
from tensorfusion_dra.core.devices.other_users import OtherUser
from tensorfusion_dra.core.kubernetes import quantity
from tensorfusion_dra.core.kubernetes.quantity import Quantity
from tensorfusion_dra.scheduling import allocation
from tensorfusion_dra.scheduling.allocation import NoFitError
from tensorfusion_dra.scheduling.devices import SchedulingError, with_rules
from tests.scheduling.allocating import HALF, allocate, allocated, devices
from tests.support.builders.devices import NODE as PUBLISHED_BY
from tests.support.builders.devices import published_devices
from tests.support.builders.gpus import gpu
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
SAME_NUMA = {"matchAttribute": f"{DRIVER}/numa"}
OTHER_CARD = {"distinctAttribute": f"{DRIVER}/uuid"}
ALL = exactly(allocationMode="All")
SMALL = {"tflops": "1", "vram": "1Gi"}
MOST = {"tflops": "60", "vram": "1Gi"}
ADMIN = exactly(adminAccess=True)


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


def rejected(**reasons: str) -> dict[str, str]:
    """The reasons by device of node-a, with underscores for the hyphens of its name."""
    return {f"{DRIVER}/node-a/{name.replace('_', '-')}": text for name, text in reasons.items()}


def outcome(claims: Sequence[Json], slices: Sequence[Json], held: Sequence[Json] = ()) -> Any:
    """Return the devices of each claim, the reason by rejected device, or the error's text.

    Args:
        held: Claims that are allocated before, one after the other.
    """
    existing: list[Json] = []
    for document in held:
        existing.append(allocated(document, slices, existing))
    try:
        found = allocate(*claims, slices=slices, classes=CLASSES, existing=existing)
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
            "claim default/claim, request gpu: asks for all devices, but resource pool "
            f"{DRIVER}/node-a is currently being updated",
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
    ("effect", "tolerations", "is_tolerated"),
    [
        ("NoSchedule", [], False),
        ("NoExecute", [], False),
        ("NoSchedule", [{"key": "sick", "operator": "Equal", "value": "ecc"}], False),
        ("NoSchedule", [{"key": "other", "operator": "Exists"}], False),
        ("NoSchedule", [{"key": "sick", "operator": "Exists", "effect": "NoExecute"}], False),
        ("None", [], True),
        ("NoSchedule", [{"key": "sick", "operator": "Exists"}], True),
        ("NoExecute", [{"operator": "Exists"}], True),
        ("NoSchedule", [{"key": "sick", "operator": "Equal", "value": "xid"}], True),
        ("NoSchedule", [{"key": "sick", "value": "xid"}], True),
    ],
)
def test_a_taint_repels_a_claim_that_does_not_tolerate_it(
    effect: str, tolerations: list[Json], *, is_tolerated: bool
) -> None:
    sick = {**device("gpu-0"), "taints": [{"key": "sick", "value": "xid", "effect": effect}]}
    wanted = claim(exactly(tolerations=tolerations) if tolerations else exactly())
    gpus = [resource_slice(sick)]

    if is_tolerated:
        (found,) = allocate(wanted, slices=gpus)
        assert found["devices"]["results"][0].get("tolerations", []) == tolerations
    else:
        assert outcome([wanted], gpus) == rejected(gpu_0="taint sick is not tolerated")


SINCE = datetime(2026, 3, 1, tzinfo=UTC)
XID_79 = HealthProblem(kind=ProblemKind.XID, reason="xid-79", text="XID 79")
TAINTS = (names.TAINT_UNHEALTHY, names.TAINT_USED_BY, names.TAINT_ENFORCER_MISSING)
TAINT_SETS = [subset for size in range(4) for subset in combinations(TAINTS, size)]


@pytest.mark.parametrize("taints", TAINT_SETS)
def test_claim_gets_a_device_only_if_it_tolerates_each_of_its_taints(
    taints: tuple[str, ...],
) -> None:
    card = gpu()
    user = OtherUser(name="nvidia-device-plugin", holds=False, since=SINCE)
    unhealthy = Unhealthy(worst=XID_79, since=SINCE)
    (device,) = published_devices(
        card,
        unhealthy={card.uuid.lower(): unhealthy} if names.TAINT_UNHEALTHY in taints else {},
        users={card.uuid: user} if names.TAINT_USED_BY in taints else {},
        enforcement=Enforcement(
            given_up_since=SINCE if names.TAINT_ENFORCER_MISSING in taints else None
        ),
    )
    ours = f'device.driver == "{names.DRIVER}"'
    classes = [{"metadata": {"name": CLASS}, "spec": {"selectors": expressions(ours)}}]
    planned = slices.plan(
        slices.wanted([device.as_api()], replace(PUBLISHED_BY, name=NODE), node_uid="uid"), []
    ).create
    stored = [dict(item) for item in planned]

    for tolerated in TAINT_SETS:
        tolerations = [{"key": key, "operator": "Exists"} for key in tolerated]
        wanted = claim(exactly(tolerations=tolerations) if tolerations else exactly())
        if set(taints) <= set(tolerated):
            assert allocate(wanted, slices=stored, classes=classes)
        else:
            with pytest.raises(NoFitError):
                allocate(wanted, slices=stored, classes=classes)


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


texts = st.sampled_from(["-100", "0", "1m", "25", "33.3", "71200m", "100", "101", "200"])
vrams = st.sampled_from(["-1Gi", "1", "20000000001", "16Gi", "40Gi", "41Gi"])
capacities = st.fixed_dictionaries({}, optional={"tflops": texts, "vram": vrams})
wanted_requests = st.lists(st.tuples(capacities, st.integers(1, 3)), min_size=1, max_size=3)


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
        try:
            existing.append(allocated(claim(*entries, name=f"c{number}"), gpus, existing))
        except NoFitError:
            continue

    sums: dict[tuple[str, str], Quantity] = {}
    for document in existing:
        results: list[dict[str, Any]] = document["status"]["allocation"]["devices"]["results"]
        for result in results:
            for name, text in result["consumedCapacity"].items():
                amount = quantity.parse(text)
                assert amount >= Quantity(0)
                key = (result["device"], name)
                sums[key] = sums.get(key, Quantity(0)) + amount
    limits = {("gpu-0", "tflops"): "100", ("gpu-0", "vram"): "40Gi"}
    limits |= {("gpu-1", "tflops"): "71.2", ("gpu-1", "vram"): "24Gi"}
    assert all(amount <= quantity.parse(limits[key]) for key, amount in sums.items())


CARDS: Final = [resource_slice(*(shared(f"gpu-{name}", uuid=name) for name in "abcd"))]


def allocated_cards(found: Json, *, release: int) -> str:
    """Return the cards in the order of the results, such as `abcd`."""
    (allocation,) = allocate(found, slices=CARDS, release=release)
    return "".join(name.removeprefix("gpu-") for name in devices(allocation))


@pytest.mark.parametrize(
    ("constraints", "release", "cards"),
    [
        ([], 36, "abcd"),
        ([], 35, "aaaa"),
        ([OTHER_CARD], 35, "abab"),
        ([OTHER_CARD], 37, "abcd"),
    ],
)
def test_one_request_of_four_may_get_a_card_several_times_before_1_36(
    constraints: list[Json], release: int, cards: str
) -> None:
    four = claim(exactly(count=4, capacity=SMALL), constraints=constraints)

    assert allocated_cards(four, release=release) == cards


@pytest.mark.parametrize(("release", "is_distinct"), [(36, False), (37, True)])
def test_distinct_attribute_is_compared_with_all_devices_of_a_request_from_1_37_on(
    release: int, *, is_distinct: bool
) -> None:
    slices = [resource_slice(*(shared(f"gpu-{n}", uuid=uuid) for n, uuid in enumerate("xyx")))]
    three = claim(exactly(count=3, capacity=SMALL), constraints=[OTHER_CARD])

    if is_distinct:
        with pytest.raises(NoFitError):
            allocate(three, slices=slices, release=release)
    else:
        (found,) = allocate(three, slices=slices, release=release)
        assert devices(found) == ["gpu-0", "gpu-1", "gpu-2"]


@pytest.mark.parametrize(
    ("wanted", "of_1_36", "of_1_37"),
    [
        ("20Gi", ["used", "free"], ["used", "free"]),
        ("40Gi", ["free"], None),
        ("80Gi", None, None),
    ],
    ids=["all have enough", "one has it no more", "none ever had it"],
)
def test_all_devices_need_enough_left_from_1_37_on_if_they_ever_had_it(
    wanted: str, of_1_36: list[str] | None, of_1_37: list[str] | None
) -> None:
    slices = [resource_slice(shared("used"), shared("free"), shared("small", vram="10Gi"))]
    first = allocated(claim(exactly(capacity=HALF), name="first"), slices)
    capacity = {"tflops": "1", "vram": wanted}
    everything = claim(exactly(allocationMode="All", capacity=capacity))

    for release, expected in ((36, of_1_36), (37, of_1_37)):
        if expected is None:
            with pytest.raises(NoFitError):
                allocate(everything, slices=slices, existing=[first], release=release)
        else:
            (found,) = allocate(everything, slices=slices, existing=[first], release=release)
            assert devices(found) == expected


@pytest.mark.parametrize("release", [35, 36, 37])
@pytest.mark.parametrize("count", [2, 3, 4])
def test_claim_filled_by_the_webhook_gets_as_many_cards_as_its_pod_requests(
    count: int, release: int
) -> None:
    wanted = PodRequest(count=count, tflops=Quantity.whole(1), vram=Quantity.whole(2**30))
    made = template_claim()
    made["metadata"]["name"] = "train"
    made["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"] = CLASS
    filled = claim_admission.filled(made, [wanted], pool="", virtual=False)
    for request in filled["spec"]["devices"]["requests"]:
        del request["exactly"]["selectors"]  # the cards of this test lack the driver's attributes
    (constraint,) = filled["spec"]["devices"]["constraints"]
    assert constraint["distinctAttribute"] == f"{names.DRIVER}/{names.ATTR_UUID}"
    constraint["distinctAttribute"] = f"{DRIVER}/uuid"

    assert allocated_cards(filled, release=release) == "abcd"[:count]


OWN = {"key": "tensor-fusion.ai/unhealthy", "effect": "NoSchedule"}
ADDED = {"key": "maintenance", "value": "tonight", "effect": "NoExecute"}


def published(pool: str, *names: str) -> dict[str, Any]:
    devices = [{"name": name} for name in names]
    return {"spec": {"driver": "mine", "pool": {"name": pool}, "devices": devices}}


def rule(selector: dict[str, str] | None) -> dict[str, Any]:
    spec: dict[str, Any] = {"taint": ADDED}
    return {"spec": spec if selector is None else {**spec, "deviceSelector": selector}}


@pytest.mark.parametrize(
    ("selector", "tainted"),
    [
        (None, []),
        ({}, ["a", "b", "c"]),
        ({"driver": "mine"}, ["a", "b", "c"]),
        ({"driver": "other"}, []),
        ({"pool": "two"}, ["c"]),
        ({"device": "b"}, ["b"]),
        ({"driver": "mine", "pool": "two", "device": "b"}, []),
    ],
)
def test_a_rule_taints_what_all_of_its_criteria_select(
    selector: dict[str, str] | None, tainted: list[str]
) -> None:
    slices = [published("one", "a", "b"), published("two", "c")]

    found = with_rules([rule(selector)], slices)

    found_devices = [device for each in found for device in each["spec"]["devices"]]
    assert [
        device["name"] for device in found_devices if device.get("taints") == [ADDED]
    ] == tainted


def test_taints_of_slice_and_rules_add_up_and_the_slice_stays() -> None:
    before = published("one", "a")
    before["spec"]["devices"][0]["taints"] = [OWN]

    (after,) = with_rules([rule({}), rule({"device": "a"})], [before])

    assert after["spec"]["devices"][0]["taints"] == [OWN, ADDED, ADDED]
    assert before["spec"]["devices"][0]["taints"] == [OWN]

"""Cases of allocation and selection, each about one rule, for Kubernetes' own allocator and ours.

What Kubernetes answers is in tests/scheduling/judged.json, by case and release.
"""

from collections.abc import Iterator
from typing import Any, Final

from tests.support.objects import (
    DRIVER,
    NODE,
    Json,
    claim,
    device_class,
    exactly,
    expressions,
    node,
    resource_slice,
)

GIB: Final = "40Gi"
SAME: Final = {"matchAttribute": f"{DRIVER}/kind"}
OTHER: Final = {"distinctAttribute": f"{DRIVER}/kind"}
ALL: Final = {"allocationMode": "All"}
ZONE: Final = {
    "nodeSelectorTerms": [
        {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
    ]
}


def capacity(value: str, default: str = "", **span: str) -> Json:
    """One capacity; with a range it has a policy, and defaults to all of it."""
    policy = {"requestPolicy": {"default": default or value, "validRange": span}} if span else {}
    return {"value": value, **policy}


def card(name: str, *, shared: bool = True, kind: Json | None = None, **amounts: Json) -> Json:
    """A device with capacities, by default one of 40Gi in steps of 1Mi."""
    found = amounts or {"vram": capacity(GIB, min="1Mi", step="1Mi")}
    attributes = {"kind": kind} if kind else {}
    return {
        "name": name,
        "allowMultipleAllocations": shared,
        "attributes": attributes,
        "capacity": {key.replace("__", "/").replace("_", "."): each for key, each in found.items()}
        if shared
        else {},
    }


def asks(amount: str | None = None, name: str = "claim", **fields: Any) -> Json:
    """A claim with one request."""
    constraints = fields.pop("constraints", [])
    amounts = None if amount is None else {"vram": amount}
    return claim(exactly(capacity=amounts, **fields), name=name, constraints=constraints)


def holds(
    device_name: str, amounts: Json | None = None, *, name: str = "held", **result: Any
) -> Json:
    """An allocated claim; without amounts it has the device exclusively."""
    share = {} if amounts is None else {"shareID": f"{name}-1", "consumedCapacity": amounts}
    place = {"driver": DRIVER, "pool": NODE, "device": device_name}
    results = [{"request": "gpu", **place, **share, **result}]
    return {**claim(name=name), "status": {"allocation": {"devices": {"results": results}}}}


def defaulted(document: Json) -> Json:
    """The claim with the defaults of the API server."""
    for request in document["spec"]["devices"]["requests"]:
        for wanted in (request.get("exactly"), *request.get("firstAvailable", ())):
            if wanted is not None:
                wanted.setdefault("allocationMode", "ExactCount")
                if wanted["allocationMode"] == "ExactCount":
                    wanted.setdefault("count", 1)
    return document


def case(*claims: Json, slices: list[Json], held: list[Json] | None = None, **labels: str) -> Json:
    """One case on node-a."""
    return {
        "claims": [defaulted(each) for each in claims],
        "slices": slices,
        "classes": [device_class()],
        "held": held or [],
        "node": node(**labels),
    }


def wide(*devices: Json, name: str = "slice-a", pool: str = NODE, **spec: Any) -> Json:
    """A slice that is not of one node."""
    found = resource_slice(*devices, name=name, pool=pool)
    del found["spec"]["nodeName"]
    found["spec"] |= spec
    return found


def allocations() -> dict[str, Json]:
    """Return the cases of allocations by name."""
    return dict([*_amounts(), *_shares(), *_constraints(), *_pools(), *_selectors_of_devices()])


def _amounts() -> Iterator[tuple[str, Json]]:
    one = [resource_slice(card("gpu-0"))]
    for amount in ("1", "16Gi", "1.3333Gi", "0.12345Gi", "100.0001Mi", "41Gi", "10E", "8Ei", "-5"):
        yield f"amount {amount} in steps of 1Mi", case(asks(amount), slices=one)
    ranges = {
        "any": {"min": "0"},
        "steps of 2.5": {"min": "0", "step": "2.5"},
        "steps of 20 from 10": {"min": "10", "step": "20", "max": "90"},
        "steps finer than milli": {"min": "0", "step": "500u"},
        "a fraction as minimum": {"min": "200m", "step": "1"},
        "a maximum finer than milli": {"min": "0", "step": "1500m", "max": "90.0000001"},
    }
    for text, span in ranges.items():
        found = [resource_slice(card("gpu-0", vram=capacity("100", default="10", **span)))]
        for amount in ("-7", "100m", "1500m", "1500001u", "30", "71.2", "95", "101"):
            yield f"amount {amount} of a capacity with {text}", case(asks(amount), slices=found)
    huge = capacity("9E", default="4e18", min="0", max="9E", step="4e18")
    for amount in ("8.5e18", "1e19"):
        yield (
            f"amount {amount} of a huge capacity",
            case(asks(amount), slices=[resource_slice(card("gpu-0", vram=huge))]),
        )
    plain = [resource_slice(card("gpu-0", vram=capacity("40")))]
    for amount in ("7", "-7", "7.5", "1n", "41"):
        yield f"amount {amount} without a policy", case(asks(amount), slices=plain)
    values = {"value": "40", "requestPolicy": {"default": "10", "validValues": ["10", "20", "40"]}}
    for amount in ("5", "15", "30.5", "41", "-3"):
        yield (
            f"amount {amount} among valid values",
            case(asks(amount), slices=[resource_slice(card("gpu-0", vram=values))]),
        )
    two = [
        resource_slice(card("gpu-0", vram=capacity("40"))),
    ]
    domain = f"{DRIVER}/vram"
    yield (
        "amount by the name with the driver's domain",
        case(claim(exactly(capacity={domain: "5"})), slices=two),
    )
    yield (
        "amount by both names",
        case(claim(exactly(capacity={domain: "5", "vram": "5"})), slices=two),
    )
    published = {**card("gpu-0"), "capacity": {domain: capacity("40"), "vram": capacity("10")}}
    yield (
        "capacity published by both names",
        case(claim(exactly(capacity={domain: "30"})), slices=[resource_slice(published)]),
    )
    qualified = {**card("gpu-0"), "capacity": {domain: capacity("40")}}
    yield (
        "amount by the short name of a capacity published with its domain",
        case(
            asks("5"),
            slices=[resource_slice(qualified)],
            held=[holds("gpu-0", {domain: "30"})],
        ),
    )
    yield (
        "too much beside a share by the name with the domain",
        case(
            claim(exactly(capacity={domain: "11"})),
            slices=[resource_slice(qualified)],
            held=[holds("gpu-0", {domain: "30"})],
        ),
    )


def _shares() -> Iterator[tuple[str, Json]]:
    two = [resource_slice(card("gpu-0"), card("gpu-1"))]
    whole = [resource_slice(card("gpu-0", shared=False), card("gpu-1", shared=False))]
    half = {"vram": "20Gi"}
    yield "a share beside another", case(asks("20Gi"), slices=two, held=[holds("gpu-0", half)])
    yield "a share of the next device", case(asks("21Gi"), slices=two, held=[holds("gpu-0", half)])
    yield "all of a shared device", case(asks(), slices=two, held=[holds("gpu-0", half)])
    yield "two shares for one request", case(asks("1Gi", count=2), slices=two)
    yield "three shares of two devices", case(asks("1Gi", count=3), slices=two)
    yield "an exclusive device", case(asks(), slices=whole, held=[holds("gpu-0")])
    yield (
        "a device that was shared before",
        case(asks(), slices=whole, held=[holds("gpu-0", half)]),
    )
    yield (
        "a device with a share without amounts",
        case(asks(), slices=whole, held=[holds("gpu-0", {})]),
    )
    yield (
        "admin access to a device that was shared before",
        case(asks(adminAccess=True), slices=whole, held=[holds("gpu-0", half)]),
    )
    yield (
        "beside admin access to a share",
        case(asks(), slices=whole, held=[holds("gpu-0", half, adminAccess=True)]),
    )
    for name, size in (("enough", "10Gi"), ("too little", "30Gi"), ("never enough", "50Gi")):
        yield (
            f"all devices, one with {name} left",
            case(asks(size, **ALL), slices=two, held=[holds("gpu-0", half)]),
        )
    many = [resource_slice(*(card(f"gpu-{n:02}", shared=False) for n in range(17)))]
    yield "more devices than are free", case(asks(count=18), slices=many)


def _constraints() -> Iterator[tuple[str, Json]]:
    kinds: dict[str, list[Json | None]] = {
        "equal texts": [{"string": "a"}, {"string": "b"}, {"string": "a"}],
        "equal numbers": [{"int": 1}, {"int": 2}, {"int": 1}],
        "a number and a truth": [{"int": 1}, {"bool": True}],
        "builds of a version": [{"version": "1.2.3+a"}, {"version": "1.2.3+b"}],
        "releases of a version": [{"version": "1.2.3-a"}, {"version": "1.2.3-b"}],
        "lists": [{"ints": [0, 1]}, {"ints": [0, 1]}],
        "a list and a number": [{"ints": [0]}, {"int": 0}, {"int": 0}],
        "no value": [None, {"int": 0}, {"int": 0}],
    }
    for text, values in kinds.items():
        devices = [
            card(f"gpu-{number}", shared=False, kind=kind) for number, kind in enumerate(values)
        ]
        found = [resource_slice(*devices)]
        for word, constraint in (("the same", SAME), ("different", OTHER)):
            for count in (1, 2):
                yield (
                    f"{count} with {word} of {text}",
                    case(asks(count=count, constraints=[constraint]), slices=found),
                )
            yield (
                f"all with {word} of {text}",
                case(asks(**ALL, constraints=[constraint]), slices=found),
            )
    three = [
        resource_slice(*(card(f"gpu-{n}", kind={"string": kind}) for n, kind in enumerate("xyx")))
    ]
    yield (
        "three shares that differ from each other",
        case(asks("1Gi", count=3, constraints=[OTHER]), slices=three),
    )


def _pools() -> Iterator[tuple[str, Json]]:
    part = [resource_slice(card("gpu-0"), count=2)]
    twice = [
        resource_slice(card("gpu-0"), name="a", count=2),
        resource_slice(card("gpu-0"), name="b", count=2),
    ]
    for text, slices in (("an incomplete pool", part), ("a pool with a name twice", twice)):
        yield f"one device of {text}", case(asks("1Gi"), slices=slices)
        yield f"all devices of {text}", case(asks("1Gi", **ALL), slices=slices)
    old = resource_slice(card("gpu-0"), name="old", generation=1)
    yield (
        "a device of a generation before an empty one",
        case(asks("1Gi"), slices=[old, resource_slice(name="new", generation=2)]),
    )
    sets = resource_slice(name="sets", count=2)
    del sets["spec"]["devices"]
    sets["spec"]["sharedCounters"] = [{"name": "set", "counters": {"slots": {"value": "1"}}}]
    beside = [sets, resource_slice(card("gpu-0"), name="devices", count=2)]
    yield "a device beside shared counters", case(asks("1Gi"), slices=beside)
    yield "all devices beside shared counters", case(asks("1Gi", **ALL), slices=beside)


def _selectors_of_devices() -> Iterator[tuple[str, Json]]:
    def waiting(name: str, **more: Any) -> Json:
        conditions = {"bindingConditions": ["up"], "bindingFailureConditions": ["down"]}
        return {**card(name, shared=False), **conditions, **more}

    late = resource_slice(waiting("late"), name="a", pool="a")
    soon = resource_slice(card("soon", shared=False), name="b", pool="b")
    yield "a device that waits for conditions", case(asks(), slices=[late])
    yield "a device of a pool without conditions first", case(asks(), slices=[late, soon])
    yield "both devices, with and without conditions", case(asks(count=2), slices=[late, soon])
    mixed = [resource_slice(waiting("late"), card("soon", shared=False))]
    yield "devices with and without conditions in one pool", case(asks(), slices=mixed)
    yield "all devices, with conditions", case(asks(**ALL), slices=mixed)
    bound = wide(waiting("bound", bindsToNode=True), allNodes=True)
    yield "a device that binds to its node", case(asks(), slices=[bound])
    yield (
        "a device of all nodes",
        case(asks(), slices=[wide(card("gpu-0", shared=False), allNodes=True)]),
    )
    each = wide(
        {**card("of-node", shared=False), "nodeName": NODE},
        {**card("of-other", shared=False), "nodeName": "node-b"},
        {**card("of-zone", shared=False), "nodeSelector": ZONE},
        {**card("of-all", shared=False), "allNodes": True},
        perDeviceNodeSelection=True,
    )
    for count in (1, 2, 3, 4):
        yield f"{count} of devices with nodes of their own", case(asks(count=count), slices=[each])
        yield (
            f"{count} of devices with nodes of their own in the zone",
            case(asks(count=count), slices=[each], zone="a"),
        )
    only = wide({**card("of-zone"), "nodeSelector": ZONE}, perDeviceNodeSelection=True)
    yield "a device of another zone", case(asks("1Gi"), slices=[only], zone="b")
    yield "a device of the zone", case(asks("1Gi"), slices=[only], zone="a")
    yield "all devices of the node", case(asks(**ALL), slices=[each])
    derived = {"name": f"{DRIVER}/kind", "expression": "1"}
    yield (
        "a request with derived attributes",
        case(asks(derivedAttributes=[derived]), slices=mixed),
    )
    odd_values = {"a list": {"ints": [0, 1]}, "a long version": {"version": "1.0." + "9" * 20}}
    for text, odd in odd_values.items():
        found = [resource_slice({**card("gpu-0"), "attributes": {"odd": odd}})]
        for expression in ("device.allowMultipleAllocations", f'"odd" in {LOOKUP}'):
            wanted = asks("1Gi", selectors=expressions(expression))
            yield f"{expression} of a device with {text}", case(wanted, slices=found)
    none = wide(card("of-none"), perDeviceNodeSelection=True)
    yield "a device of no node", case(asks("1Gi"), slices=[none])


LOOKUP: Final = f'device.attributes["{DRIVER}"]'
"""The attributes of the device below."""
READ: Final = {
    "name": "gpu-0",
    "allowMultipleAllocations": True,
    "attributes": {
        "model": {"string": "A100"},
        "cores": {"int": 8},
        "cuda": {"version": "12.4.0+build"},
        "nodes": {"ints": [0, 1]},
        "resource.kubernetes.io/pciBusID": {"string": "0000:3b:00.0"},
    },
    "capacity": {"vram": {"value": "40Gi"}, "rate": {"value": "71200m"}},
}
SELECTORS: Final = (
    "true",
    f'device.driver == "{DRIVER}" && device.allowMultipleAllocations',
    f'"{DRIVER}" in device.attributes && "{DRIVER}" in device.capacity',
    " && ".join([f'"model" in {LOOKUP}'] * 10),
    f'device.attributes.all(d, d == "{DRIVER}" || d.startsWith("resource."))',
    'device.attributes.exists(d, d == "a.b") || device.attributes.exists(d, d.endsWith(".io"))',
    'device.attributes.exists(d, device.attributes[d].exists(n, n == "model"))',
    " || ".join(f'{LOOKUP}.model == "GPU-0123{number:04d}-4567-89ab-cdef"' for number in range(60)),
    'device.attributes.exists(d, d == "nope.example.com")',
    "device.attributes.size() == 2 && device.capacity.size() == 1",
    'device.attributes["nope.example.com"].size() == 0',
    '"nope.example.com" in device.attributes',
    'device.attributes["nope.example.com"].?x.orValue(1) == 1',
    'device.attributes[?"nope.example.com"].hasValue()',
    "has(device.attributes.nope) && !has(device.attributes.nope.x)",
    'cel.bind(a, device.attributes, a["nope"].size() == 0 && a.size() == 2)',
    f"{LOOKUP}.nope == 1",
    f"{LOOKUP}.nodes.exists(n, n == 0)",
    f"cel.bind(a, {LOOKUP}, a.nodes.all(n, n < 2))",
    f"{LOOKUP}.model.map(n, n).size() == 1",
    f"dyn({LOOKUP}.nodes).exists(n, n == 0)",
    f"0 in {LOOKUP}.nodes && {LOOKUP}.nodes[1] == 1 && {LOOKUP}.nodes.size() == 2",
    f"{LOOKUP}.model",
    f"{LOOKUP}.cores",
    f"dyn({LOOKUP}.model)",
    f"{LOOKUP}.?model",
    f'{LOOKUP}.model == 5 || {LOOKUP}.cores == 8.0 || {LOOKUP}.cores > "8"',
    f'{LOOKUP}.cores > "8"',
    f"{LOOKUP}.cores / ({LOOKUP}.cores - 8) == 1",
    f'{LOOKUP}.cuda == semver("12.4.0") && {LOOKUP}.cuda.major() == 12',
    f'semver("{2**63}.0.0").major() == -{2**63}',
    f'isSemver("{2**64 - 1}.0.0") && !isSemver("{2**64}.0.0")',
    f'isSemver("1.0.0-{2**64}") || isSemver("v{2**64}", true)',
    f'isSemver("1.0.0-{2**64}a") && isSemver("1.0.0+{2**64}")',
    f'sign(device.capacity["{DRIVER}"].vram) == 1',
    f'device.capacity["{DRIVER}"].vram.sign() == 1',
    f'device.capacity["{DRIVER}"].rate.asApproximateFloat() > 71',
    f'device.capacity["{DRIVER}"].rate.asInteger() == 71',
    f'device.capacity["{DRIVER}"].vram.compareTo(quantity("40960Mi")) == 0',
    "device.attributes.nope == {}",
    "device.nope == 1",
    'device.attributes["model"] == "A100"',
    "1 == 1.5",
    "device.driver == 5",
    "[1, 2].exists(n, n > 1) && ['a'].map(t, t + 'b') == ['ab']",
    "[1].includes(1)",
    f"{LOOKUP}.model.includes('A100') && !{LOOKUP}.nodes.includes(2)",
    f"{LOOKUP}.nodes.includes(1.0) && !{LOOKUP}.nodes.includes(true) && !(0).includes(false)",
    f'{LOOKUP}.cuda.includes(semver("12.4.0")) && !{LOOKUP}.nodes.includes("0")',
    f"{LOOKUP}.nope.includes(1)",
)


def selections() -> list[Json]:
    """Return the cases of selectors."""
    return [
        {"name": text, "expression": text, "driver": DRIVER, "device": READ} for text in SELECTORS
    ]


def document() -> Json:
    """Return all cases as the judge reads them."""
    return {
        "allocations": [{"name": name, **each} for name, each in allocations().items()],
        "selectors": selections(),
    }

"""Trials of a pod on nodes: the same decisions as the allocation, and what rejects each device."""

import re
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from dra_simulator import allocation_results
from tensorfusion_dra.app.why import answers
from tensorfusion_dra.scheduling import allocation, placement
from tensorfusion_dra.scheduling.allocation import Cluster, NoFitError
from tensorfusion_dra.scheduling.devices import Cause
from tensorfusion_dra.scheduling.placement import NodeClusters, NodeOutcome, Trial
from tests.support.objects import (
    DRIVER,
    Json,
    claim,
    device_class,
    exactly,
    expressions,
    node,
    pod,
    resource_slice,
    shared,
)

NODES = ("node-a", "node-b", "node-c")
AMOUNTS = st.sampled_from([1, 5, 10, 20, 40])
MODELS = st.sampled_from(["A", "B"])


def slice_of(name: str, *devices: Json) -> Json:
    made = resource_slice(*devices, name=f"slice-{name}", pool=name)
    made["spec"]["nodeName"] = name
    return made


@st.composite
def requests(draw: st.DrawFn) -> Json:
    capacity = {"tflops": str(draw(AMOUNTS)), "vram": f"{draw(AMOUNTS)}Gi"}
    fields: Json = {"count": draw(st.sampled_from([1, 1, 2]))}
    if draw(st.booleans()):
        text = f'device.attributes["{DRIVER}"].model == "{draw(MODELS)}"'
        fields["selectors"] = expressions(text)
    return exactly(capacity=capacity, **fields)


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    """Draw three nodes with cards, and claims that were allocated one after the other."""
    slices = []
    for name in NODES:
        cards = []
        for index in range(draw(st.integers(0, 2))):
            card = shared(f"gpu-{index}", model=draw(MODELS), tflops="40", vram="40Gi")
            if draw(st.integers(0, 4)) == 0:
                card["taints"] = [{"key": "sick", "effect": "NoSchedule"}]
            cards.append(card)
        slices.append(slice_of(name, *cards))
    found = allocation.cluster(slices=slices, classes=[device_class()], claims=[])
    for index, request in enumerate(draw(st.lists(requests(), max_size=4))):
        made = claim(request, name=f"old-{index}")
        for name in NODES:
            try:
                (allocated,) = allocation_results.allocate([made], found, node(name))
            except NoFitError:
                continue
            made = {**made, "status": {"allocation": allocated}}
            found = replace(found, claims=(*found.claims, made))
            break
    return found


def outcomes(found: Cluster, *claims: Json) -> list[NodeOutcome]:
    trial = Trial(pod=pod(), claims=claims)
    return placement.outcomes(trial, NodeClusters(found), [node(name) for name in NODES])


@given(clusters(), requests())
def test_a_node_fits_exactly_if_the_allocation_finds_devices(found: Cluster, asked: Json) -> None:
    """A node without a solution has fewer passing cards than the request's count."""
    made = claim(asked)

    for outcome in outcomes(found, made):
        try:
            (allocated,) = allocation_results.allocate([made], found, node(outcome.name))
        except NoFitError:
            assert not outcome.fits
            assert sum(card.passes for card in outcome.cards) < asked["exactly"]["count"]
        else:
            results = [result["device"] for result in allocated["devices"]["results"]]
            assert [picked.device for picked in outcome.picked or ()] == results


@given(clusters(), requests())
def test_every_proposal_fits_when_it_is_followed(found: Cluster, asked: Json) -> None:
    made = claim(asked)
    tried = outcomes(found, made)
    if any(outcome.fits for outcome in tried):
        return
    nodes = [node(name) for name in NODES]

    helps = answers.helps(Trial(pod=pod(), claims=[made]), NodeClusters(found), nodes, tried)

    for text in helps:
        if less := re.fullmatch(r"Request less: (.*) fits now on (.*)\.", text):
            amounts = dict(part.split(" ") for part in less[1].split(", "))
            capacity = {"requests": {**asked["exactly"]["capacity"]["requests"], **amounts}}
            smaller = {**asked, "exactly": {**asked["exactly"], "capacity": capacity}}
            allocation_results.allocate([claim(smaller)], found, node(less[2]))
        elif wait := re.fullmatch(r"Wait for (.*) on gpu-. of (.*): without .*", text):
            gone = re.findall(r"claim default/(old-\d)", wait[1])
            left = tuple(old for old in found.claims if old["metadata"]["name"] not in gone)
            allocation_results.allocate([made], replace(found, claims=left), node(wait[2]))
        else:
            assert text.startswith("Correct the selector")


def test_each_card_has_the_first_check_that_it_fails() -> None:
    model = expressions(f'device.attributes["{DRIVER}"].model == "A"')
    sick = {**shared("sick", model="A"), "taints": [{"key": "sick", "effect": "NoSchedule"}]}
    full = shared("full", model="A")
    found = allocation.cluster(
        slices=[slice_of("node-a", sick, full, shared("other", model="B"))],
        classes=[device_class()],
        claims=[],
    )
    held = claim(name="old")
    (allocated,) = allocation_results.allocate([held], replace(found, slices=found.slices), node())
    allocated["devices"]["results"][0]["device"] = "full"
    found = replace(found, claims=({**held, "status": {"allocation": allocated}},))

    asked = exactly(selectors=model, capacity={"vram": "1Gi", "tflops": "1"})
    outcome, *_ = outcomes(found, claim(asked))

    rejected = {card.device.id.device: card.rejections["claim/gpu"] for card in outcome.cards}
    causes = {name: found and (found.cause, found.subject) for name, found in rejected.items()}
    assert causes == {
        "sick": (Cause.TAINT, "sick"),
        "full": (Cause.CAPACITY, "tflops"),
        "other": (Cause.SELECTOR, model[0]["cel"]["expression"]),
    }


def test_a_slice_that_other_nodes_reach_counts_for_each() -> None:
    anywhere = resource_slice(shared("gpu-0"), name="network", pool="network")
    del anywhere["spec"]["nodeName"]
    anywhere["spec"]["allNodes"] = True
    found = allocation.cluster(slices=[anywhere], classes=[device_class()], claims=[])

    assert [outcome.fits for outcome in outcomes(found, claim())] == [True, True, True]


def test_a_claim_that_waits_for_a_binding_condition_is_named() -> None:
    waiting = {**shared("nic-0"), "bindingConditions": ["up"], "bindingFailureConditions": ["down"]}
    found = allocation.cluster(
        slices=[slice_of("node-a", waiting)], classes=[device_class()], claims=[]
    )
    (allocated,) = allocation_results.allocate([claim()], found, node("node-a"))
    (result,) = allocated["devices"]["results"]
    made: Json = {**claim(), "status": {"allocation": allocated}}

    assert outcomes(found, made)[0].refusal == "claim claim waits for the condition up of nic-0"
    met = {"type": "up", "status": "True"}
    made["status"]["devices"] = [{**result, "conditions": [met]}]
    assert outcomes(found, made)[0].fits

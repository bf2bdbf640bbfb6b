"""Admission of a pod that requests a share: what is added and removed, warned of and refused."""

import copy
import difflib
import sys
from types import FrameType
from typing import Any

import pytest

from tensorfusion_dra.core import names
from tensorfusion_dra.core.admission import pod_admission, pod_request
from tensorfusion_dra.core.admission.pod_request import PodRequest
from tensorfusion_dra.core.claims import isolation
from tensorfusion_dra.core.kubernetes import resource_claims
from tensorfusion_dra.enforcers import registered
from tests.support.admission import Json
from tests.support.builders.pods import container_document, pod_annotations, pod_document

TEMPLATE = "tensor-fusion-gpu-template"
ASKED = pod_annotations(
    dra_enabled="true", tflops_request="100", vram_request="16Gi", gpupool="default"
)


def asked_of(found: Json) -> tuple[Json, PodRequest, Any]:
    """Return a pod, what it requests, and the containers that get it."""
    wanted = pod_request.parse(found["metadata"]["annotations"])
    return found, wanted, pod_admission.containers(found, wanted)


def admitted_pod(
    found: Json, scheduler: str = "default-scheduler", *, names_containers: bool = False
) -> Json:
    return pod_admission.admitted(
        *asked_of(found),
        pool="default",
        template=TEMPLATE,
        scheduler=scheduler,
        names_containers=names_containers,
    )


def refused(found: Json) -> list[str]:
    return [
        str(error)
        for error in pod_admission.errors(
            *asked_of(found), hard_needs=isolation.HARD_NEEDS, bypasses=registered.BYPASSES
        )
    ]


def users(found: Json) -> list[str]:
    """Return the names of the containers that use the claim."""
    spec = found["spec"]
    return [
        entry["name"]
        for entry in (*spec.get("initContainers", ()), *spec["containers"])
        if {"name": "tensor-fusion-gpu-claim"} in entry.get("resources", {}).get("claims", ())
    ]


def whole_gpu(kind: str = "limits") -> Json:
    return {"resources": {kind: {"nvidia.com/gpu": "1", "cpu": "2"}}}


def test_quick_start_pod_gets_an_annotation_and_a_claim() -> None:
    quick_start = {**ASKED, **pod_annotations(gpu_count="1")}
    claim = {"name": "tensor-fusion-gpu-claim", "resourceClaimTemplateName": TEMPLATE}

    assert admitted_pod(pod_document(quick_start)) == pod_document(
        {**quick_start, **pod_annotations(inject_container="main")},
        container_document(resources={"claims": [{"name": claim["name"]}]}),
        resourceClaims=[claim],
    )


def test_annotations_are_rewritten_in_canonical_form() -> None:
    found = admitted_pod(
        pod_document(
            pod_annotations(
                tflops_request="0.5",
                vram_request="1024Mi",
                vram_limit="2048Mi",
                tflops_limit="0",
                qos="high",
            )
        )
    )

    assert found["metadata"]["annotations"] == pod_annotations(
        dra_enabled="true",
        gpu_count="1",
        gpupool="default",
        inject_container="main",
        tflops_request="500m",
        vram_request="1Gi",
        vram_limit="2Gi",
        tflops_limit="0",
        qos="high",
    )


SHAPES = {
    "one container": pod_document(ASKED),
    "whole GPUs": pod_document(
        ASKED,
        container_document(**whole_gpu()),
        container_document("side", **whole_gpu("requests")),
    ),
    "init containers": pod_document(
        ASKED, initContainers=[container_document("init", **whole_gpu())]
    ),
    "other claims": pod_document(
        ASKED,
        container_document(resources={"claims": [{"name": "nic"}]}),
        resourceClaims=[{"name": "nic", "resourceClaimName": "nic"}],
    ),
    "scheduler": pod_document(ASKED, schedulerName="tensor-fusion-scheduler"),
    "everything": pod_document(
        {**ASKED, **pod_annotations(gpu_count="2", qos="low", isolation="hard", vram_limit="32Gi")},
        container_document(),
        container_document("side"),
    ),
}


@pytest.mark.parametrize("found", SHAPES.values(), ids=SHAPES)
def test_admitted_pod_is_not_changed_again(found: Json) -> None:
    before = copy.deepcopy(found)

    once = admitted_pod(found)

    assert admitted_pod(once) == once
    assert found == before
    # Nor does a container that another webhook adds later get a share.
    added = copy.deepcopy(once)
    added["spec"]["containers"].append(container_document("istio-proxy"))
    assert admitted_pod(added) == added


@pytest.mark.parametrize(("count", "is_refused"), [(499, False), (500, True), (20_000, True)])
def test_a_pod_of_more_containers_than_start_is_refused_before_they_are_looked_at(
    count: int, is_refused: bool
) -> None:
    found = pod_document(ASKED, container_document("main"))
    found["spec"]["initContainers"] = [container_document(f"c{at}") for at in range(count)]

    assert len(asked_of(found)[2]) <= 501
    assert ["at most 500 containers" in each for each in refused(found)] == [True] * is_refused


SEVERAL = {"containers": [*map(container_document, ("main", "side", "logs"))]}
INIT = [container_document("fetch"), container_document("check", **whole_gpu())]


@pytest.mark.parametrize(
    ("named", "containers", "expected"),
    [
        ("", SEVERAL, ["main", "side", "logs"]),
        ("logs,main", SEVERAL, ["main", "logs"]),
        ("", {"initContainers": INIT}, ["check", "main"]),
        ("fetch", {"initContainers": INIT}, ["fetch"]),
    ],
    ids=["every container", "named ones", "init containers with a GPU", "named init container"],
)
def test_containers_that_get_the_share(named: str, containers: Json, expected: list[str]) -> None:
    more = pod_annotations(inject_container=named) if named else {}
    found = pod_document({**ASKED, **more}, **containers)

    assert users(admitted_pod(found)) == expected


USED = {"claims": [{"name": "tensor-fusion-gpu-claim"}]}
ONE_REQUEST = {"claims": [{"name": "tensor-fusion-gpu-claim", "request": "gpu-request"}]}
OWN = [{"name": "tensor-fusion-gpu-claim", "resourceClaimTemplateName": "mine"}]
OWN_NAME = {"name": "CONTAINER_NAME", "value": "own"}
THEIR_SCHEDULER = pod_document(ASKED, schedulerName="tensor-fusion-scheduler")


@pytest.mark.parametrize(
    ("found", "options", "expected"),
    [
        # Only whole GPUs are removed, from every container.
        (
            pod_document(
                {**ASKED, **pod_annotations(inject_container="main")},
                container_document(
                    resources={"requests": {"nvidia.com/gpu": 1}, "limits": {"cpu": "2"}}
                ),
                container_document("side", **whole_gpu()),
            ),
            {},
            {
                "containers": [
                    container_document(resources={"requests": {}, "limits": {"cpu": "2"}, **USED}),
                    container_document("side", resources={"requests": {}, "limits": {"cpu": "2"}}),
                ]
            },
        ),
        # The pod's own claim and its use are kept.
        (
            pod_document(ASKED, container_document(resources=ONE_REQUEST), resourceClaims=OWN),
            {},
            {"resourceClaims": OWN, "containers": [container_document(resources=ONE_REQUEST)]},
        ),
        # Only Tensor Fusion's scheduler is replaced.
        (THEIR_SCHEDULER, {}, {"schedulerName": "default-scheduler"}),
        (THEIR_SCHEDULER, {"scheduler": ""}, {"schedulerName": "tensor-fusion-scheduler"}),
        (pod_document(ASKED, schedulerName="volcano"), {}, {"schedulerName": "volcano"}),
        # Containers with the share learn their names, for Tensor Fusion's limiter.
        (
            pod_document(
                {**ASKED, **pod_annotations(inject_container="a,b")},
                container_document("a"),
                container_document("b", env=[OWN_NAME]),
                container_document("c"),
            ),
            {"names_containers": True},
            {
                "containers": [
                    container_document(
                        "a", env=[{"name": "CONTAINER_NAME", "value": "a"}], resources=USED
                    ),
                    container_document("b", env=[OWN_NAME], resources=USED),
                    container_document("c"),
                ]
            },
        ),
    ],
    ids=[
        *("whole GPUs", "own claim", "scheduler", "kept scheduler", "another scheduler"),
        "names of containers",
    ],
)
def test_admitted_pod_has_what_its_share_needs_and_keeps_the_rest(
    found: Json, options: dict[str, Any], expected: Json
) -> None:
    spec = admitted_pod(found, **options)["spec"]

    assert {name: spec[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("annotation", "meant"),
    [
        ("tensor-fusion.ai/tflop-request", "tensor-fusion.ai/tflops-request"),
        ("tensor-fusion.ai/tfolps-request", "tensor-fusion.ai/tflops-request"),
        ("tensor-fusion.ai/vram-requests", "tensor-fusion.ai/vram-request"),
        ("tensor-fusion.ai/vram_request", "tensor-fusion.ai/vram-request"),
        ("tensorfusion.ai/vram-request", "tensor-fusion.ai/vram-request"),
        ("tensor-fusion.ai/vram-limits", "tensor-fusion.ai/vram-limit"),
        ("tensor-fusion.ai/gpu-cuont", "tensor-fusion.ai/gpu-count"),
        ("tensor-fusion.ai/compute-percents-limit", "tensor-fusion.ai/compute-percent-limit"),
        ("tensor-fusion.ai/VRAM-Request", "tensor-fusion.ai/vram-request"),
        ("Tensor-Fusion.ai/GPU-Count", "tensor-fusion.ai/gpu-count"),
        ("tensor-fusion.ai/memory-request", ""),
        ("tensor-fusion.ai/gpu-modle", ""),
        ("tensor-fusion.ai/vram", ""),
        ("example.com/vram-request", ""),
    ],
)
def test_amount_that_is_misspelled_by_two_letters_is_refused(annotation: str, meant: str) -> None:
    found = refused(pod_document({**ASKED, annotation: "1"}))

    text = f"found an unknown annotation; did you mean {meant}?"
    assert found == ([f"metadata.annotations[{annotation}]: {text}"] if meant else [])


def test_pod_with_thousands_of_unknown_annotations_has_only_some_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared: list[str] = []

    def closest(word: str, *_: object, **__: object) -> list[str]:
        compared.append(word)
        return []

    monkeypatch.setattr(difflib, "get_close_matches", closest)
    misspelled = "tensor-fusion.ai/vram-requst"
    annotations = {f"example.com/vram-{n}": "1" for n in range(200)} | {misspelled: "1"}
    annotations |= {f"tensor-fusion.ai/timil-marv-{n}": "1" for n in range(22_000)}

    pod = pod_document({**ASKED, **annotations})
    assert refused(pod) == []
    warnings(pod)

    assert compared[0] == misspelled
    assert len(compared) == 40


@pytest.mark.parametrize(
    ("annotations", "percent"),
    [
        ({"tflops_request": "78", "compute_percent_request": "25"}, "compute-percent-request"),
        ({"tflops_request": "78", "compute_percent_request": "memory"}, "compute-percent-request"),
        ({"tflops_limit": "78", "compute_percent_request": "25"}, "compute-percent-request"),
        ({"vram_request": "16Gi", "vram_percent_request": "25"}, "vram-percent-request"),
        (
            {"vram_request": "1Gi", "tflops_limit": "78", "compute_percent_limit": "25"},
            "compute-percent-limit",
        ),
        ({"tflops_request": "0", "compute_percent_request": "25"}, ""),
        ({"vram_limit": "16Gi", "vram_percent_request": "25"}, ""),
        (
            {"dedicated_gpu": "true", "tflops_request": "78", "compute_percent_request": "25"},
            "",
        ),
    ],
)
def test_percentage_beside_the_amount_that_would_replace_it_is_refused(
    annotations: dict[str, str], percent: str
) -> None:
    asked = pod_annotations(**annotations)
    admitted_before = pod_document(asked, resourceClaims=[{"name": names.POD_CLAIM}])

    errors = refused(pod_document(asked))

    where = f"metadata.annotations[tensor-fusion.ai/{percent}]"
    assert [error.partition(": ")[0] for error in errors] == ([where] if percent else [])
    assert all(error.endswith("expected one of the two") for error in errors)
    assert refused(admitted_before) == []


def test_no_annotation_with_a_meaning_resembles_an_amount() -> None:
    others = {*names.SHARE_ANNOTATIONS, *pod_request.REQUESTING_ANNOTATIONS}
    more = {*pod_admission.OTHERS, *pod_admission.WITHOUT_EFFECT}
    annotations = dict.fromkeys(others | {names.ANNOTATION_PREFIX + name for name in more}, "1")

    errors = pod_admission.errors(
        pod_document(annotations), PodRequest(), (), hard_needs="", bypasses=()
    )

    assert not any("did you mean" in str(error) for error in errors)


def switches(*entries: Json) -> Json:
    """A container `side` with these environment variables."""
    return container_document("side", env=[{"name": "A", "value": "b"}, *entries])


OFF = "expected no switch that turns the limiter off"


@pytest.mark.parametrize(
    ("annotations", "container", "expected"),
    [
        (
            pod_annotations(gpu_count="4"),
            container_document("side", resources=ONE_REQUEST),
            [
                "spec.containers[1].resources.claims[0].request: found 'gpu-request', expected "
                "none: each of the 4 GPUs has its own request"
            ],
        ),
        *(
            (
                {},
                switches({"name": switch, "value": "1"}),
                [f"spec.containers[1].env[1].name: found {switch}, {OFF}"],
            )
            for switch in sorted({*pod_admission.REFUSED_ENV, *registered.BYPASSES})
        ),
        (
            {},
            switches(
                {"name": "TF_SHM_FILE", "value": ""},
                {"name": "TF_SHM_FILE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
            ),
            [f"spec.containers[1].env[{i}].name: found TF_SHM_FILE, {OFF}" for i in (1, 2)],
        ),
        (
            pod_annotations(inject_container="main"),
            switches({"name": "TF_SHM_FILE", "value": "x"}),
            [],
        ),
        (
            pod_annotations(inject_container="main,gone,lost"),
            container_document("side"),
            [
                "metadata.annotations[tensor-fusion.ai/inject-container]: found 'gone', 'lost', "
                "expected one of main, side"
            ],
        ),
        (
            pod_annotations(isolation="hard"),
            container_document("side"),
            [
                "metadata.annotations[tensor-fusion.ai/isolation]: found hard, expected hard "
                "from an administrator"
            ],
        ),
        (
            pod_annotations(gpu_indices="0,1"),
            container_document("side"),
            [
                "metadata.annotations[tensor-fusion.ai/gpu-indices]: found '0,1', expected none: "
                "DRA has no index of a GPU; select by uuid in tensor-fusion.ai/dra-cel-filter, "
            ],
        ),
        (pod_annotations(gpu_indices=""), container_document("side"), []),
        (
            pod_annotations(tflops_limit="50", vram_limit="8Gi"),
            container_document("side"),
            [
                "metadata.annotations[tensor-fusion.ai/tflops-limit]: found 50, expected at least "
                "its request 100",
                "metadata.annotations[tensor-fusion.ai/vram-limit]: found 8Gi, expected at least "
                "its request 16Gi",
            ],
        ),
        (
            pod_annotations(
                tflops_request="0", compute_percent_request="50", compute_percent_limit="25"
            ),
            container_document("side"),
            [
                "metadata.annotations[tensor-fusion.ai/compute-percent-limit]: found 25, expected "
                "at least its request 50"
            ],
        ),
    ],
)
def test_pod_that_cannot_have_its_share_is_refused_with_the_place(
    annotations: dict[str, str], container: Json, expected: list[str]
) -> None:
    found = refused(pod_document({**ASKED, **annotations}, container_document(), container))

    assert [text[: len(start)] for text, start in zip(found, expected, strict=True)] == expected


@pytest.mark.parametrize(
    "spec",
    [
        {"containers": None},
        {"containers": [None, 1, {"name": 3}], "initContainers": {}},
        {"containers": [{"name": "a", "resources": None, "env": [None, {}]}]},
        {"containers": [{"resources": {"limits": None, "claims": None}}], "resourceClaims": None},
    ],
)
def test_pod_that_the_api_server_will_refuse_raises_no_exception(spec: dict[str, Any]) -> None:
    found = {**pod_document(ASKED), "spec": spec}

    assert refused(found) == []
    assert admitted_pod(found)["spec"]["resourceClaims"]


A, B, MADE = (
    {"name": "a", "resourceClaimName": "claim-a"},
    {"name": "b", "resourceClaimName": "claim-b"},
    {"name": "made", "resourceClaimTemplateName": "template"},
)


def container_with_claims(*claims: str, request: str = "") -> Json:
    extra = {"request": request} if request else {}
    return {"name": "c", "resources": {"claims": [{"name": name, **extra} for name in claims]}}


def pod_with_claims(*containers: Json, init: tuple[Json, ...] = (), **spec: bool) -> Json:
    return {
        "spec": {
            "resourceClaims": [A, B, MADE],
            "initContainers": list(init),
            "containers": list(containers),
            **spec,
        },
        "status": {
            "resourceClaimStatuses": [
                {"name": "made", "resourceClaimName": "train-made-x7k2p"},
                {"name": "gone"},
            ]
        },
    }


@pytest.mark.parametrize(
    ("found", "together"),
    [
        (pod_with_claims(container_with_claims("a"), container_with_claims("b")), set()),
        (pod_with_claims(container_with_claims("a", "b")), {"claim-b"}),
        (
            pod_with_claims(
                container_with_claims("a", request="x"),
                container_with_claims("b", "a", request="y"),
            ),
            {"claim-b"},
        ),
        (pod_with_claims(container_with_claims("a", "made")), {"train-made-x7k2p"}),
        (
            pod_with_claims(container_with_claims("a", "b"), container_with_claims("a", "made")),
            {"claim-b", "train-made-x7k2p"},
        ),
        (
            pod_with_claims(container_with_claims("a"), init=(container_with_claims("a", "b"),)),
            {"claim-b"},
        ),
        (pod_with_claims(container_with_claims("b", "made")), set()),
        (pod_with_claims(container_with_claims("a", "a")), set()),
        (pod_with_claims(container_with_claims("a", "unknown")), set()),
        ({}, set()),
        ({"spec": {"containers": [7], "resourceClaims": [None, {"name": "a"}]}}, set()),
    ],
)
def test_claims_that_share_a_container_with_one_claim(found: Json, together: set[str]) -> None:
    assert resource_claims.claims_sharing_a_container(found, "claim-a") == together


def test_nodes_offer_resources_of_device_plugins_unless_there_are_none_of_them() -> None:
    allocatable = [{"cpu": "8", "nvidia.com/gpu": "0"}, {"example.com/fpga": "1"}, None]

    nodes = [{"status": {"allocatable": each}} for each in allocatable]

    assert resource_claims.of_device_plugins(nodes) == {"cpu", "example.com/fpga"}


def container(name: str, *, request: str = "", claim: str = "a", **more: Any) -> Json:
    return {**container_with_claims(claim, request=request), "name": name, **more}


@pytest.mark.parametrize(
    ("found", "at_once"),
    [
        (pod_with_claims(container("x"), container("y")), ("x", "y")),
        (pod_with_claims(container("x"), container("y", claim="b")), ()),
        (pod_with_claims(container("x", request="r"), container("y", request="s")), ()),
        (pod_with_claims(container("x", request="r"), container("y", request="r")), ("x", "y")),
        (pod_with_claims(container("x", request="r"), container("y")), ("x", "y")),
        (pod_with_claims(container("x"), init=(container("i"), container("j"))), ()),
        (
            pod_with_claims(container("x"), init=(container("i", restartPolicy="Always"),)),
            ("i", "x"),
        ),
        (pod_with_claims(container_with_claims("a", "a")), ()),
        (pod_with_claims(container("x"), container("y"), shareProcessNamespace=True), ()),
        (pod_with_claims(container("x"), container("y"), hostPID=True), ()),
        ({}, ()),
    ],
)
def test_containers_that_use_one_request_of_a_claim_at_the_same_time(
    found: Json, at_once: tuple[str, ...]
) -> None:
    assert resource_claims.containers_at_once(found, "claim-a") == at_once


def lines_run(count: int) -> int:
    """Return the lines of Python that run for a pod with containers for a request each."""
    every = (container(f"c{number}", request=f"r{number}") for number in range(count))
    found, lines = pod_with_claims(*every), 0

    def trace(_frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal lines
        lines += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        assert resource_claims.containers_at_once(found, "claim-a") == ()
    finally:
        sys.settrace(before)
    return lines


def test_containers_are_not_compared_in_pairs() -> None:
    assert lines_run(400) <= 4.5 * lines_run(100)


def warnings(found: Json, scheduler: str = "default-scheduler") -> list[str]:
    pod, wanted, every = asked_of(found)
    return [*pod_admission.warnings(pod, [wanted], every, template=TEMPLATE, scheduler=scheduler)]


UNKNOWN = ", expected an amount such as 16Gi"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("1.5", "2 bytes; did you mean 1.5Gi?"),
        ("1023", "1023 bytes; did you mean 1023Gi?"),
        ("16384", "16384 bytes; did you mean 16384Mi?"),
        ("16384m", "17 bytes; did you mean 16384Mi?"),
        ("512Ki", f"524288 bytes{UNKNOWN}"),
        ("16k", f"16000 bytes{UNKNOWN}"),
        ("1e3", f"1000 bytes{UNKNOWN}"),
        ("16E-3", f"1 bytes{UNKNOWN}"),
    ],
)
def test_tiny_memory_is_warned_of_with_one_guess_or_none(text: str, found: str) -> None:
    document = pod_document(pod_annotations(tflops_request="1", vram_request=text))

    said = f"tensor-fusion.ai/vram-request: {text} is {found}"
    assert warnings(document) == [said]
    # The annotation has whole bytes now, and what the user wrote is not known.
    admitted = admitted_pod(document)
    (written,) = warnings(admitted)
    amount = admitted["metadata"]["annotations"]["tensor-fusion.ai/vram-request"]
    bytes_found = found.partition(";")[0].removesuffix(UNKNOWN)
    assert written == f"tensor-fusion.ai/vram-request: {amount} is {bytes_found}{UNKNOWN}"


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        (
            pod_annotations(vram_request="16"),
            "tensor-fusion.ai/vram-request: 16 is 16 bytes; did you mean 16Gi?",
        ),
        (
            pod_annotations(vram_request="16384m"),
            "tensor-fusion.ai/vram-request: 16384m is 17 bytes; did you mean 16384Mi?",
        ),
        (
            pod_annotations(vram_request="16000m"),
            "tensor-fusion.ai/vram-request: 16000m is 16 bytes; did you mean 16000Mi?",
        ),
        (
            pod_annotations(vram_request="0"),
            "tensor-fusion.ai/vram-request: not set, so the pod takes all memory of its GPUs",
        ),
        (
            pod_annotations(tflops_request="0"),
            "tensor-fusion.ai/tflops-request: not set, so the pod takes all compute of its GPUs",
        ),
        (
            pod_annotations(dedicated_gpu="true"),
            "tensor-fusion.ai/dedicated-gpu: the pod gets whole GPUs; its amounts are ignored",
        ),
        (
            pod_annotations(isolation="shared"),
            "tensor-fusion.ai/isolation: the pod gets whole GPUs; its amounts are ignored",
        ),
        (
            pod_annotations(gpu_modle="A100"),
            "tensor-fusion.ai/gpu-modle: unknown annotation; "
            "did you mean tensor-fusion.ai/gpu-model?",
        ),
        (
            pod_annotations(vram="1Gi"),
            "tensor-fusion.ai/vram: unknown annotation; "
            "did you mean tensor-fusion.ai/vram-request?",
        ),
        (
            {"tensorfusion.ai/qos": "high"},
            "tensorfusion.ai/qos: unknown annotation; did you mean tensor-fusion.ai/qos?",
        ),
        (
            pod_annotations(something="1"),
            "tensor-fusion.ai/something: unknown annotation",
        ),
        (
            pod_annotations(workload_profile="large"),
            "tensor-fusion.ai/workload-profile: has no effect in DRA mode: "
            "its amounts are not read; set them as annotations",
        ),
        *(
            (
                pod_annotations(**{name: "2"}),
                f"tensor-fusion.ai/{name.replace('_', '-')}: has no effect in DRA mode: {text}",
            )
            for name, text in {
                "enabled_replicas": "every pod with these annotations gets GPUs from this driver",
                "gang_min_members": "the scheduler places pods one by one, a queue such as Kueue "
                "starts them together",
                "autoscale": "amounts stay as they are requested",
                "autoscale_target": "amounts stay as they are requested",
            }.items()
        ),
        (
            {"Tensor-Fusion.ai/GPU-Model": "A100"},
            "Tensor-Fusion.ai/GPU-Model: unknown annotation; "
            "did you mean tensor-fusion.ai/gpu-model?",
        ),
        (
            {"tensor-fusion.ai/Autoscale": "true"},
            "tensor-fusion.ai/Autoscale: unknown annotation",
        ),
        (pod_annotations(gpu_count="1"), None),
        # Of other components.
        (pod_annotations(is_local_gpu="true", pool_a="true"), None),
        ({"example.com/tflops-request": "1", "prometheus.io/scrape": "true"}, None),
    ],
)
def test_annotations_with_unexpected_effects_are_warned_about(
    annotations: dict[str, str], expected: str | None
) -> None:
    found = warnings(pod_document({**ASKED, **annotations}))

    assert found == ([expected] if expected else [])


@pytest.mark.parametrize(
    ("spec", "scheduler", "expected"),
    [
        (
            {"schedulerName": "tensor-fusion-scheduler"},
            "default-scheduler",
            "spec.schedulerName: in DRA mode default-scheduler places the pod, "
            "not tensor-fusion-scheduler",
        ),
        (
            {"nodeName": "node-01"},
            "default-scheduler",
            "spec.nodeName: the pod bypasses the scheduler, so its claim is never allocated",
        ),
        (
            {"resourceClaims": [{"name": "tensor-fusion-gpu-claim", "resourceClaimName": "mine"}]},
            "default-scheduler",
            "spec.resourceClaims: tensor-fusion-gpu-claim keeps mine "
            "instead of tensor-fusion-gpu-template",
        ),
        (
            {"containers": [container_document(securityContext={"privileged": True})]},
            "default-scheduler",
            "container main: is privileged, so it sees every GPU of its node",
        ),
        (
            {"containers": [container_document(env=[{"name": "LD_PRELOAD", "value": "x"}])]},
            "default-scheduler",
            "container main: on nodes with the setting preload=env the limiter's LD_PRELOAD "
            "replaces its own",
        ),
        (
            {"initContainers": [container_document("init", securityContext={"privileged": True})]},
            "default-scheduler",
            None,
        ),
        (
            {
                "initContainers": [
                    container_document("init", resources={"limits": {"nvidia.com/gpu": "1"}})
                ]
            },
            "default-scheduler",
            "container init: nvidia.com/gpu was removed; it gets no share",
        ),
        (
            {"schedulerName": "tensor-fusion-scheduler"},
            "",
            "spec.schedulerName: tensor-fusion-scheduler must be a scheduler that allocates "
            "claims; otherwise the pod stays Pending",
        ),
    ],
)
def test_pod_specs_with_unexpected_effects_are_warned_about(
    spec: Json, scheduler: str, expected: str | None
) -> None:
    found = pod_document({**ASKED, **pod_annotations(inject_container="main")})
    found["spec"].update(spec)

    assert warnings(found, scheduler) == ([expected] if expected else [])

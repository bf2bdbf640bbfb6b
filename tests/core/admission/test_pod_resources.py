"""Amounts in the resources of containers, read as annotations."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from tensorfusion_dra.core import names
from tensorfusion_dra.core.admission import dialects, pod_request, pod_resources
from tensorfusion_dra.core.admission.dialects import Dialect
from tests.support.builders.pods import PREFIX, container_document, pod_annotations, pod_document

Json = dict[str, Any]


def limits(name: str = "main", /, *, kinds: tuple[str, ...] = ("limits",), **amounts: str) -> Json:
    """Return a container with these amounts; underscores in their names stand for dashes."""
    found = {PREFIX + key.replace("_", "-"): text for key, text in amounts.items()}
    return container_document(name, resources={kind: dict(found) for kind in kinds})


def annotations(pod: Mapping[str, Any]) -> Json:
    """Return the annotations that the pod's resources became, by their short names."""
    found = pod_resources.read(pod)
    assert not found.errors
    return {
        name.removeprefix(PREFIX): text
        for name, text in found.pod["metadata"]["annotations"].items()
        if name != names.ANNOTATION_DRA_ENABLED
    }


def shares(pod: Mapping[str, Any]) -> Json:
    (found,) = annotations(pod).values()
    return dict(json.loads(found))


def one(**amounts: str) -> Json:
    return {"gpu-count": "1", "inject-container": "main", **amounts}


SIDECAR: Any = {"restartPolicy": "Always"}
PLAIN = container_document("web")


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        (
            pod_document({}, limits(vram="16Gi", tflops="100")),
            one(**{"vram-request": "16Gi", "tflops-request": "100"}),
        ),
        (
            pod_document({}, limits(compute_percent="25", vram_percent="50")),
            one(**{"compute-percent-request": "25", "vram-percent-request": "50"}),
        ),
        (
            pod_document({}, limits(vram="16Gi", gpu="2")),
            one(**{"vram-request": "16Gi", "gpu-count": "2"}),
        ),
        (pod_document({}, limits(vram="16Gi", tflops="0")), one(**{"vram-request": "16Gi"})),
        (pod_document({}, PLAIN, limits(vram="16Gi")), one(**{"vram-request": "16Gi"})),
        (
            pod_document({}, limits(vram="16Gi"), initContainers=[limits("init", vram="16Gi")]),
            {"gpu-count": "1", "inject-container": "init,main", "vram-request": "16Gi"},
        ),
    ],
)
def test_resources_of_one_share_are_annotations_of_the_pod(pod: Json, expected: Json) -> None:
    assert annotations(pod) == expected


A: Any = {"vram-request": "16Gi"}
B: Any = {"vram-request": "2Gi"}


@pytest.mark.parametrize(
    ("containers", "inits", "expected"),
    [
        ([limits("a", vram="16Gi"), limits("b", vram="2Gi")], [], {"a": A, "b": B}),
        ([limits("a", vram="16Gi"), limits("b", vram="16Gi")], [], {"a": A, "b": A}),
        ([limits("a", vram="16Gi", gpu="1"), limits("b", vram="2Gi")], [], {"a": A, "b": B}),
        ([limits("a", vram="16Gi")], [limits("i", vram="2Gi")], {"i": B, "a": A}),
        (
            [limits("a", vram="16Gi"), limits("b", vram="2Gi")],
            [limits("i", vram="2Gi")],
            {"i": "b", "a": A, "b": B},
        ),
        # A sidecar runs beside the others, so it has a share of its own.
        (
            [limits("a", vram="16Gi")],
            [{**limits("s", vram="16Gi"), **SIDECAR}],
            {"s": A, "a": A},
        ),
    ],
)
def test_each_container_has_its_own_share(
    containers: list[Json], inits: list[Json], expected: Json
) -> None:
    assert shares(pod_document({}, *containers, initContainers=inits)) == expected


def test_all_resources_of_a_container_with_amounts_are_removed_and_nothing_else() -> None:
    both = limits("a", kinds=("limits", "requests"), vram="16Gi", gpu="1")
    for found in both["resources"].values():
        found["cpu"] = "1"
    whole = limits("whole", gpu="2")

    found = pod_resources.read(pod_document({"mine": "kept"}, both, whole))

    first, second = found.pod["spec"]["containers"]
    assert first["resources"] == {"limits": {"cpu": "1"}, "requests": {"cpu": "1"}}
    assert second == whole
    assert found.pod["metadata"]["annotations"]["mine"] == "kept"
    assert pod_resources.named(found.pod) == []
    assert pod_resources.read(found.pod).pod is found.pod


@pytest.mark.parametrize(
    "container",
    [PLAIN, limits(gpu="2"), limits(index_0="1"), container_document(resources={"limits": None})],
)
def test_pod_without_amounts_stays_as_it_is(container: Json) -> None:
    pod = pod_document({}, container)

    assert pod_resources.read(pod).pod is pod


@pytest.mark.parametrize(
    ("container", "expected"),
    [
        # As Kubernetes refuses them in the template of a Job.
        (limits(tflops="100.5"), "limits[tensor-fusion.ai/tflops]: found 100.5, expected a whole"),
        (limits(vram="500m"), "limits[tensor-fusion.ai/vram]: found 500m, expected a whole"),
        (limits(vram="-1"), "limits[tensor-fusion.ai/vram]: found -1, expected a whole"),
        (limits(vram="much"), "limits[tensor-fusion.ai/vram]: found 'much', expected"),
        (limits(kinds=("requests",), vram="1Gi"), "found a request without a limit"),
        (
            container_document(
                resources={
                    "limits": {"tensor-fusion.ai/vram": "2Gi"},
                    "requests": {"tensor-fusion.ai/vram": "1Gi"},
                }
            ),
            "limits[tensor-fusion.ai/vram]: found 2Gi and a request of 1Gi, expected both to be",
        ),
        # As annotations refuse them.
        (limits(compute_percent="101"), "[tensor-fusion.ai/compute-percent]: found 101, expected"),
        (limits(vram="1Gi", gpu="33"), "limits[tensor-fusion.ai/gpu]: found '33', expected 1 to"),
        (limits(vram="1Gi", gpu="0"), "limits[tensor-fusion.ai/gpu]: found '0', expected 1 to 32"),
        # What says two things.
        (limits(tflops="1", compute_percent="1"), "found it beside tensor-fusion.ai/tflops"),
        (limits(vram="1Gi", vram_percent="1"), "found it beside tensor-fusion.ai/vram"),
        (limits(vram="1Gi", vrma="1Gi"), "[tensor-fusion.ai/vrma]: found an unknown resource"),
        *(
            (
                container_document(
                    resources={"limits": {"tensor-fusion.ai/vram": "2Gi"}, kind: {other: "1"}}
                    if kind == "requests"
                    else {"limits": {"tensor-fusion.ai/vram": "2Gi", other: "1"}}
                ),
                f"limits[{other}]: found it beside tensor-fusion.ai/vram, expected one of",
            )
            for kind in ("limits", "requests")
            for other in (
                *("nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/gpumem", "amd.com/gpu"),
                *("nvidia.com/vgpu-number", "nvidia.com/mig-1g.10gb"),
            )
        ),
    ],
)
def test_resources_that_no_share_can_have_are_refused(container: Json, expected: str) -> None:
    for pod in (pod_document({}, container), pod_document({}, initContainers=[container])):
        (error,) = pod_resources.read(pod).errors

        assert expected in str(error)
        assert pod_resources.read(pod).pod is pod


C0_TO_C32 = ", ".join(f"c{number}" for number in range(33))


@pytest.mark.parametrize(
    ("containers", "expected"),
    [
        (
            [limits("a", vram="1Gi", gpu="2"), limits("b", vram="1Gi")],
            "spec.containers: tensor-fusion.ai/vram: found amounts for "
            "containers a, b, expected one GPU for each",
        ),
        (
            [limits(f"c{number}", vram="1Gi") for number in range(33)],
            f"spec.containers: tensor-fusion.ai/vram: found amounts for containers {C0_TO_C32}, "
            "expected one GPU for each: a container with a share of its own names one request of "
            "at most 32",
        ),
        (
            [limits(vram="1Gi"), *(container_document(f"c{number}") for number in range(500))],
            "spec.containers: found more, expected at most 500 containers",
        ),
    ],
)
def test_containers_that_cannot_have_shares_of_their_own_are_refused(
    containers: list[Json], expected: str
) -> None:
    (error,) = pod_resources.read(pod_document({}, *containers)).errors

    assert str(error).startswith(expected)
    assert not pod_resources.read(pod_document({}, *containers[:1], *containers[2:])).errors


def test_what_tensor_fusion_writes_into_resources_itself_stays_beside_amounts() -> None:
    index, main = {f"{names.TENSOR_FUSION_INDEX}0": "1"}, limits(vram="1Gi")
    main["resources"]["limits"] |= index

    found = pod_resources.read(pod_document({}, main))

    assert not found.errors
    (container,) = found.pod["spec"]["containers"]
    assert container["resources"]["limits"] == index


def test_no_gpu_beside_amounts_of_another_container_is_refused() -> None:
    main, none = limits("main", vram="20Gi"), limits("none", gpu="0")

    for pod in (pod_document({}, main, none), pod_document({}, main, initContainers=[none])):
        (error,) = pod_resources.read(pod).errors
        assert "limits[tensor-fusion.ai/gpu]: found 0 beside tensor-fusion.ai/vram" in str(error)
    assert not pod_resources.read(pod_document({}, none)).errors


def test_request_equals_its_limit_in_another_unit() -> None:
    main = limits("main", vram="1Gi")
    main["resources"]["requests"] = {"tensor-fusion.ai/vram": "1073741824"}

    assert not pod_resources.read(pod_document({}, main)).errors


def test_amount_of_0_is_none() -> None:
    zero = limits(vram="0", tflops="0")

    assert pod_resources.named(pod_document({}, zero)) == []
    assert pod_resources.named(pod_document({}, zero, limits("b", vram="1"))) == [PREFIX + "vram"]


BESIDE = "beside tensor-fusion.ai/tflops in the resources of container main, expected "


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("dra_enabled", "false", "only one of the two"),
        ("gpu_count", "2", "only one of the two"),
        ("tflops_request", "100", "only one of the two"),
        ("vram_percent_request", "25", "only one of the two"),
        ("compute_percent_request", "memory", "only one of the two"),
        ("dedicated_gpu", "true", "only one of the two"),
        ("inject_container", "main", "only one of the two"),
        ("container_shares", '{"main": {"vram-request": "1Gi"}}', "only one of the two"),
        ("isolation", "shared", "another one: it gives whole GPUs, without limits"),
        ("vram_limit", "32Gi", "tensor-fusion.ai/vram or tensor-fusion.ai/vram-percent in"),
    ],
)
def test_annotation_that_says_the_same_or_another_thing_is_refused(
    name: str, text: str, expected: str
) -> None:
    (error,) = pod_resources.read(
        pod_document(pod_annotations(**{name: text}), limits(tflops="100"))
    ).errors

    annotation = PREFIX + name.replace("_", "-")
    assert str(error).startswith(f"metadata.annotations[{annotation}]: found {text!r} {BESIDE}")
    assert expected in str(error)


@pytest.mark.parametrize(
    "beside",
    [
        {"gpu_model": "A100", "gpupool": "prod", "qos": "high", "dra_cel_filter": "true"},
        {"tflops_limit": "200", "isolation": "soft", "require_enforcement": "true"},
        {"compute_percent_limit": "100"},
        {"gpu_count": "1", "dedicated_gpu": "false", "dra_enabled": "true", "vram_request": "0"},
    ],
)
def test_annotations_may_add_what_is_no_amount(beside: dict[str, str]) -> None:
    found = annotations(pod_document(pod_annotations(**beside), limits(tflops="100")))

    assert found["tflops-request"] == "100"
    assert {name.replace("_", "-") for name in beside} - {"dra-enabled"} <= found.keys()


@pytest.mark.parametrize("text", ["False", "banana", ""])
def test_use_of_dra_that_is_neither_true_nor_false_stays_and_is_refused(text: str) -> None:
    pod = pod_document(pod_annotations(dra_enabled=text), limits(tflops="100"))

    wanted = pod_request.parse(pod_resources.read(pod).pod["metadata"]["annotations"])

    assert [str(error) for error in wanted.errors] == [
        f"metadata.annotations[{PREFIX}dra-enabled]: found {text!r}, expected true or false"
    ]


def test_one_gpu_in_annotations_beside_two_in_resources_is_refused() -> None:
    pod = pod_document(pod_annotations(gpu_count="1"), limits(tflops="100", gpu="2"))

    (error,) = pod_resources.read(pod).errors

    assert str(error).startswith(f"metadata.annotations[{PREFIX}gpu-count]: found '1' {BESIDE}")


def test_limit_is_refused_if_one_of_the_containers_has_no_such_amount() -> None:
    containers = [limits(tflops="1"), limits("b", vram="1Gi")]

    (error,) = pod_resources.read(
        pod_document(pod_annotations(vram_limit="2Gi"), *containers)
    ).errors

    assert "in the resources of container main, since a limit alone is the request" in str(error)


def test_compute_may_follow_memory() -> None:
    beside = {"compute_percent_request": "memory", "compute_percent_limit": "100"}
    pod = pod_document(pod_annotations(**beside), limits(vram="16Gi"))

    wanted = pod_request.parse(pod_resources.read(pod).pod["metadata"]["annotations"])

    assert wanted.like_memory
    assert not wanted.errors
    assert wanted.vram is not None


def of_hami(name: str = "main", **amounts: int) -> Json:
    return container_document(
        name, resources={"limits": {f"nvidia.com/{key}": text for key, text in amounts.items()}}
    )


@pytest.mark.parametrize(
    ("pod", "expected", "rest"),
    [
        (
            pod_document({}, of_hami(gpu=2, gpumem=3000, gpucores=30)),
            {"main": {"vram": "3000Mi", "compute-percent": "30", "gpu": "2"}},
            {},
        ),
        (
            pod_document({}, of_hami(gpu=1, gpumem=3000)),
            {"main": {"vram": "3000Mi"}},
            {"compute-percent-request": "memory"},
        ),
        (
            pod_document(
                {"nvidia.com/use-gpuuuid": "GPU-1"},
                of_hami("a", gpumem=3000),
                of_hami("b", gpumem=10),
                initContainers=[of_hami("i", gpumem=10)],
            ),
            {"a": {"vram": "3000Mi"}, "b": {"vram": "10Mi"}, "i": {"vram": "10Mi"}},
            {"compute-percent-request": "memory", "dra-cel-filter": ...},
        ),
        # What resources cannot say: whole cards, and compute that follows memory in one of two.
        (pod_document({}, of_hami(gpu=1)), {}, ...),
        (
            pod_document({}, of_hami("a", gpumem=3000), of_hami("b", gpumem=10, gpucores=5)),
            {},
            ...,
        ),
    ],
)
def test_words_of_other_systems_become_resources_that_mean_the_same(
    pod: Json, expected: Json, rest: Any
) -> None:
    translated = dialects.translate(pod, [Dialect.HAMI]).annotations

    asked, left = pod_resources.written(pod, translated)

    assert asked == {
        name: {PREFIX + key: text for key, text in amounts.items()}
        for name, amounts in expected.items()
    }
    assert left == (
        translated
        if rest is ...
        else {
            PREFIX + key: translated[PREFIX + key] if text is ... else text
            for key, text in rest.items()
        }
    )

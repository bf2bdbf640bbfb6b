"""Pods in the words of other systems: what each word becomes, and what follows from all of them."""

import copy
import json
from typing import Any

import pytest

from tensorfusion_dra.core import names
from tensorfusion_dra.core.admission import dialects
from tensorfusion_dra.core.admission.dialects import WORDS, Dialect, Kind, Translation
from tensorfusion_dra.core.kubernetes.review import annotations_of
from tensorfusion_dra.core.kubernetes.untyped_json import as_map
from tests.support.builders.pods import pod_annotations

Json = dict[str, Any]
HAMI, VGPU, KAI, FRACTIONING, KSERVE = Dialect
TYPE = 'device.attributes["tensor-fusion.ai.dra-driver"].product_name'
UUID = TYPE.replace("product_name", "uuid")


def part_of(attribute: str, *entries: str) -> str:
    """Return the selector of devices of whose attribute an entry is a part."""
    parts = " || ".join(f'{attribute}.upperAscii().contains("{entry}")' for entry in entries)
    return f"(has({attribute}) && ({parts}))"


def pod(*containers: Json, **annotations: Any) -> Json:
    """Return a pod; `inits` and `scheduler` are no annotations."""
    inits = annotations.pop("inits", ())
    scheduler = annotations.pop("scheduler", "default-scheduler")
    spec = {"schedulerName": scheduler, "initContainers": [*inits], "containers": [*containers]}
    return {"metadata": {"annotations": annotations, "labels": {}}, "spec": spec}


def container(name: str = "main", /, *, field: str = "limits", **resources: object) -> Json:
    return {"name": name, "resources": {field: resources}}


def nvidia(**words: object) -> Json:
    """Return the words with their prefix, underscores for dashes."""
    return {f"nvidia.com/{name.replace('_', '-')}": value for name, value in words.items()}


ASKING = {
    HAMI: (Kind.RESOURCE, names.NVIDIA_GPU, "1"),
    VGPU: (Kind.RESOURCE, "nvidia.com/vgpu-number", "1"),
    KAI: (Kind.ANNOTATION, "gpu-fraction", "0.5"),
    FRACTIONING: (Kind.ANNOTATION, "nvidia.com/container.main.gpu-memory.request", "1Gi"),
    KSERVE: (Kind.ANNOTATION, "serving.kserve.io/exp-dra-device-class", "x"),
}
"""A word of each dialect by which a pod asks for a GPU."""


def one(dialect: Dialect, *word: str) -> Translation:
    """Translate a pod that asks for a GPU and has the word, given by kind, name and text."""
    made = pod(container())
    env = made["spec"]["containers"][0].setdefault("env", [])
    if word[0] is Kind.VARIABLE:
        env.append({"name": word[1], "value": word[2]})
        word = ()
    holders = {
        Kind.RESOURCE: made["spec"]["containers"][0]["resources"]["limits"],
        Kind.ANNOTATION: made["metadata"]["annotations"],
        Kind.LABEL: made["metadata"]["labels"],
        Kind.SCHEDULER: made["spec"],
    }
    asking = () if "gpu-memory" in word else (ASKING[dialect],)  # KAI refuses both
    for kind, name, text in (*asking, *([word] if word else ())):
        holders[Kind(kind)][name] = text
    return dialects.translate(made, {dialect})


SAMPLES = {
    "nvidia.com/gpu": ("2", "2"),
    "nvidia.com/gpumem": ("3000", "3000Mi"),
    "nvidia.com/gpumem-percentage": ("50", "50"),
    "nvidia.com/gpucores": ("30", "30"),
    "GPU_CORE_UTILIZATION_POLICY": ("default", "100"),
    "nvidia.com/use-gputype": (
        "a100, V100,",
        part_of(TYPE, "A100", "V100"),
    ),
    "nvidia.com/nouse-gputype": (
        "NVIDIA-NVIDIA 2080",
        f"!{part_of(TYPE, 'NVIDIA 2080')}",
    ),
    "nvidia.com/use-gpuuuid": (
        "GPU-0a",
        part_of(UUID, "GPU-0A"),
    ),
    "nvidia.com/nouse-gpuuuid": (
        "GPU-0a",
        f"!{part_of(UUID, 'GPU-0A')}",
    ),
    "nvidia.com/numa-bind": ("true", "resource.kubernetes.io/numaNode"),
    "hami.io/gpu-scheduler-policy": ("mutex, spread", "true"),
    "nvidia.com/device-topology-mode": ("numa-strict", "resource.kubernetes.io/numaNode"),
    "nvidia.com/vgpu-number": ("2", "2"),
    "nvidia.com/vgpu-memory": ("1024", "1024Mi"),
    "nvidia.com/vgpu-cores": ("10", "10"),
    "nvidia.com/include-gpu-type": (
        "A10",
        part_of(TYPE, "A10"),
    ),
    "nvidia.com/exclude-gpu-type": (
        "A10",
        f"!{part_of(TYPE, 'A10')}",
    ),
    "nvidia.com/include-gpu-uuid": (
        "GPU-0a",
        part_of(UUID, "GPU-0A"),
    ),
    "nvidia.com/exclude-gpu-uuid": (
        "GPU-0a",
        f"!{part_of(UUID, 'GPU-0A')}",
    ),
    "gpu-fraction": ("0.25", "25"),
    "gpu-memory": ("2000", "2000Mi"),
    "gpu-fraction-num-devices": ("3", "3"),
    "gpu-fraction-container-name": ("side", "side"),
    "nvidia.com/container.*.gpu-memory.request": ("8Gi", "8Gi"),
    "nvidia.com/container.*.gpu-memory.limit": ("1000M", "1000M"),
    "serving.kserve.io/exp-dra-device-class": ("gpu.example.com", "true"),
    "serving.kserve.io/exp-dra-device-count": ("2", "2"),
    "serving.kserve.io/exp-dra-gpu-count": ("2", "2"),
    "serving.kserve.io/exp-dra-cel-selector": (
        "\ndevice.driver == 'tensor-fusion.ai.dra-driver'\n  true\n",
        "(device.driver == 'tensor-fusion.ai.dra-driver') && (true)",
    ),
    "serving.kserve.io/exp-dra-container-name": ("side", "side"),
}
"""A text of each word that becomes an annotation, and the annotation's value."""
UNDEFINED = {f"nvidia.com/container.*.gpu-compute.{field}" for field in ("request", "limit")}
EVERY = [(dialect, word) for dialect, words in WORDS.items() for word in words]


@pytest.mark.parametrize(
    ("dialect", "word"), EVERY, ids=[f"{dialect}-{word.name}" for dialect, word in EVERY]
)
def test_each_word_becomes_its_annotation_or_is_named(
    dialect: Dialect, word: dialects.FieldMapping
) -> None:
    text, value = SAMPLES.get(word.name, ("x", ""))

    is_scheduler = word.kind is Kind.SCHEDULER
    name = "schedulerName" if is_scheduler else word.name.replace("*", "main")

    found = one(dialect, word.kind, name, word.name if is_scheduler else text)

    (own,) = (each for each in found.matches if each.name == name)
    if word.name in UNDEFINED:
        assert own.is_refused
        assert own.text.startswith("no release defines it")
    elif is_scheduler or not word.becomes:
        assert own.is_removed == (word.kind is Kind.RESOURCE or bool(word.becomes))
        assert word.becomes in own.text or word.note in own.text
        assert found.annotations
    else:
        assert own.is_removed == (word.kind is not Kind.VARIABLE)
        assert found.annotations[word.becomes] == value


@pytest.mark.parametrize(
    ("dialect", "kind", "word", "text", "expected"),
    [
        (HAMI, Kind.RESOURCE, "nvidia.com/gpumem", "1.5", "found '1.5', expected a whole number"),
        (HAMI, Kind.RESOURCE, "nvidia.com/gpumem", "much", "found 'much', expected a quantity"),
        (
            HAMI,
            Kind.RESOURCE,
            "nvidia.com/gpucores",
            "101",
            "found '101', expected a whole number of at most 100",
        ),
        (
            HAMI,
            Kind.RESOURCE,
            "nvidia.com/gpumem-percentage",
            "101",
            "found '101', expected a whole number of at most",
        ),
        (KAI, Kind.ANNOTATION, "gpu-fraction", "1", "found '1', expected more than 0 and less th"),
        (KAI, Kind.ANNOTATION, "gpu-memory", "-1", "found '-1', expected a whole number"),
        (
            *(KSERVE, Kind.ANNOTATION, "serving.kserve.io/exp-dra-cel-selector"),
            *("device.attributes['gpu.example.com'].model == 'A'", "found attributes of other dri"),
        ),
    ],
)
def test_texts_that_no_annotation_can_have_are_refused(
    dialect: Dialect, kind: Kind, word: str, text: str, expected: str
) -> None:
    (refused,) = (found for found in one(dialect, kind, word, text).matches if found.is_refused)

    assert refused.key == word
    assert refused.text.startswith(expected)


POLICY = "GPU_CORE_UTILIZATION_POLICY"


def policy(value: object, /, **words: object) -> Json:
    """Return a pod of HAMi with the policy in its container's environment."""
    entry = value if isinstance(value, dict) else {"name": POLICY, "value": value}
    words = words or {"gpumem_percentage": 50, "gpucores": 30}
    return pod({**container(**nvidia(**words)), "env": [{"name": "A", "value": "b"}, entry]})


@pytest.mark.parametrize(
    ("document", "limit", "said"),
    [
        (policy("default"), "100", "becomes tensor-fusion.ai/compute-percent-limit: 100"),
        (policy("anything"), "100", "becomes tensor-fusion.ai/compute-percent-limit: 100"),
        (policy("force"), "30", "becomes tensor-fusion.ai/compute-percent-limit: 30"),
        (policy("FORCE"), "30", "becomes tensor-fusion.ai/compute-percent-limit: 30"),
        (policy("force", gpumem_percentage=50), None, "is unset"),
        (policy("", gpumem_percentage=50), None, "is unset"),
        (policy({"name": POLICY, "valueFrom": {}}, gpumem_percentage=50), None, "is unset"),
        *(
            (policy(text), "100", "compute-percent-limit: 100, as for default: only an adm")
            for text in ("disable", "DISABLE")
        ),
        (policy("default", cpu="1"), None, ""),
        (pod(container(**nvidia(gpu=1)), **{"gpu-fraction-container-name": "request"}), None, ""),
        (pod({**container(**nvidia(gpu=1)), "env": 7}), None, ""),
        (pod({**container(**nvidia(gpu=1)), "env": [7, {"value": "force"}]}), None, ""),
    ],
)
def test_policy_of_hami_core_is_a_limit_of_compute(
    document: Json, limit: str | None, said: str
) -> None:
    before = copy.deepcopy(document["spec"]["containers"][0].get("env"))

    found = dialects.translate(document, {HAMI, KAI})
    dialects.apply(document, found)

    assert annotations_of(document).get(names.ANNOTATION_COMPUTE_PERCENT_LIMIT) == limit
    matches = [(each.path, each.text) for each in found.matches if each.name == POLICY]
    assert [path for path, _ in matches] == (["spec.containers[0].env[1]"] if said else [])
    assert all(said in text for _, text in matches)
    assert document["spec"]["containers"][0].get("env") == before


def test_words_that_exclude_each_other_are_refused() -> None:
    document = pod(container(), **{"gpu-fraction": "0.5", "gpu-memory": "2000"})

    refused = [each for each in dialects.translate(document, {KAI}).matches if each.is_refused]

    assert [(each.key, each.text) for each in refused] == [
        ("gpu-memory", "found it beside gpu-fraction, expected one of the two")
    ]


WHOLE = {"dedicated-gpu": "true"}
LIKE = {"compute-percent-request": "memory"}


@pytest.mark.parametrize(
    ("dialect", "document", "expected"),
    [
        # HAMi's examples: two cards, a part of one, percentages, an exclusive card, no count.
        (HAMI, pod(container(**nvidia(gpu=2))), {"gpu-count": "2", **WHOLE}),
        (HAMI, pod(container(**nvidia(gpu=1, gpumem=3000))), {"vram-request": "3000Mi", **LIKE}),
        (
            HAMI,
            pod(container(**nvidia(gpu=2, gpumem_percentage=50, gpucores=30))),
            {"gpu-count": "2", "vram-percent-request": "50", "compute-percent-request": "30"},
        ),
        (HAMI, pod(container(**nvidia(gpumem=3000))), {"vram-request": "3000Mi", **LIKE}),
        (
            HAMI,
            pod(container(**nvidia(gpumem=3000, gpumem_percentage=20))),
            {"vram-request": "3000Mi", **LIKE},
        ),
        (
            HAMI,
            pod(container(**nvidia(gpu=1, gpucores=30))),
            {"compute-percent-request": "30"},
        ),
        (HAMI, pod(container(**nvidia(gpu=1, gpumem=0, gpucores=0))), WHOLE),
        (
            HAMI,
            pod(
                container(field="requests", **nvidia(gpu=1)),
                **nvidia(use_gputype="A", nouse_gpuuuid="B"),
            ),
            {
                **WHOLE,
                "dra-cel-filter": f"{part_of(TYPE, 'A')} && !{part_of(UUID, 'B')}",
            },
        ),
        # vgpu-manager's: cores and memory; memory alone.
        (
            VGPU,
            pod(container(**nvidia(vgpu_number=1, vgpu_cores=10, vgpu_memory=1024))),
            {"compute-percent-request": "10", "vram-request": "1024Mi"},
        ),
        (VGPU, pod(container(**nvidia(vgpu_number=1))), WHOLE),
        # KAI's: the first container, or the one that is named.
        (
            KAI,
            pod(container(), container("side"), **{"gpu-fraction": "0.5"}),
            {"vram-percent-request": "50", **LIKE},
        ),
        (
            KAI,
            pod(
                *(container("side"), container()),
                **{"gpu-memory": "2000", "gpu-fraction-container-name": "main"},
            ),
            {"vram-request": "2000Mi", **LIKE},
        ),
        (
            FRACTIONING,
            pod(container(), **nvidia(**{"container.main.gpu-memory.limit": "16Gi"})),
            {"vram-limit": "16Gi", **LIKE},
        ),
        (
            KSERVE,
            pod(container(), **{"serving.kserve.io/exp-dra-device-class": "gpu.nvidia.com"}),
            WHOLE,
        ),
        # A container of the same words that has ended before shares the claim.
        (
            HAMI,
            pod(container(**nvidia(gpu=1)), inits=(container("init", **nvidia(gpu=1)),)),
            {**WHOLE, "inject-container": "init,main"},
        ),
        (HAMI, pod(container(**nvidia(gpu=1)), container("side", **nvidia(gpu=0))), WHOLE),
    ],
)
def test_words_of_a_pod_become_one_request(
    dialect: Dialect, document: Json, expected: dict[str, str]
) -> None:
    found = dialects.translate(document, {dialect})
    dialects.apply(document, found)

    common = {"dra-enabled": "true", "gpu-count": "1", "inject-container": "main"}
    assert annotations_of(document) == pod_annotations(**{**common, **expected})
    assert not any(
        as_map(each["resources"].get("limits"))
        for each in document["spec"]["containers"]
        if each["name"] == "main"
    )
    assert not found.error


SMALL = {"vram-request": "5Mi", "compute-percent-request": "memory"}
SIDE = container("side", **nvidia(gpu=1))


@pytest.mark.parametrize(
    ("others", "shares"),
    [
        ({"containers": (SIDE,)}, {"main": WHOLE, "side": WHOLE}),
        (
            {"inits": (container("side", **nvidia(gpu=1, gpumem=5)),)},
            {"side": SMALL, "main": WHOLE},
        ),
        ({"inits": ({**SIDE, "restartPolicy": "Always"},)}, {"side": WHOLE, "main": WHOLE}),
        (
            {"containers": (container("other", **nvidia(gpumem=5)),), "inits": (SIDE,)},
            {"side": "main", "main": WHOLE, "other": SMALL},
        ),
    ],
)
def test_several_containers_get_shares_of_their_own(others: Json, shares: Json) -> None:
    added = others.get("containers", ())
    document = pod(container(**nvidia(gpu=1)), *added, inits=others.get("inits", ()))

    found = dialects.translate(document, {HAMI})

    assert json.loads(found.annotations.pop("tensor-fusion.ai/container-shares")) == shares
    assert found.annotations == {"tensor-fusion.ai/dra-enabled": "true"}
    assert len(found.notes) == len({*found.notes})


def test_several_gpus_for_one_of_several_containers_are_refused() -> None:
    found = dialects.translate(pod(container(**nvidia(gpu=2)), SIDE), {HAMI})

    assert found.error.startswith("found amounts for containers main, side, expected one GPU")
    assert not found.annotations


OF_KSERVE = pod(container(), **{"serving.kserve.io/exp-dra-device-class": "tensor-fusion.ai"})
OF_KSERVE["spec"]["resourceClaims"] = [{"name": "managed-device"}]


@pytest.mark.parametrize(
    "document",
    [
        pod(container(cpu="1")),
        pod(container(**nvidia(gpu=0)), scheduler="hami-scheduler"),
        pod(container(**nvidia(gpu=0, gpumem=3000))),
        pod(container(**nvidia(gpu=1)), **pod_annotations(dra_enabled="false")),
        pod(container(**nvidia(gpu=1)), **pod_annotations(vram_request="1Gi")),
        pod(container(**nvidia(vgpu_number=1))),
        OF_KSERVE,
        {},
        {"metadata": 7, "spec": {"containers": [7, {"resources": {"limits": [7]}}]}},
    ],
)
def test_pod_that_asks_for_no_gpu_in_a_dialect_stays_as_it_is(document: Json) -> None:
    assert not dialects.translate(document, {HAMI, KSERVE}).annotations


def test_translation_is_done_once_and_leaves_what_it_does_not_know() -> None:
    document = pod(
        container(**nvidia(gpu=1, gpumems=5), cpu="1"),
        scheduler="hami-scheduler",
        **{
            "hami.io/future": "x",
            "tensor-fusion.ai/qos": "high",
            "hami.io/gpu-scheduler-policy": "x",
        },
    )
    found = dialects.translate(document, {HAMI})

    dialects.apply(document, found)

    unknown = {each.key for each in found.matches if "no known word" in each.text}
    assert unknown == {"nvidia.com/gpumems", "hami.io/future"}
    (main,) = document["spec"]["containers"]
    assert main["resources"]["limits"] == {"nvidia.com/gpumems": 5, "cpu": "1"}
    assert "schedulerName" not in document["spec"]
    assert {"hami.io/future", "tensor-fusion.ai/qos"} <= set(annotations_of(document))
    before = copy.deepcopy(document)
    dialects.apply(document, dialects.translate(document, {HAMI}))
    assert {**before["metadata"]["annotations"]} == document["metadata"]["annotations"]


@pytest.mark.parametrize(
    ("dialect", "name", "policy", "text"),
    [
        (HAMI, "hami.io/gpu-scheduler-policy", "binpack", "fills one card of a node after"),
        (HAMI, "hami.io/gpu-scheduler-policy", "topology-aware", "attribute of an NVLink island"),
        (HAMI, "hami.io/gpu-scheduler-policy", "spread", "dedicated-gpu gives cards"),
        (VGPU, "nvidia.com/device-topology-mode", "link", "attribute of an NVLink island"),
        (VGPU, "nvidia.com/device-topology-mode", "numa", "gpus-match with resource.kubernetes.io"),
        (FRACTIONING, "nvidia.com/container.main.gpu-compute.mode", "mps", "enforcer decides"),
    ],
)
def test_policy_without_effect_says_what_does_the_same(
    dialect: Dialect, name: str, policy: str, text: str
) -> None:
    found = one(dialect, Kind.ANNOTATION, name, policy)

    (said,) = (each.text for each in found.matches if each.name == name)
    assert text in said
    assert names.ANNOTATION_GPUS_MATCH not in found.annotations


@pytest.mark.parametrize(
    ("policy", "is_dedicated"),
    [("mutex", True), ("spread, mutex", True), ("spread", False), ("mutexes", False)],
)
def test_part_of_a_gpu_is_dedicated_by_mutex_alone(policy: str, *, is_dedicated: bool) -> None:
    made = pod(container(**nvidia(gpumem_percentage=50)))
    made["metadata"]["annotations"] = {"hami.io/gpu-scheduler-policy": policy}

    found = dialects.translate(made, {HAMI}).annotations

    assert (found.get(names.ANNOTATION_DEDICATED_GPU) == "true") == is_dedicated


def test_policy_alone_asks_for_no_gpu() -> None:
    policies = {"hami.io/gpu-scheduler-policy": "mutex", "nvidia.com/numa-bind": "true"}
    made = {"metadata": {"annotations": policies}, "spec": {"containers": [{"name": "main"}]}}

    assert dialects.translate(made, {HAMI}).annotations == {}

"""Pods in the words of other systems for sharing GPUs, translated into Tensor Fusion's annotations.

A table has each word, what it becomes, and how its value is read. The pod is then admitted like any
pod with these annotations. Example of HAMi, in the limits of container `main`:

    nvidia.com/gpu: 2         gpu-count: "2"
    nvidia.com/gpumem: 3000   vram-request: 3000Mi
                              compute-percent-request: memory, inject-container: main

Two rules fill in what the words leave open. A pod that names no amount gets whole cards. A pod that
names memory and no compute would get all compute of its cards, since a claim takes all of a
capacity that it does not name, and nobody else could share them. So its compute follows its memory:
10 GiB of 40 are 25 % of the compute. The other systems set no limit there, or take turns.

Words for several containers become `container-shares`, a request for each in the pod's one claim.
An init container with the same words as another one shares with it, as it has ended before.

Nothing is dropped in silence: each word is replaced, kept with a note, or refused.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Any, Final

from tensorfusion_dra.core import names
from tensorfusion_dra.core.admission.pod_request import LIKE_MEMORY, REQUESTING_ANNOTATIONS
from tensorfusion_dra.core.cel.syntax import quoted
from tensorfusion_dra.core.errors import DriverError, InputError
from tensorfusion_dra.core.kubernetes import quantity, resource_claims, untyped_json
from tensorfusion_dra.core.kubernetes.quantity import NANO, Quantity
from tensorfusion_dra.core.kubernetes.untyped_json import (
    as_list,
    as_map,
    map_at,
    name_of,
)

Json = dict[str, Any]
Amounts = dict[str, str]
"""Tensor Fusion's annotations and their values."""


class Dialect(StrEnum):
    """A system whose words are known."""

    HAMI = "hami"
    VGPU_MANAGER = "vgpu-manager"
    KAI = "kai"
    GPU_FRACTIONING = "gpu-fractioning"
    KSERVE = "kserve"


class Kind(StrEnum):
    """Place of a word in a pod."""

    RESOURCE = "resource"
    ANNOTATION = "annotation"
    LABEL = "label"
    SCHEDULER = "schedulerName"
    VARIABLE = "env"


def _whole(text: str, most: int = 2**31 - 1) -> str:
    """Return a whole number; 0 is unset, as in the systems that have such numbers."""
    amount = quantity.parse(text)
    if amount.nano % NANO or not 0 <= amount.nano <= most * NANO:
        raise ValueError(f"found {text[:80]!r}, expected a whole number of at most {most}")
    return str(amount.nano // NANO) if amount.nano else ""


def _percent(text: str) -> str:
    return _whole(text, most=100)


def _mib(text: str) -> str:
    amount = _whole(text)
    return f"{amount}Mi" if amount else ""


def _fraction(text: str) -> str:
    """Return the percentage that a fraction is."""
    amount = quantity.parse(text)
    if not 0 < amount.nano < NANO:
        raise ValueError(f"found {text[:80]!r}, expected more than 0 and less than 1")
    return str(Quantity(100 * amount.nano))


def _attribute(name: str, *, has: bool) -> Callable[[str], str]:
    """Return the reader of a list, of which an entry has to be part of a device's attribute.

    Letters are compared without case. A list without entries is no condition. Of an optional value
    (`.?`) the API server does not know the length, and refuses the expression for its cost.
    """
    attribute = f"device.attributes[{quoted(names.DRIVER)}].{name}"

    def read(text: str) -> str:
        entries = [entry.strip().upper() for entry in text.split(",") if entry.strip()]
        # HAMi writes NVIDIA- before a card's product name.
        parts = [
            f"{attribute}.upperAscii().contains({quoted(each.removeprefix('NVIDIA-'))})"
            for each in entries
        ]
        found = f"has({attribute}) && ({' || '.join(parts)})"
        return (f"({found})" if has else f"!({found})") if parts else ""

    return read


def _selectors(text: str) -> str:
    """Return the lines of a text as one selector, if they are about this driver's devices."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if lines and names.DRIVER not in text:
        raise ValueError(f"found attributes of other drivers, expected those of {names.DRIVER}")
    return " && ".join(f"({line})" for line in lines)


def _core_policy(text: str) -> str:
    """Return the compute limit that follows from HAMi-core's policy: a percentage, or the request.

    Unless it is forced, HAMi lifts the limits of a container that is alone on its card. HAMi-core
    reads an unknown text as `default`.
    """
    is_forced = text in {names.CORE_POLICY_FORCE, names.CORE_POLICY_FORCE.upper()}
    return "" if not text else _LIKE_REQUEST if is_forced else "100"


def _numa_node(text: str) -> str:
    """Return the attribute of the NUMA node, if all cards have to be of one; not if they should."""
    return names.ATTR_NUMA_NODE if text.strip() in {"true", "numa-strict"} else ""


def _mutex(text: str) -> str:
    return "true" if "mutex" in map(str.strip, text.split(",")) else ""


def _undefined(_: str) -> str:
    raise ValueError(f"no release defines it, expected {names.ANNOTATION_COMPUTE_PERCENT_REQUEST}")


@dataclass(frozen=True, slots=True)
class FieldMapping:
    """One word of a dialect.

    Attributes:
        name: Of the resource, annotation, label, scheduler or variable; * is the name of a
            container.
        becomes: Tensor Fusion's annotation, or a scheduler; "" for a word without effect here.
        read: Returns the annotation's value, or "" for none; raises for a text that it cannot have.
        note: Why the word has no effect.
        notes: What is added to the text about some of its values, in lower case.
        excludes: Another word of the pod, beside which its system refuses this one.
    """

    kind: Kind
    name: str
    becomes: str = ""
    read: Callable[[str], str] = str
    note: str = ""
    notes: Mapping[str, str] = field(default_factory=dict)
    excludes: str = ""


_RESOURCE, _ANNOTATION, _SCHEDULER = Kind.RESOURCE, Kind.ANNOTATION, Kind.SCHEDULER
_COUNT: Final = names.ANNOTATION_GPU_COUNT
_VRAM: Final = names.ANNOTATION_VRAM_REQUEST
_VRAM_PERCENT: Final = names.ANNOTATION_VRAM_PERCENT_REQUEST
_COMPUTE: Final = names.ANNOTATION_COMPUTE_PERCENT_REQUEST
_COMPUTE_LIMIT: Final = names.ANNOTATION_COMPUTE_PERCENT_LIMIT
_LIKE_REQUEST: Final = "request"
"""Value of a word for a limit: what the words of the same container request."""
_FILTER: Final = names.ANNOTATION_CEL_FILTER
_MATCH: Final = names.ANNOTATION_GPUS_MATCH
_DEDICATED: Final = names.ANNOTATION_DEDICATED_GPU
_INJECT: Final = names.ANNOTATION_INJECT_CONTAINER
_DEFAULT_SCHEDULER: Final = "default-scheduler"
_TYPE, _NO_TYPE = (_attribute(names.ATTR_PRODUCT_NAME, has=has) for has in (True, False))
_UUID, _NO_UUID = (_attribute(names.ATTR_UUID, has=has) for has in (True, False))
_PLACING: Final = "kube-scheduler places the pod"
_LIMITER: Final = "the node's enforcer decides how limits are kept"
_ISLAND: Final = f": {names.ANNOTATION_GPUS_MATCH} with the attribute of an NVLink island does it"
_POLICIES: Final = {
    "binpack": ": kube-scheduler fills one card of a node after the other",
    "spread": f": {names.ANNOTATION_DEDICATED_GPU} gives cards that nobody else has",
    "numa": f": {names.ANNOTATION_GPUS_MATCH} with {names.ATTR_NUMA_NODE} does it",
    **dict.fromkeys(("topology-aware", "topology", "link", "link-strict"), _ISLAND),
}
"""What does the same for a policy of other schedulers, in their words."""
CARD_POLICY: Final = "hami.io/gpu-scheduler-policy"
_OF: Final = "nvidia.com/container.*."
_KSERVE: Final = "serving.kserve.io/exp-dra-"
KSERVE_CLASS: Final = f"{_KSERVE}device-class"
KSERVE_SELECTOR: Final = f"{_KSERVE}cel-selector"

WORDS: Final[Mapping[Dialect, tuple[FieldMapping, ...]]] = {
    # Project-HAMi/HAMi: charts/hami/values.yaml, pkg/device/nvidia/device.go (MutateAdmission,
    # GenerateResourceRequests), pkg/device/devices.go (CheckType, CheckUUID), pkg/util/types.go.
    # Memory is in MiB of each card (memoryFactor 1), cores are percent, 0 is unset, and gpumem
    # takes precedence over gpumem-percentage. Without nvidia.com/gpu it is one card. The variable
    # is read by HAMi-core (set_env_utilization_switch); without gpucores it limits nothing.
    Dialect.HAMI: (
        FieldMapping(_RESOURCE, names.NVIDIA_GPU, _COUNT, _whole),
        FieldMapping(_RESOURCE, "nvidia.com/gpumem", _VRAM, _mib),
        FieldMapping(_RESOURCE, "nvidia.com/gpumem-percentage", _VRAM_PERCENT, _percent),
        FieldMapping(_RESOURCE, "nvidia.com/gpucores", _COMPUTE, _percent),
        FieldMapping(_RESOURCE, "nvidia.com/priority", note=_LIMITER),
        FieldMapping(_ANNOTATION, "nvidia.com/use-gputype", _FILTER, _TYPE),
        FieldMapping(_ANNOTATION, "nvidia.com/nouse-gputype", _FILTER, _NO_TYPE),
        FieldMapping(_ANNOTATION, "nvidia.com/use-gpuuuid", _FILTER, _UUID),
        FieldMapping(_ANNOTATION, "nvidia.com/nouse-gpuuuid", _FILTER, _NO_UUID),
        FieldMapping(_ANNOTATION, "nvidia.com/vgpu-mode", note=_LIMITER),
        FieldMapping(_ANNOTATION, "nvidia.com/numa-bind", _MATCH, _numa_node),
        FieldMapping(_ANNOTATION, "hami.io/node-scheduler-policy", note=_PLACING),
        # mutex is for cards that are not in use (util.PolicyContains, Fit of each device).
        FieldMapping(*(_ANNOTATION, CARD_POLICY, _DEDICATED, _mutex), notes=_POLICIES),
        FieldMapping(
            *(Kind.VARIABLE, names.ENV_CORE_POLICY, _COMPUTE_LIMIT, _core_policy),
            notes={"disable": ", as for default: only an administrator turns limits off"},
        ),
        FieldMapping(_SCHEDULER, "hami-scheduler", _DEFAULT_SCHEDULER),
    ),
    # coldzerofear/vgpu-manager: pkg/util/consts.go, pkg/webhook/pod/mutate/pod_mutate.go (without
    # a number it is 1, without cores and memory the card is whole), pkg/device/allocator (without
    # memory all memory), pkg/util/util.go (matchDeviceSelector). Memory is in MiB of each card
    # (deviceMemoryFactor 1).
    Dialect.VGPU_MANAGER: (
        FieldMapping(_RESOURCE, "nvidia.com/vgpu-number", _COUNT, _whole),
        FieldMapping(_RESOURCE, "nvidia.com/vgpu-memory", _VRAM, _mib),
        FieldMapping(_RESOURCE, "nvidia.com/vgpu-cores", _COMPUTE, _percent),
        FieldMapping(_ANNOTATION, "nvidia.com/include-gpu-type", _FILTER, _TYPE),
        FieldMapping(_ANNOTATION, "nvidia.com/exclude-gpu-type", _FILTER, _NO_TYPE),
        FieldMapping(_ANNOTATION, "nvidia.com/include-gpu-uuid", _FILTER, _UUID),
        FieldMapping(_ANNOTATION, "nvidia.com/exclude-gpu-uuid", _FILTER, _NO_UUID),
        FieldMapping(_ANNOTATION, "nvidia.com/vgpu-compute-policy", note=_LIMITER),
        FieldMapping(_ANNOTATION, "nvidia.com/node-scheduler-policy", note=_PLACING),
        FieldMapping(_ANNOTATION, "nvidia.com/device-scheduler-policy", note=_PLACING),
        FieldMapping(
            *(_ANNOTATION, "nvidia.com/device-topology-mode", _MATCH, _numa_node), notes=_POLICIES
        ),
        FieldMapping(_SCHEDULER, "vgpu-scheduler", _DEFAULT_SCHEDULER),
    ),
    # kai-scheduler/KAI-Scheduler: pkg/common/constants, docs/gpu-sharing (memory in MiB; for the
    # first container by default), gpu_request_validator.go (a fraction is between 0 and 1, and
    # excludes memory).
    Dialect.KAI: (
        FieldMapping(_RESOURCE, names.NVIDIA_GPU, _COUNT, _whole),
        FieldMapping(_ANNOTATION, "gpu-fraction", _VRAM_PERCENT, _fraction),
        FieldMapping(_ANNOTATION, "gpu-memory", _VRAM, _mib, excludes="gpu-fraction"),
        FieldMapping(_ANNOTATION, "gpu-fraction-num-devices", _COUNT, _whole),
        FieldMapping(_ANNOTATION, "gpu-fraction-container-name", _INJECT),
        FieldMapping(_ANNOTATION, "mps", note=_LIMITER),
        FieldMapping(Kind.LABEL, "kai.scheduler/queue", note="only KAI's scheduler has queues"),
        FieldMapping(
            _SCHEDULER,
            "kai-scheduler",
            note="it still places the pod, so it has to allocate claims with amounts",
        ),
    ),
    # kai-scheduler/gpu-fractioning: README, fractiond/internal/annotations (memory as quantities;
    # one of request and limit is the other as well; compute by turns or by MPS, without amounts).
    Dialect.GPU_FRACTIONING: (
        FieldMapping(_ANNOTATION, f"{_OF}gpu-memory.request", _VRAM),
        FieldMapping(_ANNOTATION, f"{_OF}gpu-memory.limit", names.ANNOTATION_VRAM_LIMIT),
        FieldMapping(_ANNOTATION, f"{_OF}gpu-compute.request", _COMPUTE, _undefined),
        FieldMapping(_ANNOTATION, f"{_OF}gpu-compute.limit", _COMPUTE, _undefined),
        FieldMapping(_ANNOTATION, f"{_OF}gpu-compute.mode", note=_LIMITER),
        FieldMapping(_ANNOTATION, f"{_OF}gpus.devices", note=_PLACING),
    ),
    # kserve/kserve: the samples of managed DRA, pkg/constants (whole devices; for the first
    # container by default; device-count was gpu-count before).
    Dialect.KSERVE: (
        FieldMapping(_ANNOTATION, KSERVE_CLASS, names.ANNOTATION_DEDICATED_GPU, lambda _: "true"),
        FieldMapping(_ANNOTATION, f"{_KSERVE}device-count", _COUNT, _whole),
        FieldMapping(_ANNOTATION, f"{_KSERVE}gpu-count", _COUNT, _whole),
        FieldMapping(_ANNOTATION, KSERVE_SELECTOR, _FILTER, _selectors),
        FieldMapping(_ANNOTATION, f"{_KSERVE}container-name", _INJECT),
    ),
}
_WORDS: Final = {
    dialect: {(word.kind, word.name): word for word in words} for dialect, words in WORDS.items()
}
_PATTERNS: Final = {
    dialect: [
        (word, re.compile(re.escape(word.name).replace(r"\*", "([a-z0-9-]+)")))
        for word in words
        if "*" in word.name
    ]
    for dialect, words in WORDS.items()
}
"""Words that have the name of a container."""
_PREFIXES: Final[Mapping[Dialect, tuple[str, ...]]] = {
    Dialect.HAMI: ("nvidia.com/", "hami.io/"),
    Dialect.VGPU_MANAGER: ("nvidia.com/", "vgpu-manager.io/"),
    Dialect.KAI: ("gpu-fraction", "gpu-memory", "kai.scheduler/"),
    Dialect.GPU_FRACTIONING: ("nvidia.com/container.",),
    Dialect.KSERVE: (_KSERVE,),
}
"""With these, a name that is no word is probably one of another release, or misspelled."""
_KSERVE_CLAIMS: Final = frozenset({"managed-device", "managed-gpu"})
"""Entries of pods for which KServe has made a claim itself, of the class that its user names."""
_MEMORY: Final = frozenset({_VRAM, _VRAM_PERCENT, names.ANNOTATION_VRAM_LIMIT})


@dataclass(frozen=True, slots=True)
class Match:
    """A word in a pod, or an unknown name that begins like one.

    Attributes:
        owner, field: Where the mapping is that has the word as `key`, or a variable as its name.
        path: Its path in the pod.
        name: The word.
        text: What becomes of it, or why it is refused.
    """

    owner: Any
    field: Any
    key: str
    path: str
    name: str
    text: str
    is_removed: bool = False
    is_refused: bool = False

    @property
    def holder(self) -> Json:
        """The mapping that has the word."""
        found: Json = self.owner[self.field]
        return found


@dataclass(slots=True)
class Translation:
    """Meaning of a pod's words.

    Attributes:
        annotations: Tensor Fusion's annotations for the pod; empty if its words ask for no GPU.
        matches: Every word, and every unknown name that begins like one.
        notes: What follows from the words together.
        error: Why they cannot be said together; "" if they can.
    """

    annotations: Amounts = field(default_factory=dict)
    matches: list[Match] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    error: str = ""

    @property
    def refusals(self) -> list[tuple[str, str]]:
        """The path of each word that is refused, and why; of all words together, that of spec."""
        together = [("spec", self.error)] if self.error else []
        return [(each.path, each.text) for each in self.matches if each.is_refused] + together


def translate(pod: Mapping[str, Any], dialects: Collection[Dialect]) -> Translation:
    """Return what a pod, or a template of pods, says in these dialects.

    A pod that requests a GPU in Tensor Fusion's annotations, or turns DRA off there, has nothing to
    translate. So a translated pod is not translated again.
    """
    claims = {name_of(entry) for entry in as_list(as_map(pod.get("spec")).get("resourceClaims"))}
    written = map_at(pod, "metadata", "annotations")
    if claims & _KSERVE_CLAIMS or not written.keys().isdisjoint(REQUESTING_ANNOTATIONS):
        return Translation()
    result, asked, without = Translation(), dict[str, Amounts](), set[str]()
    prefixes = tuple(prefix for each in dialects for prefix in _PREFIXES[each])
    for kind, container, name, text, here in _entries(pod):
        if kind is Kind.VARIABLE and container not in asked:
            continue
        found = _word(text if kind is Kind.SCHEDULER else name, kind, dialects)
        if found is None:
            if name.startswith(prefixes):
                result.matches.append(here("is no known word, so it stays"))
            continue
        word, named = found
        if word.excludes in here("").holder:
            result.matches.append(
                here(f"found it beside {word.excludes}, expected one of the two", is_refused=True)
            )
            continue
        try:
            value = word.read(text)
        except (ValueError, DriverError) as error:
            result.matches.append(here(str(error), is_refused=True))
            continue
        if kind is Kind.VARIABLE and value == _LIKE_REQUEST:
            value = asked[container].get(_COMPUTE, "")
        becomes = f"becomes {word.becomes}: {value}" if value else "is unset"
        becomes += word.notes.get(text.lower(), "")
        if kind is Kind.SCHEDULER:
            becomes = f"{text} becomes {word.becomes}"
        elif word.becomes and value:
            amounts = asked.setdefault(named or container, {})
            if word.becomes == _FILTER and _FILTER in amounts:
                value = f"{amounts[_FILTER]} && {value}"
            amounts[word.becomes] = value
        elif word.becomes == _COUNT and kind is Kind.RESOURCE:
            without.add(container)
        said = becomes if word.becomes else f"has no effect: {word.note}"
        # A variable stays: the enforcer's own value replaces it.
        is_removed = kind is Kind.RESOURCE or (bool(word.becomes) and kind is not Kind.VARIABLE)
        result.matches.append(here(said, is_removed=is_removed))
    # A container with 0 GPUs gets none, whatever it says of their parts.
    _combine(result, pod, {name: each for name, each in asked.items() if name not in without})
    return result


def _entries(
    pod: Mapping[str, Any],
) -> Iterator[tuple[Kind, str, str, str, Callable[..., Match]]]:
    """Yield everything that may be a word: kind, container, name, text, and its match without text.

    Requests come before limits, which therefore decide. Variables come after both.
    """
    metadata = pod.get("metadata")
    places = [
        (Kind.ANNOTATION, "", "metadata", metadata, "annotations"),
        (Kind.LABEL, "", "metadata", metadata, "labels"),
    ]
    for path, container in resource_claims.containers_with_paths(pod):
        resources, name = container.get("resources"), name_of(container)
        for field_name in ("requests", "limits"):
            places.append((Kind.RESOURCE, name, f"{path}.resources", resources, field_name))
    for kind, name, path, owner, field_name in places:
        if isinstance(owner, dict):
            for key in as_map(owner.get(field_name)):
                here = partial(
                    Match, owner, field_name, key, f"{path}.{field_name}[{key}]", str(key)
                )
                yield kind, name, str(key), str(owner[field_name][key]), here
    for path, container in resource_claims.containers_with_paths(pod):
        for index, entry in enumerate(map(as_map, env := as_list(container.get("env")))):
            if name := name_of(entry):
                here = partial(Match, env, index, "name", f"{path}.env[{index}]", name)
                text = str(entry.get("value") or "")
                yield Kind.VARIABLE, name_of(container), name, text, here
    if isinstance(pod, dict) and "schedulerName" in as_map(pod.get("spec")):
        key, text = "schedulerName", str(pod["spec"]["schedulerName"])
        yield Kind.SCHEDULER, "", key, text, partial(Match, pod, "spec", key, f"spec.{key}", key)


def _word(name: str, kind: Kind, dialects: Iterable[Dialect]) -> tuple[FieldMapping, str] | None:
    """Return a word, and the container that its name has; None if it is unknown."""
    for each in dialects:
        if word := _WORDS[each].get((kind, name)):
            return word, ""
        for word, pattern in _PATTERNS[each]:
            if word.kind is kind and (match := pattern.fullmatch(name)):
                return word, match[1]
    return None


def _combine(result: Translation, pod: Mapping[str, Any], asked: dict[str, Amounts]) -> None:
    """Set the annotations, and what follows from all words together."""
    of_pod = asked.pop("", {})
    # They ask for no GPU by themselves, as KServe's word for whole cards does.
    is_policy = any(found.name == CARD_POLICY for found in result.matches)
    kept = (_FILTER, _MATCH, *((_DEDICATED,) if is_policy else ()))
    selecting = {name: of_pod.pop(name) for name in kept if name in of_pod}
    inits = _are_init(pod)
    first = of_pod.pop(_INJECT, next((name for name, is_init in inits.items() if not is_init), ""))
    if of_pod:
        asked[first] = {**of_pod, **asked.get(first, {})}
    if not asked:
        result.matches = [found for found in result.matches if found.is_refused]
        return
    for amounts in asked.values():
        if _VRAM in amounts:
            amounts.pop(_VRAM_PERCENT, None)  # as HAMi does
    try:
        found = of_containers(pod, asked, lambda each: _completed(each, result.notes))
    except InputError as error:
        result.error = str(error)
        return
    result.annotations = {names.ANNOTATION_DRA_ENABLED: "true"} | selecting | found


def _are_init(pod: Mapping[str, Any]) -> dict[str, bool]:
    """Return the names of a pod's containers, with True for those that end before others start."""
    return {
        name_of(container): path.startswith("spec.init")
        and container.get("restartPolicy") != "Always"
        for path, container in resource_claims.containers_with_paths(pod)
    }


def of_containers(
    pod: Mapping[str, Any], asked: Mapping[str, Amounts], complete: Callable[[Amounts], Amounts]
) -> Amounts:
    """Return the annotations by which each container gets what it asks for.

    These are the pod's own, if one share does for all of its containers.

    Args:
        asked: What each container asks for; others get nothing.
        complete: Returns what a container asks for, with what follows from it.

    Raises:
        InputError: Several containers ask: too many, or one of them for several GPUs.
    """
    inits = _are_init(pod)
    together = [name for name in asked if not inits.get(name)]
    first, *others = asked.values()
    if len(together) < 2 and all(other == first for other in others):
        return {_COUNT: "1", _INJECT: ",".join(asked)} | complete(first)
    if len(asked) > resource_claims.MAX_RESULTS or any(
        amounts.get(_COUNT, "1") != "1" for amounts in asked.values()
    ):
        raise InputError(
            f"found amounts for containers {', '.join(asked)}, expected one GPU for each: a "
            "container with a share of its own names one request of at most "
            f"{resource_claims.MAX_RESULTS}"
        )
    shares: dict[str, object] = {}
    each = {
        name: {key: text for key, text in amounts.items() if key != _COUNT}
        for name, amounts in asked.items()
    }
    for name, amounts in each.items():
        like = [other for other in together if each[other] == amounts] if inits.get(name) else []
        shares[name] = like[0] if like else complete(amounts)
    text = untyped_json.compact_json(shares).replace(f'"{names.ANNOTATION_PREFIX}', '"')
    return {names.ANNOTATION_CONTAINER_SHARES: text}


def _completed(amounts: Amounts, notes: list[str]) -> Amounts:
    """Return the amounts of a container with what follows from what it leaves open."""
    if not amounts.keys() & {*_MEMORY, _COMPUTE}:
        found = {**amounts, names.ANNOTATION_DEDICATED_GPU: "true"}
        note = "no part of a GPU is named, so the pod gets whole GPUs"
    elif _COMPUTE not in amounts:
        found = {**amounts, _COMPUTE: LIKE_MEMORY}
        note = "no compute is named, so it gets the same part of compute as of memory"
    else:
        return amounts
    if note not in notes:
        notes.append(note)
    return found


def apply(pod: Json, translation: Translation) -> None:
    """Replace the words in the pod that was translated; what it has in our words already stays."""
    for found in translation.matches:
        if found.is_removed:
            found.holder.pop(found.key, None)
    metadata = pod.setdefault("metadata", {})
    metadata["annotations"] = {**translation.annotations, **(metadata.get("annotations") or {})}

"""Small reviews that ask for much work: of many parts, long texts, deep values, hard selectors."""

import json
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from random import Random
from typing import Any, Final

from tensorfusion_dra.core import names
from tensorfusion_dra.core.admission import dialects, pod_admission
from tensorfusion_dra.core.admission.dialects import Dialect
from tests.support.admission import review_body
from tests.support.builders.classes import share_class
from tests.support.builders.pods import container_document, pod_annotations, pod_document
from tests.support.builders.stored_claims import template_claim
from tests.support.hostile_selectors import hostile
from tests.support.selecting import A

Json = dict[str, Any]
Grow = Callable[[Json, Random, int], None]
"""Adds a number of parts of one kind to an object."""

_ODD: Final = ("", "0", "1", "-1", "16Gi", "true", "9" * 40, "a", "main", "gpu", "é", "\u2028")
_WORDS: Final = sorted({word.name for words in dialects.WORDS.values() for word in words})
_KNOWN: Final = sorted(pod_admission.KNOWN_ANNOTATIONS)


def _text(random: Random) -> str:
    return random.choice(_ODD)


def _near(random: Random, number: int) -> str:
    """Return a name that almost is an annotation of ours."""
    group, _, short = random.choice(_KNOWN).partition("/")
    letters = random.choice((short, short[::-1], "e" * random.randint(1, 60)))
    return f"{random.choice((group, group.replace('-', '.'), group[::-1]))}/{letters}{number}"


def _key(random: Random, number: int) -> str:
    kind = random.choice(("plain", "near", "word"))
    if kind == "near":
        return _near(random, number)
    return f"x{number}" if kind == "plain" else f"{random.choice(_WORDS)}{number or ''}"


def _keys(random: Random, count: int) -> Json:
    """Return an object of many fields, mostly of one kind."""
    key = random.choice((_near, _key, lambda _, number: f"{number:x}"))
    return {key(random, number): _text(random) for number in range(count)}


def _deep(random: Random) -> object:
    found: object = []
    for _ in range(random.randint(1, 95)):
        found = [found] if random.random() < 0.5 else {"a": found}
    return found


def _selector(random: Random) -> str:
    part = random.choice(
        (
            f'{A}.model == "x"',
            "true",
            "!true",
            'int("1") == 1',
            "''.matches('a{1}b')",
            f'{A}["model"] != ""',
            'quantity("1Gi").isInteger()',
        )
    )
    wide = random.choice(("&&", "||")).join([part] * random.randint(1, 150))
    listed = ",".join(f'"{number}"' for number in range(random.randint(1, 300)))
    return random.choice((hostile(random.randrange(10**6)), wide, f"{A}.uuid in [{listed}]"))


def _annotations(document: Json) -> Json:
    found: Json = document["metadata"].setdefault("annotations", {})
    return found


def _annotate(document: Json, random: Random, count: int) -> None:
    _annotations(document).update(_keys(random, count))


def _known(document: Json, random: Random, count: int) -> None:
    texts = (
        ",".join(f"{number:x}" for number in range(count)),
        random.choice((",", "a", "9", "0.", "é", "a.", " ")) * count,
        json.dumps({f"c{number}": {"vram-request": "1Gi"} for number in range(min(count, 32))}),
        json.dumps({f"{number}": "c0" if number else {} for number in range(min(count, 32))}),
        _selector(random),
    )
    _annotations(document)[random.choice(_KNOWN)] = random.choice(texts)


def _select(document: Json, random: Random, _: int) -> None:
    for name in (names.ANNOTATION_CEL_EXPRESSION, names.ANNOTATION_CEL_FILTER):
        _annotations(document)[name] = _selector(random)


def _containers(document: Json, random: Random, count: int) -> None:
    extra = random.choice(
        (
            {},
            {"resources": {"limits": {names.NVIDIA_GPU: 1}}},
            {"env": [{"name": names.ENV_LD_PRELOAD}], "securityContext": {"privileged": True}},
            {"env": [{"name": names.ENV_TEST_MODE}]},
        )
    )
    found = document["spec"].setdefault(random.choice(("containers", "initContainers")), [])
    found += [{"name": f"c{number}", **extra} for number in range(count)]
    found += [{} for _ in range(random.choice((0, count)))]


def _container(document: Json, random: Random) -> Json:
    found: Json = random.choice(document["spec"]["containers"])
    return found


def _env(document: Json, random: Random, count: int) -> None:
    name = random.choice((names.ENV_TEST_MODE, "a", names.ENV_LD_PRELOAD))
    _container(document, random)["env"] = [{"name": name} for _ in range(count)]


def _resources(document: Json, random: Random, count: int) -> None:
    uses = [{"name": names.POD_CLAIM, "request": str(number)} for number in range(count)]
    _container(document, random)["resources"] = {
        "claims": uses if random.random() < 0.5 else [],
        "requests": _keys(random, count),
    }


def _pod_claims(document: Json, random: Random, count: int) -> None:
    name = random.choice((names.POD_CLAIM, "a"))
    document["spec"]["resourceClaims"] = [{"name": name} for _ in range(count)]


def _values(document: Json, random: Random, count: int) -> None:
    part = random.choice(([], {}, [[]], _deep(random), 10**300, "é" * 40))
    document["spec"]["values"] = [part] * count


def _labels(document: Json, random: Random, count: int) -> None:
    document["metadata"]["labels"] = _keys(random, count)


def _requests(document: Json, random: Random, count: int) -> None:
    exactly = {
        "deviceClassName": random.choice((names.DEVICE_CLASS, "quarter", "other")),
        "count": random.choice((1, 2, 33)),
        "capacity": {"requests": {"vram": "1Gi", "tflops": "2"}},
        "selectors": [{"cel": {"expression": "true"}}] * random.choice((0, 1, 30)),
    }
    several = [{"name": f"s{number}", **exactly} for number in range(random.choice((1, 8, 100)))]
    content = random.choice(({"exactly": exactly}, {"firstAvailable": several}, {}))
    found = document["spec"]["devices"]["requests"]
    found += deepcopy([{"name": f"r{number}", **content} for number in range(count)])


def _config(document: Json, random: Random, count: int) -> None:
    limits = random.choice(({"vram": "1Gi"}, {"vram": ""}, _keys(random, 3)))
    parameters = {
        "apiVersion": "tensor-fusion.ai/v1alpha1",
        "kind": "GpuShare",
        "limits": limits,
        "isolation": random.choice(("soft", "shared", "hard", "odd")),
        **(_keys(random, 30) if random.random() < 0.2 else {}),
    }
    several = [f"r{number}" for number in range(random.choice((0, 1, 100)))]
    found = document["spec"].get("devices", document["spec"]).setdefault("config", [])
    opaque = {"driver": names.DRIVER, "parameters": parameters}
    found += deepcopy([{"requests": several, "opaque": opaque} for _ in range(count)])


def _constraints(document: Json, random: Random, count: int) -> None:
    several = [f"r{number}" for number in range(random.choice((1, 100)))]
    document["spec"]["devices"]["constraints"] = [{"requests": several} for _ in range(count)]


def _capacities(document: Json, random: Random, count: int) -> None:
    for request in document["spec"]["devices"]["requests"][:1]:
        each = request.setdefault("exactly", {})
        each["capacity"] = {"requests": _keys(random, count)}


def _owners(document: Json, random: Random, count: int) -> None:
    owner = {"kind": random.choice(("Pod", "A")), "name": "a"}
    document["metadata"]["ownerReferences"] = [owner] * count + [
        {"apiVersion": "v1", "kind": "Pod", "name": "train", "uid": "uid-train"}
    ]


_OF_ANY: Final[Sequence[Grow]] = (_annotate, _known, _labels, _values)
_OF_POD: Final[Sequence[Grow]] = (*_OF_ANY, _select, _containers, _env, _resources, _pod_claims)
_OF_CLAIM: Final[Sequence[Grow]] = (
    *(*_OF_ANY, _requests, _config, _constraints, _capacities, _owners),
)


def _pod() -> Json:
    annotations = pod_annotations(dra_enabled="true", vram_request="16Gi")
    return pod_document(annotations, container_document(), container_document("c0"))


def _dialect_pod() -> Json:
    return pod_document({}, container_document(resources={"limits": {names.NVIDIA_GPU: 1}}))


def _with_kind(kind: str) -> Callable[[], Json]:
    def made() -> Json:
        claim = template_claim()
        if kind != "ResourceClaim":
            return {**claim, "kind": kind, "spec": {"spec": claim["spec"], **claim["spec"]}}
        return claim

    return made


PATHS: Final[Mapping[str, tuple[Callable[[], Json], Sequence[Grow]]]] = {
    "/mutate-pods": (_pod, _OF_POD),
    **{f"/mutate-pods/{each}": (_dialect_pod, _OF_POD) for each in Dialect},
    "/mutate-resourceclaims": (_with_kind("ResourceClaim"), _OF_CLAIM),
    "/mutate-resourceclaimtemplates": (_with_kind("ResourceClaimTemplate"), _OF_CLAIM),
    "/validate-quotas": (_with_kind("ResourceClaim"), _OF_CLAIM),
    "/validate": (_with_kind("ResourceClaim"), _OF_CLAIM),
    "/validate?template": (_with_kind("ResourceClaimTemplate"), _OF_CLAIM),
    "/validate?class": (lambda: share_class("quarter"), (_config, _labels, _values)),
}


def hostile_review(seed: int, path: str, fits: Callable[[bytes], bool]) -> bytes:
    """Return a review for a path, the same for the same seed, as large as it may be.

    Args:
        fits: Returns True for a body that may be posted.
    """
    random, (made, growing) = Random(seed), PATHS[path]
    document, chosen = made(), random.sample(growing, random.randint(1, 3))
    found, misses = review_body(document), 0
    while misses < 4:
        grown = deepcopy(document)
        random.choice(chosen)(grown, random, random.choice((1, 4, 16, 64, 256, 1_024, 4_096)))
        body = review_body(grown)
        if fits(body):
            document, found = grown, body
        misses += not fits(body) or random.random() < 0.1
    return found

"""The static manifests in daemonset/install, and what of the chart follows from the driver.

`make manifests` writes both.
"""

import copy
import functools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from tensorfusion_dra.core import names
from tensorfusion_dra.core.admission import dialects, pod_admission, pod_request, pod_resources
from tensorfusion_dra.core.admission.dialects import WORDS, Dialect, FieldMapping, Kind
from tensorfusion_dra.core.admission.pod_request import REQUESTING_ANNOTATIONS
from tensorfusion_dra.core.devices.gpu import Isolation
from tensorfusion_dra.enforcers import registered
from tensorfusion_dra.enforcers.declaration import Declaration
from tests.support import helm, yaml_text
from tests.support.helm import Document

FOLDER: Final = helm.ROOT / "daemonset" / "install"
DECLARED: Final = helm.CHART / "declared.yaml"
"""What the chart knows of enforcers, annotations and words of other systems."""

NO_GPUS: Final = {"nvidia": {"enabled": False}, "settings": {"simulated-gpus": "2xA100-SXM4-80GB"}}
WEBHOOK: Final = {"webhook": {"enabled": True, "dialects": [*map(str, Dialect)]}}

_NODE_PLUGIN: Final[Mapping[str, tuple[Mapping[str, Any], str]]] = {
    "nvidia": (
        {},
        """\
# The node plugin for nodes with NVIDIA GPUs, their driver and NVIDIA's container toolkit
# (RuntimeClass nvidia). For other nodes install the chart: docs/install.md lists its values.
""",
    ),
    "simulated": (
        NO_GPUS,
        """\
# The node plugin with two simulated A100 on every node, to try the driver on clusters without GPUs.
# Containers get the environment of their shares, and no device.
""",
    ),
}
_WEBHOOK: Final = """\
# The admission webhook, in addition to nvidia.yaml or simulated.yaml, which have the namespace. Its
# certificate comes from cert-manager; hack/webhook-cert prints this file with a self-signed one.
"""
_TEST: Final = """\
# The pod of `helm test`, for clusters without Helm. It succeeds if its container got the variables
# of its share.
"""
_HEADER: Final = "# Rendered by `make manifests` from daemonset/chart; change that instead.\n"
_OF_RELEASES: Final = re.compile(
    r"^(# Source: | *helm\.sh/chart: | *app\.kubernetes\.io/(managed-by|instance|version): |"
    r"  annotations:\n    helm\.sh/resource-policy: ).*\n",
    re.MULTILINE,
)
"""What helm adds to the objects of a release, and would be wrong in objects without one."""
_OF_HOOKS: Final = re.compile(r"^  annotations:\n(    (helm\.sh/hook|#).*\n)+", re.MULTILINE)

NAMES: Final = (*_NODE_PLUGIN, "webhook", "test")


def declared() -> str:
    """Return the text that DECLARED is to have."""
    content = {
        "auto": list(registered.IN_AUTO),
        "simulated": registered.SIMULATED,
        "enforcers": {name: _pod(each) for name, each in registered.DECLARED.items()},
        "annotations": {
            "asking": list(REQUESTING_ANNOTATIONS),
            "readOnce": sorted(pod_admission.KNOWN_ANNOTATIONS),
            "known": sorted(
                f"{names.ANNOTATION_PREFIX}{name}"
                for name in pod_admission.OTHERS | pod_admission.WITHOUT_EFFECT.keys()
            ),
            "ofShares": sorted(names.SHARE_ANNOTATIONS),
        },
        "resources": list(pod_resources.AMOUNTS),
        "dialects": {str(each): _asking(words) for each, words in WORDS.items()},
    }
    head = "# Written by `make manifests` from tensorfusion_dra; change that instead.\n"
    return head + yaml.safe_dump(content, sort_keys=False, width=120)


def _pod(enforcer: Declaration) -> dict[str, Any]:
    """Return what an enforcer declares for the node plugin's pod."""
    facts, pod = enforcer.facts, copy.deepcopy(dict(enforcer.pod))
    # One limiter for all containers, and one that tells claims apart, needs nothing of the pod.
    is_apart = facts.enforces_memory and not facts.counts_by_pid
    pod["readsPods"] = not is_apart or Isolation.SOFT in facts.mixed
    if folder := pod.get("folder"):
        default = Path(enforcer.settings[folder["setting"].replace("-", "_")].default)
        is_of_file = folder.setdefault("isOfFile", False)
        folder.setdefault("default", str(default.parent if is_of_file else default))
        folder.setdefault("mounted", "always")
    return pod


_AMOUNTS: Final = frozenset({*pod_request.AMOUNTS, names.ANNOTATION_DEDICATED_GPU})
"""What a word that asks for a GPU becomes, beside a number in a resource."""


def _asking(words: Sequence[FieldMapping]) -> dict[str, list[str]]:
    """Return the words by which a pod asks for a GPU: names by their place, and prefixes.

    A variable, or a policy that chooses among cards, only adds to what others ask for.
    """
    found: dict[str, list[str]] = {"resources": [], "annotations": [], "prefixes": []}
    adding = (Kind.VARIABLE, dialects.CARD_POLICY)
    for word in (each for each in words if {each.kind, each.name}.isdisjoint(adding)):
        is_resource = word.kind is Kind.RESOURCE
        if word.becomes in _AMOUNTS or (is_resource and word.becomes == names.ANNOTATION_GPU_COUNT):
            name, _, rest = word.name.partition("*")
            place = "resources" if is_resource else "annotations"
            found["prefixes" if rest else place].append(name)
    return {place: sorted({*each}) for place, each in found.items()}


def rendered(name: str) -> str:
    """Return the text that a file is to have. Skips the test on a machine without helm."""
    if name == "webhook":
        without = {_key(part) for part in _parts(helm.text({}))}
        added = [part for part in _parts(helm.text(WEBHOOK)) if _key(part) not in without]
        return "".join((_HEADER, _WEBHOOK, *added))
    if name == "test":
        hooks = helm.text({}, "--show-only", "templates/test.yaml")
        return "".join((_HEADER, _TEST, *_parts(_OF_HOOKS.sub("", hooks))))
    values, purpose = _NODE_PLUGIN[name]
    text = helm.text({"namespace": {"create": True}, **values})
    return "".join((_HEADER, purpose, *_parts(text)))


@functools.cache
def _read(name: str) -> str:
    return (FOLDER / f"{name}.yaml").read_text(encoding="utf-8")


def documents(*names: str) -> list[Document]:
    """Return the objects of files, in their order; needs no helm."""
    return [item for name in names for item in yaml_text.load_all(_read(name)) if item]


def _parts(text: str) -> list[str]:
    """Return the objects of a release each as a text, with its first line `---`."""
    text = _OF_RELEASES.sub("", text)
    return [f"---\n{part.rstrip()}\n" for part in re.split(r"^---\n", text, flags=re.MULTILINE)[1:]]


def _key(part: str) -> tuple[str, str]:
    document = yaml_text.load(part)
    return document["kind"], document["metadata"]["name"]

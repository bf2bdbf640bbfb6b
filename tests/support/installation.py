"""The static manifests in daemonset/install, and how `make manifests` renders them."""

import functools
import re
from collections.abc import Mapping
from typing import Any, Final

from tensorfusion_dra.core.admission.dialects import Dialect
from tests.support import helm, yaml_text
from tests.support.helm import Document

FOLDER: Final = helm.ROOT / "daemonset" / "install"

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

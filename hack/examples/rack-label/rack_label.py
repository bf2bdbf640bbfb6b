"""The rack that a label of the Node object names, as an attribute of the node's cards.

The Node is read through the Kubernetes API with the pod's own token, at most every ten minutes. An
API server that does not answer makes the call fail; then the driver keeps the last answer.

Environment: RACK_LABEL is the label, by default ``topology.example.com/rack``. RACK_LABEL_API is
the API server, by default that of the pod.
"""

import json
import os
import ssl
import time
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from tensorfusion_dra.extend import AttributeValue, Gpu, Node, Reading

ATTRIBUTE: Final = "example.com/rack"
LABEL: Final = "topology.example.com/rack"
FRESH_SECONDS: Final = 600.0
TIMEOUT_SECONDS: Final = 1.5
"""Below the driver's budget of two seconds, so that an outage is an error with a reason."""

_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")

Fetch = Callable[[str], Mapping[str, str]]


class RackLabel:
    """Provider of the attribute."""

    def __init__(
        self, fetch: Fetch | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Read nothing yet.

        Args:
            fetch: Returns the labels of a node by its name; None to ask the API server.
            clock: In seconds.
        """
        self._fetch = fetch or node_labels
        self._clock = clock
        self._label = os.environ.get("RACK_LABEL", LABEL)
        self._rack = ""
        self._fresh_until = -1.0

    def begin(self, reading: Reading) -> None:
        """Read the Node, unless it was read a moment ago."""
        if reading.node is not None and self._clock() >= self._fresh_until:
            self._rack = self._fetch(reading.node.name).get(self._label, "")
            self._fresh_until = self._clock() + FRESH_SECONDS

    def __call__(self, gpu: Gpu, node: Node) -> Mapping[str, AttributeValue]:
        """Return the rack; "" without the label, because selectors fail on a missing attribute."""
        return {ATTRIBUTE: self._rack}


def node_labels(name: str) -> Mapping[str, str]:
    """Return the labels of a node.

    Raises:
        OSError: The API server does not answer, or refuses.
    """
    server = os.environ.get("RACK_LABEL_API", "https://kubernetes.default.svc")
    request = urllib.request.Request(f"{server}/api/v1/nodes/{name}")
    context = None
    if server.startswith("https:"):
        token = (_ACCOUNT / "token").read_text(encoding="ascii").strip()
        request.add_header("Authorization", f"Bearer {token}")
        context = ssl.create_default_context(cafile=str(_ACCOUNT / "ca.crt"))
    with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS, context=context) as answer:
        stored = json.load(answer)
    labels: Mapping[str, str] = stored["metadata"].get("labels") or {}
    return labels

"""Client of the container memory-limits; implements ports.MemoryLimits.

Each connection has one request and one answer, each a line of JSON:

    {"verb": "set", "pod": UID, "limits": {GPU UUID: bytes}, "beside": {UID: {GPU UUID: bytes}}}
                                                       the cards on which the pod had another limit
    {"verb": "get", "pod": UID, "gpus": [GPU UUID]}    limit and use, or a text, by card
    {"verb": "check"}                                  texts, see check()

An answer has these as `found`, or `error` with a text.
"""

import json
import socket
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from tensorfusion_dra.core.errors import RetryableError

_WAIT_SECONDS: Final = 5.0
_NEEDED: Final = "expected the container memory-limits"


class MemoryLimits:
    """Limits of pods, set and read by the container memory-limits."""

    def __init__(self, path: str) -> None:
        """Connect to nothing yet.

        Args:
            path: Its socket.
        """
        self._path = path

    def set(
        self, pod_uid: str, limits: Mapping[str, int], beside: Mapping[str, Mapping[str, int]]
    ) -> Sequence[str]:
        changed: Sequence[str] = self._ask(verb="set", pod=pod_uid, limits=limits, beside=beside)
        return changed

    def get(self, pod_uid: str, gpu_uuids: Iterable[str]) -> Mapping[str, tuple[int, int] | str]:
        """Return limit and use of a pod in bytes by GPU UUID, or why a card's cannot be read.

        Raises:
            RetryableError: The pod has no cgroup, or the container does not answer.
        """
        found = self._ask(verb="get", pod=pod_uid, gpus=list(gpu_uuids))
        return {
            uuid: each if isinstance(each, str) else tuple(each) for uuid, each in found.items()
        }

    def check(self) -> tuple[str, tuple[str, ...]]:
        """Return why no limit can be set on this node, "" if one can, and what else is wrong."""
        try:
            trouble, *hints = self._ask(verb="check")
        except RetryableError as error:
            return str(error), ()
        return trouble, tuple(hints)

    def _ask(self, **request: object) -> Any:
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(_WAIT_SECONDS)
                connection.connect(self._path)
                with connection.makefile("rw", encoding="utf-8") as stream:
                    stream.write(json.dumps(request) + "\n")
                    stream.flush()
                    answer = json.loads(stream.readline())
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", "") or str(error)
            raise RetryableError(f"{self._path}: found {why}, {_NEEDED}") from error
        if "error" in answer:
            raise RetryableError(str(answer["error"]))
        return answer["found"]

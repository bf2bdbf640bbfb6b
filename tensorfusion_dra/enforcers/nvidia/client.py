"""Client of the container memory-limits.

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

from tensorfusion_dra.core.claims.enforcer import SilentEnforcerError
from tensorfusion_dra.core.errors import RetryableError
from tensorfusion_dra.enforcers.patience import HungEnforcerError

FOLDER: Final = "memory-limits"
"""Folder in which the container memory-limits serves; for root alone."""
SOCKET: Final = "socket"
REQUESTS: Final = "requests"
"""Pipe from the hooks; each line is <pid> <pod UID> <GPU UUID>=<bytes>,... <cgroup>."""
NO_LIMIT: Final = 2**64 - 1
"""The limit that removes a limit (NVML_DEVICE_MEMORY_LIMIT_MAX)."""


class LimitsClient:
    """Limits of pods, set and read by the container memory-limits; safe for all threads.

    Every method raises:
        HungEnforcerError: There was no answer within the time.
        SilentEnforcerError: Nothing listens.
        RetryableError: It answered with an error.
    """

    def __init__(self, path: str) -> None:
        self._path = path

    def set(
        self,
        pod_uid: str,
        limits: Mapping[str, int],
        beside: Mapping[str, Mapping[str, int]],
        *,
        wait_seconds: float,
    ) -> Sequence[str]:
        """Set limits of pods in bytes by GPU UUID; return the cards on which the pod had another.

        Each is read back. A limit of NO_LIMIT is removed, also if the pod has no cgroup any more.
        Limits are lowered first, and raised only if each of them could be lowered.

        Args:
            pod_uid: The pod.
            limits: Its limits.
            beside: Limits of the other pods on these cards, by UID.
            wait_seconds: For the answer.
        """
        request = {"verb": "set", "pod": pod_uid, "limits": limits, "beside": beside}
        changed: Sequence[str] = self._ask(request, wait_seconds)
        return changed

    def get(
        self, pod_uid: str, gpu_uuids: Iterable[str], *, wait_seconds: float
    ) -> Mapping[str, tuple[int, int] | str]:
        """Return limit and use of a pod in bytes by GPU UUID, or why a card's cannot be read."""
        found = self._ask({"verb": "get", "pod": pod_uid, "gpus": list(gpu_uuids)}, wait_seconds)
        return {
            uuid: each if isinstance(each, str) else tuple(each) for uuid, each in found.items()
        }

    def check(self, *, wait_seconds: float) -> Sequence[str]:
        """Return why no limit can be set on this node, "" if one can, then what else is wrong."""
        found: Sequence[str] = self._ask({"verb": "check"}, wait_seconds)
        return found

    def _ask(self, request: Mapping[str, object], wait_seconds: float) -> Any:
        expected = "expected the container memory-limits"
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(wait_seconds)
                connection.connect(self._path)
                with connection.makefile("rw", encoding="utf-8") as stream:
                    stream.write(json.dumps(request) + "\n")
                    stream.flush()
                    answer = json.loads(stream.readline())
        except TimeoutError as error:
            text = f"{self._path}: found no answer within {wait_seconds:.0f} s, {expected}"
            raise HungEnforcerError(text) from error
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", "") or str(error)
            raise SilentEnforcerError(f"{self._path}: found {why}, {expected}") from error
        if "error" in answer:
            raise RetryableError(str(answer["error"]))
        return answer["found"]

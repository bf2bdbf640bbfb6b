"""Health sources: what other programs, and the NVIDIA driver, find wrong with a card.

A source is asked at each reading of the cards and answers with the problems that exist now. A
problem makes its card unhealthy at once; the card recovers by the rules of health.py, some time
after the source stopped reporting it. So a source need not remember anything.
"""

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from tensorfusion_dra.core.devices import health
from tensorfusion_dra.core.devices.gpu import Gpu
from tensorfusion_dra.core.devices.health import Kind, Trouble
from tensorfusion_dra.core.devices.reading import Reading
from tensorfusion_dra.core.kubernetes import name_rules

_LONGEST_TEXT: Final = 256
_MOST_PROBLEMS: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Something that is wrong with a card.

    Attributes:
        reason: Value of the device's taint, a Kubernetes label value: ``fan-stopped``.
        text: Description for people, at most 256 characters; the same as long as the problem is
            the same.
    """

    reason: str
    text: str


class RecoveryActions:
    """The driver's own health source: recovery actions that the NVIDIA driver requests.

    Errors that the NVIDIA driver reports as events (XIDs) do not wait for a reading: see
    driver/card_health_tracker.py.
    """

    def __init__(self) -> None:
        self._recovery: Mapping[str, int] = {}

    def begin(self, reading: Reading, /) -> None:
        """Keep what the NVIDIA driver requests for each card."""
        self._recovery = reading.inventory.recovery

    def __call__(self, gpu: Gpu, /) -> tuple[Trouble, ...]:
        """Return the trouble behind a requested recovery action."""
        action = self._recovery.get(gpu.uuid)
        trouble = None if action is None else health.recovery_trouble(action)
        return (trouble,) if trouble else ()


def troubles(answer: object, *, source: str) -> tuple[Trouble, ...]:
    """Return the troubles of a source's answer.

    Args:
        answer: What the source returned.
        source: Its name, which the text begins with.

    Raises:
        TypeError: The answer is no sequence of problems.
        ValueError: A reason is no label value, or there are over 16 problems.
    """
    if isinstance(answer, str) or not isinstance(answer, Iterable):
        raise TypeError(f"found {type(answer).__name__}, expected a sequence of Problem")
    problems = tuple(itertools.islice(answer, _MOST_PROBLEMS + 1))  # it may be endless
    if len(problems) > _MOST_PROBLEMS:
        raise ValueError(f"found over {_MOST_PROBLEMS} problems, expected at most that")
    return tuple(_trouble(each, source) for each in problems)


def _trouble(problem: object, source: str) -> Trouble:
    if not isinstance(problem, Problem):
        raise TypeError(f"found {type(problem).__name__}, expected a Problem")
    if not isinstance(problem.text, str):
        raise TypeError(f"text: found {type(problem.text).__name__}, expected text")
    if isinstance(problem.reason, str):
        problem = Problem(reason=_plain(problem.reason), text=_plain(problem.text))
    wrong = next(name_rules.label_value("reason", problem.reason), None)
    if wrong is not None or not problem.reason:
        raise ValueError(f"reason: found {problem.reason!r}, expected a Kubernetes label value")
    text = f"{source}: {problem.text[:_LONGEST_TEXT]}"
    return Trouble(kind=Kind.SOURCE, reason=problem.reason, text=text)


def _plain(text: str) -> str:
    """Return text that can be stored and printed, without the type of an enumeration."""
    return str.__str__(text).encode(errors="replace").decode()

"""Steps of a check: each has a result of its own, and what is found is on disk before the next."""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

State = Literal["ok", "failed", "skipped"]
Json = dict[str, Any]

RESULTS_FILE: Final = "results.json"


class CheckError(Exception):
    """Something is not as expected; the text says what."""


class SkipError(Exception):
    """The step cannot be done on this machine; the text is the reason."""


class Deadline:
    """The moment at which a step has to end."""

    def __init__(self, seconds: float) -> None:
        self._end: Final = time.monotonic() + seconds

    def left_seconds(self) -> float:
        """Return the time until then; negative afterwards."""
        return self._end - time.monotonic()


@dataclass(kw_only=True)
class Result:
    """Result of a step.

    Attributes:
        text: One line: what was found, or why the step failed or was skipped.
        facts: What was measured.
    """

    step: str
    state: State
    text: str
    seconds: float = 0.0
    facts: Json = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A step to run.

    Attributes:
        seconds: Its longest time.
        run: Does it, adds facts to the mapping as it goes, and returns its line. CheckError and
            SkipError end it with another state.
    """

    name: str
    seconds: float
    run: Callable[[Deadline, Json], str]


class Report:
    """The results so far, in memory and in a file."""

    def __init__(self, folder: Path, head: Json) -> None:
        """Make the folder.

        Args:
            head: What the file has besides the results.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self.folder: Final = folder
        self.head: Final = head
        self.results: Final[list[Result]] = []

    def add(self, result: Result) -> None:
        """Add a result and write the file."""
        self.results.append(result)
        self.write()

    def write(self) -> None:
        """Write the file; a reader sees the old or the new one."""
        text = json.dumps({**self.head, "steps": [vars(each) for each in self.results]}, indent=2)
        part = self.folder / f"{RESULTS_FILE}.part"
        part.write_text(text + "\n", encoding="utf-8")
        part.replace(self.folder / RESULTS_FILE)

    @property
    def has_failed(self) -> bool:
        """True if a step failed, or if none was done."""
        states = {each.state for each in self.results}
        return "failed" in states or "ok" not in states


def is_wanted(step: str, only: Sequence[str]) -> bool:
    """Return True if a step is named, itself or by the part before its colon; or if none is."""
    return not only or step in only or step.partition(":")[0] in only


def run(
    step: Step, report: Report, *, left_seconds: float, progress: Callable[[str], None]
) -> None:
    """Run a step and add its result, whatever happens in it.

    Args:
        left_seconds: Time that the whole check still has.
        progress: Gets the result's line.
    """
    began = time.monotonic()
    facts: Json = {}
    state: State = "failed"
    if left_seconds <= 0:
        state, text = "skipped", "no time was left for it"
    else:
        try:
            text = step.run(Deadline(min(step.seconds, left_seconds)), facts)
            state = "ok"
        except SkipError as reason:
            state, text = "skipped", str(reason)
        except CheckError as error:
            text = str(error)
        except Exception as error:  # noqa: BLE001 - a step's fault must not lose the other steps
            text = f"{type(error).__name__}: {error}"
    seconds = round(time.monotonic() - began, 2)
    report.add(Result(step=step.name, state=state, text=text, seconds=seconds, facts=facts))
    progress(f"{step.name}: {state}, {seconds:.1f} s: {text}")

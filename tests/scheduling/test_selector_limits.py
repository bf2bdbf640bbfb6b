"""Selectors: whatever they ask for, checking and evaluating one of them takes little."""

import time
from collections import Counter
from pathlib import Path
from typing import Final

import pytest

from tensorfusion_dra.core.cel import dialect
from tensorfusion_dra.core.errors import InputError
from tensorfusion_dra.scheduling import cel_evaluation
from tensorfusion_dra.scheduling.cel_evaluation import CelCompileError
from tests.support.builders.slices import stored_slices
from tests.support.hostile_selectors import LISTS, STRINGS, TIME, hostile, list_of, repeated
from tests.support.selecting import A, C
from tests.support.tally import INPUTS_FUZZED, Tally, portion

MAX_KIB: Final = 20 * 2**10
MAX_SECONDS: Final = 0.25
"""Five times the bound of the decision record, for slow machines."""
STEPS: Final = "found more than 20000 steps to evaluate, expected fewer"
PATTERN: Final = "found a pattern that is computed"


def memory_kib(field: str) -> int:
    """Return what this process has (VmRSS), or has had at most since `forget_peak` (VmHWM)."""
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if field in line]
    return int(line.split()[1])


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def selected(expression: str, nodes: int = 1) -> int:
    """Return how many devices an expression selects, as the webhook finds them."""
    translated = dialect.translate(expression)
    if (text := cel_evaluation.refusal(translated)) is not None:
        raise InputError(text)
    found = cel_evaluation.selected(stored_slices(2) * nodes, translated)
    return sum(len(item["spec"]["devices"]) for item in found)


def test_no_selector_takes_much_memory_or_time(tally: Tally) -> None:
    ended = Counter[bool]()
    selected(f'{A}.uuid != ""')  # loads the library
    before_kib = memory_kib("VmRSS")
    for seed in range(portion(4_000)):
        forget_peak()
        started = time.thread_time()
        try:
            selected(hostile(seed))
            ended[True] += 1
        except InputError:
            ended[False] += 1

        assert time.thread_time() - started < MAX_SECONDS, seed
        assert memory_kib("VmHWM") - before_kib < MAX_KIB, seed
    assert min(ended.values()) > portion(4_000) // 5
    tally[INPUTS_FUZZED] += portion(4_000)


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        pytest.param(LISTS, STEPS, id="lists"),
        pytest.param(STRINGS, STEPS, id="texts"),
        pytest.param(TIME, STEPS, id="loops"),
        pytest.param(repeated("'aaaa'", 9, "$.replace('a','aaaa')"), STEPS, id="replace"),
        pytest.param(repeated("['a']", 20, "[$,$]", "$==$"), STEPS, id="shared entries"),
        pytest.param(f"size({list_of(200)}.map(x,x))>0", STEPS, id="list that grows"),
        pytest.param(r"''.matches(r'(?i)\pL{300}')", STEPS, id="class of letters"),
        pytest.param("''.matches('(((a{99}){99}){99})')", STEPS, id="repetition"),
        pytest.param(f"''.matches({A}.model)", PATTERN, id="pattern of a device"),
        pytest.param(r"''.matches('a\x7b1000}')", PATTERN, id="pattern in escapes"),
        pytest.param("||".join(["true"] * 301), "found more than 600 names", id="long"),
    ],
)
def test_expression_beyond_the_limits_is_refused_before_it_is_evaluated(
    expression: str, reason: str
) -> None:
    started = time.thread_time()

    assert reason in str(cel_evaluation.check_expression(expression))
    with pytest.raises(CelCompileError, match=reason):
        cel_evaluation.selector(expression)
    with pytest.raises(InputError, match=reason):
        cel_evaluation.selected(stored_slices(2), expression)
    assert time.thread_time() - started < MAX_SECONDS


def test_steps_on_all_devices_together_are_limited() -> None:
    honest = f'({A}.model == "A100" || {A}.model == "H100") && {C}.vram.asInteger() > 1'
    expensive = f"{list_of(40)}.all(n, n < 40 && {A}.uuid != '')"

    assert selected(honest, nodes=1_200) == 2_400
    assert selected(expensive) == 2
    with pytest.raises(InputError, match=r"steps on each of 2400 devices, expected at most 416,"):
        selected(expensive, nodes=1_200)

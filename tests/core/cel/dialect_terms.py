"""Expressions in the guide's dialect, each with its meaning as a Python function.

A device is a mapping of attributes and capacities to plain values: strings, integers, and floats
for amounts. A capacity that the device lacks is missing from it.
"""

import operator
from collections.abc import Callable, Mapping
from typing import Any, Final

from hypothesis import strategies as st

Facts = Mapping[str, Any]
Term = tuple[str, Callable[[Facts], Any]]
"""An expression, and the function that returns its value on a device."""

STRINGS: Final = ("model", "pool_name", "phase", "used_by", "qos", "architecture")
INTS: Final = ("node_total_gpus", "node_managed_gpus")
TOTALS: Final = ("node_total_tflops", "node_total_vram", "node_virtual_tflops", "node_virtual_vram")
CAPACITIES: Final = ("tflops", "vram", "virtual_tflops", "virtual_vram")
WORDS: Final = ("A100", "H100", "default", "Running", "", "medium", "ampere")
NUMBERS: Final = ("0", "8", "0x138", "312", "312.0", "85899345920", "1.5e3", "-1", "624")
DOUBLES: Final = ("0.0", "312.0", "85899345920.0", "1.5e3", "-1.0")
ORDER: Final = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
EQUALITY: Final = {"==": operator.eq, "!=": operator.ne}
SPACES: Final = (" ", "", "\n", " // a comment\n", "\t")


class LackingError(Exception):
    """A condition names a capacity that the device lacks."""


def attribute(name: str) -> Term:
    return f'device.attributes["{name}"]', lambda facts: facts[name]


def capacity(name: str) -> Term:
    def value(facts: Facts) -> Any:
        if name not in facts:
            raise LackingError(name)
        return facts[name]

    return f'device.capacity["{name}"].AsApproximateFloat64()', value


def as_number(text: str) -> float:
    return int(text, 0) if text.startswith("0x") else float(text)


def binary(left: Term, sign: str, right: Term, space: str) -> Term:
    function = {**ORDER, **EQUALITY}[sign]
    return (
        f"{left[0]}{space}{sign} {right[0]}",
        lambda facts: function(left[1](facts), right[1](facts)),
    )


def one_of(left: Term, choices: tuple[str, ...], value: Callable[[str], Any]) -> Term:
    wanted = [value(choice) for choice in choices]
    return f"{left[0]} in [{', '.join(choices)}]", lambda facts: left[1](facts) in wanted


spaces = st.sampled_from(SPACES)
orders = st.sampled_from([*ORDER])
equalities = st.sampled_from([*EQUALITY])
numbers = st.sampled_from(NUMBERS).map(lambda text: (text, lambda _: as_number(text)))
doubles = st.sampled_from(DOUBLES).map(lambda text: (text, lambda _: float(text)))
words = st.sampled_from(WORDS).map(lambda text: (f'"{text}"', lambda _: text))
totals = st.sampled_from(TOTALS).map(
    lambda name: (
        f'device.attributes["{name}"].AsApproximateFloat64()',
        lambda facts: facts[name],
    )
)
amounts = st.sampled_from(CAPACITIES).map(capacity) | totals
"""Expressions that are numbers after conversion."""
strings = st.sampled_from(STRINGS).map(attribute)
counts = st.sampled_from(INTS).map(attribute)
comparisons = st.one_of(
    st.builds(binary, strings, equalities, words, spaces),
    st.builds(
        one_of,
        strings,
        st.just(('"A100"', '"default"', '"high"')),
        st.just(lambda text: text.strip('"')),
    ),
    st.builds(binary, counts, orders | equalities, numbers, spaces),
    st.builds(binary, amounts, orders, numbers | amounts | counts, spaces),
    st.builds(binary, numbers, orders, amounts, spaces),
    st.builds(binary, amounts, equalities, doubles | amounts, spaces),
    st.builds(one_of, amounts, st.just(DOUBLES), st.just(float)),
)


def condition(term: Term) -> Term:
    """Return a term that is false where the device lacks one of its capacities."""

    def holds(facts: Facts) -> bool:
        try:
            return bool(term[1](facts))
        except LackingError:
            return False

    return term[0], holds


def _larger(part: st.SearchStrategy[Term]) -> st.SearchStrategy[Term]:
    return st.one_of(
        part.map(lambda p: (f"({p[0]})", p[1])),
        part.map(lambda p: (f"!({p[0]})", lambda facts: not p[1](facts))),
        st.tuples(part, spaces, part).map(
            lambda p: (
                f"({p[0][0]}) &&{p[1]}({p[2][0]})",
                lambda facts: p[0][1](facts) and p[2][1](facts),
            )
        ),
        st.tuples(part, spaces, part).map(
            lambda p: (
                f"({p[0][0]}) ||{p[1]}({p[2][0]})",
                lambda facts: p[0][1](facts) or p[2][1](facts),
            )
        ),
        st.tuples(part, part, part).map(
            lambda p: (
                f"({p[0][0]}) ? ({p[1][0]}) : ({p[2][0]})",
                lambda facts: (p[1] if p[0][1](facts) else p[2])[1](facts),
            )
        ),
    )


expressions = st.recursive(comparisons.map(condition), _larger, max_leaves=6)

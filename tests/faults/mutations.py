"""Generated JSON documents that are almost valid."""

import copy
from collections.abc import Iterator
from typing import Any, Final

from hypothesis import settings
from hypothesis import strategies as st

from tests.support.tally import EFFORT


def bounded(examples: int, *, least: int = 5) -> settings:
    """Return settings with the effort's share of this number of examples."""
    return settings(max_examples=max(least, round(examples * EFFORT)))


_ODD_TEXTS: Final = (
    *("", " ", "a\n", "\0", "\ud800", "ä", "../../etc/cron.d/x", "a/b", "a=b", "x" * 300),
    *("0", "-1", "-0", "1e400", "1e-400", "NaN", "Infinity", "9" * 400, "0x10", "1_000", "16Gi"),
    *("true", "soft", "hard", "shared", "critical", "tensor-fusion.ai.dra-driver"),
)

SCALARS: Final = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(min_value=-(2**70), max_value=2**70),
    st.floats(),
    st.text(max_size=20),
    st.sampled_from(_ODD_TEXTS),
)
ANYTHING: Final = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)

_Path = tuple[str | int, ...]


@st.composite
def mutated(draw: st.DrawFn, document: dict[str, Any]) -> dict[str, Any]:
    """Draw the document with one to three values replaced, removed or duplicated."""
    changed = copy.deepcopy(document)
    for _ in range(draw(st.integers(min_value=1, max_value=3))):
        *above, last = draw(st.sampled_from(sorted(_paths(changed), key=str)))
        parent: Any = changed
        for step in above:
            parent = parent[step]
        match draw(st.sampled_from(("replaced", "removed", "twice", "odd text"))):
            case "replaced":
                parent[last] = draw(ANYTHING)
            case "odd text":
                parent[last] = draw(st.sampled_from(_ODD_TEXTS))
            case "twice" if isinstance(parent, list) and isinstance(last, int):
                parent.append(copy.deepcopy(parent[last]))
            case _ if len(changed) > 1:
                del parent[last]
    return changed


def _paths(value: Any, above: _Path = ()) -> Iterator[_Path]:
    children: Any = ()
    if isinstance(value, dict):
        children = value.items()
    elif isinstance(value, list):
        children = enumerate(value)
    for key, child in children:
        yield (*above, key)
        yield from _paths(child, (*above, key))

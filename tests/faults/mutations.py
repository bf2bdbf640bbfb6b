"""Generated JSON documents that are almost valid, and damaged copies of files."""

import random
from collections.abc import Iterator
from copy import deepcopy
from typing import Any, Final

from hypothesis import settings
from hypothesis import strategies as st

from tests.support.tally import EFFORT, portion

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
SEED: Final = 20260101


def bounded(examples: int, *, least: int = 5) -> settings:
    """Return settings with the effort's share of this number of examples."""
    return settings(max_examples=max(least, round(examples * EFFORT)))


@st.composite
def mutated(draw: st.DrawFn, document: dict[str, Any]) -> dict[str, Any]:
    """Draw the document with one to three values replaced, removed or duplicated."""
    changed = deepcopy(document)
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
                parent.append(deepcopy(parent[last]))
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


def damaged(content: bytes, *, flips: int = 200, cuts: int = 40) -> Iterator[bytes]:
    """Yield the content with every kind of damage by disks and editors, the same in every run.

    Args:
        flips: Copies with flipped bits at full effort; a quarter as many have an inserted part,
            and a quarter as many an overwritten part.
        cuts: Truncated copies at full effort.
    """
    flips, cuts = portion(flips, least=8), portion(cuts, least=4)
    yield from (b"", b"\0" * len(content), b"\xff" * 64, b"\xff\xfe" + content, content + b"\0")
    chance = random.Random(SEED)
    for size in sorted({len(content) * number // cuts for number in range(cuts)}):
        yield content[:size]
    for _ in range(flips):
        copy = bytearray(content)
        for _ in range(chance.choice((1, 1, 1, 2, 8))):
            copy[chance.randrange(len(copy))] ^= 1 << chance.randrange(8)
        yield bytes(copy)
    for _ in range(flips // 4):
        begin, moved = chance.randrange(len(content)), chance.randrange(len(content))
        end = min(len(content), begin + chance.randrange(1, 40))
        yield content[:moved] + content[begin:end] + content[moved:]
        yield content[:begin] + chance.randbytes(end - begin) + content[end:]

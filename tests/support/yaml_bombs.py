"""YAML in which a few lines describe more than fits in memory, or take long to read."""

from typing import Final


def doubled(lines: int, entry: str) -> str:
    """Return lines of which each has the value of the one before several times."""
    return "a0: &a0 {x: 1}\n" + "".join(
        f"a{i}: &a{i} {entry.format(*[f'*a{i - 1}'] * 4)}\n" for i in range(1, lines)
    )


_REPEATED: Final = "found aliases of more than 100000 values"
_LEVELS: Final = "found more than 100 levels of nesting"

_DOCUMENT: Final = f"--- {{a: &a [{'1, ' * 600}], b: [{'*a, ' * 100}]}}\n"

BOMBS: Final = {
    "repeated": (doubled(40, "[{}, {}, {}, {}]"), f"line 9: {_REPEATED}"),
    "merged": (doubled(40, "{{<<: [{}, {}, {}, {}], b: 1}}"), f"line 8: {_REPEATED}"),
    # Each document alone is small enough.
    "documents": (_DOCUMENT * 9, f"line 2: {_REPEATED}"),
    "recursive": ("b: &a\n  c:\n  - *a\n", f"line 3: {_REPEATED}"),
    "recursive later": ("--- &a []\n--- &a\n- *a\n", f"line 3: {_REPEATED}"),
    "brackets": ("a: 1\n---\nb: 2\nc: " + "[" * 5000, f"line 4: {_LEVELS}"),
    "blocks": ("".join(" " * i + "a:\n" for i in range(500)), f"line 101: {_LEVELS}"),
}
"""Text and expected error, which begins with a line."""

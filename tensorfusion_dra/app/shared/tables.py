"""Tables as aligned text."""

from collections.abc import Iterable, Sequence


def table(rows: Iterable[Sequence[object]], *, indent: str = "  ") -> list[str]:
    """Return the rows as lines in which every column is as wide as its widest cell."""
    texts = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    return [
        (indent + "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True))).rstrip()
        for row in texts
    ]

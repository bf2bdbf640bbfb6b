"""Damaged copies of a file: truncated, with flipped bits, overwritten."""

import random
from collections.abc import Iterator

from tests.support import tally

SEED = 20260101


def damaged(content: bytes, *, flips: int = 200, cuts: int = 40) -> Iterator[bytes]:
    """Yield the content with every kind of damage by disks and editors, the same in every run.

    Args:
        flips: Copies with flipped bits at full effort; a quarter as many have an inserted part,
            and a quarter as many an overwritten part.
        cuts: Truncated copies at full effort.
    """
    flips, cuts = tally.portion(flips, least=8), tally.portion(cuts, least=4)
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
        begin = chance.randrange(len(content))
        end = min(len(content), begin + chance.randrange(1, 40))
        moved = chance.randrange(len(content))
        yield content[:moved] + content[begin:end] + content[moved:]
        yield content[:begin] + chance.randbytes(end - begin) + content[end:]

"""Comparison of the doctor's findings with what a test expects of them."""

from collections.abc import Iterable

from tensorfusion_dra.core.finding import Finding, Level

Expected = tuple[Level, str]
"""A finding's level, and a part of its text."""


def check(found: Iterable[Finding], expected: Iterable[Expected]) -> None:
    """Assert that the findings have these levels, and each the part of a text."""
    listed, wanted = list(found), list(expected)
    texts = [f"{each.subject}: {each.found}; {each.expected}; {each.remedy}" for each in listed]

    assert [each.level for each in listed] == [level for level, _ in wanted], texts
    for text, (_, part) in zip(texts, wanted, strict=True):
        assert part in text

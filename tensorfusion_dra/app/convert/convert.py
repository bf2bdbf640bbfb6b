"""Conversion of the user guide's YAML for API servers of 1.34 or later.

Every change is an edit of the text at a place, so comments, order and spaces stay. There are two
passes. The first moves entries to their places in requests and devices. The second reads the text
that results, and corrects names, values, missing entries and expressions. For example `count: 2`
beside a request's `name` moves into `exactly` in the first pass; the second pass then adds the
`deviceClassName` that `exactly` lacks.
"""

from dataclasses import dataclass

from tensorfusion_dra.app.convert import expressions, kinds, moves, rules, sharing
from tensorfusion_dra.app.convert.changes import Changes, Reason
from tensorfusion_dra.app.convert.source import Source
from tensorfusion_dra.core.cel import edits


@dataclass(frozen=True, slots=True, kw_only=True)
class Converted:
    """Result of a conversion; all line numbers are those of the original text.

    Attributes:
        text: The converted text.
        reasons: Reasons of the changes.
        problems: Parts that an API server refuses and that could not be converted.
        notes: Parts that an API server accepts, but that do not have the expected effect.
    """

    text: str
    reasons: tuple[Reason, ...]
    problems: tuple[Reason, ...]
    notes: tuple[Reason, ...]


def convert(text: str) -> Converted:
    """Convert everything in a text that an API server of 1.34 or later refuses.

    Raises:
        InputError: The text is not YAML.
    """
    lines = list(range(1, text.count("\n") + 2))
    collected: dict[str, list[Reason]] = {"reasons": [], "problems": [], "notes": []}
    for find in (_moves, _rules):
        changes = Changes(Source(text))
        find(changes)
        for kind, earlier in collected.items():
            reasons: list[Reason] = getattr(changes, kind)
            earlier += [Reason(lines[reason.line - 1], reason.text) for reason in reasons]
        lines = _lines_after(changes, lines)
        text = edits.applied(text, changes.edits())
    unique = {kind: tuple(sorted(set(reasons))) for kind, reasons in collected.items()}
    return Converted(text=text, **unique)


def _moves(changes: Changes) -> None:
    for document in changes.source.documents():
        for item in filter(kinds.is_ours, kinds.objects([document])):
            moves.find(item, changes)


def _rules(changes: Changes) -> None:
    for document in changes.source.documents():
        rules.duplicate_keys(document, changes)
        for item in filter(kinds.is_ours, kinds.objects([document])):
            rules.find(item, changes)
            rules.hand_written(item, changes)
            sharing.find(item, changes)
        expressions.find(document, changes)


def _lines_after(changes: Changes, lines: list[int]) -> list[int]:
    """Return, for each line of the changed text, its line number in the original text.

    Args:
        lines: The same list for the text before these changes.
    """
    text = changes.source.text
    after, line, end = [lines[0]], 0, 0
    for edit in changes.edits():
        for _ in range(text.count("\n", end, edit.start)):
            line += 1
            after.append(lines[line])
        new = [line] * (edit.text.count("\n") + 1)
        moved = changes.moved.get(edit, ())
        new[: len(moved)] = moved
        after[-1:] = [lines[number] for number in new]
        line += text.count("\n", edit.start, edit.end)
        end = edit.end
        after[-1] = lines[line]
    return [*after, *lines[line + 1 :]]

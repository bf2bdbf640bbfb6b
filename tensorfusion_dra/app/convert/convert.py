"""A YAML text of the user guide as an API server takes it."""

from dataclasses import dataclass

from tensorfusion_dra.app.convert import expressions, kinds, moves, rules, sharing
from tensorfusion_dra.app.convert.changes import Changes, Reason
from tensorfusion_dra.app.convert.source import Source
from tensorfusion_dra.core.cel import edits


@dataclass(frozen=True, slots=True, kw_only=True)
class Converted:
    """What became of a text; all lines are those of the text as it was.

    Attributes:
        reasons: Of each change.
        problems: What an API server refuses and could not be changed.
        notes: What it accepts, and does not do what it looks like.
    """

    text: str
    reasons: tuple[Reason, ...]
    problems: tuple[Reason, ...]
    notes: tuple[Reason, ...]


def convert(text: str) -> Converted:
    """The text with everything changed that an API server of 1.34 or later does not take.

    Raises:
        InputError: It is no YAML.
    """
    lines = list(range(1, text.count("\n") + 2))
    said: dict[str, list[Reason]] = {"reasons": [], "problems": [], "notes": []}
    for find in (_moves, _rules):
        changes = Changes(Source(text))
        find(changes)
        for kind, placed in said.items():
            reasons: list[Reason] = getattr(changes, kind)
            placed += [Reason(lines[reason.line - 1], reason.text) for reason in reasons]
        lines = _lines_after(changes, lines)
        text = edits.applied(text, changes.edits())
    return Converted(text=text, **{kind: tuple(sorted(set(all_))) for kind, all_ in said.items()})


def _moves(changes: Changes) -> None:
    for document in changes.source.documents():
        for item in filter(kinds.is_ours, kinds.objects([document])):
            moves.find(item, changes)


def _rules(changes: Changes) -> None:
    for document in changes.source.documents():
        rules.twice(document, changes)
        for item in filter(kinds.is_ours, kinds.objects([document])):
            rules.find(item, changes)
            rules.hand_written(item, changes)
            sharing.find(item, changes)
        expressions.find(document, changes)


def _lines_after(changes: Changes, lines: list[int]) -> list[int]:
    """For each line of the changed text, the line it was in the beginning.

    Args:
        lines: The same for the text before these changes.
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

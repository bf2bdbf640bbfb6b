"""YAML documents that keep their comments, order and quotes when they are edited (ruamel.yaml).

A comment in lines of its own belongs to what follows it, but ruamel.yaml keeps it with the entry
before it. The edits here therefore leave such comments where they are when an entry moves.
"""

import io
import re
from collections.abc import Iterator
from typing import Any, Final

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.constructor import DuplicateKeyError
from ruamel.yaml.error import CommentMark, YAMLError
from ruamel.yaml.resolver import BaseResolver
from ruamel.yaml.tokens import CommentToken

from tensorfusion_dra.core.errors import InputError

_NULL: Final = "tag:yaml.org,2002:null"
_DOCUMENT_START: Final = re.compile(r"---[ \t]*(?:#.*)?(?:\n|$)|---[ \t]+")
# For example `devices:` and the `- ` below it, `devices:` and the key below it.
_LIST: Final = re.compile(
    r"^(?P<key> *)(?:- )?[^\s#-].*:[ \t]*(?:#.*)?\n(?P<dash> *)-(?P<gap> +)\S", re.M
)
_MAPPING: Final = re.compile(r"^(?P<key> *)[^\s#-].*:[ \t]*(?:#.*)?\n(?P<inner> *)[^\s#-]", re.M)


class _Plain(BaseResolver):
    """Take plain scalars as text, so that numbers, times and nulls are written as they were."""

    def __init__(self, version: object = None, loader: Any = None, loadumper: Any = None) -> None:
        super().__init__(loadumper or loader)

    @property
    def processing_version(self) -> tuple[int, int]:
        """Return YAML 1.2, to which only `yes` and `no` would make a difference."""
        return (1, 2)


_Plain.add_implicit_resolver(_NULL, re.compile("^$"), [""])


class Document:
    """One document of a YAML text.

    Attributes:
        root: Its content: mappings, lists and texts; None if it is empty.
    """

    def __init__(self, text: str, first_line: int) -> None:
        """Parse a document.

        Args:
            first_line: Number of its first line in the whole text, from 1.

        Raises:
            InputError: The text is not YAML, or sets a key twice.
        """
        self._newline: Final = "\r\n" if "\r\n" in text else "\n"
        text = text.replace("\r\n", "\n")
        start = _DOCUMENT_START.match(text)
        self._start: Final = start[0] if start else ""
        self._body: Final = text.removeprefix(self._start)
        self._first_line: Final = first_line + self._start.count("\n")
        self._yaml: Final = _round_trip(self._body)
        try:
            self.root: Any = self._yaml.load(self._body)
        except DuplicateKeyError as error:
            line = error.problem_mark.line + self._first_line
            raise InputError(f"YAML: line {line}: {error.problem}") from error
        except YAMLError as error:
            raise InputError(f"YAML: {' '.join(str(error).split())}") from error

    def text(self) -> str:
        """Return the document as it is now."""
        written = io.StringIO()
        self._yaml.dump(self.root, written)
        text = written.getvalue()
        if not self._body.endswith("\n"):
            text = text.removesuffix("\n")
        return (self._start + text).replace("\n", self._newline)

    def line(self, part: Any, key: object) -> int:
        """Return the line of a mapping's key or of a list's item in the original text, from 1."""
        return int(part.lc.data[key][0]) + self._first_line


def documents(text: str) -> Iterator[tuple[str, Document]]:
    """Yield the text of each document, and what it has.

    Raises:
        InputError: The text is not YAML.
    """
    line = 1
    for part in re.split(r"(?m)^(?=---(?:\s|$))", text):
        yield part, Document(part, line)
        line += part.count("\n")


def at(part: Any, *path: str) -> Any:
    """Return what is at a path of keys; None if there is nothing."""
    for key in path:
        part = part.get(key) if isinstance(part, CommentedMap) else None
    return part


def mappings(part: Any) -> Iterator[tuple[int, CommentedMap]]:
    """Yield the mappings in a list, with their places in it; nothing for anything else."""
    for index, item in enumerate(part if isinstance(part, list) else ()):
        if isinstance(item, CommentedMap):
            yield index, item


def insert_first(owner: Any, owner_key: Any, key: str, value: Any) -> None:
    """Add an entry to the mapping at a key, above its other entries and their comments."""
    part = owner[owner_key]
    tokens = owner.ca.items.get(owner_key) if isinstance(owner, CommentedMap) else None
    if tokens and part and not part.fa.flow_style():
        first, above = next(iter(part)), tokens[3] or []
        if tokens[2] is not None:
            same_line, line_break, below = tokens[2].value.partition("\n")
            tokens[2].value = same_line + line_break
            above = [CommentToken(below.lstrip(" "), CommentMark(part.lc.col))] if below else above
        if above:
            tokens[3] = None
            part.ca.comment = None
            part.ca.items.setdefault(first, [None] * 4)[1] = above
    part.insert(0, key, value)


def move(owner: CommentedMap, keys: list[str], into: str) -> None:
    """Move entries into the mapping of another entry, with the comments on their lines."""
    part = owner[into]
    for key in reversed(keys):
        line, before = owner.lc.data[key], list(owner)[: list(owner).index(key)]
        below = _cut(owner, key) if before else ""
        value = owner.pop(key)
        comments = owner.ca.items.pop(key, [None] * 4)
        if before:
            _paste(owner, before[-1], below)
        insert_first(owner, into, key, value)
        part.lc.add_kv_line_col(key, line)
        part.ca.items[key] = comments
        _indent(part, key)


def rename(part: CommentedMap, key: str, new: str) -> None:
    """Replace a key; its place, quotes, comments and line stay."""
    index, old = next((place, found) for place, found in enumerate(part) if found == key)
    name = type(old)(new)
    part.insert(index, name, part.pop(key))
    part.lc.add_kv_line_col(name, part.lc.data[key])
    if key in part.ca.items:
        part.ca.items[name] = part.ca.items.pop(key)


def enlist(part: CommentedMap, key: str) -> None:
    """Replace a mapping by a list that has only this mapping."""
    one, only = part[key], CommentedSeq()
    if one.fa.flow_style():
        only.fa.set_flow_style()
    for inner in one:
        _indent(one, inner)
    one.ca.comment = None
    only.append(one)
    part[key] = only


def replace(part: CommentedMap, key: str, text: str) -> None:
    """Replace a text and keep its quotes."""
    part[key] = type(part[key])(text)


def _round_trip(text: str) -> YAML:
    """Return ruamel.yaml's reader and writer for a text, with the indentation of the text."""
    found = YAML(typ="rt", pure=True)
    found.Resolver = _Plain
    found.preserve_quotes = True
    found.brace_single_entry_mapping_in_flow_sequence = True
    found.width = 2**31
    mapping, listed = _MAPPING.search(text), _LIST.search(text)
    found.map_indent = max(2, len(mapping["inner"]) - len(mapping["key"])) if mapping else 2
    if listed:
        found.sequence_dash_offset = max(0, len(listed["dash"]) - len(listed["key"]))
        found.sequence_indent = found.sequence_dash_offset + 1 + len(listed["gap"])
    return found


def _end(part: Any, key: Any) -> tuple[Any, Any, int]:
    """Return where ruamel.yaml keeps the comments after an entry: the part, the key, the slot."""
    while isinstance(value := part[key], CommentedMap | CommentedSeq) and value:
        if value.fa.flow_style():
            break
        part, key = value, list(value)[-1] if isinstance(value, CommentedMap) else len(value) - 1
    return part, key, 2 if isinstance(part, CommentedMap) else 0


def _indent(part: Any, key: Any, columns: int = 2) -> None:
    """Indent the comments in the lines of an entry; ruamel.yaml indents only the content."""
    for token in part.ca.items.get(key, ()):
        for each in token if isinstance(token, list) else [token] if token else ():
            each.start_mark = CommentMark(each.start_mark.column + columns)
            each.value = re.sub(r"\n(?= *#)", "\n" + " " * columns, each.value)
    value = part[key]
    if isinstance(value, CommentedMap | CommentedSeq):
        for inner in value if isinstance(value, CommentedMap) else range(len(value)):
            _indent(value, inner, columns)


def _cut(part: Any, key: Any) -> str:
    """Remove the comments in lines of their own after an entry, and return them."""
    part, key, slot = _end(part, key)
    token = (part.ca.items.get(key) or [None] * 4)[slot]
    if token is None:
        return ""
    same_line, line_break, below = token.value.partition("\n")
    token.value = same_line + line_break
    return str(below)


def _paste(part: Any, key: Any, comments: str) -> None:
    """Put comments in lines of their own after an entry."""
    if comments:
        part, key, slot = _end(part, key)
        tokens = part.ca.items.setdefault(key, [None] * 4)
        if tokens[slot] is None:
            tokens[slot] = CommentToken("\n", CommentMark(0))
        tokens[slot].value += comments

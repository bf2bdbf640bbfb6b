"""YAML text with the places of its nodes, so that it can be edited by place.

PyYAML reports where every node begins and ends. Edits of the text at these places keep comments,
order and spaces, without a YAML library that preserves them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import yaml
from yaml.nodes import CollectionNode, MappingNode, Node, ScalarNode, SequenceNode

from tensorfusion_dra.core.errors import InputError

Written = str | dict[str, "Written"]
"""A value to write: a scalar in YAML syntax, or a mapping."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A key of a mapping and its value."""

    key: ScalarNode
    value: Node

    @property
    def start(self) -> int:
        """Return the offset of the key."""
        return int(self.key.start_mark.index)

    @property
    def column(self) -> int:
        """Return the column of the key, from 0."""
        return int(self.key.start_mark.column)

    @property
    def line(self) -> int:
        """Return the line of the key, from 0."""
        return int(self.key.start_mark.line)


class Source:
    """A text of one or more YAML documents."""

    def __init__(self, text: str) -> None:
        self.text: Final = text
        self.newline: Final = "\r\n" if "\r\n" in text else "\n"

    def documents(self) -> list[Node]:
        """Return the outermost node of each document.

        Raises:
            InputError: The text is not YAML.
        """
        try:
            return list(yaml.compose_all(self.text, Loader=yaml.SafeLoader))
        except yaml.YAMLError as error:
            raise InputError(f"YAML: {' '.join(str(error).split())}") from error

    def end(self, node: Node) -> int:
        """Return the offset where a node ends, without the empty lines and comments after it."""
        start, end = node.start_mark.index, node.end_mark.index
        if is_flow(node):
            return int(end)
        if isinstance(node, CollectionNode):
            last = node.value[-1]
            return self.end(last[1] if isinstance(node, MappingNode) else last)
        return int(start + len(self.text[start:end].rstrip()))

    def is_one_line(self, node: Node) -> bool:
        """Return True for a scalar on one line."""
        copy = self.copy(node)
        return isinstance(node, ScalarNode) and bool(copy) and "\n" not in copy

    def line_start(self, offset: int) -> int:
        """Return the offset where the line of an offset begins."""
        return self.text.rfind("\n", 0, offset) + 1

    def line_end(self, offset: int) -> int:
        """Return the offset where the line of an offset ends, before its line break."""
        end = self.text.find("\n", offset)
        end = len(self.text) if end < 0 else end
        return end - 1 if end > offset and self.text[end - 1] == "\r" else end

    def starts_line(self, offset: int) -> bool:
        """Return True if only spaces stand before an offset on its line."""
        return not self.text[self.line_start(offset) : offset].strip()

    def above(self, first: Entry) -> int:
        """Return the offset of the line of a block's first entry, or of the comments above it.

        Above these comments is the key of the block, so they cannot belong to anything else.
        """
        start = self.line_start(first.start)
        while start:
            line = self.text[self.line_start(start - 1) : start].strip()
            if line and not line.startswith("#"):
                break
            start = self.line_start(start - 1)
        return start

    def block(self, key: str, value: Written, column: int, step: int = 2) -> str:
        """Return an entry as block YAML; its first line gets no indentation."""
        if isinstance(value, str):
            return f"{key}: {value}"
        inner = column + step
        lines = [self.block(name, item, inner, step) for name, item in value.items()]
        indent = self.newline + " " * inner
        return f"{key}:{indent}{indent.join(lines)}"

    def copy(self, node: Node) -> str:
        """Return the text of a node."""
        return self.text[node.start_mark.index : self.end(node)]


def flow(key: str, value: Written, *, is_json: bool) -> str:
    """Return an entry as flow YAML.

    Args:
        is_json: Put quotes around keys and texts, as JSON requires.
    """
    name = f'"{key}"' if is_json else key
    if isinstance(value, str):
        return f'{name}: "{value}"' if is_json and value[0] != '"' else f"{name}: {value}"
    inner = ", ".join(flow(*item, is_json=is_json) for item in value.items())
    return f"{name}: {{{inner}}}"


def entries(node: Node | None) -> list[Entry]:
    """Return the entries of a mapping whose keys are scalars; empty for anything else."""
    if not isinstance(node, MappingNode):
        return []
    return [Entry(key, value) for key, value in node.value if isinstance(key, ScalarNode)]


def entry(node: Node | None, *path: str) -> Entry | None:
    """Return the entry at a path of keys; None if there is none."""
    found: Entry | None = None
    for key in path:
        found = next((item for item in entries(node) if item.key.value == key), None)
        if found is None:
            return None
        node = found.value
    return found


def value(node: Node | None, *path: str) -> Node | None:
    """Return the value at a path of keys; None if there is none."""
    found = entry(node, *path)
    return None if found is None else found.value


def text(node: Node | None, *path: str) -> str:
    """Return the text of the scalar at a path of keys; empty if there is none."""
    found = value(node, *path)
    return str(found.value) if isinstance(found, ScalarNode) else ""


def items(node: Node | None) -> Iterator[Node]:
    """Yield the items of a list; nothing for anything else."""
    if isinstance(node, SequenceNode):
        yield from node.value


def is_flow(node: Node) -> bool:
    """Return True for a list or mapping in brackets (flow style)."""
    return isinstance(node, CollectionNode) and bool(node.flow_style)


def is_json(node: MappingNode) -> bool:
    """Return True if a key is in double quotes, as in JSON."""
    return any(item.key.style == '"' for item in entries(node))

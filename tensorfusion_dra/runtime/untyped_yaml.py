"""YAML that anybody may have written, read within bounds.

An alias repeats a value in two characters, and a merge copies a mapping. So ten lines, each a list
of nine aliases of the line before, describe more values than fit in memory. PyYAML and ruamel.yaml
have no bound on this, and both recurse at each level of nesting. A ``Meter`` bounds either of them:
it counts while nodes are composed, before any value is made of them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import yaml

from tensorfusion_dra.core.errors import InputError
from tensorfusion_dra.core.kubernetes.untyped_json import MAX_LEVELS, DepthError

MAX_VALUES: Final = 1_000_000
"""Values in a text. Reading them takes about a minute and 1 GB of memory."""
MAX_REPEATED: Final = 100_000
"""Values in a text that are there by aliases. Objects of Kubernetes hardly have any."""
_MAX_NUMBER: Final = 100
"""Characters of a number. The time to read one grows with the square of its length."""
_TAG: Final = "tag:yaml.org,2002:"
_NUMBERS: Final = (f"{_TAG}int", f"{_TAG}float")


class BoundsError(yaml.MarkedYAMLError):
    """A text has too many values, nests them too deeply, or has one that is no value."""


class Meter:
    """Count of the values in the documents of a text."""

    def __init__(self) -> None:
        self._values = self._repeated = self._level = self._deepest = 0
        self._anchored: Final[dict[str, tuple[int, int]]] = {}
        """Values and levels of the nodes with anchors; a node that is not complete has no entry."""

    @contextmanager
    def node(self, event: Any, *, is_alias: bool) -> Iterator[None]:
        """Count the node that is composed meanwhile, with the nodes in it.

        Args:
            event: The parser's next event, which begins the node.

        Raises:
            BoundsError: There are too many values now.
        """
        values, deepest = self._values, self._deepest
        self._level = self._deepest = self._level + 1
        # An alias of a value that contains it has no end.
        anchored = self._anchored.pop(event.anchor, (MAX_REPEATED + 1, 1))
        self._check(event)
        yield
        repeated, levels = anchored if is_alias else (1, 1)
        self._values += repeated
        self._repeated += repeated * is_alias
        self._deepest += levels - 1
        self._check(event)
        self._anchored[event.anchor] = self._values - values, self._deepest - self._level + 1
        self._level -= 1
        self._deepest = max(deepest, self._deepest)

    def _check(self, event: Any) -> None:
        for count, most, text in (
            (self._deepest, MAX_LEVELS + 1, str(DepthError())),
            (self._repeated, MAX_REPEATED, f"found aliases of more than {MAX_REPEATED} values"),
            (self._values, MAX_VALUES, f"found more than {MAX_VALUES} values"),
        ):
            if count > most:
                raise BoundsError(problem=text, problem_mark=event.start_mark)


class _Loader(yaml.SafeLoader):
    """PyYAML's loader with bounds, for the types that JSON has."""

    def __init__(self, text: str | bytes) -> None:
        super().__init__(text)
        self._meter: Final = Meter()

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Compose a node and those in it."""
        parser: Any = self  # its types are incomplete
        event = parser.peek_event()
        with self._meter.node(event, is_alias=isinstance(event, yaml.AliasEvent)):
            return super().compose_node(parent, index)

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        """Construct the value of a node."""
        if node.tag in _NUMBERS and len(node.value) > _MAX_NUMBER:
            text = f"found a number of {len(node.value)} characters"
            raise BoundsError(problem=text, problem_mark=node.start_mark)
        try:
            return super().construct_object(node, deep)
        # PyYAML lets errors of int(), float() and its own table of booleans pass through.
        except (ValueError, LookupError) as error:
            raise BoundsError(problem=str(error), problem_mark=node.start_mark) from error


_loader: Any = _Loader
_loader.add_constructor(f"{_TAG}timestamp", yaml.SafeLoader.construct_yaml_str)  # as in Kubernetes
for _name in ("binary", "omap", "pairs", "set"):
    _loader.add_constructor(f"{_TAG}{_name}", yaml.SafeLoader.construct_undefined)


def documents(text: str | bytes) -> list[object]:
    """Return the value of each document of a text, in the types that JSON has.

    Raises:
        InputError: It is not YAML, has other types, or describes too much.
    """
    try:
        return list(yaml.load_all(text, _Loader))
    except yaml.YAMLError as error:
        raise InputError(fault(error, text)) from error


def document(text: str | bytes) -> object:
    """Return the value of a text's only document; None if it is empty.

    Raises:
        InputError: It is not YAML, has other types or several documents, or describes too much.
    """
    found = documents(text) or [None]
    if len(found) > 1:
        raise InputError(f"found {len(found)} documents, expected one")
    return found[0]


def fault(error: Any, text: str | bytes, first_line: int = 1) -> str:
    """Return what is wrong with a text, after the number of its line.

    Args:
        error: Of PyYAML or ruamel.yaml.
        first_line: Number of the text's first line.
    """
    if mark := getattr(error, "problem_mark", None):
        return f"line {mark.line + first_line}: {error.problem}"
    # A character that YAML does not have.
    line = len(text[: error.position + 1].splitlines()) - 1
    return f"line {line + first_line}: {str(error).splitlines()[0]}"

"""Upper bound on what evaluating an expression takes, known before anything is evaluated.

Any tenant writes selectors, and the library bounds neither memory nor time: ``cel.bind(a, [1, 2],
cel.bind(b, a + a, ...`` doubles a list with each bind, so 300 characters can ask for gigabytes. So
an expression is refused by an estimate, as the API server does (cel-go, checker/cost.go).

A step is a node that is evaluated, or a byte or an entry of a list that is read or written; it
takes at most 0.2 µs and 80 bytes. Types are not known, so that the estimate is that of the worst
type: ``+`` concatenates, and a loop over a text has one iteration for each byte.

Example: ``[1, 2].all(n, device.driver != 'a')`` has 22 steps at most. The macro has 1, the list 5
(two entries, each a node), and both times the body 8: its start, its four nodes, and the three
bytes of the literal that are compared.
"""

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NoReturn

from tensorfusion_dra.core.cel import syntax
from tensorfusion_dra.core.cel.syntax import CelError, SyntaxNode
from tensorfusion_dra.core.kubernetes.device_rules import MAX_ENTRIES

MAX_STEPS: Final = 20_000
"""Steps of one evaluation: 4 ms, 2 MB and less than the library's own 10,000 iterations."""

_CALL: Final = 10
"""Steps of a call, which may be one of a function in Python."""
_SCALAR: Final = 32
"""Bytes of a number, time or boolean as a text, at most."""
_CHARACTER: Final = 20
"""Steps to compile a character of a pattern."""
_UNICODE_CLASS: Final = 15_000
r"""Steps to compile \pL and the like, of thousands of characters."""
_PRECISION: Final = 1_000
"""Digits that format() writes for one value, at most."""
_FLAT: Final = frozenset({"all", "exists", "exists_one", "existsOne", "optMap", "optFlatMap"})
"""Macros that make no list, which the library copies for each entry that it appends."""
_PASSING: Final = frozenset({"dyn", "of", "ofNonZeroValue", "value", "or", "orValue"})
_REPETITION: Final = re.compile(r"(\)?)\{([0-9]*),?([0-9]*)\}")
_HIDDEN: Final = re.compile(r"\\[xXuU0-3]")
"""Escapes in a literal that could write any part of a pattern."""


@dataclass(frozen=True, slots=True)
class _Size:
    """Bound on a value.

    Attributes:
        length: Bytes of a text, or entries of a list or map.
        item: Bound on each entry; None if the entries are not known.
        is_named: It is a map of a device, whose keys are names.
    """

    length: int
    item: "_Size | None" = None
    is_named: bool = False

    @property
    def entry(self) -> "_Size":
        return self.item or self

    @property
    def total(self) -> int:
        """Return the bytes and entries of all levels."""
        return self.length * (1 + self.item.total) if self.item else self.length

    def either(self, other: "_Size", *, plus: bool = False) -> "_Size":
        """Return the bound on one of two values, or on their concatenation."""
        length = self.length + other.length if plus else max(self.length, other.length)
        if self.item and other.item:
            return _Size(length, self.item.either(other.item))
        # A text has no entries, and of a value whose entries are not known each may be all of it.
        known = self.item or other.item
        unknown = min(self, other, key=lambda each: each.item is not None)
        return _Size(length, known.either(_Size(unknown.total))) if known else _Size(length)


_NAME: Final = _Size(64)
DOMAINS: Final = 4  # few devices have more


def steps(expression: str, root: SyntaxNode, domains: int = DOMAINS) -> int:
    """Return the steps that evaluating an expression takes at most.

    Args:
        root: Its tree.
        domains: Of the device, which an expression is judged for before there is one. In each are
            as many names as the API allows.

    Raises:
        CelError: They are more than MAX_STEPS.
    """
    estimate = _Estimate(expression, domains)
    estimate.value(root, {})
    return estimate.steps


class _Estimate:
    def __init__(self, expression: str, domains: int) -> None:
        self._expression: Final = expression
        self._device: Final = _Size(
            4, _Size(domains, _Size(MAX_ENTRIES, _NAME, is_named=True), is_named=True)
        )
        self.steps = 0

    def value(self, node: SyntaxNode, bound: Mapping[str, _Size]) -> _Size:
        """Count the steps of a node; return the size of its value.

        Args:
            bound: The values of the names that macros around it bind.
        """
        self._take(1, node)
        if node.form == "name":
            is_device = node.text == "device" and (node.is_optional or "device" not in bound)
            return self._device if is_device else bound.get(node.text, _Size(_SCALAR))
        if syntax.is_bind(node):
            name, initial, result = node.arguments
            return self.value(result, {**bound, name.text: self.value(initial, bound)})
        if count := syntax.bindings(node):
            return self._loop(node, bound, count)
        return self._plain(node, [self.value(part, bound) for part in node.parts])

    def _plain(self, node: SyntaxNode, sizes: Sequence[_Size]) -> _Size:
        """Count the steps of a node beside those of its parts; return the size of its value."""
        size = _Size(_SCALAR)
        match node.form:
            case "string" | "constant" | "int" | "double":
                size = _Size(len(node.text.encode(errors="surrogatepass")))
            case "select":
                size = (
                    _NAME if sizes[0] is self._device and node.text == "driver" else sizes[0].entry
                )
            case "index":
                self._take(0 if node.parts[1].form == "string" else sizes[1].total, node)
                size = sizes[0].entry
            case "list" | "map":
                self._take(len(sizes), node)
                size = _Size(len(sizes), functools.reduce(_Size.either, sizes, _Size(0)))
            case "ternary":
                size = sizes[1].either(sizes[2])
            case "binary" if node.text == "+":
                size = sizes[0].either(sizes[1], plus=True)
                self._take(size.length, node)
            case "binary" if node.text == "in" and not sizes[1].is_named:
                self._take(sum(each.total for each in sizes), node)
            case "binary":  # equal values are read to the end of the shorter one
                self._take(min(each.total for each in sizes), node)
            case "call" | "method":
                size = self._call(node, sizes)
        return size

    def _loop(self, node: SyntaxNode, bound: Mapping[str, _Size], count: int) -> _Size:
        """Count the steps of a macro: those of its body for each entry."""
        target = self.value(node.parts[0], bound)
        entries = {
            each.text: _NAME if target.is_named and not index else target.entry
            for index, each in enumerate(node.arguments[:count])
        }
        before, result = self.steps, target
        self._take(1, node)
        for each in node.arguments[count:]:
            result = self.value(each, {**bound, **entries})
        self._take((self.steps - before) * max(0, target.length - 1), node)
        if node.text in _FLAT:
            return result
        self._take(target.length**2, node)
        return _Size(target.length, result.either(target.entry))

    def _call(self, node: SyntaxNode, sizes: Sequence[_Size]) -> _Size:
        """Count the steps of a function: the sizes of what it reads and of its result."""
        if node.text in _PASSING:
            return functools.reduce(_Size.either, sizes, _Size(0))
        taken = sum(each.total for each in sizes)
        size = _Size(_SCALAR + taken)
        match node.text, sizes:
            case "quote", _:
                size = _Size(_SCALAR + 2 * taken)
            case "has" | "type" | "hasValue", _:
                taken, size = 0, _Size(_SCALAR)
            case "size", [*_, counted]:
                taken, size = counted.length, _Size(_SCALAR)
            case "startsWith" | "endsWith" | "contains", _:
                size = _Size(_SCALAR)
            case "split", [text, *_]:
                size = _Size(text.length + 1, _Size(text.length))
            case "replace", [text, old, new, *_]:
                size = _Size((text.length + 1) * (new.length + 1) + old.length)
                taken += size.length
            case "join", [texts, *separators]:
                size = _Size(texts.length * sum(each.length for each in separators) + texts.total)
                taken += size.length
            case "format", [text, values]:
                size = _Size(text.length * (values.total * _SCALAR + _PRECISION))
                taken += size.length
            case "matches", [*_, text, _]:
                taken += self._compiled(node) * (_CHARACTER + text.length // 16)
        self._take(_CALL + taken, node)
        return size

    def _compiled(self, node: SyntaxNode) -> int:
        """Return the number of characters of a pattern, as often as they are repeated."""
        pattern = node.arguments[-1]
        if pattern.form != "string" or (
            pattern.text[0] not in "rR" and _HIDDEN.search(pattern.text)
        ):
            self._refuse(
                r"found a pattern that is computed or has \x, \u or \0, expected a plain string "
                "literal",
                pattern,
            )
        once = again = 1
        for group, *numbers in _REPETITION.findall(pattern.text):
            times = max(int(number or 1) for number in numbers)
            once, again = (once, again * times) if group else (max(once, times), again)
        classes = len(re.findall(r"\\[pP]", pattern.text)) * _UNICODE_CLASS // _CHARACTER
        return (len(pattern.text) + classes) * once * again

    def _take(self, number: int, node: SyntaxNode) -> None:
        self.steps += number
        if self.steps > MAX_STEPS:
            self._refuse(f"found more than {MAX_STEPS} steps to evaluate, {syntax.OWN_LIMIT}", node)

    def _refuse(self, reason: str, node: SyntaxNode) -> NoReturn:
        raise CelError(reason, expression=self._expression, offset=node.start)

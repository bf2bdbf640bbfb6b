"""The subset of Go's text/template that the chart uses; anything else is an error.

If helm is on PATH, `make manifests` compares the output with that of `helm template`.
"""

import re
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

Function = Callable[..., Any]

_ACTION: Final = re.compile(r"\{\{(- )?\s*(.*?)\s*( -)?\}\}", re.DOTALL)
_TOKEN: Final = re.compile(
    r'"(?:[^"\\]|\\.)*"|`[^`]*`|-?[0-9]+|:=|[|(),=]|\$[\w.]*|\.[\w.]*|[A-Za-z]\w*'
)
_OPENERS: Final = frozenset({"if", "range", "with", "define"})


class TemplateError(Exception):
    """The template is invalid, or uses a feature that is not implemented here."""


@dataclass(frozen=True, slots=True)
class Text:
    """Literal text."""

    text: str


@dataclass(frozen=True, slots=True)
class Action:
    """A pipeline, to be printed or assigned."""

    code: str


@dataclass(slots=True)
class Block:
    """A block of if, range, with or define.

    Attributes:
        branches: The pipeline of each branch, "" for else, and the branch's nodes.
    """

    keyword: str
    branches: list[tuple[str, list["Node"]]]


Node = Text | Action | Block


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """Data and functions that a pipeline can use.

    Attributes:
        variables: Values by name with the dollar sign; "$" is the root.
        defined: The named templates, for `include`.
    """

    dot: Any
    variables: ChainMap[str, Any]
    functions: Mapping[str, Function]
    defined: Mapping[str, list[Node]]

    def inner(self, dot: Any, variables: Mapping[str, Any] | None = None) -> "Scope":
        """Return a scope nested in this one; variables declared in it end with it."""
        return replace(self, dot=dot, variables=self.variables.new_child(dict(variables or {})))

    def include(self, name: str, dot: Any) -> str:
        """Return the output of a named template."""
        return render(self.defined[name], replace(self, dot=dot, variables=ChainMap({"$": dot})))


def definitions(text: str) -> dict[str, list[Node]]:
    """Return the named templates of a file."""
    named = {}
    for node in parse(text):
        if isinstance(node, Block) and node.keyword == "define":
            ((name, body),) = node.branches
            named[name.strip('"')] = body
    return named


def render(nodes: list[Node], scope: Scope) -> str:
    """Return the output of the nodes."""
    return "".join(_printed(nodes, scope))


def parse(text: str) -> list[Node]:
    """Return the nodes of a template."""
    stack: list[tuple[Block | None, list[Node]]] = [(None, [])]
    for piece in _pieces(text):
        block, body = stack[-1]
        word = "" if isinstance(piece, Text) else (piece.code.split(None, 1) or [""])[0]
        rest = "" if isinstance(piece, Text) else piece.code[len(word) :].strip()
        if word in _OPENERS:
            opened = Block(word, [(rest, [])])
            body.append(opened)
            stack.append((opened, opened.branches[0][1]))
        elif word == "else":
            if block is None:
                raise TemplateError("else: found outside of a block")
            block.branches.append((rest.removeprefix("if").strip(), []))
            stack[-1] = block, block.branches[-1][1]
        elif word == "end":
            stack.pop()
        else:
            body.append(piece)
    if len(stack) != 1:
        raise TemplateError("end: one is missing, or one too many")
    return stack[0][1]


def _pieces(text: str) -> Iterator[Text | Action]:
    at, trim = 0, False
    for match in _ACTION.finditer(text):
        before = text[at : match.start()]
        before = before.lstrip() if trim else before
        yield Text(before.rstrip() if match[1] else before)
        if not match[2].startswith("/*"):
            yield Action(match[2])
        at, trim = match.end(), bool(match[3])
    yield Text(text[at:].lstrip() if trim else text[at:])


def _printed(nodes: list[Node], scope: Scope) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, Text):
            yield node.text
        elif isinstance(node, Block):
            yield from _block(node, scope)
        else:
            yield _action(node.code, scope)


def _action(code: str, scope: Scope) -> str:
    assignment = re.fullmatch(r"(\$\w+)\s*(:?=)(.*)", code, re.DOTALL)
    if assignment is not None:
        name, operator, source = assignment.groups()
        holders = [each for each in scope.variables.maps if name in each or operator == ":="]
        holders[0][name] = evaluate(source, scope)
        return ""
    value = evaluate(code, scope)
    if value is None:
        raise TemplateError(f"{{{{ {code} }}}}: has no value")
    return str(value).lower() if isinstance(value, bool) else str(value)


def _block(block: Block, scope: Scope) -> Iterator[str]:
    for code, body in block.branches:
        match block.keyword:
            case "define":
                return
            case "range" if code:
                found = list(_ranged(code, scope))
                for inner in found:
                    yield from _printed(body, inner)
                if found:
                    return
            case _:
                value = evaluate(code, scope) if code else True
                if value:
                    dot = value if block.keyword == "with" and code else scope.dot
                    yield from _printed(body, scope.inner(dot))
                    return


def _ranged(code: str, scope: Scope) -> Iterator[Scope]:
    names, _, source = code.rpartition(":=")
    declared = [name.strip() for name in names.split(",") if name.strip()]
    value = evaluate(source, scope) or ()
    pairs = sorted(value.items()) if isinstance(value, Mapping) else list(enumerate(value))
    for key, item in pairs:
        found = (key, item)[2 - len(declared) :]
        yield scope.inner(item, dict(zip(declared, found, strict=True)))


def evaluate(code: str, scope: Scope) -> Any:
    """Return the value of a pipeline."""
    tokens = _TOKEN.findall(code)
    if "".join(tokens) != re.sub(r'\s+(?=(?:[^"]*"[^"]*")*[^"]*$)', "", code):
        raise TemplateError(f"{{{{ {code} }}}}: not known here")
    value = _pipeline(tokens, scope)
    if tokens:
        raise TemplateError(f"{{{{ {code} }}}}: {tokens[0]!r} not expected")
    return value


def _pipeline(tokens: list[str], scope: Scope) -> Any:
    value = _command(tokens, scope, [])
    while tokens and tokens[0] == "|":
        tokens.pop(0)
        value = _command(tokens, scope, [value])
    return value


def _command(tokens: list[str], scope: Scope, piped: list[Any]) -> Any:
    first = tokens.pop(0)
    if re.fullmatch(r"[A-Za-z]\w*", first) and first not in {"true", "false", "nil"}:
        function = scope.include if first == "include" else scope.functions.get(first)
        if function is None:
            raise TemplateError(f"{first}: no such function here")
        return function(*_arguments(tokens, scope), *piped)
    tokens.insert(0, first)
    value = _operand(tokens, scope)
    if callable(value):  # a method such as .Files.Get
        return value(*_arguments(tokens, scope), *piped)
    if piped or (tokens and tokens[0] not in {"|", ")"}):
        raise TemplateError(f"{first}: takes no arguments")
    return value


def _arguments(tokens: list[str], scope: Scope) -> list[Any]:
    arguments = []
    while tokens and tokens[0] not in {"|", ")"}:
        arguments.append(_operand(tokens, scope))
    return arguments


def _operand(tokens: list[str], scope: Scope) -> Any:
    token = tokens.pop(0)
    if token == "(":
        value = _pipeline(tokens, scope)
        if not tokens or tokens.pop(0) != ")":
            raise TemplateError("(: found no end of it")
        return value
    if token[0] in '"`':
        return token[1:-1].replace('\\"', '"').replace("\\n", "\n")
    if token in {"true", "false"}:
        return token == "true"
    if token[0] in ".$":
        return _field(token, scope)
    if token.lstrip("-").isdigit():
        return int(token)
    if token in scope.functions:
        return scope.functions[token]()
    raise TemplateError(f"{token}: not known here")


def _field(token: str, scope: Scope) -> Any:
    name, *parts = token.split(".")
    value = scope.variables[name] if name else scope.dot
    for part in filter(None, parts):
        if value is None:
            raise TemplateError(f"{token}: nothing has no {part}")
        value = value.get(part)
    return value

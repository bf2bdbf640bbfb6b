"""docs/troubleshoot.md lists the log events, and the words of operations, as the code has them."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tensorfusion_dra.core.claims.operation import Result, Stage
from tests.support import markdown

ROOT: Final = Path(__file__).parents[2]
SOURCES: Final = [
    file
    for file in (ROOT / "tensorfusion_dra").rglob("*.py")
    # Its lines are of a simulated API server and kubelet.
    if not {"simulate", "pb"} & set(file.parts)
]
LEVELS: Final = ("info", "warning", "error", "exception", "critical")
PAGE: Final = (ROOT / "docs" / "troubleshoot.md").read_text()
WORD: Final = re.compile(r"[a-z]+(_[a-z]+)+")


def logged(source: str) -> set[str]:
    """Return the events that a module logs from info on.

    An event that is not written in the call itself, such as ``log.warning(event, ...)``, may be
    any of the words that the module assigns, has in a table, or passes to a method ``_log_...``.
    """
    tree = ast.parse(source)
    found: set[str] = set()
    is_open = False
    for call in (each for each in ast.walk(tree) if isinstance(each, ast.Call)):
        match call:
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="log"), attr=level), args=[event, *_]
            ) if level in LEVELS:
                words = set(constants(event))
                is_open = is_open or not words
                found |= words
    return found | set(assigned(tree)) if is_open else found


def constants(event: ast.expr) -> Iterator[str]:
    parts = [event.body, event.orelse] if isinstance(event, ast.IfExp) else [event]
    for part in parts:
        if isinstance(part, ast.Constant):
            yield str(part.value)


def assigned(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        values: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
        elif isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Dict):
            values = node.value.values
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            values = node.args[:1] if node.func.attr.startswith("_log_") else []
        for value in values:
            word = value.value if isinstance(value, ast.Constant) else None
            if isinstance(word, str) and WORD.fullmatch(word):
                yield word


def test_every_event_from_info_on_is_documented_and_no_other() -> None:
    documented = [each for row in markdown.table(PAGE, "events") for each in markdown.codes(row[0])]

    assert len(documented) == len(set(documented))
    assert set(documented) == set().union(*(logged(file.read_text()) for file in SOURCES))


def test_stages_and_results_are_documented_in_their_order() -> None:
    assert first_column("stages") == [each.value for each in Stage]
    assert first_column("results") == [each.value for each in Result]


def first_column(table: str) -> list[str]:
    return [row[0].strip("`") for row in markdown.table(PAGE, table)]

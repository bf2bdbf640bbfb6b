"""The tables of docs/architecture.md have every thread, lock, word and folder of the code."""

import ast
import re
from collections.abc import Iterator
from typing import Final

from tests.support import markdown
from tests.support.markdown import ROOT

PAGE: Final = markdown.text(ROOT / "docs" / "architecture.md")
PACKAGE: Final = ROOT / "tensorfusion_dra"
THREADS: Final = {"Thread", "ThreadPoolExecutor", "SingleCallThread"}
LOCKS: Final = {"Lock", "RLock", "Condition", "FileLock"}
GENERIC: Final = {"runtime/single_call_thread.py", "state/file_lock.py"}
"""What other files make their threads and locks with."""


def trees() -> Iterator[tuple[str, ast.Module]]:
    for file in sorted(PACKAGE.rglob("*.py")):
        name = file.relative_to(PACKAGE).as_posix()
        if name not in GENERIC:
            yield name, ast.parse(file.read_text(encoding="utf-8"))


def called(node: ast.AST) -> str:
    """Return the last part of the name that a call has; empty if this is no call."""
    return ast.unparse(node.func).rpartition(".")[2] if isinstance(node, ast.Call) else ""


def text(node: ast.AST) -> str:
    """Return a string, with ``*`` for what is filled in; empty if this is none."""
    if isinstance(node, ast.JoinedStr):
        return "".join(text(part) or "*" for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def is_started(node: ast.AST) -> bool:
    """Return True for a call that starts a thread."""
    if not isinstance(node, ast.Call):
        return False
    by_supervisor = re.fullmatch(r"(self\._)?supervisor\.(own|run)", ast.unparse(node.func))
    return called(node) in THREADS or by_supervisor is not None


def test_every_thread_is_listed_where_its_name_is() -> None:
    rows = markdown.table(PAGE, "threads")
    listed = {
        (name, file)
        for which, where, _ in rows
        for name in markdown.codes(which)
        for file in markdown.codes(where)
    }
    documented_files = {file for _, where, _ in rows for file in markdown.codes(where)}
    names: dict[str, set[str]] = {}
    started: dict[str, set[str]] = {}
    for file, tree in trees():
        names[file] = {text(node) for node in ast.walk(tree)}
        for node in ast.walk(tree):
            if is_started(node):
                parts = {text(part) for part in ast.iter_child_nodes(node)}
                parts |= {text(each.value) for each in getattr(node, "keywords", ())}
                started[file] = started.get(file, set()) | (parts - {""})

    assert started.keys() <= documented_files
    in_code = {(name, file) for file, found in started.items() for name in found}
    assert in_code <= listed
    assert {name for name, _ in listed} == {
        name for name, file in listed if name in names.get(file, ())
    }


def locks(file: str, tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield file and name of every lock that a file makes."""
    for node in ast.walk(tree):
        if called(node) == "flock":
            yield file, "flock"
        targets: list[ast.expr | None] = []
        value: ast.expr | None = None
        if isinstance(node, ast.Assign):
            targets, value = list(node.targets), node.value
        elif isinstance(node, ast.AnnAssign):
            targets, value = [node.target], node.value
        elif isinstance(node, ast.withitem):
            targets, value = [node.optional_vars], node.context_expr
        made = [each for each in ast.walk(value) if called(each) in LOCKS] if value else []
        if made and called(value or made[0]) == "setdefault":
            assert isinstance(value, ast.Call)
            assert isinstance(value.func, ast.Attribute)
            targets = [value.func.value]
        for target in targets if made else ():
            assert target is not None, f"{file}: a lock without a name"
            yield file, ast.unparse(target).rpartition(".")[2]


def test_every_lock_is_listed_with_what_it_guards() -> None:
    rows = markdown.table(PAGE, "locks")
    listed = {
        (file, name)
        for where, which, _ in rows
        for file in markdown.codes(where)
        for name in markdown.codes(which)
    }

    assert listed == {found for file, tree in trees() for found in locks(file, tree)}


def test_every_word_of_the_glossary_is_in_a_name_of_the_code() -> None:
    defined = set()
    for _, tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                defined |= set(re.findall(r"[a-z]+|[A-Z][a-z]+", node.name))
            elif isinstance(node, ast.Name | ast.arg | ast.Attribute):
                found = {ast.Name: "id", ast.arg: "arg", ast.Attribute: "attr"}[type(node)]
                defined |= set(re.findall(r"[a-z]+", getattr(node, found)))

    words = [word for row in markdown.table(PAGE, "glossary") for word in markdown.codes(row[0])]
    assert len(words) == len(set(words))
    assert [word for word in words if word not in {each.lower() for each in defined}] == []


def test_every_folder_of_tests_is_a_package_or_in_the_table() -> None:
    rows = markdown.table(PAGE, "tests")
    listed = {name for row in rows for name in markdown.codes(row[0])}
    data = {"recordings"}

    folders = {file.parent.name for file in (ROOT / "tests").glob("*/__init__.py")}
    assert listed - data == folders - {file.stem for file in PACKAGE.iterdir()}
    assert all((ROOT / "tests" / name).is_dir() for name in data)

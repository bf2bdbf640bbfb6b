"""Guard that refuses to open or stat paths of this machine, in tests and in all child processes.

A test that reads a folder which only some machines have passes on those and fails on the next one.
Python imports this module at the start of each process that has its folder on PYTHONPATH, where
``environment()`` puts it. Most accesses raise an audit event (PEP 578). The functions that raise
none, such as os.stat, are wrapped.

A refused access raises OutsideError. Its path is also written to the report, because the code under
test may catch all errors. ``tests/conftest.py`` fails the test that adds to the report.
"""

import contextlib
import itertools
import os
import site
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

REPORT_VARIABLE: Final = "TEST_PATH_GUARD_REPORT"
FOLDER: Final = Path(__file__).resolve().parent
REPOSITORY: Final = FOLDER.parents[1]

_PROGRAMS: Final = os.environ.get("PATH", os.defpath).split(os.pathsep)

ALLOWED: Final[Mapping[str, str]] = {
    **dict.fromkeys(filter(None, _PROGRAMS), "programs that tests run, such as cc and openssl"),
    str(REPOSITORY): "the project",
    os.environ.get("TMPDIR", "/tmp"): "what tests make themselves",
    sys.prefix: "the virtual environment",
    sys.base_prefix: "the interpreter and its library",
    "/dev/null": "the same everywhere",
    "/dev/urandom": "the same everywhere",
    "/nowhere": "a path that no machine has, for tests of missing files",
    "/proc": "the kernel's, present wherever Python runs",
    "/sys": "the kernel's; what a machine lacks there reads as unknown",
}
"""Paths that may be used, including everything below them, with the reason."""

_STACK_LINES: Final = 12

# Positions of the paths among the arguments of these audit events.
_PATHS: Final[Mapping[str, tuple[int, ...]]] = {
    "ctypes.dlopen": (0,),
    "open": (0,),
    "os.chdir": (0,),
    "os.chmod": (0,),
    "os.chown": (0,),
    "os.link": (0, 1),
    "os.listdir": (0,),
    "os.mkdir": (0,),
    "os.remove": (0,),
    "os.rename": (0, 1),
    "os.rmdir": (0,),
    "os.scandir": (0,),
    "os.symlink": (1,),
    "os.truncate": (0,),
    "os.utime": (0,),
    "sqlite3.connect": (0,),
}
_UNAUDITED: Final = ("access", "lstat", "mkfifo", "mknod", "readlink", "stat", "statvfs")


class OutsideError(RuntimeError):
    """A path that the tests must not depend on."""


def environment(base: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return base, or os.environ, with the variables that make a Python process guard itself."""
    found = dict(os.environ if base is None else base)
    found[REPORT_VARIABLE] = os.environ[REPORT_VARIABLE]
    found["TMPDIR"] = os.environ["TMPDIR"]
    paths = [str(FOLDER), *found.get("PYTHONPATH", "").split(os.pathsep)]
    found["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(filter(None, paths)))
    return found


def install() -> None:
    """Guard this process from now on; it cannot be undone."""
    if getattr(os.stat, "guards", False):
        return
    # A library that asks for the user's own packages gets a folder without any.
    site.USER_BASE, site.USER_SITE = "/nowhere", "/nowhere/site-packages"
    for name in _UNAUDITED:
        _wrap(name)
    sys.addaudithook(_audit)


def is_allowed(path: str) -> bool:
    """Return True if the tests may use this path, which may be relative."""
    # Not resolved: a link in a temporary folder belongs to the test, wherever it points. A working
    # folder that was removed is unknown.
    with contextlib.suppress(FileNotFoundError):
        path = os.path.join(os.getcwd(), path)  # noqa: PTH109, PTH118 - pathlib would stat
    absolute = os.path.normpath(path)
    return absolute != "/" and any(
        absolute == folder or absolute.startswith(f"{folder}/") or folder.startswith(f"{absolute}/")
        for folder in ALLOWED
    )


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if event in _PATHS:
        for position in _PATHS[event]:
            _check(event, arguments[position])
    elif event in {"socket.bind", "socket.connect"}:
        _check(event, arguments[1])
    elif event == "subprocess.Popen":
        _check_child(*arguments)


def _check(what: str, path: object) -> None:
    # Numbers are file descriptors, and tuples are addresses of the network.
    if not isinstance(path, str | bytes | os.PathLike):
        return
    name = os.fsdecode(path)
    # Abstract sockets, SQLite in memory and libraries that the loader finds by name have no path.
    has_path = name and not name.startswith(("\0", ":memory:", "file:"))
    if has_path and ("/" in name or what != "ctypes.dlopen") and not is_allowed(name):
        _refuse(f"{what} {name}")


def _check_child(executable: object, _arguments: object, _folder: object, env: object) -> None:
    """Refuse a Python process that would not guard itself."""
    given: Any = os.environ if env is None else env
    guards = REPORT_VARIABLE in given and str(FOLDER) in given.get("PYTHONPATH", "")
    if str(executable) == sys.executable and not guards:
        _refuse("a Python process without tests.guard.sitecustomize.environment()")


def _refuse(what: str) -> None:
    report = os.environ.get(REPORT_VARIABLE)
    if report:
        import traceback

        # Without lines of source, because reading those could be refused too.
        stack = "\n".join(
            f"  {frame.f_code.co_filename}:{line} {frame.f_code.co_name}"
            for frame, line in itertools.islice(traceback.walk_stack(None), 2, _STACK_LINES)
        )
        line = f"{what} (process {os.getpid()}: {' '.join(sys.orig_argv)[:200]})\n{stack}\n"
        file = os.open(report, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(file, line.encode(errors="backslashreplace"))
        os.close(file)
    raise OutsideError(f"{what}: expected a path below one of {', '.join(ALLOWED)}")


def _wrap(name: str) -> None:
    original: Callable[..., Any] = getattr(os, name)

    def guarded(path: Any, *arguments: Any, **named: Any) -> Any:
        if named.get("dir_fd") is None:
            _check(f"os.{name}", path)
        return original(path, *arguments, **named)

    guarded.guards = True  # type: ignore[attr-defined]
    guarded.__name__ = name
    # The standard library looks up the abilities of a function in these sets.
    for known in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks):
        if original in known:
            known.add(guarded)
    setattr(os, name, guarded)


if REPORT_VARIABLE in os.environ:
    install()

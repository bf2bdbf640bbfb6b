"""The node plugin with a scale: ``python -m benchmark.weighed_plugin node-plugin FLAGS``.

The driver's own code runs unchanged. Before it starts, a finder is added that weighs each import:
the growth of the resident memory and the CPU time of the importing thread, without those of the
imports that it makes itself. One JSON line for each import is appended to a file; see memory.py.

Memory belongs to the process, so that what other threads allocate during an import counts as the
import's. Few threads run during a start.
"""

# Modules that `python -m` has not loaded would be missing from the weights, among them typing.
import os
import runpy
import sys
import time
from _thread import _local
from importlib.machinery import ExtensionFileLoader

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.machinery import ModuleSpec
    from typing import Any

VARIABLE = "BENCH_WEIGHTS"
"""Environment variable with the file of the weights."""

_PAGE_KIB = os.sysconf("SC_PAGESIZE") // 1024


class _Import:
    """One import in progress, with the weight of the imports inside it."""

    def __init__(self) -> None:
        self.began_kib = rss_kib()
        self.began_ms = cpu_ms()
        self._began_thread_s = time.thread_time()
        self._inner_kib = 0
        self._inner_s = 0.0

    def end(self, outer: "_Import | None") -> tuple[int, float]:
        """Return the own weight in KiB and in milliseconds."""
        kib, seconds = rss_kib() - self.began_kib, time.thread_time() - self._began_thread_s
        if outer is not None:
            outer._inner_kib += kib
            outer._inner_s += seconds
        return kib - self._inner_kib, (seconds - self._inner_s) * 1000


class Scale:
    """Finder that has the other finders find a module, and weighs its import."""

    def __init__(self, file: str) -> None:
        self._out = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._running = _local()  # with a stack for each thread

    def find_spec(self, name: str, path: "Any" = None, target: "Any" = None) -> "ModuleSpec | None":
        for finder in [each for each in sys.meta_path if each is not self]:
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                self._weigh(spec)
                return spec
        return None

    def _weigh(self, spec: "ModuleSpec") -> None:
        loader: Any = spec.loader
        if loader is None or isinstance(loader, type):  # a namespace, or part of the interpreter
            return
        loader.exec_module = self._weighing(spec.name, loader.exec_module)
        if issubclass(type(loader), ExtensionFileLoader):  # the library is loaded here
            loader.create_module = self._weighing(spec.name, loader.create_module)

    def _weighing(self, name: str, load: "Callable[[Any], Any]") -> "Callable[[Any], Any]":
        def weighed(argument: "Any") -> "Any":
            stack = self._stack()
            importer, outer = stack[-1] if stack else ("", None)
            stack.append((name, _Import()))
            try:
                return load(argument)
            finally:
                _, ended = stack.pop()
                kib, milliseconds = ended.end(outer)
                self._append(name, importer, ended, kib, milliseconds)

        return weighed

    def _stack(self) -> list[tuple[str, _Import]]:
        """Return this thread's imports in progress, by name, outermost first."""
        if not hasattr(self._running, "stack"):
            self._running.stack = []
        stack: list[tuple[str, _Import]] = self._running.stack
        return stack

    def _append(
        self, name: str, importer: str, ended: _Import, kib: int, milliseconds: float
    ) -> None:
        # Module names need no escapes in JSON.
        line = (
            f'{{"module": "{name}", "importer": "{importer}", "kib": {kib}, '
            f'"ms": {milliseconds:.3f}, "began_kib": {ended.began_kib}, '
            f'"began_ms": {ended.began_ms:.1f}}}\n'
        )
        os.write(self._out, line.encode())


def rss_kib() -> int:
    """Return the resident memory of this process."""
    with open("/proc/self/statm", "rb", buffering=0) as file:  # noqa: PTH123 - needs no import
        return int(file.read().split()[1]) * _PAGE_KIB


def cpu_ms() -> float:
    """Return the CPU time of this process."""
    return time.process_time() * 1000


def main() -> None:
    sys.meta_path.insert(0, Scale(os.environ[VARIABLE]))
    runpy.run_module("tensorfusion_dra", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()

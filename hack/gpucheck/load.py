"""A tenant's program: it obeys commands on stdin, one JSON object a line, and answers on stdout.

It uses the standard library and the driver API (libcuda.so.1) only. Symbols are looked up as in a
program that is linked with libcuda, so that libraries in LD_PRELOAD come first.
"""

import ctypes
import json
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final

_MULTIPROCESSORS: Final = 16
_CAPABILITY: Final = (75, 76)
"""Attributes of a device, in cuda.h's CUdevice_attribute."""
_AHEAD: Final = 8
"""Launches that wait on the card, so that it has work while the program does not run."""
_NO_TIMING: Final = 2
"""A flag of events, in cuda.h's CUevent_flags."""
_MAX_ROUNDS: Final = 1 << 24

# The kernel, as PTX text for the driver's own compiler; no CUDA toolkit is needed. It does a fixed
# amount of work and keeps every unit that it gets busy: two blocks of 1024 threads fill a
# multiprocessor, and each thread is a chain of multiply-adds. A loop that waits for a number of
# clock cycles would not do. It takes no longer beside a neighbour, because the clock goes on while
# the neighbour runs, so every tenant would seem to have the whole card.

_NAME: Final = b"busy"
_THREADS: Final = 1024
_BLOCKS_OF_MULTIPROCESSOR: Final = 400
"""Many times as many as run at once, so that part of the card takes longer for all of them.

Programs launch kernels of tens of thousands of short blocks. HAMi-core counts launched blocks, so
kernels of few and long ones would get more of the card.
"""

_TARGETS: Final = (("7.0", "sm_80"), ("6.3", "sm_75"), ("6.0", "sm_60"))
"""Versions of PTX with an architecture; a card runs what was made for older ones."""
_STEPS: Final = 16

_TEXT: Final = """\
.version {version}
.target {target}
.address_size 64

.visible .entry busy(.param .u64 out, .param .u32 rounds)
{{
    .reg .pred %more, %never;
    .reg .f32 %value, %factor;
    .reg .u32 %thread, %round, %rounds;
    .reg .u64 %address;

    ld.param.u32 %rounds, [rounds];
    mov.u32 %thread, %tid.x;
    cvt.rn.f32.u32 %value, %thread;
    mov.f32 %factor, 0f3F7FFFFF;
    mov.u32 %round, 0;
again:
{steps}
    add.u32 %round, %round, 1;
    setp.lt.u32 %more, %round, %rounds;
    @%more bra again;
    setp.lt.f32 %never, %value, 0f00000000;
    @!%never bra done;
    ld.param.u64 %address, [out];
    st.global.f32 [%address], %value;
done:
    ret;
}}
"""


def kernels() -> list[bytes]:
    """Return the kernel for each architecture, newest first; the first that loads is to be used."""
    steps = "\n".join(["    fma.rn.f32 %value, %value, %factor, %factor;"] * _STEPS)
    return [
        _TEXT.format(version=version, target=target, steps=steps).encode() + b"\0"
        for version, target in _TARGETS
    ]


class CudaError(Exception):
    """A call of the driver API was refused.

    Attributes:
        name: Such as CUDA_ERROR_OUT_OF_MEMORY.
    """

    def __init__(self, call: str, name: str) -> None:
        super().__init__(f"{call}: {name}")
        self.name = name


class _Event:
    """A mark in the card's work."""

    def __init__(self, call: Callable[..., None]) -> None:
        self._call = call
        self._handle = ctypes.c_void_p()
        call("cuEventCreate", ctypes.byref(self._handle), _NO_TIMING)

    def record(self) -> None:
        """Put the mark behind the launches so far."""
        self._call("cuEventRecord", self._handle, None)

    def wait(self) -> None:
        """Return once the card has reached the mark."""
        self._call("cuEventSynchronize", self._handle)


class Program:
    """A process with a context on the first card."""

    def __init__(self) -> None:
        """Load libcuda and open the card.

        Raises:
            OSError: There is no libcuda.so.1.
            CudaError: The card cannot be used.
        """
        ctypes.CDLL("libcuda.so.1", mode=ctypes.RTLD_GLOBAL)
        self._symbols = ctypes.CDLL(None)
        self._call("cuInit", 0)
        self._device = ctypes.c_int()
        self._call("cuDeviceGet", ctypes.byref(self._device), 0)
        context = ctypes.c_void_p()
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self._device)
        self._call("cuCtxSetCurrent", context)
        self._function = ctypes.c_void_p()
        self._call("cuModuleGetFunction", ctypes.byref(self._function), self._module(), _NAME)

    def facts(self) -> dict[str, Any]:
        """Return what the card says of itself."""
        name = ctypes.create_string_buffer(256)
        self._call("cuDeviceGetName", name, len(name), self._device)
        version, count = ctypes.c_int(), ctypes.c_int()
        self._call("cuDriverGetVersion", ctypes.byref(version))
        self._call("cuDeviceGetCount", ctypes.byref(count))
        free, total = self._memory()
        return {
            "name": name.value.decode(errors="replace"),
            "devices": count.value,
            "cuda_version": version.value,
            "multiprocessors": self._attribute(_MULTIPROCESSORS),
            "capability": [self._attribute(each) for each in _CAPABILITY],
            "free_bytes": free,
            "total_bytes": total,
        }

    def calibrate(self, *, milliseconds: float) -> dict[str, Any]:
        """Return blocks and rounds of a kernel that takes about this long on the whole card.

        Only a process without a limit is asked: under MPS a card has as many multiprocessors as the
        limit leaves.
        """
        blocks = self._attribute(_MULTIPROCESSORS) * _BLOCKS_OF_MULTIPROCESSOR
        self._timed(1, blocks)  # the first launch is slower
        rounds = 16
        while (found := self._timed(rounds, blocks)) < milliseconds / 1000 and rounds < _MAX_ROUNDS:
            rounds *= 2
        return {"blocks": blocks, "rounds": max(1, round(rounds * milliseconds / 1000 / found))}

    def rate(
        self, *, blocks: int, rounds: int, warm_seconds: float, seconds: float, windows: int
    ) -> dict[str, Any]:
        """Keep the card busy; return the kernels that ended per second, in each window.

        Args:
            blocks: Of each kernel.
            rounds: Of each block.
            warm_seconds: Time before the first window.
            seconds: Time of all windows.
            windows: Number of windows.
        """
        ends = deque(_Event(self._call) for _ in range(_AHEAD))
        for end in ends:
            self._launch(rounds, blocks)
            end.record()
        self._run_until(time.monotonic() + warm_seconds, (rounds, blocks), ends)
        counts, times = [], [time.monotonic()]
        for _ in range(windows):
            # From the end of the one before, so that none is short after a delay.
            done, now = self._run_until(times[-1] + seconds / windows, (rounds, blocks), ends)
            counts.append(done)
            times.append(now)
        self._call("cuCtxSynchronize")
        rates = [
            done / (end - start) for done, start, end in zip(counts, times, times[1:], strict=False)
        ]
        return {"rate": sum(counts) / (times[-1] - times[0]), "rates": rates}

    def latency(self, *, launches: int) -> dict[str, Any]:
        """Return the microseconds of single launches of a tiny kernel, sorted."""
        found = []
        for _ in range(launches):
            start = time.perf_counter()
            self._launch(1, 1)
            found.append((time.perf_counter() - start) * 1e6)
            self._call("cuCtxSynchronize")
        return {"microseconds": [round(each, 2) for each in sorted(found)]}

    def memory(self, *, bytes_of_each: int, most_bytes: int, keep: bool) -> dict[str, Any]:
        """Allocate pieces until one is refused; return how much was granted and the refusal.

        Args:
            bytes_of_each: Size of a piece.
            most_bytes: Sum at which the program stops by itself.
            keep: Keep the pieces until the program ends, instead of freeing them.
        """
        pieces: list[ctypes.c_uint64] = []
        refusal = ""
        while (len(pieces) + 1) * bytes_of_each <= most_bytes:
            piece = ctypes.c_uint64()
            try:
                self._call("cuMemAlloc_v2", ctypes.byref(piece), ctypes.c_size_t(bytes_of_each))
            except CudaError as error:
                refusal = error.name
                break
            pieces.append(piece)
        free, total = self._memory()
        for piece in () if keep else pieces:
            self._call("cuMemFree_v2", piece)
        granted = len(pieces) * bytes_of_each
        return {"granted_bytes": granted, "refusal": refusal, "free": free, "total": total}

    def _run_until(
        self, moment: float, kernel: tuple[int, int], ends: "deque[_Event]"
    ) -> tuple[int, float]:
        """Wait for kernels and launch others in their place.

        Args:
            kernel: Its rounds and blocks.

        Returns:
            The number of kernels that ended, and the time of the last one's end.
        """
        done = 0
        while True:
            ends[0].wait()
            done, now = done + 1, time.monotonic()
            self._launch(*kernel)
            ends[0].record()
            ends.rotate(-1)
            if now >= moment:
                return done, now

    def _timed(self, rounds: int, blocks: int) -> float:
        start = time.monotonic()
        self._launch(rounds, blocks)
        self._call("cuCtxSynchronize")
        return time.monotonic() - start

    def _launch(self, rounds: int, blocks: int) -> None:
        values = (ctypes.c_uint64(0), ctypes.c_uint32(rounds))
        parameters = (ctypes.c_void_p * 2)(*(ctypes.addressof(value) for value in values))
        grid = (blocks, 1, 1, _THREADS, 1, 1)
        self._call("cuLaunchKernel", self._function, *grid, 0, None, parameters, None)

    def _module(self) -> ctypes.c_void_p:
        refused = CudaError("cuModuleLoadData", "no text")
        for text in kernels():
            module = ctypes.c_void_p()
            try:
                self._call("cuModuleLoadData", ctypes.byref(module), text)
            except CudaError as error:
                refused = error
            else:
                return module
        raise refused

    def _attribute(self, attribute: int) -> int:
        value = ctypes.c_int()
        self._call("cuDeviceGetAttribute", ctypes.byref(value), attribute, self._device)
        return value.value

    def _memory(self) -> tuple[int, int]:
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    def _call(self, name: str, *arguments: object) -> None:
        result = getattr(self._symbols, name)(*arguments)
        if result:
            text = ctypes.c_char_p()
            self._symbols.cuGetErrorName(result, ctypes.byref(text))
            raise CudaError(name, (text.value or str(result).encode()).decode())


def main() -> int:
    """Answer commands until stdin ends; an error is ``{"error": text}``."""
    try:
        program = Program()
    except (AttributeError, CudaError, OSError) as error:
        answer({"error": str(error)})
        return 1
    answer({"facts": program.facts()})
    acts: Mapping[str, Callable[..., dict[str, Any]]] = {
        "calibrate": program.calibrate,
        "rate": program.rate,
        "latency": program.latency,
        "memory": program.memory,
    }
    for line in sys.stdin:
        command = json.loads(line)
        act = acts[command.pop("do")]
        try:
            answer(act(**command))
        except (AttributeError, CudaError) as error:
            answer({"error": str(error)})
    return 0


def answer(found: Mapping[str, Any]) -> None:
    """Write an answer to stdout."""
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())

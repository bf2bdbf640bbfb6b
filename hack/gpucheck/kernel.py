"""The kernel of the load, as PTX text for the driver's own compiler; no CUDA toolkit is needed.

It does a fixed amount of work and keeps every unit that it gets busy: two blocks of 1024 threads
fill a multiprocessor, and each thread is a chain of multiply-adds. A loop that waits for a number
of clock cycles would not do. It takes no longer beside a neighbour, because the clock goes on while
the neighbour runs, so every tenant would seem to have the whole card.
"""

from typing import Final

NAME: Final = b"busy"
THREADS: Final = 1024
BLOCKS_OF_MULTIPROCESSOR: Final = 400
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


def texts() -> list[bytes]:
    """Return the kernel for each architecture, newest first; the first that loads is to be used."""
    steps = "\n".join(["    fma.rn.f32 %value, %value, %factor, %factor;"] * _STEPS)
    return [
        _TEXT.format(version=version, target=target, steps=steps).encode() + b"\0"
        for version, target in _TARGETS
    ]

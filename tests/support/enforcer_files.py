"""Files as enforcers write them on a node: the hypervisor's shared memory, HAMi-core's counts.

The structures repeat upstream's types field by field, so that the readers' offsets are checked
against them (soft_limiter_shm.go, multiprocess_memory_limit.h).
"""

import ctypes
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tensorfusion_dra.core.claims.prepared import Limit

_MAX_PROCESSES: Final = 2048


class _DeviceInfo(ctypes.Structure):
    _fields_ = (
        ("up_limit", ctypes.c_uint32),
        ("mem_limit", ctypes.c_uint64),
        ("total_cuda_cores", ctypes.c_uint32),
        ("pod_memory_used", ctypes.c_uint64),
        ("erl", ctypes.c_double * 4),
    )


class _Device(ctypes.Structure):
    _fields_ = (
        ("uuid", ctypes.c_char * 64),
        ("info", _DeviceInfo),
        ("is_active", ctypes.c_uint32),
    )


class _Pids(ctypes.Structure):
    _fields_ = (
        ("lock", ctypes.c_size_t),
        ("values", ctypes.c_size_t * _MAX_PROCESSES),
        ("bitmap", ctypes.c_uint64 * _MAX_PROCESSES),
        ("count", ctypes.c_size_t),
        ("owner", ctypes.c_size_t),
    )


class _State(ctypes.Structure):
    _fields_ = (
        ("devices", _Device * 16),
        ("device_count", ctypes.c_uint32),
        ("last_heartbeat", ctypes.c_uint64),
        ("pids", _Pids),
        ("padding", ctypes.c_char * 512),
    )


class _SharedMemory(ctypes.Structure):
    _fields_ = (("discriminant", ctypes.c_uint32), ("state", _State))


def shared_memory(
    limits: Mapping[str, Limit], *, heartbeat: int, processes: int = 0, discriminant: int = 1
) -> bytes:
    """Return the content of a pod's shared memory.

    Args:
        limits: By GPU UUID, as the hypervisor spells it.
        heartbeat: In seconds since 1970.
        processes: Number of registered processes.
        discriminant: The version minus one.
    """
    memory = _SharedMemory(discriminant=discriminant)
    memory.state.device_count = len(limits)
    memory.state.last_heartbeat = heartbeat
    memory.state.pids.count = processes
    for device, (uuid, limit) in zip(memory.state.devices, limits.items(), strict=False):
        device.uuid = uuid.encode()
        device.info.up_limit = limit.sm_percent
        device.info.mem_limit = limit.vram_bytes
        device.is_active = 1
    return bytes(memory)


def write_shared_memory(path: Path, content: bytes) -> None:
    """Write a pod's shared memory, and its folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


class _Memory(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_uint64) for name in ("context", "module", "data", "offset", "total")),
        ("unused", ctypes.c_uint64 * 3),
    )


class _Utilization(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_uint64) for name in ("dec_util", "enc_util", "sm_util")),
        ("unused", ctypes.c_uint64 * 3),
    )


class _Slot(ctypes.Structure):
    _fields_ = (
        ("pid", ctypes.c_int32),
        ("hostpid", ctypes.c_int32),
        ("used", _Memory * 16),
        ("monitorused", ctypes.c_uint64 * 16),
        ("device_util", _Utilization * 16),
        ("status", ctypes.c_int32),
        ("seqlock", ctypes.c_uint64),
        ("unused", ctypes.c_uint64 * 2),
    )


class _Region(ctypes.Structure):
    _fields_ = (
        ("initialized_flag", ctypes.c_int32),
        ("major_version", ctypes.c_uint32),
        ("minor_version", ctypes.c_uint32),
        ("sm_init_flag", ctypes.c_int32),
        ("owner_pid", ctypes.c_size_t),
        ("sem", ctypes.c_uint64 * 4),
        ("device_num", ctypes.c_uint64),
        ("uuids", ctypes.c_char * 96 * 16),
        ("limit", ctypes.c_uint64 * 16),
        ("sm_limit", ctypes.c_uint64 * 16),
        ("procs", _Slot * 1024),
        ("proc_num", ctypes.c_int),
        ("utilization_switch", ctypes.c_int),
        ("recent_kernel", ctypes.c_int),
        ("priority", ctypes.c_int),
        ("last_kernel_time", ctypes.c_uint64),
        ("sem_postinit", ctypes.c_uint64 * 4),
    )


def hami_cache(
    limits: Sequence[Limit],
    *,
    processes: int = 1,
    version: tuple[int, int] = (1, 2),
    flag: int = 19_920_718,
    switch: int = 1,
    launched_at: int = 0,
    host_pid: int = 1_000,
    used: int = 0,
    sm_percent: int = 0,
) -> bytes:
    """Return the content of the file of one request under HAMi-core.

    Args:
        limits: By the index of a card in the container.
        processes: Number of registered processes.
        version: Of the layout.
        flag: Shows that a process has initialized the file.
        switch: 0 lifts the compute limits.
        launched_at: Time of the last launch, in seconds since 1970.
        host_pid: PID of each process on the host; 0 if it was not found.
        used: Memory of the first card that each process has allocated, in bytes.
        sm_percent: Utilization of the first card by each process.
    """
    major, minor = version
    region = _Region(
        initialized_flag=flag,
        major_version=major,
        minor_version=minor,
        proc_num=processes,
        utilization_switch=switch,
        last_kernel_time=launched_at,
    )
    for slot in range(processes):
        region.procs[slot].pid = slot + 1
        region.procs[slot].hostpid = host_pid
        region.procs[slot].used[0].total = used
        region.procs[slot].device_util[0].sm_util = sm_percent
    for index, limit in enumerate(limits):
        region.limit[index] = limit.vram_bytes
        region.sm_limit[index] = limit.sm_percent
    # Its first write is one byte behind the structure.
    return bytes(region) + b"\0"

"""Derives the scheduler's limits from the settings, the cores and the memory of this host."""

from __future__ import annotations

import os
from pathlib import Path

from precompiled.service.events import Limits

from precompiled.core.config import Settings

GIB = 1 << 30
# Inductor's front half (decompositions, fusion) runs on one thread, its back half (g++, triton) on several: four cores
# per compile keep both halves busy.
CORES_PER_SLOT = 4
MAX_SLOTS = 16
COMPILE_BYTES = 4 * GIB  # resident memory of a large graph's compile
SPARE_BYTES = 16 << 20  # memory that the daemon needs besides messages and graphs
IDLE_WORKER_BYTES = 1 * GIB  # resident memory of a warm worker that has imported torch, rounded up


def usable_cores() -> int:
    """Cores this process may use: the smaller of its affinity mask and the cgroup's quota."""
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        return cores  # no cgroup v2
    return cores if quota == "max" else max(1, min(cores, int(quota) // int(period)))


def usable_memory() -> int:
    """Bytes of memory this process may use: the smaller of the machine's memory and the cgroup's limit."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
    except OSError:
        return total
    return total if limit == "max" else min(total, int(limit))


def require_memory(size: int = 0) -> None:
    """Raise MemoryError if this process cannot allocate ``size`` bytes and, for everything else, SPARE_BYTES."""
    bytearray(size + SPARE_BYTES)  # reserves addresses (`ulimit -v`), but no memory until it is written


def limits(settings: Settings, cores: int | None = None, memory: int | None = None) -> Limits:
    """The scheduler's limits. A setting of 0 is replaced by a value derived from the cores and the memory (bytes)."""
    cores = usable_cores() if cores is None else cores
    memory = usable_memory() if memory is None else memory
    slots = settings.workers or max(1, min(cores // CORES_PER_SLOT, memory // COMPILE_BYTES, MAX_SLOTS))
    return Limits(
        slots=slots,
        # Allow at least two processes, because otherwise a user of two virtual environments would restart workers all
        # day.
        processes=max(slots + 1, min(4 * slots, memory // IDLE_WORKER_BYTES // 4)),
        cores=cores,
        compile_threads=settings.compile_threads,
        max_queue=settings.max_queue,
        max_queue_per_uid=settings.max_queue_per_uid,
        max_queue_bytes=max(settings.max_graph_bytes, min(2 * GIB, memory // 8)),
        job_timeout_s=settings.job_timeout_s,
        yield_s=settings.yield_s,
        worker_idle_s=settings.worker_idle_s,
        failure_ttl_s=settings.failure_ttl_s,
        cache_max_bytes=settings.cache_max_bytes,
        cache_max_inodes=settings.cache_max_inodes,
    )


def job_memory_bytes(settings: Settings, slots: int, memory: int | None = None) -> int:
    """Resident bytes that the process tree of one worker may use."""
    memory = usable_memory() if memory is None else memory
    return settings.job_memory_bytes or max(GIB, memory * 3 // 4 // slots)

"""Keeps eager steps fast beside a compile: makes OpenMP's threads sleep at barriers instead of spinning.

A compile occupies a core from time to time. An OpenMP thread that shares a core with the compile reaches each barrier
late, and a training step has about a thousand barriers. Meanwhile the other threads spin and use up their time slices,
so they have to wait when their next work arrives. On 2 cores, a step of 80 ms took 3 seconds. Threads that sleep keep
their time slices, and Linux wakes them at once.

If there are more threads than cores, GNU's libgomp spins 1,000 rounds instead of 300,000 before a thread sleeps
(``gomp_throttled_spin_count_var``), and LLVM's and Intel's runtimes do not spin (``__kmp_zero_bt``). So a helper thread
runs one empty parallel region. With the region's team, the process has more threads than the host has cores. The team
then sleeps until no graph is being compiled. The program's environment variables and threads stay unchanged.

This file finds the OpenMP runtime that torch's kernels call through libtorch_cpu.so. Threads wait as usual if
libtorch_cpu.so is missing, if the runtime is of an unknown kind, if FREE cores stay free, or if the user has set one of
the variables in SAID.

Private names: torch/lib/libtorch_cpu.so. Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import ctypes
import logging
import os
import threading
from pathlib import Path

import torch

from precompiled.core import interruptions

log = logging.getLogger("precompiled.openmp")

# If one of these variables is set, the user has chosen how threads wait.
SAID = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "KMP_LIBRARY")
FREE = 2  # if torch's threads leave this many cores free, a compile does not disturb them
END_S = 5.0  # seconds that a fork waits for a team's end, at most; usually a millisecond
_PAUSE_SOFT = 1  # omp_pause_soft of omp.h


class _Team:
    """A helper thread and the OpenMP threads that it leads. These threads sleep until ``end``."""

    def __init__(self, runtime: _Runtime, size: int) -> None:
        self._runtime, self._size = runtime, size
        self._over = threading.Event()
        self._ended = threading.Event()
        threading.Thread(target=self._work, name="precompiled-pace", daemon=True).start()

    def _work(self) -> None:
        try:
            self._runtime.gather(self._size)
            self._over.wait()
            self._runtime.disperse()
        finally:
            self._ended.set()

    def end(self) -> None:
        """End the team, and wait until its threads have ended."""
        self._over.set()
        self._ended.wait(END_S)


class _Runtime:
    """The OpenMP runtime that torch's kernels call."""

    def __init__(self) -> None:
        """Raises OSError or AttributeError if torch has no OpenMP runtime (but a native pool, for example) or an
        unknown one.
        """
        # Search in the order of the dynamic linker: libraries that are loaded globally (LD_PRELOAD) come before torch's
        # own.
        scopes = [ctypes.CDLL(None), ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))]
        library = next((scope for scope in scopes if hasattr(scope, "GOMP_parallel")), scopes[-1])
        self._parallel = library.GOMP_parallel  # LLVM's and Intel's runtimes have this function too
        self._parallel.restype = None
        self._cores = library.omp_get_num_procs
        # Runtimes older than OpenMP 5.0 lack this function. Teams of these runtimes end shortly after the leading
        # thread.
        self._pause = getattr(library, "omp_pause_resource_all", None)
        self._nothing = ctypes.CDLL(None).free  # called with a null pointer: a C function that any thread may call

    @property
    def cores(self) -> int:
        return int(self._cores())

    def gather(self, size: int) -> None:
        self._parallel(self._nothing, None, ctypes.c_uint(size), ctypes.c_uint(0))

    def disperse(self) -> None:
        if self._pause is not None:
            self._pause(_PAUSE_SOFT)


_lock = threading.RLock()
_team: _Team | None = None
_wanted = 0


def beside_compile(threads: int) -> None:
    """Set how many threads run pending graphs of this process on the CPU; 0 if none is pending. Idempotent.

    ``threads`` is torch.get_num_threads(), which each thread may set for itself.
    """
    global _wanted  # noqa: PLW0603 - process-wide, like the OpenMP runtime
    with _lock:
        _wanted = threads
        _set(threads)


def _set(threads: int) -> None:
    global _team  # noqa: PLW0603
    if threads and _team is None:
        try:
            _team = _begin(threads)
        except Exception as error:  # noqa: BLE001 - without OpenMP or further threads, steps only take longer
            interruptions.pass_on(error)
            log.debug("OpenMP's threads are not changed: %s", error)
    elif not threads and _team is not None:
        _team.end()
        _team = None


def _begin(threads: int) -> _Team | None:
    if threads == 1 or any(name in os.environ for name in SAID):
        return None
    runtime = _Runtime()
    if runtime.cores - threads >= FREE:
        return None  # some cores are free, and waking sleeping threads would slow the program down
    # libgomp does not count the thread that leads this team. So together with the program's team, it counts one thread
    # more than the host has cores.
    return _Team(runtime, max(2, runtime.cores - threads + 2))


# End the team before a fork. A forked child inherits the runtime's count of threads but not the threads, so it would
# count this team forever.
def _before_fork() -> None:
    _lock.acquire()
    _set(0)


def _after_fork_in_parent() -> None:
    try:
        _set(_wanted)
    finally:
        _lock.release()


def _after_fork_in_child() -> None:
    global _lock, _wanted
    _lock, _wanted = threading.RLock(), 0


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)

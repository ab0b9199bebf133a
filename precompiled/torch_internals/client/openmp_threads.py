"""A program's eager steps beside the compile of its graphs: OpenMP's threads sleep at their barriers, not spin.

A compile takes a core from time to time. The OpenMP thread that shares this core then comes late to each barrier, about
a thousand in a training step, and the others spin there: they use up their share of the CPU for nothing, so that they
wait a time slice in turn when it comes. On 2 cores a step of 80 ms took 3 seconds. Threads that sleep keep
their share, and the kernel wakes them at once.

The runtimes do so themselves when they have more threads than there are cores: GNU's libgomp spins 1,000 rounds then
and not 300,000 (``gomp_throttled_spin_count_var``), LLVM's and Intel's not at all (``__kmp_zero_bt``). So a thread of
ours has one empty parallel region run by a team that brings their number above that of the cores, and sleeps with its
team, until nothing is compiled any more. No variable of the environment is set, and no thread of the program's touched.

Private names: torch/lib/libtorch_cpu.so. Checked on 2.11.0, 2.13.0, 2.15.0. It leads to the OpenMP runtime that torch's
kernels call. Where it is missing, or the runtime is of another kind, threads wait as ever.
"""

from __future__ import annotations

import ctypes
import logging
import os
import threading
from pathlib import Path

import torch

log = logging.getLogger("precompiled.openmp")

# Whoever has set one of them has said how threads are to wait.
SAID = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "KMP_LIBRARY")
FREE = 2  # with as many cores that torch's threads leave free, a compile has cores of its own
END_S = 5.0  # for a team to end, which takes about a millisecond; a fork waits no longer
_PAUSE_SOFT = 1  # omp_pause_soft of omp.h


class _Team:
    """One thread of ours, and the threads that it leads: they live from ``begin`` to ``end``, asleep."""

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
        """Returns when its threads have ended."""
        self._over.set()
        self._ended.wait(END_S)


class _Runtime:
    """The OpenMP runtime that torch's kernels call."""

    def __init__(self) -> None:
        """Raises OSError or AttributeError where there is none, or one of another kind (MSVC's, a native pool)."""
        # The dynamic linker's own order: what was loaded for all (LD_PRELOAD) goes before what torch came with.
        scopes = [ctypes.CDLL(None), ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))]
        library = next((scope for scope in scopes if hasattr(scope, "GOMP_parallel")), scopes[-1])
        self._parallel = library.GOMP_parallel  # LLVM's and Intel's have it as well
        self._parallel.restype = None
        self._cores = library.omp_get_num_procs
        # Since OpenMP 5.0. Without it the team ends with its thread, a moment later.
        self._pause = getattr(library, "omp_pause_resource_all", None)
        self._nothing = ctypes.CDLL(None).free  # of a null pointer: a function of C that any thread may call

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
    """Say how many threads run graphs on the CPU that are being compiled for this process (torch.get_num_threads, which
    is each thread's own), 0 for none; idempotent.
    """
    global _wanted  # noqa: PLW0603 - of the process, like the OpenMP runtime
    with _lock:
        _wanted = threads
        _set(threads)


def _set(threads: int) -> None:
    global _team  # noqa: PLW0603
    if threads and _team is None:
        try:
            _team = _begin(threads)
        except Exception as error:  # noqa: BLE001 - no OpenMP, or no more threads: steps take longer, and no more
            log.debug("OpenMP's threads are left as they are: %s", error)
    elif not threads and _team is not None:
        _team.end()
        _team = None


def _begin(threads: int) -> _Team | None:
    if threads == 1 or any(name in os.environ for name in SAID):
        return None
    runtime = _Runtime()
    if runtime.cores - threads >= FREE:
        return None  # and to wake sleepers would cost the program something
    # The program's team and ours without its leader, whom libgomp does not count: one more than there are cores.
    return _Team(runtime, max(2, runtime.cores - threads + 2))


# A child of a fork has the runtime's count of threads, and none of the threads: it would count ours for ever.
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

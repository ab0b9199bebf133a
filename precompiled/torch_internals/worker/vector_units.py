"""Detects the CPU's vector units for Inductor in a worker, in parallel with the first compile.

Inductor builds and loads a test program for each of the CPU's vector units, one after the other, before it generates
the first kernel. Inductor then uses the best unit (torch/_inductor/cpu_vec_isa.py: pick_vec_isa). In a worker, a thread
builds the test programs while the graph is traced, the best unit first, and stops when one passes. The other units are
tested only if the configuration requires a certain width.

If the compiler of a test program was killed, or the disk or memory was full, the CPU may still have the unit. But
Inductor would assume that the CPU lacks the unit, and a worker would publish slow kernels for all later processes. So
such an error fails the job, and the next job tests again.

Private names: torch._inductor.cpu_vec_isa.{valid_vec_isa_list, x86_isa_checker, supported_vec_isa_list,
VecISA.check_build}, torch._inductor.config.cpp, torch._inductor.runtime.cache_dir_utils.cache_dir. Checked on 2.11.0,
2.13.0, 2.15.0.
"""

from __future__ import annotations

import os
import platform
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any

import torch._inductor.config
from torch._inductor import cpu_vec_isa
from torch._inductor.runtime.cache_dir_utils import cache_dir

from precompiled.torch_internals.patches import Patches
from precompiled.torch_internals.worker import cpp_builds

_original: Callable[[], list[object]] = cpu_vec_isa.valid_vec_isa_list
_original_check: Callable[[Any, str], bool] = cpu_vec_isa.VecISA.check_build
_found: Future[list[Any]] | None = None
_check, _detection = Patches(), Patches()


class _Assumption(threading.local):
    units: list[object] | None = None


_assumption = _Assumption()


def settled_unless(of_the_host: Callable[[BaseException | None], bool]) -> None:
    """From now on, raise a test program's error if ``of_the_host(error)`` is true, and test again later."""

    def check(self: object, code: str) -> bool:
        cpp_builds.last_error()
        scratch = cache_dir()
        found = _original_check(self, code)
        error: BaseException | None = None if found else cpp_builds.last_error()
        if not found and not os.path.isdir(scratch):
            # So the test program could not be built or loaded. Inductor would conclude that the CPU lacks this unit.
            error = FileNotFoundError(f"{scratch} was removed during a test of {self}")
        if error is not None and of_the_host(error):
            raise error
        return found

    _check.undo()
    _check.replace(cpu_vec_isa.VecISA, "check_build", lambda _: check)


def begin() -> None:
    """Detect the units in a thread, unless they are known. Does nothing on CPUs other than x86-64."""
    global _found  # noqa: PLW0603
    if _found is None and platform.machine() == "x86_64":
        thread = ThreadPoolExecutor(1, thread_name_prefix="vector-units")
        _found = thread.submit(_best_first)
        thread.shutdown(wait=False)
        _detection.replace(cpu_vec_isa, "valid_vec_isa_list", lambda _: _valid)


@contextmanager
def beside(needed: bool = True) -> Iterator[None]:
    """Detect the units in parallel with the code inside this context, if ``needed``, and unless they are known.

    The test programs are built in TORCHINDUCTOR_CACHE_DIR, and stay in it. The thread must end with the job, for two
    reasons:

    - The thread works in the job's store, which may be removed after the job.
    - Torch reads TORCHINDUCTOR_CACHE_DIR and later sets the variable to the value that it has read. By then, the next
      job may have set its own value.
    """
    if needed:
        begin()
    try:
        yield
    finally:
        if _found is not None:
            wait([_found])


@contextmanager
def assumed() -> Iterator[None]:
    """In this context and thread, assume that this CPU's units pass their tests, even before the tests end."""
    _assumption.units = _of_this_cpu() if platform.machine() == "x86_64" else None
    try:
        yield
    finally:
        _assumption.units = None


def _of_this_cpu() -> list[object]:
    has = cpu_vec_isa.x86_isa_checker()
    return [unit for unit in cpu_vec_isa.supported_vec_isa_list if all(flag in has for flag in str(unit).split())]


def _best_first() -> list[object]:
    units = _of_this_cpu()
    # bool(unit) builds the unit's test program, and loads the program in a subprocess.
    return next((units[position:] for position, unit in enumerate(units) if unit), [])


def _valid() -> list[object]:
    global _found  # noqa: PLW0603
    if _assumption.units is not None:
        return _assumption.units
    config = torch._inductor.config.cpp
    asks = config.simdlen is not None or config.vec_isa_ok is not None or "ATEN_CPU_CAPABILITY" in os.environ
    found = _found
    if asks or found is None:
        return _original()
    try:
        return found.result()
    except Exception:  # noqa: BLE001 - a fault of the host, perhaps during an earlier job, whose store may be gone
        _found = None
    return _best_first()  # an error belongs to this job, and the next job tests again

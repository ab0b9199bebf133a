"""In a worker: the CPU's vector units that Inductor generates code for, found out beside the first compile.

Inductor builds and loads a test program for each unit that the CPU has, one after the other, before it generates the
first kernel, and then takes the best (torch/_inductor/cpu_vec_isa.py: pick_vec_isa). Here the test programs are built
in a thread while the graph is traced, and only until one has passed: what comes after the best is never looked at,
unless the configuration asks for a certain width.

A test program whose compiler was killed, or had no room, says nothing about the CPU. For Inductor it says that the CPU
has no such unit, and the kernels of this process are slow; a worker would publish them for all that come after it.

Private names: torch._inductor.cpu_vec_isa.{valid_vec_isa_list, x86_isa_checker, supported_vec_isa_list,
VecISA.check_build}, torch._inductor.config.cpp, torch._inductor.runtime.cache_dir_utils.cache_dir. Checked on 2.11.0,
2.13.0, 2.15.0.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any

import torch._inductor.config
from torch._inductor import cpu_vec_isa
from torch._inductor.runtime.cache_dir_utils import cache_dir

from precompiled.torch_internals.worker import cpp_builds

_original: Callable[[], list[Any]] = cpu_vec_isa.valid_vec_isa_list
_original_check: Callable[[Any, str], bool] = cpu_vec_isa.VecISA.check_build
_found: Future[list[Any]] | None = None


def settled_unless(of_the_host: Callable[[BaseException | None], bool]) -> None:
    """From now on, what a test program's build fails with is raised, and asked anew later, where ``of_the_host``."""

    def check(self: Any, code: str) -> bool:
        cpp_builds.last_error()
        scratch = cache_dir()
        found = _original_check(self, code)
        error: BaseException | None = None if found else cpp_builds.last_error()
        if not found and not os.path.isdir(scratch):
            # It could not be built, or loaded: for Inductor, a CPU without this unit.
            error = FileNotFoundError(f"{scratch} was removed while a test program for {self} was there")
        if error is not None and of_the_host(error):
            raise error
        return found

    cpu_vec_isa.VecISA.check_build = check


@contextmanager
def beside(needed: bool = True) -> Iterator[None]:
    """Find out beside what is done within, where it is ``needed`` and not known. The test programs are built in
    TORCHINDUCTOR_CACHE_DIR, where they stay.

    The thread does not outlive a job: it works in the job's store, which may be removed then, and torch writes the
    directory that it has read back to TORCHINDUCTOR_CACHE_DIR, where the next job has put its own.
    """
    global _found  # noqa: PLW0603
    if needed and _found is None and platform.machine() == "x86_64":
        thread = ThreadPoolExecutor(1, thread_name_prefix="vector-units")
        _found = thread.submit(_best_first)
        thread.shutdown(wait=False)
        cpu_vec_isa.valid_vec_isa_list = _valid
    try:
        yield
    finally:
        if _found is not None:
            wait([_found])


def _best_first() -> list[Any]:
    has = cpu_vec_isa.x86_isa_checker()
    units = [unit for unit in cpu_vec_isa.supported_vec_isa_list if all(flag in has for flag in str(unit).split())]
    # bool(unit) builds its test program, and loads it in a process of its own.
    return next((units[position:] for position, unit in enumerate(units) if unit), [])


def _valid() -> list[Any]:
    global _found  # noqa: PLW0603
    config = torch._inductor.config.cpp
    asks = config.simdlen is not None or config.vec_isa_ok is not None or "ATEN_CPU_CAPABILITY" in os.environ
    found = _found
    if asks or found is None:
        return _original()
    try:
        return found.result()
    except Exception:  # noqa: BLE001 - of the host, and perhaps of an earlier job's: its store may be gone by now
        _found = None
    return _best_first()  # what this raises is this job's, and the next one finds out anew

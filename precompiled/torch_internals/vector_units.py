"""In a worker: the CPU's vector units that Inductor generates code for, found out beside the first compile.

Inductor builds and loads a test program for each unit that the CPU has, one after the other, before it generates the
first kernel, and then takes the best (torch/_inductor/cpu_vec_isa.py: pick_vec_isa). Here the test programs are built
in a thread while the graph is traced, and only until one has passed: what comes after the best is never looked at,
unless the configuration asks for a certain width.

Private names: torch._inductor.cpu_vec_isa.{valid_vec_isa_list, x86_isa_checker, supported_vec_isa_list}.
Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch._inductor.config
from torch._inductor import cpu_vec_isa

_original: Callable[[], list[Any]] = cpu_vec_isa.valid_vec_isa_list
_found: Future[list[Any]] | None = None


def begin() -> None:
    """Start to find out; idempotent. The test programs are built in TORCHINDUCTOR_CACHE_DIR, where they stay."""
    global _found  # noqa: PLW0603
    if _found is None and platform.machine() == "x86_64":
        thread = ThreadPoolExecutor(1, thread_name_prefix="vector-units")
        _found = thread.submit(_best_first)
        thread.shutdown(wait=False)
        cpu_vec_isa.valid_vec_isa_list = _valid


def _best_first() -> list[Any]:
    has = cpu_vec_isa.x86_isa_checker()
    units = [unit for unit in cpu_vec_isa.supported_vec_isa_list if all(flag in has for flag in str(unit).split())]
    # bool(unit) builds its test program, and loads it in a process of its own.
    return next((units[position:] for position, unit in enumerate(units) if unit), [])


def _valid() -> list[Any]:
    config = torch._inductor.config.cpp
    asks = config.simdlen is not None or config.vec_isa_ok is not None or "ATEN_CPU_CAPABILITY" in os.environ
    return _original() if asks or _found is None else _found.result()

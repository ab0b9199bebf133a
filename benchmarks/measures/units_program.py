"""Builds the C++ kernels of a model's training step one by one and in units. Prints the costs as a JSON line.

Usage: python -m benchmarks.measures.units_program SPEC (as for models/program.py). Both builds use the precompiled
header that torch builds with the first kernel and keeps for all compiles.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch._inductor.codecache import CppPythonBindingsCodeCache
from torch._inductor.utils import fresh_cache

from benchmarks.measures.machine_code import of_the_kernel
from benchmarks.models.program import Program
from precompiled.torch_internals.inductor import cpp_kernels
from precompiled.torch_internals.worker import kernel_units


class _Notes:
    """Records the kernels that the wrappers name, and builds each one, because the step runs it."""

    def __init__(self) -> None:
        self.named: dict[str, tuple[list[str], str]] = {}

    def kernel(self, argtypes: list[str], source: str) -> Any:
        self.named[cpp_kernels.kernel_name(argtypes, source)] = (argtypes, source)
        return CppPythonBindingsCodeCache.load_pybinding(argtypes, source)

    def wrapper(self, options: dict[str, Any]) -> Any:
        raise NotImplementedError("no program here has cpp_wrapper")

    def all_named(self, compiler: Any) -> None:
        """Do nothing: each kernel is already built."""


def _measured(build: Callable[[], list[Path]]) -> tuple[list[Path], dict[str, Any]]:
    """Return the file of each kernel, and the figures of the build."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    files = build()
    seconds = time.monotonic() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return files, {
        "cpu_s": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "s": seconds,
        "files": len(set(files)),
        "bytes": sum(file.stat().st_size for file in set(files)),
    }


def main() -> None:
    spec: dict[str, Any] = json.loads(sys.argv[1])
    program = Program(spec)
    program.prepare()
    notes = _Notes()
    with cpp_kernels.handled(notes), torch._inductor.config.patch(compile_threads=1):
        program.first()

        def alone() -> list[Path]:
            built = [CppPythonBindingsCodeCache.load_pybinding(*item) for item in notes.named.values()]
            return [Path(kernel.__self__.__file__) for kernel in built]

        def units() -> list[Path]:
            collector = kernel_units.KernelCollector()
            for item in notes.named.values():
                collector.kernel(*item)
            native = collector.native()
            assert set(native.kernels) == set(notes.named)
            loaded: list[Any] = [collector.loaded(name) for name in notes.named]
            return [Path(kernel.__self__.__file__) for kernel in loaded]

        with fresh_cache():
            by_one, seconds_alone = _measured(alone)
            found: dict[str, Any] = {"alone": seconds_alone}
            with fresh_cache():
                in_units, found["units"] = _measured(units)
                same = [
                    of_the_kernel(one, "kernel") == of_the_kernel(unit, cpp_kernels.module_name(name))
                    for name, one, unit in zip(notes.named, by_one, in_units, strict=True)
                ]
    found |= {"kernels": len(same), "same": sum(same)}
    print(json.dumps(found))


if __name__ == "__main__":
    main()

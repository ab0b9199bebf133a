"""Builds the C++ kernels of a model's training step one by one and in units. Prints the costs as a JSON line.

Usage: python -m benchmarks.measures.units_program SPEC (as for models/program.py). Both builds use the precompiled
header that torch builds with the first kernel and keeps for all compiles. Kernels whose instructions differ between
the builds run in turns, with the arguments that the training step passed to them, and their values are compared.
"""

from __future__ import annotations

import json
import resource
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch._inductor.codecache import CppPythonBindingsCodeCache
from torch._inductor.utils import fresh_cache

from benchmarks.measures.machine_code import have_equal_values, of_the_kernel
from benchmarks.models.program import Program
from precompiled.torch_internals.inductor import cpp_kernels
from precompiled.torch_internals.worker import kernel_units

ROUNDS, CALLS = 25, 20  # the rounds in which both builds of a kernel run, and the calls of each in a round


class _Notes:
    """Records the kernels that the wrappers name and the arguments of each kernel's first call. Builds each kernel,
    because the step runs it.
    """

    def __init__(self) -> None:
        self.named: dict[str, tuple[list[str], str]] = {}
        self.arguments: dict[str, tuple[Any, ...]] = {}

    def kernel(self, argtypes: list[str], source: str) -> Any:
        name = cpp_kernels.kernel_name(argtypes, source)
        self.named[name] = (argtypes, source)
        built = CppPythonBindingsCodeCache.load_pybinding(argtypes, source)

        def run(*arguments: Any) -> Any:
            self.arguments.setdefault(name, arguments)
            return built(*arguments)

        return run

    def wrapper(self, options: dict[str, Any]) -> Any:
        raise NotImplementedError("no program here has cpp_wrapper")

    def all_named(self, compiler: Any) -> None:
        """Do nothing: each kernel is already built."""


def _measured(build: Callable[[], list[Any]]) -> tuple[list[Any], dict[str, Any]]:
    """Return the kernels, and the figures of the build."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    kernels = build()
    seconds = time.monotonic() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    files = {_file(kernel) for kernel in kernels}
    return kernels, {
        "cpu_s": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "s": seconds,
        "files": len(files),
        "bytes": sum(file.stat().st_size for file in files),
    }


def _file(kernel: Any) -> Path:
    return Path(kernel.__self__.__file__)


def _pace(one: Callable[..., Any], unit: Callable[..., Any], arguments: tuple[Any, ...]) -> float:
    """Return ``unit``'s median time per call, divided by ``one``'s."""
    seconds: dict[Callable[..., Any], list[float]] = {one: [], unit: []}
    for number in range(ROUNDS):
        for kernel in (one, unit) if number % 2 else (unit, one):
            kernel(*arguments)
            started = time.perf_counter()
            for _ in range(CALLS):
                kernel(*arguments)
            seconds[kernel].append(time.perf_counter() - started)
    return statistics.median(seconds[unit]) / statistics.median(seconds[one])


def main() -> None:
    spec: dict[str, Any] = json.loads(sys.argv[1])
    program = Program(spec)
    program.prepare()
    notes = _Notes()
    with cpp_kernels.handled(notes), torch._inductor.config.patch(compile_threads=1):
        program.first()

        def alone() -> list[Any]:
            return [CppPythonBindingsCodeCache.load_pybinding(*item) for item in notes.named.values()]

        def units() -> list[Any]:
            collector = kernel_units.KernelCollector()
            for item in notes.named.values():
                collector.kernel(*item)
            native = collector.native()
            assert set(native.kernels) == set(notes.named)
            return [collector.loaded(name) for name in notes.named]

        with fresh_cache():
            by_one, seconds_alone = _measured(alone)
            found: dict[str, Any] = {"alone": seconds_alone}
            with fresh_cache():
                in_units, found["units"] = _measured(units)
                different = [
                    (name, one, unit)
                    for name, one, unit in zip(notes.named, by_one, in_units, strict=True)
                    if of_the_kernel(_file(one), "kernel") != of_the_kernel(_file(unit), cpp_kernels.module_name(name))
                ]
                wrong = sum(
                    not have_equal_values(one, unit, notes.arguments[name])
                    for name, one, unit in different
                    if "atomic_add" not in notes.named[name][1]  # their order differs from call to call
                )
                paces = [_pace(one, unit, notes.arguments[name]) for name, one, unit in different]
    found |= {"kernels": len(by_one), "same": len(by_one) - len(different), "wrong": wrong, "paces": paces}
    print(json.dumps(found))


if __name__ == "__main__":
    main()

"""Launches 20 Triton kernels outside of graphs: plain, tuned, with heuristics, with closures, of an installed package.

Usage: triton_program.py [NAME]... launches only the kernels with these names. Prints a line of JSON: how often Triton
compiled each kernel, and found it in its cache; the number of measurements; and the manager of Triton's cache. Without
arguments, the package ``kernel_library`` must be importable (test_triton_kernels.py writes it).

Before the first launch, the program prints ``@ready``. If GATE is set, the program then waits until no process locks
the file that GATE names. If IR_OVERRIDE is set, the file that it names replaces a stage of each compile.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
from collections import Counter
from typing import Any

import torch
import triton
import triton.language as tl
from triton import knobs

SHIFT = tl.constexpr(3)
SIZE = 512
measured: list[Any] = []


@triton.jit
def doubled(x):
    return x * 2


@triton.jit
def halved(x):
    return x / 2


@triton.jit
def added(x, out, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(out + i, tl.load(x + i, mask=i < n) + 1, mask=i < n)


@triton.jit
def shifted(x, out, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(out + i, tl.load(x + i, mask=i < n) + SHIFT, mask=i < n)


@triton.jit
def twice(x, out, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(out + i, doubled(tl.load(x + i, mask=i < n)), mask=i < n)


@triton.jit
def printed(x, out, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.static_assert(B > 1)
    tl.store(out + i, -tl.load(x + i, mask=i < n), mask=i < n)


@triton.jit
def summed(x, out, n, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(out + i, tl.sum(tl.load(x + i, mask=i < n, other=0.0), axis=0) + 0 * i, mask=i < n)


@triton.jit
def exponential(x, out, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(out + i, tl.exp(tl.load(x + i, mask=i < n)), mask=i < n)


@triton.jit
def product(x, out, n, B: tl.constexpr):
    i = tl.arange(0, 16)
    block = tl.load(x + i[:, None] * 16 + i[None, :])
    tl.store(out + i[:, None] * 16 + i[None, :], tl.dot(block, block))


@triton.jit(noinline=True)
def apart(x):
    return x - 1


@triton.jit
def calls_apart(x, out, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(out + i, tl.load(x + i, mask=i < n) + apart(tl.program_id(0)), mask=i < n)


@triton.jit(do_not_specialize=["n"])
def unspecialized(x, out, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(out + i, tl.load(x + i, mask=i < n) / 2, mask=i < n)


def measure(call: Any, quantiles: Any = None) -> list[float]:
    """Replaces Triton's measurement, which takes minutes on a made-up device. A later configuration is faster."""
    call()
    measured.append(call)
    return [1.0 / len(measured)] * 3


CONFIGURATIONS = [triton.Config({"B": 128}), triton.Config({"B": 256}, num_warps=2)]


@triton.autotune(configs=CONFIGURATIONS, key=["n"], do_bench=measure)
@triton.jit
def tuned(x, out, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(out + i, tl.load(x + i, mask=i < n) + 5, mask=i < n)


@triton.autotune(configs=CONFIGURATIONS, key=["n"], do_bench=measure, cache_results=True)
@triton.jit
def tuned_once(x, out, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(out + i, tl.load(x + i, mask=i < n) + 6, mask=i < n)


@triton.heuristics({"B": lambda given: 256 if given["n"] > 100 else 128})
@triton.jit
def guessed(x, out, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(out + i, tl.load(x + i, mask=i < n) + 7, mask=i < n)


@triton.heuristics({"EVEN": lambda given: given["n"] % given["B"] == 0})
@triton.jit
def guessed_mask(x, out, n, B: tl.constexpr, EVEN: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(out + i, tl.load(x + i) + 8 if EVEN else tl.load(x + i, mask=i < n) + 8, mask=i < n)


def closing_over(amount: tl.constexpr, function: Any) -> Any:
    @triton.jit
    def closure(x, out, n, B: tl.constexpr):
        i = tl.program_id(0) * B + tl.arange(0, B)
        tl.store(out + i, function(tl.load(x + i, mask=i < n)) + amount, mask=i < n)

    return closure


KERNELS: dict[str, tuple[Any, dict[str, int], Any]] = {
    "added": (added, {"B": 128}, lambda x: x + 1),
    "shifted": (shifted, {"B": 128}, lambda x: x + 3),
    "twice": (twice, {"B": 128}, lambda x: x * 2),
    "printed": (printed, {"B": 128}, lambda x: -x),
    "summed": (summed, {"B": 512}, lambda x: x.sum().expand(SIZE)),
    "exponential": (exponential, {"B": 128}, torch.exp),
    "product": (product, {"B": 16}, None),
    "calls_apart": (calls_apart, {"B": 128}, lambda x: x + torch.arange(SIZE, device=x.device) // 128 - 1),
    "unspecialized": (unspecialized, {"B": 128}, lambda x: x / 2),
    "tuned": (tuned, {}, lambda x: x + 5),
    "tuned_once": (tuned_once, {}, lambda x: x + 6),
    "guessed": (guessed, {}, lambda x: x + 7),
    "guessed_mask": (guessed_mask, {"B": 128}, lambda x: x + 8),
    "closure of 1": (closing_over(tl.constexpr(1), doubled), {"B": 128}, lambda x: x * 2 + 1),
    "closure of 2": (closing_over(tl.constexpr(2), doubled), {"B": 128}, lambda x: x * 2 + 2),
    "closure of halved": (closing_over(tl.constexpr(2), halved), {"B": 128}, lambda x: x / 2 + 2),
}


def main(chosen: list[str]) -> None:
    compiled, found = Counter[str](), Counter[str]()

    def listener(*, src: Any, cache_hit: bool, **_: Any) -> None:
        (found if cache_hit else compiled)[src.name] += 1

    knobs.compilation.listener = listener
    if not chosen:
        import kernel_library

        KERNELS.update({name: (getattr(kernel_library, name), {"B": 128}, None) for name in kernel_library.__all__})
    x = torch.arange(SIZE, device="cuda", dtype=torch.float32) / SIZE
    print("@ready", flush=True)
    if gate := os.environ.get("GATE"):
        with open(gate, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH)
    for name in chosen or KERNELS:
        kernel, options, expected = KERNELS[name]
        if file := os.environ.get("IR_OVERRIDE"):
            options = {**options, "ir_override": file}
        out = torch.zeros_like(x)
        kernel[lambda meta: (triton.cdiv(SIZE, meta["B"]),)](x, out, SIZE, **options)
        if expected is not None and not os.environ.get("CUDA_MADE_UP"):
            torch.testing.assert_close(out, expected(x))
    manager = knobs.cache.manager_class
    answer = {
        "kernels": len(chosen or KERNELS),
        "compiled": compiled,
        "found": found,
        "measured": len(measured),
        "manager": manager.__name__ if manager is not None else None,
    }
    print(json.dumps(answer))


if __name__ == "__main__":
    main(sys.argv[1:])

"""Runs the corpus: each row is a feature of user programs, compiled while the hook is on, and compared with eager.

Usage: corpus_program.py [every-sixteenth] [NAME ...]. All calls of a row run before the swap and again after it.
Outputs, gradients of inputs and parameters, and changed inputs are compared with eager's.

Prints a JSON object. For each row it has:

- the state, source, reason and key of each graph,
- the number of graphs that this process compiled itself,
- and, with packages, the state of each frame.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
from corpus import compiled_autograd, functions, inputs, numpy_calls, optimizers, settings, sizes, state, transforms  # noqa: F401 - each adds its rows
from corpus.rows import ROWS, Row, called

import precompiled


def check(made: Row, compiled: Callable[..., Any]) -> None:
    for arguments in made.calls:
        run = made.run
        with made.around():
            expected = run(made.function, *arguments) if run else called(made.function, arguments)
            with made.around_compiled():
                got = run(compiled, *arguments) if run else called(compiled, arguments)
        assert len(got) == len(expected), (len(got), len(expected))
        for left, right in zip(got, expected, strict=True):
            assert type(left) is type(right), (type(left), type(right))
            torch.testing.assert_close(left, right, rtol=made.rtol, atol=made.atol)


def main() -> None:
    names = sys.argv[1:] or list(ROWS)
    if names[0] == "every-sixteenth":
        names = [name for number, name in enumerate(ROWS) if number % 16 == 0 or name in names]
    warnings.filterwarnings("error", category=RuntimeWarning, module="precompiled")  # as many test suites do
    precompiled.enable()
    compiles = torch._dynamo.utils.counters["aot_autograd"]
    answers = {}
    for name in names:
        torch._dynamo.reset()
        torch.manual_seed(0)
        made = ROWS[name]()
        with made.around():
            compiled = torch.compile(made.function, **made.compile)
        before, compiles_before = len(precompiled.report()), compiles["total"]
        frames_before = len(precompiled.package_report())
        error = ""
        try:
            for _ in range(2):
                check(made, compiled)
                assert precompiled.wait(300)
        except Exception as problem:
            error = f"{type(problem).__name__}: {problem}"[-1500:]
        graphs = precompiled.report()[before:]
        answers[name] = {
            "error": error,
            "graphs": [[g.state, g.source, g.reason] for g in graphs],
            "keys": sorted({g.key for g in graphs}),
            "messages": [g.message for g in graphs if g.message],
            "compiles": compiles["total"] - compiles_before,
            "frames": [[f.name, f.state, f.reason or f.reasons] for f in precompiled.package_report()[frames_before:]],
        }
        print(f"{name}: {error or 'ok'}", file=sys.stderr, flush=True)
    print(json.dumps(answers), flush=True)


if __name__ == "__main__":
    main()

"""Runs rows on the made-up device: either compiles them, or interprets their kernels and compares the results.

Usage: python -m benchmarks.interpreter.program SPEC. SPEC is a JSON object: ``rows`` (names) and ``interpret`` (a
boolean, see below). Prints a JSON line before each row ({"begun": row}) and one after it. The caller enables
precompiled.

If ``interpret`` is false, a daemon's worker makes artifacts, and no result is compared. If ``interpret`` is true (with
TRITON_INTERPRET=1), the client loads and runs the artifacts in mode "lookup". Outputs, gradients and changed inputs are
compared with eager's.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import precompiled
from benchmarks.interpreter.models import MODELS
from benchmarks.interpreter.random_numbers import RANDOM, draw, odd
from benchmarks.interpreter.rows import corpus, split
from benchmarks.models.compare import differences, step
from precompiled.graph import environment

WAIT_S = 600.0
INTERPRET = "TRITON_INTERPRET"


def main() -> None:
    spec: dict[str, Any] = json.loads(sys.argv[1])
    torch.set_default_device("cuda")
    if spec["interpret"]:
        _use_the_same_keys()
        from benchmarks.interpreter import executed

        executed.install()
    for name in spec["rows"]:
        print(json.dumps({"begun": name}), flush=True)
        print(json.dumps(_interpreted(name) if spec["interpret"] else _compiled(name)), flush=True)


def _use_the_same_keys() -> None:
    """Leave TRITON_INTERPRET out of the keys, so that lookups find artifacts that were compiled without this
    variable.
    """
    facts = environment.facts

    def without(device: str, *, uses_cpu: bool = True, of_a_worker: bool = False) -> dict[str, Any]:
        value = os.environ.pop(INTERPRET)
        try:
            return facts(device, uses_cpu=uses_cpu, of_a_worker=of_a_worker)
        finally:
            os.environ[INTERPRET] = value

    environment.facts = without


def _compiled(name: str) -> dict[str, Any]:
    """Compile the row's graphs. Errors in the row's results mean nothing, because the device computes nothing."""
    started, known, error, waited = time.monotonic(), len(precompiled.report()), "", True
    try:
        calls = _calls(name)
        for _ in range(2):  # calls after the swap may submit further graphs
            for _eager, run in calls:
                run()
            waited = precompiled.wait(WAIT_S)
    except Exception as problem:  # noqa: BLE001 - reported; the graphs may already be submitted
        error = _line(problem)
        waited = precompiled.wait(WAIT_S)
    return {
        "graphs": _graphs(known),
        "error": error if waited else f"{error} still pending after {WAIT_S:g} s".strip(),
        "seconds": time.monotonic() - started,
    }


def _interpreted(name: str) -> dict[str, Any]:
    from benchmarks.interpreter.executed import SEEN

    started, known, log = time.monotonic(), len(precompiled.report()), _launches()
    found: dict[str, Any] = {"different": [], "error": "", "eager_error": ""}
    stage = "eager"
    SEEN.clear()
    try:
        for number, (eager, run) in enumerate(_calls(name)):
            stage = "eager"
            judge = eager()
            stage = "compiled"
            SEEN.strangers.clear()  # forget the user's kernels of the eager run
            found["different"] += [f"call {number}: {text}" for text in judge(run())]
            stage = "eager"
    except Exception as problem:  # noqa: BLE001 - the error is the row's answer
        found["error" if stage == "compiled" else "eager_error"] = _line(problem)
        found["traceback"] = traceback.format_exc()[-3000:]
    torch.cuda.synchronize()
    found["graphs"] = _graphs(known)
    found["kernels"] = {digest: vars(kernel) for digest, kernel in SEEN.kernels.items()}
    found["strangers"], found["launches"] = list(SEEN.strangers), _launches() - log
    found["seconds"] = time.monotonic() - started
    return json.loads(json.dumps(found))


def _graphs(known: int) -> list[list[str | None]]:
    return [[graph.state, graph.source, graph.reason, graph.message] for graph in precompiled.report()[known:]]


def _launches() -> int:
    """Return how many kernels this process launched on the device. The device logs launches without executing them."""
    log = Path(os.environ["CUDA_MADE_UP_STATE"], "log.jsonl")
    events = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    return sum(event["event"] in ("launch", "graph-launch") and event["pid"] == os.getpid() for event in events)


# One call: an eager run and a compiled run. The eager run returns a function that lists how a result differs from
# eager's. The compiled run returns the result for this function.
Call = tuple[Callable[[], Callable[[Any], list[str]]], Callable[[], Any]]


def _calls(name: str) -> list[Call]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    group, rest = split(name)
    if group == "corpus":
        return _of_corpus(rest)
    if group == "user":
        return [_of_user_kernels()]
    return [_of_random(rest) if group == "random" else _of_model(*rest.split(" "))]


def _of_corpus(name: str) -> list[Call]:
    made = corpus()[name]()
    called = importlib.import_module("corpus.rows").called
    with made.around():
        compiled = torch.compile(made.function, **made.compile)

    def run(function: Any, arguments: Any, around: Any = contextlib.nullcontext) -> list[Any]:
        torch.manual_seed(1)
        with made.around(), around():
            return made.run(function, *arguments) if made.run else called(function, arguments)

    def eager(arguments: Any) -> Callable[[Any], list[str]]:
        expected = run(made.function, arguments)
        return lambda got: _unequal(got, expected, made.rtol, made.atol)

    return [
        (functools.partial(eager, arguments), functools.partial(run, compiled, arguments, made.around_compiled))
        for arguments in made.calls
    ]


def _unequal(got: list[Any], expected: list[Any], rtol: float, atol: float) -> list[str]:
    if len(got) != len(expected):
        return [f"{len(got)} results, eager has {len(expected)}"]
    found = []
    for number, (left, right) in enumerate(zip(got, expected, strict=True)):
        try:
            assert type(left) is type(right), (type(left), type(right))
            # Dynamo moves an optimizer's step counter to the device, as in plain torch.compile
            # (OptimizerVariable.move_step_if_cpu).
            moved = isinstance(right, torch.Tensor) and right.device.type == "cpu" and right.ndim == 0
            torch.testing.assert_close(left, right, rtol=rtol, atol=atol, check_device=not moved)
        except AssertionError as error:
            found.append(f"result {number}: {_line(error)}")
    return found


def _of_model(name: str, task: str) -> Call:
    training = task == "training"
    example = MODELS[name]()
    example.model.train(training)
    compiled = torch.compile(example.model)

    def eager() -> Callable[[Any], list[str]]:
        expected = step(example.model, example, training)
        return lambda got: differences(got, expected)

    return eager, lambda: step(compiled, example, training)


def _of_random(name: str) -> Call:
    drawn = RANDOM[name]
    compiled = torch.compile(drawn.function)

    def eager() -> Callable[[Any], list[str]]:
        if why := odd(drawn, draw(drawn.function)):
            raise AssertionError(f"eager's own: {why}")
        return lambda got: odd(drawn, got)

    return eager, lambda: draw(compiled)


def _of_user_kernels() -> Call:
    """A program with its own Triton kernels, in two versions.

    Dynamo cannot trace interpreted kernels, but eager code on the made-up device needs them. So only the eager version
    has interpreted kernels.
    """
    import triton

    corpus()
    interpreted = importlib.import_module("user_kernels")
    with triton.knobs.runtime.scope():
        triton.knobs.runtime.interpret = False
        sys.modules.pop("user_kernels")
        own = importlib.import_module("user_kernels")
    x = torch.randn(200)
    compiled = torch.compile(own.Launches())

    def eager() -> Callable[[Any], list[str]]:
        expected = interpreted.Launches()(x)
        return lambda got: _unequal([got], [expected], 1e-5, 1e-6)

    return eager, lambda: compiled(x)


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]


if __name__ == "__main__":
    main()

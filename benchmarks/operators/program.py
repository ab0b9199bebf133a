"""Runs operators eager and compiled, forward and backward, several of them in one compiled function.

Usage: python -m benchmarks.operators.program SPEC. SPEC is a JSON object: ``groups``, a list of lists of rows. Prints a
JSON line before each group ({"begun": group}) and one for each of its rows.

If a group raises an error, or if a worker did not compile all of its graphs, the program splits the group in half and
runs each half as a group, down to groups of one row. A row that differs from eager in a group runs again alone.
``among`` is its difference in the group. With ``fallback_random``, eager and compiled code draw the same random
numbers, so results are comparable.
"""

from __future__ import annotations

import json
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

import precompiled
from benchmarks.operators.samples import UNINITIALISED, Row, Sample

# The tolerances of torch's test of Inductor. These tolerances are wider than assert_close's, because Inductor sums in a
# different order.
TOLERANCE = {torch.float16: (1e-2, 2e-2), torch.float32: (1e-4, 1e-4), torch.complex64: (1e-4, 1e-4)}

# Functions to call, with their arguments.
Calls = list[tuple[Any, tuple[Any, ...], dict[str, Any]]]

# Rows that are compiled in one function, each with its sample and eager's result.
Run = Sequence[tuple[Row, Sample, Any]]

Answer = dict[str, Any]  # state: "no sample", "equal", "different", "error"; why, graphs, reasons, messages, among


def main() -> None:
    spec: dict[str, Any] = json.loads(sys.argv[1])
    warnings.simplefilter("ignore")
    for group in spec["groups"]:
        print(json.dumps({"begun": group}), flush=True)
        samples: list[tuple[Row, Sample]] = []
        for row in group:
            try:
                samples.append((tuple(row), Sample(tuple(row))))
            except Exception as error:  # noqa: BLE001 - OpInfo may fail for this dtype
                print(json.dumps({"row": row, "state": "no sample", "why": _line(error)}), flush=True)
        for found in _examine(samples):
            print(json.dumps(found), flush=True)


def _examine(samples: Sequence[tuple[Row, Sample]]) -> list[Answer]:
    answers: list[Answer] = []
    run: list[tuple[Row, Sample, Any]] = []
    for row, sample in samples:
        try:
            run.append((row, sample, _run([sample], _calls(1))[0]))
        except Exception as error:  # noqa: BLE001 - eager itself may reject the sample
            answers.append({"row": row, "state": "no sample", "why": _line(error)})
    return answers + _settled(run)


def _settled(run: Run) -> list[Answer]:
    if not run:
        return []
    whole = _compiled(run)
    if len(run) == 1:
        return whole
    if any(found["state"] == "error" or found["reasons"] for found in whole):
        middle = len(run) // 2
        return _settled(run[:middle]) + _settled(run[middle:])
    return [
        _alone(item, found) if found["state"] == "different" else found for item, found in zip(run, whole, strict=True)
    ]


def _alone(item: tuple[Row, Sample, Any], among: Answer) -> Answer:
    found = _compiled([item])[0]
    return {**found, "graphs": found["graphs"] + among["graphs"], "among": among["why"]}


def _compiled(run: Run) -> list[Answer]:
    """Return each row's answer. The first answer lists the graphs of all rows."""
    torch._dynamo.reset()
    known = len(precompiled.report())
    results: Any = None
    error = ""
    try:
        compiled = torch.compile(_calls(len(run)), options={"fallback_random": True})
        results = _run([sample for _row, sample, _expected in run], compiled)
    except Exception:  # noqa: BLE001 - the error is the rows' answer
        error = traceback.format_exc()
    graphs = precompiled.report()[known:]
    reasons = [graph.reason or graph.state for graph in graphs if graph.source not in ("hit", "swap")]
    messages = [graph.message for graph in graphs if graph.source not in ("hit", "swap")]
    answers = []
    for number, (row, _sample, expected) in enumerate(run):
        difference = "" if error else _difference(results[number], expected, values=row[0] not in UNINITIALISED)
        state = "error" if error else "different" if difference else "equal"
        answers.append(
            {
                "row": row,
                "state": state,
                "why": error[-1500:] or difference,
                "graphs": 0 if number else len(graphs),
                "reasons": [] if number else reasons,
                "messages": [] if number else messages,
            }
        )
    return answers


def _calls(number: int) -> Callable[[Calls], list[Any]]:
    """Return a function that makes ``number`` calls, one after the other.

    The calls are not in a loop: if a call in a loop breaks the graph, Dynamo skips the whole function.
    """
    lines = (f" r{n} = calls[{n}][0](*calls[{n}][1], **calls[{n}][2])\n" for n in range(number))
    scope: dict[str, Any] = {}
    exec(f"def call(calls):\n{''.join(lines)} return [{', '.join(f'r{n}' for n in range(number))}]", scope)
    function: Callable[[Calls], list[Any]] = scope["call"]
    return function


def _run(samples: Sequence[Sample], call: Callable[[Calls], list[Any]]) -> list[Any]:
    """Return the outputs and gradients of each sample."""
    copies = [_copied(sample) for sample in samples]
    torch.manual_seed(1)
    pairs = list(zip(samples, copies, strict=True))
    outputs = call([(sample.function, arguments, keywords) for sample, (arguments, keywords) in pairs])
    results = []
    for output, (arguments, keywords) in zip(outputs, copies, strict=True):
        tensors = [leaf for leaf in torch.utils._pytree.tree_leaves(output) if isinstance(leaf, torch.Tensor)]
        leaves = torch.utils._pytree.tree_leaves((arguments, keywords))
        inputs = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
        wanted = [tensor for tensor in tensors if tensor.requires_grad]
        torch.manual_seed(2)
        weights = [torch.randn_like(tensor) for tensor in wanted]
        gradients = torch.autograd.grad(wanted, inputs, weights, allow_unused=True) if wanted and inputs else ()
        results.append((output, gradients))
    return results


def _copied(sample: Sample) -> tuple[tuple[Any, ...], dict[str, Any]]:
    def copy(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return value.detach().clone(memory_format=torch.preserve_format).requires_grad_(value.requires_grad)

    arguments, keywords = torch.utils._pytree.tree_map(copy, (sample.arguments, sample.keywords))
    return arguments, keywords


def _difference(found: Any, expected: Any, *, values: bool) -> str:
    left, right = map(torch.utils._pytree.tree_leaves, (found, expected))
    if len(left) != len(right):
        return f"{len(left)} results, eager has {len(right)}"
    for one, other in zip(left, right, strict=True):
        if other is None and isinstance(one, torch.Tensor) and not one.any():
            # The result does not depend on this input. Plain torch.compile returns zeros for its gradient as well.
            continue
        if not isinstance(other, torch.Tensor):
            if repr(one) != repr(other):
                return f"{one!r}, eager has {other!r}"
            continue
        if one.requires_grad != other.requires_grad:
            return f"requires_grad is {one.requires_grad}"
        if not values:
            if (one.shape, one.stride(), one.dtype) != (other.shape, other.stride(), other.dtype):
                return f"{one.dtype}{[*one.shape]}, eager has {other.dtype}{[*other.shape]}"
            continue
        rtol, atol = TOLERANCE.get(other.dtype, (None, None))
        try:
            torch.testing.assert_close(one, other, rtol=rtol, atol=atol, equal_nan=True)
        except AssertionError as error:
            return _line(error)
    return ""


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:300].replace("\n", " ")


if __name__ == "__main__":
    main()

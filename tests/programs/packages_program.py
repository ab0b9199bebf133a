"""Runs cases of tests/packages/cases, eager and compiled, and reports their packages.

Usage: packages_program.py SPEC. SPEC is a JSON object:

- ``folder``: the folder of the cases' modules
- ``cases``: the names of the cases
- ``without``: a kind of facts that is not compared (see ``leave_out``)
- ``alone``: whether each case runs in a separate fork, like a separate program

The module of a case has ``build()``, which returns the function and a list of calls (tuples of arguments). The module
may have ``context()`` and ``OPTIONS`` (of torch.compile). Prints the result of ``examine``: with ``alone``, a line of
JSON for each case, otherwise one line for all cases.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
import os
import re
import sys
import traceback
from typing import Any
from unittest import mock

import torch

import precompiled

SPEC = json.loads(sys.argv[1])
sys.path.insert(0, SPEC["folder"])
precompiled.enable()


def differentiated(value: torch.Tensor, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    wanted = [tensor for tensor in inputs if tensor.requires_grad]
    if not wanted or not value.requires_grad:
        return []
    return [g for g in torch.autograd.grad(value.sum(), wanted, allow_unused=True) if g is not None]


def run(function: Any, calls: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    for arguments in calls:
        tensors = [item for item in arguments if isinstance(item, torch.Tensor)]
        value = function(*arguments)
        parameters = list(function.parameters()) if isinstance(function, torch.nn.Module) else []
        found += [value.detach().clone(), *differentiated(value, [*tensors, *parameters])]
        found += [item.detach().clone() for item in tensors]  # the call may have changed its arguments
    return found


def outcome(function: Any, calls: Any) -> tuple[list[torch.Tensor], str | None]:
    """Returns the result of ``run`` and None. If ``run`` raises, returns an empty list and the exception as text."""
    try:
        return run(function, calls), None
    except Exception as error:
        return [], re.sub(r" at 0x[0-9a-f]+", "", f"{type(error).__name__}: {error}")


def _text(value: torch.Tensor) -> str:
    if type(value) is not torch.Tensor:  # some subclasses do not have numbers
        return type(value).__name__
    return f"{value.dtype}{[round(item, 3) for item in value.flatten().tolist()]}"


def _reports() -> list[Any]:
    return precompiled.package_report() if os.environ.get("PRECOMPILED") != "0" else []


def examine(name: str) -> dict[str, Any]:
    from precompiled.client.process import PROCESS

    module = importlib.import_module(name)
    context = getattr(module, "context", contextlib.nullcontext)
    counters = torch._dynamo.utils.counters
    counters.clear()
    known = len(_reports())
    with context():
        torch.manual_seed(0)
        expected, eager_raised = outcome(*module.build())
        torch.manual_seed(0)
        function, calls = module.build()
        got, raised = outcome(torch.compile(function, **getattr(module, "OPTIONS", {})), calls)
    if PROCESS.packages is not None:
        PROCESS.packages.flush()
    equal = (
        raised == eager_raised
        and len(got) == len(expected)
        and all(
            left.dtype == right.dtype and torch.allclose(left.float(), right.float(), rtol=1e-4, atol=1e-4)
            for left, right in zip(got, expected, strict=True)
        )
    )
    reports = _reports()[known:]
    return {
        "equal": equal,
        "eager": eager_raised or ", ".join(map(_text, expected)),
        "got": raised or ", ".join(map(_text, got)),
        "raised": raised,
        "states": [report.state for report in reports],
        "reasons": [[report.reason, report.message, *report.reasons] for report in reports],
        "frames": dict(counters["frames"]),
        "graphs": counters["stats"]["unique_graphs"],
    }


def leave_out(kind: str) -> None:
    """Make packages ignore differences in one kind of facts.

    The facts are still described and compared, because later descriptions refer to earlier ones by number.
    """
    from precompiled.packages import requirements
    from precompiled.packages.describe.errors import Mismatch
    from precompiled.packages.dynamo import dynamo_state, guard_facts, installing, unguarded

    def passing(owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def compared(*arguments: Any, **named: Any) -> Any:
            with contextlib.suppress(Mismatch):
                return original(*arguments, **named)

        setattr(owner, name, compared)

    def seen(kept: Any, *arguments: Any, **named: Any) -> None:
        # Compare the kinds of facts in the same order as ``unguarded.compare``.
        for field in ("globals", "same", "attributes", "keys", "wholes", "cells", "values", "native"):
            with contextlib.suppress(*[Mismatch] if field == kind else []):
                compare(unguarded.Seen(**{field: getattr(kept, field)}), *arguments, **named)

    compare, usable = unguarded.compare, installing.usable
    if kind == "requirements":
        passing(requirements, "check")
    elif kind == "global state":
        passing(dynamo_state, "check_global_state")
    elif kind == "inlined":
        installing.changed_source = lambda inlined: None
    elif kind == "guards":
        passing(guard_facts, "compare")
        passing(guard_facts, "compare_values")
        installing.passed_over = lambda *_: None
    elif kind == "order of keys":
        guard_facts.order_of = lambda *_: mock.ANY
    elif kind == "assumed constant":
        installing.usable = lambda body, *arguments, **named: usable(
            dataclasses.replace(body, assumed_constant=[]), *arguments, **named
        )
    elif kind == "guards made":
        guard_facts.codes_digest = lambda guards: mock.ANY
    elif kind in {field.name for field in dataclasses.fields(unguarded.Seen)}:
        unguarded.compare = seen
    elif kind != "nothing":
        raise SystemExit(f"there is no kind {kind!r}")


def _answer(name: str) -> dict[str, Any]:
    try:
        found = examine(name)
    except Exception:
        found = {"error": traceback.format_exc(), "equal": False, "states": [], "reasons": []}
    print(json.dumps({"case": name, **found}), flush=True)
    return found


def _run_alone(name: str) -> None:
    child = os.fork()
    if child == 0:
        _answer(name)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if status:
        error = f"the process ended with {os.waitstatus_to_exitcode(status)}"
        print(json.dumps({"case": name, "equal": False, "got": "died", "states": [], "error": error}), flush=True)


def main() -> None:
    torch.compile(lambda: None)  # loads Dynamo, which enables packages
    if SPEC.get("without", "nothing") != "nothing":
        leave_out(SPEC["without"])
    torch._dynamo.config.accumulated_recompile_limit = 10_000
    if SPEC.get("alone"):
        torch.compile(torch.sin, backend="eager")(torch.ones(1))  # Dynamo's first imports, once for all forks
        for name in SPEC["cases"]:
            _run_alone(name)
    else:
        print(json.dumps({name: _answer(name) for name in SPEC["cases"]}), flush=True)


if __name__ == "__main__":
    main()

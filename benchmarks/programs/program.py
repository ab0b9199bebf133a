"""Runs the steps of one program of the table, and prints precompiled's reports as a JSON line.

Usage: python -m benchmarks.programs.program SPEC. The caller may enable precompiled. SPEC is a JSON object:
- ``name``: the program
- ``values``: the file for the results of each step
- ``wait``: whether to wait for pending graphs after each step
- ``eager_steps``: the number of steps before torch.compile has an effect
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import torch
import torch._inductor.compile_fx  # otherwise the first torch.compile imports it: two thirds of a small step

from benchmarks.harness import state
from benchmarks.programs import PROGRAMS
from benchmarks.programs.registry import ELSEWHERE


def main() -> None:
    spec: dict[str, Any] = json.loads(sys.argv[1])
    torch.manual_seed(0)
    values: list[Any] = []
    seconds = []
    waited = True
    torch.compiler.set_stance("force_eager" if spec["eager_steps"] else "default")
    compiles = _noted_compiles()
    started = time.perf_counter()
    for step in PROGRAMS[spec["name"]].steps():
        ended = time.perf_counter()
        seconds.append(ended - started)
        if len(seconds) == 1:
            first_s = ended - min(compiles, default=started)
        values.append(dict(step))
        if spec["wait"]:
            waited = waited and all([state.waited(), *_asked("waited")])
        others = _asked("counted")  # at each step, because other processes may end with the last step
        if len(values) == spec["eager_steps"]:
            torch.compiler.set_stance("default")
        started = time.perf_counter()
    torch.save(values, spec["values"])
    states = [state.counted(), *others]
    found = {
        "seconds": seconds,
        # Seconds from the first call of torch.compile on. These seconds exclude imports and the construction of the
        # model.
        "first_s": first_s,
        "waited": waited,
        "traced": sum(one["traced"] for one in states),
        "reports": [report for one in states for report in one["reports"]],
        "functions": [report for one in states for report in one["functions"]],
    }
    print(json.dumps(found), flush=True)


def _asked(name: str) -> list[Any]:
    """Call a function of state.py in the program's other processes and return the results."""
    return [answer for ask in ELSEWHERE for answer in ask(state.__name__, name)]


def _noted_compiles() -> list[float]:
    """Return a list to which each later call of torch.compile appends its time."""
    compile, calls = torch.compile, []

    def noted(*args: Any, **kwargs: Any) -> Any:
        calls.append(time.perf_counter())
        return compile(*args, **kwargs)

    torch.compile = noted
    return calls


if __name__ == "__main__":
    main()

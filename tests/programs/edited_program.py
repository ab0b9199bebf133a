"""Runs programs of tests/fuzz/edit_grammar.py with packages, each from a folder of its own.

Usage: edited_program.py SPEC. SPEC is a file with a JSON object:

- ``programs``: a list of pairs: a name NAME, and folders with the modules ``NAME`` and ``NAME_part``. The first program
  only makes the process load all other modules, because these modules are parts of each program.
- ``task``: "record" the packages of the programs, "use" them, or "plain" (without packages). With "use", a function
  that no package serves runs in eager mode, and counts as retraced.
- ``without``: whether packages compare nothing.

Each program runs twice with new modules: in eager mode, and compiled. Prints a line of JSON for each program: how each
call was served, and the results of both runs.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import forgotten_modules
import torch
from torch._dynamo import convert_frame

SPEC = json.loads(Path(sys.argv[1]).read_text())
X = torch.arange(16.0).reshape(4, 4) / 16


class RetracedError(BaseException):
    """Dynamo would trace the first frame of a call."""


class Calls:
    """The calls of one run of a program: ``got`` has the results, and ``served`` how packages served each call."""

    def __init__(self) -> None:
        self.got: list[str] = []
        self.served: list[str] = []

    def eager(self, function: Callable[..., torch.Tensor], x: torch.Tensor) -> str:
        return self._result(lambda: function(x))

    def compiled(self, function: Callable[..., torch.Tensor], x: torch.Tensor) -> str:
        reports = packages().reports if SPEC["task"] != "plain" else []
        known = len(reports)
        tracing.reports, tracing.known = reports, known if SPEC["task"] == "use" else -1
        try:
            found = self._result(lambda: torch.compile(function)(x))
        except RetracedError:
            self.served.append("retraced")
            return self.eager(function, x)
        states = {report.state for report in reports[known:]}
        self.served.append("used" if states and states <= {"used", "skipped"} else "/".join(sorted(states)))
        return found

    @staticmethod
    def _result(call: Callable[[], torch.Tensor]) -> str:
        try:
            return str([round(number, 3) for number in call().flatten().tolist()])
        except Exception as error:  # the program may raise anything
            return type(error).__name__


def packages() -> Any:
    from precompiled.client.process import PROCESS

    return PROCESS.packages


class Tracing:
    """Raises RetracedError in place of a trace if ``reports`` still has the length ``known``: no package has served the
    call.
    """

    def __init__(self) -> None:
        self.reports: list[Any] = []
        self.known = -1
        original = convert_frame.ConvertFrameAssert.__call__

        def trace(*arguments: Any, **named: Any) -> Any:
            if len(self.reports) == self.known:
                raise RetracedError
            return original(*arguments, **named)

        convert_frame.ConvertFrameAssert.__call__ = trace  # type: ignore[method-assign]


def run_program(name: str, run: Callable[[Calls], Callable[..., str]]) -> Calls:
    """Load and run a program. If the program itself raises, its last result is the exception's type."""
    calls = Calls()
    try:
        importlib.import_module(name).run(run(calls), X.clone(), calls.got)
    except Exception as error:  # the program may raise anything
        calls.got.append(type(error).__name__)
    finally:
        forgotten_modules.forget(name, f"{name}_part")
    return calls


def examine(name: str, folders: list[str]) -> dict[str, Any]:
    sys.path[:0] = folders
    importlib.invalidate_caches()
    try:
        expected = run_program(name, lambda calls: calls.eager)
        if SPEC["task"] != "plain":
            # As in a new process, no function of the program counts as run, except those of this file.
            packages()._source_files._met = own_functions()
        found = run_program(name, lambda calls: calls.compiled)
        if SPEC["task"] == "record":
            packages().flush()
    finally:
        del sys.path[: len(folders)]
    return {"served": found.served, "got": found.got, "eager": expected.got}


def own_functions() -> set[str]:
    from precompiled.packages.describe.codes import outermost
    from precompiled.packages.describe.object_paths import codes_of

    own = [value for value in globals().values() if getattr(value, "__module__", None) == "__main__"]
    return {outermost(code) for value in own for code in codes_of(value)}


def compare_nothing() -> None:
    """Let packages serve each function, even if an edit has changed what its trace read."""
    from precompiled.packages.dynamo import guard_facts, installing, unguarded
    from precompiled.packages.program import Program

    Program.made = lambda *_: True  # type: ignore[method-assign]
    installing.changed_source = lambda _: None
    for module, name in ((guard_facts, "compare"), (guard_facts, "compare_values"), (unguarded, "compare")):
        setattr(module, name, lambda *_arguments, **_named: None)


def main() -> None:
    import precompiled

    precompiled.enable()
    torch.compile(lambda: None)  # loads Dynamo, which enables packages
    torch._dynamo.config.accumulated_recompile_limit = 10_000
    if SPEC["without"]:
        compare_nothing()
    sys.dont_write_bytecode = True
    logging.disable()
    for name, folders in SPEC["programs"]:
        with contextlib.redirect_stdout(io.StringIO()):
            found = examine(name, folders)
        print(json.dumps(found), flush=True)


tracing = Tracing()
if __name__ == "__main__":
    main()

"""Copies a program's sources to a folder, edits them, and runs the program on a host."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.edits.edits import NANOGPT, Edit
from benchmarks.harness.hosts import DEFAULTS, LIMIT_S, ROOT, BenchmarkError, Command, Host, run_command
from benchmarks.harness.state import WAIT_S
from benchmarks.models.compare import compare_steps

# Relative tolerance for the loss, which the scripts print with four digits.
LOSS_RTOL = 2e-3
SMALL = ("--n_layer=1", "--n_embd=32", "--n_head=2", "--block_size=16", "--eval_iters=1")


@dataclass(frozen=True)
class Run:
    """Results of one process."""

    first_s: float  # seconds to the end of the first step
    frames: int  # frames that Dynamo traced
    # maps a function's name to the state of its package; "traced" if any of its frames was traced
    functions: dict[str, str]
    values: Any  # results of the steps
    graphs: list[dict[str, Any]]


class Project:
    """The folder of one program on a host."""

    def __init__(self, program: str, host: Host, *, hook: bool, quick: bool) -> None:
        self._program, self._host, self._hook, self._quick = program, host, hook, quick
        self._folder = host.root / "project" / program
        if program == NANOGPT:
            _copy(ROOT / "examples" / "nanogpt", self._folder)
            prepared = [sys.executable, "prepare.py"]
            subprocess.run(prepared, cwd=self._folder, check=True, capture_output=True, timeout=LIMIT_S)
        else:
            _copy(ROOT / "benchmarks", self._folder / "benchmarks")

    def run(self) -> Run:
        found = run_command(self._command())
        if not found["waited"]:
            raise BenchmarkError(f"graphs were still pending after {WAIT_S:.0f} s")
        functions: dict[str, str] = {}
        for report in found["functions"]:
            state = "traced" if report["state"] in ("recorded", "traced") else report["state"]
            if functions.get(report["name"]) != "traced":
                functions[report["name"]] = state
        values = found["losses"] if self._program == NANOGPT else torch.load(self._values)
        return Run(found["first_s"], found["traced"], functions, values, found["reports"])

    def edited(self, edit: Edit, number: int, run: Callable[[], Run]) -> Run:
        """Apply the edit, with ``number`` in place of ``{n}``, call ``run``, and restore the file."""
        path = self._folder / edit.file
        before = path.read_text()
        path.write_text(edit.apply(before, number))
        try:
            return run()
        finally:
            path.write_text(before)

    @property
    def _values(self) -> Path:
        return self._host.root / f"{self._program}.pt"

    def _command(self) -> Command:
        variables = self._host.variables(hook=self._hook, extra=DEFAULTS if self._hook else None)
        if self._program == NANOGPT:
            argv = [sys.executable, "-m", "benchmarks.edits.script", "train.py", "config/train_small_cpu.py"]
            argv += ["--max_iters=2", *(SMALL if self._quick else ())]
            # benchmarks.edits.script is imported from this tree, everything else from the project's folder.
            paths = [str(ROOT), *filter(None, [variables.get("PYTHONPATH")])]
            return {"argv": argv, "env": {**variables, "PYTHONPATH": ":".join(paths)}, "cwd": str(self._folder)}
        spec = {"name": self._program, "values": str(self._values), "wait": True, "eager_steps": 0}
        command = self._host.command(spec, hook=self._hook, program="programs.program")
        return {**command, "env": variables, "cwd": str(self._folder)}


def unequal(got: Any, expected: Any) -> list[str]:
    """List the differences between the steps of two runs of a program."""
    if not all(isinstance(value, float) for value in [*got, *expected]):
        return compare_steps(got, expected)
    if len(got) != len(expected):
        return [f"{len(got)} steps, not {len(expected)}"]
    return [
        f"step {number}: the loss is {left}, not {right}"
        for number, (left, right) in enumerate(zip(got, expected, strict=True))
        if not abs(left - right) <= LOSS_RTOL * abs(right)
    ]


def _copy(source: Path, target: Path) -> None:
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "results", "data", "out"))

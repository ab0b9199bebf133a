"""Tests that `explain` names the cause and the source line of deliberate cache misses.

Daemon and compiles are real. With ``-s`` pytest shows the time of each answer. The time is not checked, because the
machine may be busy.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from support_host import Host, edit

OPERATOR = """\
import torch

@torch.library.custom_op("explained::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2

@twice.register_fake
def _(x):
    return torch.empty_like(x)
"""
PROGRAM = """\
import os
import torch
import precompiled
import explained_ops

precompiled.enable()

def scaled(x):
    hidden = x * 2.0
    return explained_ops.twice(hidden) + 1

compiled = torch.compile(scaled, dynamic=False)

def train():
    x = torch.ones(8, 16)
    compiled(x)
    assert precompiled.wait(300)

train()
"""
CALL = "program.py:16, in train: compiled(x)"
# Each case is a change, the expected kind of cause, and parts of the expected message. A change is an old and a new
# text, or a dict of environment variables.
CASES: dict[str, tuple[tuple[str, str] | dict[str, str], str, list[str]]] = {
    "size": (("ones(8, 16)", "ones(9, 16)"), "size", ["new size: x: shape [8, 16] -> [9, 16]", CALL, "mark_dynamic"]),
    "dtype": (
        ("ones(8, 16)", "ones(8, 16, dtype=torch.float64)"),
        "dtype",
        ["new dtype: x: dtype float32 -> float64", CALL],
    ),
    "edit": (
        ("x * 2.0", "x * 3.0"),
        "edit",
        ["edit at program.py:9: 'hidden = x * 2.0' -> 'hidden = x * 3.0'", "program.py:9, in scaled"],
    ),
    "edit that adds an input": (
        (
            "\n\ndef scaled(x):\n    hidden = x * 2.0",
            "\nbias = torch.ones(16)\ndef scaled(x):\n    hidden = x * 2.0 + bias",
        ),
        "edit",
        ["edit at program.py:9: 'hidden = x * 3.0' -> 'hidden = x * 2.0 + bias'", "program.py:9, in scaled"],
    ),
    "lines that an edit has moved": (
        (
            "def scaled(x):\n    hidden = x * 2.0",
            "bias = torch.ones(16)\n\ndef scaled(x):\n    hidden = x * 2.0 - bias",
        ),
        "way",
        [
            "other branch at program.py:11: 'hidden = x * 2.0 - bias' ran, where program.py:9 ran before: 'hidden = x",
            "if you edited",
        ],
    ),
    "option": (
        ("dynamic=False", "dynamic=False, options={'max_fusion_size': 7}"),
        "setting",
        [
            "setting inductor.max_fusion_size: 64 -> 7 (by mode= or options= of torch.compile)",
            "program.py:12: compiled =",
        ],
    ),
    "variable": (
        {"TORCHINDUCTOR_MAX_FUSION_SIZE": "9", "TORCHINDUCTOR_UNROLL_REDUCTIONS_THRESHOLD": "9"},
        "variable",
        ["variable TORCHINDUCTOR_MAX_FUSION_SIZE: not set -> '9' (since the start of the process)"],
    ),
    "variable that the program sets": (
        ("import os\n", "import os\nos.environ['TORCHINDUCTOR_EXPLAINED'] = '1'\n"),
        "variable",
        [
            "variable TORCHINDUCTOR_EXPLAINED: not set -> '1' (set by the program)",
            "program.py:2: os.environ['TORCHINDUCTOR_EXPLAINED'] = '1'",
        ],
    ),
    "library version": ({"PYTHONPATH": "{root}/libraries"}, "version", ["another triton: none -> 3.99.0"]),
    "CPU facts": ({"ATEN_CPU_CAPABILITY": "default"}, "cpu", ["another CPU: ", " -> DEFAULT", "ATEN_CPU_CAPABILITY"]),
    "autocast": (
        ("    compiled(x)\n", "    with torch.autocast('cpu'):\n        compiled(x)\n"),
        "mode",
        ["autocast (cpu): off -> bfloat16", "program.py:16: with torch.autocast('cpu'):"],
    ),
    "grad mode": (
        ("def train", "@torch.no_grad()\ndef train"),
        "mode",
        ["grad mode: True -> False", "program.py:14: @torch.no_grad()"],
    ),
    "custom operator": (
        ("x * 2\n", "x * 2.5\n"),
        "operator",
        [
            "custom operator explained.twice.default: its sources have changed",
            "program.py:10, in scaled: return explained_ops.twice(hidden) + 1",
        ],
    ),
}


def run(host: Host, variables: dict[str, str]) -> None:
    program = host.root / "project" / "program.py"
    # The program cannot be a fork of the zygote. A fork would ignore the changed variables, because the zygote has
    # already read them. The fork would also lack the operator, because the operator's file is newer than the zygote.
    host.program(str(program), env=variables, cwd=program.parent, forked=False).ended()


def asked(host: Host, *arguments: str) -> tuple[str, float]:
    began = time.perf_counter()
    text = host.command("explain", *arguments)
    return text, time.perf_counter() - began


@pytest.mark.slow
@pytest.mark.timeout(1800)  # a dozen processes, one after the other, with a compile each
def test_explain_names_the_cause_of_deliberate_misses(served: Host, capsys: pytest.CaptureFixture[str]) -> None:
    folder = served.project(program=PROGRAM, explained_ops=OPERATOR)
    (served.root / "libraries" / "triton-3.99.0.dist-info").mkdir(parents=True)
    (served.root / "libraries" / "triton-3.99.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: triton\nVersion: 3.99.0\n"
    )
    run(served, {})
    first = json.loads(served.command("explain", "--run", "last", "--json"))
    assert first["summary"] == "of 1 graph: no hits, 1 new graph"
    took = []
    for name, (change, kind, words) in CASES.items():
        _change(folder, change)
        variables = change if isinstance(change, dict) else {}
        run(served, {variable: value.format(root=served.root) for variable, value in variables.items()})
        text, seconds = asked(served, "--newest")
        assert all(word in text for word in words), f"{name}: {text}"
        found: dict[str, Any] = json.loads(served.command("explain", "--newest", "--json"))
        assert kind == found["causes"][0]["kind"], f"{name}: {found['causes']}"
        text, of_run = asked(served, "--run", "last")
        assert found["causes"][0]["short"] in text and all(word in text for word in words), f"{name}: {text}"
        took.append((name, seconds, of_run))
        _change(folder, change, back=True)
    run(served, {})
    summary, _seconds = asked(served, "--run", "last")
    assert "of 1 graph: 1 hit\n" in summary
    with capsys.disabled():
        for name, seconds, of_run in took:
            print(f"\n  {name:32}{seconds:.2f} s  of its run {of_run:.2f} s", end="")


def _change(folder: Path, change: tuple[str, str] | dict[str, str], *, back: bool = False) -> None:
    if isinstance(change, dict):
        return
    old, new = reversed(change) if back else change
    file = next(file for file in folder.glob("*.py") if old in file.read_text())
    edit(file, old, new)

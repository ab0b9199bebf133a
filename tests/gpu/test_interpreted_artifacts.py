"""Tests that kernels of artifacts give eager's results in Triton's interpreter, and that a wrong kernel is found.

`make interpreter` runs all rows.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.harness.hosts import ROOT, Host, fresh_host
from benchmarks.interpreter.table import Row, command, examine, is_right, judge

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not os.environ.get("CUDA_MADE_UP"), reason="NOT TESTED: this host has no made-up device"),
]

ROW = "model softmaxes inference"


def test_kernels_of_artifacts_equal_eager() -> None:
    names = ["model mlp training", "corpus custom_function", "corpus checkpoint_with_dropout"]
    for row in examine(names, print):
        assert (row.state, row.why) == ("equal", "")
        assert row.count("equal") == row.tried >= 2, row.kernels  # at least one forward and one backward


@pytest.fixture(scope="module")
def made() -> Iterator[Host]:
    """A host whose store has the artifacts of ROW."""
    with fresh_host() as host:
        host.start_daemon()
        answer = _answer(host, interpret=False)
        assert [graph[:2] for graph in answer["graphs"]] == [["compiled", "swap"]], answer
        yield host


def _answer(
    host: Host, *, interpret: bool, before: str = "", variables: dict[str, str] | None = None
) -> dict[str, Any]:
    """Run ROW in a process and return its report. The process first executes the code ``before``."""
    run = command(host, [ROW], interpret=interpret)
    if before:
        code = f"{before}\nimport runpy; runpy.run_module('benchmarks.interpreter.program', run_name='__main__')"
        run["argv"] = [*run["argv"][: run["argv"].index("-m", 3)], "-c", code, run["argv"][-1]]
    done = subprocess.run(
        run["argv"], env={**run["env"], **(variables or {})}, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def _interpreted(host: Host, before: str) -> Row:
    return judge(ROW, _answer(host, interpret=True, before=before))


# Changes the source of the kernels while they are loaded, as if the artifact contained a wrong kernel.
CHANGE = '''
from torch._inductor.async_compile import AsyncCompile
load = AsyncCompile.triton
NOT_THE_FIRST = """

def stored_but_by_the_first_program(pointer, value, mask):
    if tl.program_id(0).handle.data.item():
        tl.store(pointer, value, mask)
"""
AsyncCompile.triton = lambda self, name, source, device: load(self, name, {change}, device)
'''


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("source.replace('tl.sum(', '0.99 * tl.sum(')", "not close"),
        # Memory that a kernel does not write must not contain the right values by chance.
        ("source.replace('tl.store(', 'stored_but_by_the_first_program(') + NOT_THE_FIRST", "not close"),
        ("source.replace('tl.store(', 'tl.store((1 << 28) + ')", "outside of all arguments"),
    ],
    ids=["sum", "unwritten", "outside"],
)
def test_wrong_kernel_is_found(made: Host, change: str, why: str) -> None:
    row = _interpreted(made, CHANGE.format(change=change))
    assert row.state == "wrong", row
    assert row.count("wrong") and not row.count("equal")
    assert why in row.why + str(row.kernels)


def test_kernel_launched_without_the_interpreter_is_found(made: Host) -> None:
    # Without the interpreter, the program launches the artifact's cubins. The made-up device logs the launches.
    without = "from benchmarks.interpreter import executed; executed.install = lambda: None"
    answer = _answer(made, interpret=True, before=without, variables={"TRITON_INTERPRET": "0"})
    assert answer["launches"] > 0
    assert judge(ROW, {**answer, "different": []}).state == "launched"


def test_interpreter_must_be_enabled_before_triton_is_imported(made: Host) -> None:
    run = command(made, [ROW], interpret=True)
    environment = {**run["env"], "TRITON_INTERPRET": "0"}
    done = subprocess.run(run["argv"], env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "must be set before triton is imported" in done.stderr


RANDOM = """
import torch, triton, triton.language as tl
from benchmarks.interpreter import executed
executed.install()

@triton.jit
def philox(out, seed, c0, c1, c2, c3, B: tl.constexpr):
    lanes = tl.arange(0, B)
    zero = lanes.to(tl.uint32) * 0
    a, b, c, d = tl.philox(
        seed, (zero + c0).to(tl.uint32), (zero + c1).to(tl.uint32), (zero + c2).to(tl.uint32), (zero + c3).to(tl.uint32)
    )
    tl.store(out + lanes * 4, a)
    tl.store(out + lanes * 4 + 1, b)
    tl.store(out + lanes * 4 + 2, c)
    tl.store(out + lanes * 4 + 3, d)

pi = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344)
for key, counters in ((0, (0, 0, 0, 0)), (-1, (0xFFFFFFFF,) * 4), (0x299F31D0A4093822, pi)):
    out = torch.zeros(4, dtype=torch.int32, device="cuda")
    philox[(1,)](out, key, *counters, B=1)
    print(*(f"{value & 0xffffffff:08x}" for value in out.tolist()))
"""


def test_random_numbers_equal_the_published_philox_answers(tmp_path: Path) -> None:
    # Inductor's random numbers (tl.rand) use philox4x32-10. The expected values are Random123's known answers.
    script = tmp_path / "philox.py"  # a file, because Triton reads the source of its kernels
    script.write_text(RANDOM)
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines() == [
        "6627e8d5 e169c58d bc57ac4c 9b00dbd8",
        "408f276d 41c83b0e a20bc7c6 6d5451fd",
        "d16cfe09 94fdcceb 5001e420 24126ea1",
    ]


def test_rows_without_a_result_count_as_wrong() -> None:
    kernels = {"a": ("kernel", "equal", "")}
    equal = Row("model mlp training", "equal", "", kernels=kernels)
    known = Row("corpus frozen_linear", "no artifact", "freezing")
    assert is_right([equal, known]) and not is_right([known])
    for state in ("launched", "stopped", "no artifact", "no row", "wrong"):
        assert not is_right([equal, Row("corpus other", state, "")])
    assert not is_right([equal, Row("corpus other", "equal", "", kernels={"b": ("kernel", "not runnable", "why")})])
    assert not is_right([equal, Row("corpus frozen_linear", "stopped", "")])

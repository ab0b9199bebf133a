"""Tests of user Triton kernels: how they are named, how they enter the key, and how another process rebuilds them.

The tests need Triton, which torch for the CPU does not install. Capture needs no GPU, but a compile does (tests/gpu).
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

# Each test starts a dozen processes that import torch.
pytestmark = [pytest.mark.versions, pytest.mark.timeout(3000)]

PROGRAM = Path(__file__).resolve().parents[1] / "programs" / "user_kernel_program.py"
OLDEST, NEWEST = "2.11.0", "2.15.0"

HELPERS = """
import triton

@triton.jit
def scaled(x):
    return x * 2
"""
KERNELS = """
import triton
import triton.language as tl

from helpers import scaled

SHIFT = tl.constexpr(1)

@triton.jit
def added(x, y, out, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(out + i, scaled(tl.load(x + i, mask=i < n)) + tl.load(y + i, mask=i < n) + SHIFT, mask=i < n)

@triton.jit
def other(x, y, out, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(out + i, tl.load(x + i, mask=i < n) - tl.load(y + i, mask=i < n), mask=i < n)

@triton.jit
def typed(x, y, out, n, B: tl.constexpr, T: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(out + i, tl.load(x + i, mask=i < n).to(T) + tl.load(y + i, mask=i < n), mask=i < n)

@triton.autotune(configs=[triton.Config({"B": 16}), triton.Config({"B": 32}, num_warps=2)], key=["n"])
@triton.jit
def tuned(x, y, out, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(out + i, tl.load(x + i, mask=i < n) * tl.load(y + i, mask=i < n), mask=i < n)

@triton.heuristics({"B": lambda given: 32 if given["n"] > 60 else 16})
@triton.jit
def guessed(x, y, out, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(out + i, tl.load(x + i, mask=i < n), mask=i < n)

@triton.autotune(configs=[triton.Config({"A": 1}), triton.Config({"A": 2})], key=["n"])
@triton.heuristics({"B": lambda given: 16 * given["A"]})
@triton.jit
def both(x, y, out, n, A: tl.constexpr, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(out + i, tl.load(x + i, mask=i < n) * A, mask=i < n)

def inside():
    @triton.jit
    def hidden(x, y, out, n, B: tl.constexpr):
        i = tl.program_id(0) * B + tl.arange(0, B)
        tl.store(out + i, tripled(tl.load(x + i, mask=i < n)) + SHIFT, mask=i < n)
    return hidden

@triton.jit
def tripled(x):
    return x * 3

def with_a_closure():
    times = tl.constexpr(3)

    @triton.jit
    def closed(x, y, out, n, B: tl.constexpr):
        i = tl.program_id(0) * B + tl.arange(0, B)
        tl.store(out + i, tl.load(x + i, mask=i < n) * times, mask=i < n)
    return closed

nested = {"hidden": inside, "closed": with_a_closure}
"""


class Project:
    """A folder with the user's modules, and the programs that capture and decode graphs of these modules."""

    def __init__(self, folder: Path, python: str) -> None:
        self.folder, self.python = folder, python
        self.write("helpers.py", HELPERS)
        self.write("kernels.py", KERNELS)

    def write(self, name: str, source: str) -> None:
        (self.folder / name).write_text(source)

    def edit(self, name: str, before: str, after: str) -> None:
        source = (self.folder / name).read_text()
        assert before in source
        self.write(name, source.replace(before, after))

    def run(self, **spec: Any) -> dict[str, Any]:
        done = subprocess.run(
            [self.python, "-B", str(PROGRAM), str(self.folder), json.dumps(spec)],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
            cwd=self.folder,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return answer

    def capture(self, *names: str, **spec: Any) -> dict[str, Any]:
        return self.run(launch=names, **spec)

    def decode(self) -> dict[str, Any]:
        return self.run(decode=str(self.folder / "program"))


@pytest.fixture(params=[OLDEST, NEWEST])
def project(request: pytest.FixtureRequest, tmp_path: Path, python_of: Callable[[str], str]) -> Project:
    python = python_of(request.param)
    if subprocess.run([python, "-c", "import triton"], capture_output=True, check=False).returncode:
        text = f"NOT TESTED: USER TRITON KERNELS WITH TORCH {request.param}: its build comes without Triton"
        print(f"\n{text}", file=sys.__stderr__, flush=True)
        pytest.skip(text)
    return Project(tmp_path, python)


def test_kernels_are_rebuilt_in_another_process_and_keyed_without_numbers(project: Project) -> None:
    first = project.capture("added", "tuned", "typed")
    assert [launch["kernel"] for launch in first["launches"]] == ["kernels.added", "kernels.tuned", "kernels.typed"]
    assert first["launches"][1]["configs"] and first["launches"][0]["constants"] == {"n": "64", "B": "16"}
    assert first["modules"] == ["kernels"]
    assert project.decode() == {"launches": first["launches"]}
    # The kernels have different numbers in this process, because it launched another kernel before.
    again = project.capture("added", "tuned", "typed", first=["other", "tuned"])
    assert again["key"] == first["key"]
    assert project.capture("added", "tuned")["key"] != first["key"]
    assert project.capture("added")["key"] != project.capture("other")["key"]


def test_edit_changes_the_key_and_refuses_earlier_captures(project: Project) -> None:
    keys = [project.capture("added", "tuned")["key"]]
    for name, before, after in (
        ("kernels.py", "+ SHIFT", "- SHIFT"),
        ("kernels.py", "num_warps=2", "num_warps=4"),
        ("helpers.py", "x * 2", "x * 3"),
    ):
        project.edit(name, before, after)
        assert "differ from the capture" in project.decode()["refused"]
        keys.append(project.capture("added", "tuned")["key"])
    assert len(set(keys)) == len(keys)


def test_global_set_by_the_program_is_in_the_key(project: Project) -> None:
    as_written = project.capture("added")
    changed = project.capture("added", set={"SHIFT": 5})
    assert changed["key"] != as_written["key"]
    assert "differs from the kernel of the process" in project.decode()["refused"]


def test_choices_of_heuristics_are_in_the_key(project: Project) -> None:
    first = project.capture("guessed", "both")
    guessed, both = first["launches"]
    assert guessed["constants"]["B"] == "32"
    assert ["A: 1, B: 16" in both["configs"][0], "A: 2, B: 32" in both["configs"][1]] == [True, True]
    assert first["modules"] == ["kernels"]
    assert project.decode() == {"launches": first["launches"]}
    project.edit("kernels.py", "16 * given", "32 * given")
    assert "differ from the capture" in project.decode()["refused"]
    assert project.capture("guessed", "both")["key"] != first["key"]


OF_THE_PROGRAM = ("added", "tuned", "guessed", "both", "typed", "hidden")


def test_kernels_of_the_main_program_are_rebuilt_in_another_process(project: Project) -> None:
    first = project.capture(*OF_THE_PROGRAM, main=True)
    assert first["modules"] == ["helpers", *sorted(f"kernel {name}" for name in OF_THE_PROGRAM)]
    launches = [
        {**launch, "kernel": launch["kernel"].replace("__main__", "precompiled.program." + name)}
        for launch, name in zip(first["launches"], OF_THE_PROGRAM, strict=True)
    ]
    assert project.decode() == {"launches": launches}
    assert project.capture(*OF_THE_PROGRAM, main=True, first=["other", "tuned"])["key"] == first["key"]


def test_values_that_a_kernel_reads_are_in_the_key(project: Project) -> None:
    keys = [project.capture(*OF_THE_PROGRAM, main=True)["key"]]
    project.edit("kernels.py", "import triton\n", "import triton\n# moved\n")
    assert [project.capture(*OF_THE_PROGRAM, main=True)["key"]] == keys
    for before, after in (
        ("tl.constexpr(1)", "tl.constexpr(2)"),  # a constant that a kernel reads
        ("x * 3", "x * 4"),  # a kernel that another kernel calls
        ("+ SHIFT, mask", "- SHIFT, mask"),  # the text of a kernel
        ("num_warps=2", "num_warps=4"),
        ('key=["n"]', 'key=["n"], restore_value=["out"]'),
        ("> 60", "> 70"),
        ("16 * given", "32 * given"),
        ("@triton.jit\ndef tripled", "@triton.jit(noinline=True)\ndef tripled"),
    ):
        project.edit("kernels.py", before, after)
        keys.append(project.capture(*OF_THE_PROGRAM, main=True)["key"])
    keys.append(project.capture(*OF_THE_PROGRAM, main=True, set={"SHIFT": 5})["key"])
    project.edit("helpers.py", "x * 2", "x * 3")
    keys.append(project.capture(*OF_THE_PROGRAM, main=True)["key"])
    assert len(set(keys)) == len(keys)


@pytest.mark.reason("user-kernel")
@pytest.mark.parametrize("main", [False, True])
def test_kernel_without_complete_source_is_bypassed(project: Project, main: bool) -> None:
    refused = project.capture("closed", main=main)
    assert refused["code"] == "user-kernel" and "a module that can be imported" in refused["message"]
    assert "closure" in refused["message"]
    project.edit("kernels.py", "SHIFT = tl.constexpr(1)", "SHIFT = [1]")
    assert "SHIFT is a list" in project.capture("hidden", main=main)["message"]

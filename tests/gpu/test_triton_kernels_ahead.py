"""Tests of Triton kernels that workers compile before the program launches them, because the store lacks kernels that
an earlier run used.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support_daemon import wait_until
from support_host import TIMEOUT_S, Client, edit
from support_triton import PROGRAM, Machine, once

from precompiled.store import eviction
from precompiled.store.artifact_format import digest
from precompiled.store.recipe_lists import RecipeList

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="NOT TESTED ON A GPU: torch.cuda.is_available() is False"),
    pytest.mark.timeout(3000),
]

NAMES = ("added", "shifted", "twice")


def listed(machine: Machine, program: Path = PROGRAM) -> RecipeList:
    return RecipeList(machine.host.store.root, digest(os.path.realpath(program).encode()))


def by_workers(tmp_path: Path) -> list[str]:
    """The compiler processes of workers."""
    log = tmp_path / "of-workers"
    return log.read_text().split() if log.exists() else []


@contextmanager
def at_the_gate(machine: Machine, name: str, *arguments: str, program: Path = PROGRAM, **more: str) -> Iterator[Client]:
    """Start the program. Within the with-block, hold the program before its first launch."""
    gate = machine.host.root / f"gate-{name}"
    with gate.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield machine.start(name, *arguments, program=program, GATE=str(gate), **more)


def test_evicted_kernels_are_compiled_before_the_program_launches_them(machine: Machine, tmp_path: Path) -> None:
    assert machine.run("first", *NAMES)["compiled"] == once(*NAMES)
    items = listed(machine).read()
    assert [item.name for item in items] == list(NAMES) and all(item.compile_s > 0 for item in items)
    keys = {item.key for item in items}
    machine.kernels.clear()
    with at_the_gate(machine, "second", *NAMES) as program:
        wait_until(lambda: keys <= set(machine.kernels.all_keys()), "the workers have compiled the kernels", TIMEOUT_S)
    answer = program.result()
    assert (answer["compiled"], answer["found"]) == ({}, once(*NAMES))
    assert (machine.tools_run("second").count("ptxas"), by_workers(tmp_path).count("ptxas")) == (0, len(NAMES))
    stats = machine.host.stats()
    assert (stats.compiled, stats.failed, stats.fallbacks) == (len(NAMES), 0, {})
    assert len(machine.host.status().workers) == 1


def test_program_whose_kernels_are_in_the_store_starts_no_daemon(machine: Machine) -> None:
    for name in ("first", "second"):
        machine.run(name, *NAMES)
    assert not (machine.host.runtime_dir / "socket").exists()


def test_siblings_of_an_edited_kernel_are_compiled_ahead(machine: Machine, tmp_path: Path) -> None:
    program = machine.host.root / "program.py"
    shutil.copy(PROGRAM, program)
    machine.run("first", *NAMES, program=program)
    edit(program, "mask=i < n) + 1, mask=i < n)", "mask=i < n) + 4, mask=i < n)")
    machine.kernels.clear()
    keys = {item.key for item in listed(machine, program).read() if item.name != "added"}
    with at_the_gate(machine, "second", *NAMES, program=program) as edited:
        wait_until(lambda: keys <= set(machine.kernels.all_keys()), "the workers have compiled the siblings", TIMEOUT_S)
    assert edited.result()["compiled"] == {"added": 1}


def test_kernels_for_another_kind_of_gpu_are_compiled_by_workers(machine: Machine) -> None:
    if not os.environ.get("CUDA_MADE_UP"):
        pytest.skip("NOT TESTED: a host has one kind of GPU")
    machine.run("first", *NAMES, CUDA_MADE_UP="h100")
    before = len(machine.kernels.all_keys())
    assert machine.run("second", "added", CUDA_MADE_UP="a100")["compiled"] == {"added": 1}
    wait_until(
        lambda: machine.host.stats().compiled == len(NAMES) - 1, "the workers have compiled the others", TIMEOUT_S
    )
    assert len(machine.kernels.all_keys()) == before + len(NAMES)
    assert machine.run("third", *NAMES, CUDA_MADE_UP="a100")["compiled"] == {}


def test_kernel_with_a_closure_is_not_listed_and_compiled_by_the_program(machine: Machine) -> None:
    machine.run("first", "added", "closure of 1")
    assert [item.name for item in listed(machine).read()] == ["added"]


@pytest.mark.reason("kernel-ahead")
def test_kernel_that_a_worker_cannot_rebuild_is_compiled_by_the_program(machine: Machine) -> None:
    machine.run("first", "added")
    [item] = listed(machine).read()
    listed(machine).remove(item)
    listed(machine).add(replace(item, recipe={**item.recipe, "key": "another"}))
    machine.kernels.clear()
    with at_the_gate(machine, "second", "added") as program:
        wait_until(lambda: not listed(machine).read(), "the recipe is removed", TIMEOUT_S)
    assert program.result()["compiled"] == {"added": 1}
    assert machine.host.stats().fallbacks == {"kernel-ahead": 1}
    assert [item.name for item in listed(machine).read()] == ["added"], "the program has listed the kernel again"


def test_cleared_store_has_no_recipes(machine: Machine) -> None:
    machine.run("first", "added")
    eviction.clear(machine.host.store)
    assert listed(machine).read() == []

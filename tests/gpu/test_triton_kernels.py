"""Tests of Triton kernels that a program launches itself (the setting ``triton``).

The program counts what Triton compiles. Wrappers count the processes of ``ptxas`` and of the C compiler.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from support_host import TIMEOUT_S, Client, Host, edit, new_host

from precompiled.remote import helper_link
from precompiled.store.triton_kernels import TritonKernels

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="NOT TESTED ON A GPU: torch.cuda.is_available() is False"),
    pytest.mark.timeout(3000),
]

PROGRAM = Path(__file__).parents[1] / "programs" / "triton_program.py"
LIBRARY = """
import triton
import triton.language as tl

__all__ = ["first", "second", "third", "fourth"]
"""
KERNEL = """
@triton.jit
def {name}(x, out, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(out + i, tl.load(x + i, mask=i < n) * {number}, mask=i < n)
"""
WRAPPER = """#!/bin/sh
case "$*" in --version) ;; *) echo {kind} >> "$TOOLS_LOG" ;; esac
exec {tool} "$@"
"""
OWN_MANAGER = """
from triton.runtime.cache import FileCacheManager

class OwnManager(FileCacheManager):
    pass
"""
ALL = 20
# Two kernels are compiled in two configurations each.
COMPILES = ALL + 2
FEW = ("added", "shifted", "closure of 1")


@dataclass
class Machine:
    """A host, an installed package with kernels, and wrappers that count compiler processes."""

    host: Host
    tools: dict[str, str]

    def start(self, name: str, *arguments: str, program: Path = PROGRAM, **variables: str) -> Client:
        """Start the program. ``name``: the folder of Triton's own cache, which is empty at first."""
        folder = self.host.root / name
        folder.mkdir(exist_ok=True)
        own = {"TRITON_CACHE_DIR": str(folder / "triton"), "TOOLS_LOG": str(folder / "tools")}
        command = ("-m", "precompiled", "run", "--", sys.executable, str(program), *arguments)
        given = {**self.tools, **own, "PRECOMPILED_TRITON": "on", **variables}
        return self.host.program(*command, env=given, forked=False)

    def run(self, name: str, *arguments: str, program: Path = PROGRAM, **variables: str) -> dict[str, Any]:
        client = self.start(name, *arguments, program=program, **variables)
        answer: dict[str, Any] = client.result()
        log = self.host.root / name / "tools"
        tools = log.read_text().split() if log.exists() else []
        counts = {tool: tools.count(tool) for tool in ("ptxas", "cc")}
        return {**answer, **counts, "total": sum(answer["compiled"].values()), "said": client.text()}

    @property
    def kernels(self) -> TritonKernels:
        return TritonKernels(self.host.store.root)


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    with new_host() as host:
        yield Machine(host, tools(tmp_path))


def tools(folder: Path) -> dict[str, str]:
    """Write the package and the wrappers. Returns the variables of programs that use them."""
    site = folder / "site-packages"
    (site / "kernel_library").mkdir(parents=True)
    numbered = enumerate(("first", "second", "third", "fourth"), 2)
    text = LIBRARY + "".join(KERNEL.format(name=name, number=number) for number, name in numbered)
    (site / "kernel_library" / "__init__.py").write_text(text)
    (site / "own_manager.py").write_text(OWN_MANAGER)
    found = {"PYTHONPATH": str(site)}
    import triton  # builds of torch for the CPU have none

    nvidia = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    for variable, kind, tool in (
        ("TRITON_PTXAS_PATH", "ptxas", nvidia / "ptxas"),
        ("TRITON_PTXAS_BLACKWELL_PATH", "ptxas", nvidia / "ptxas-blackwell"),
        ("CC", "cc", shutil.which("gcc")),
    ):
        path = folder / variable
        path.write_text(WRAPPER.format(kind=kind, tool=tool))
        path.chmod(0o755)
        found[variable] = str(path)
    return found


def once(*names: str) -> dict[str, int]:
    """The counts of kernels that were each compiled (or found) once. A closure's function has a fixed name."""
    return {name.partition(" ")[0]: 1 for name in names}


# ---------------------------------------------------------------- one host


def test_second_process_compiles_none_of_twenty_kernels(machine: Machine) -> None:
    first = machine.run("first")
    assert first["kernels"] == ALL
    assert (first["total"], first["ptxas"], first["measured"]) == (COMPILES, COMPILES, 4)
    assert first["cc"] > 0
    second = machine.run("second")
    # ``tuned_once`` takes its configuration from the stored times. ``tuned`` does not cache times, in Triton either.
    assert second["compiled"] == {} and sum(second["found"].values()) == COMPILES - 1
    assert (second["ptxas"], second["cc"], second["measured"]) == (0, 0, 2)
    assert "precompiled: " not in second["said"], "nothing fell back"


def test_times_of_an_autotuner_belong_to_one_kind_of_gpu(machine: Machine) -> None:
    if not (devices := os.environ.get("CUDA_MADE_UP")):
        pytest.skip("NOT TESTED: a host has one kind of GPU")
    assert machine.run("first", "tuned_once")["measured"] == 2
    other = machine.run("second", "tuned_once", CUDA_MADE_UP=",".join(["h200"] * len(devices.split(","))))
    assert other["measured"] == 2
    # The architectures are equal, so the kernels are shared nevertheless.
    assert other["compiled"] == {}


def test_eight_processes_at_once_compile_each_kernel_once(machine: Machine) -> None:
    gate = machine.host.root / "gate"
    with gate.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        ranks = [machine.start(str(rank), *FEW, GATE=str(gate)) for rank in range(8)]
        for rank in ranks:
            rank.wait_for("ready")
    answers = [rank.result() for rank in ranks]
    compiled = [name for answer in answers for name in answer["compiled"].items()]
    assert sorted(compiled) == sorted(once(*FEW).items())
    logs = [log.read_text().split() for log in machine.host.root.glob("*/tools")]
    assert sum(log.count("ptxas") for log in logs) == len(FEW)
    modules = [path for path in (machine.host.root / "0" / "triton").rglob("*.so")]
    assert modules and sum(log.count("cc") for log in logs) == len(modules)


def test_edited_kernel_is_compiled_again(machine: Machine) -> None:
    program = machine.host.root / "program.py"
    shutil.copy(PROGRAM, program)
    assert machine.run("first", *FEW, program=program)["compiled"] == once(*FEW)
    edit(program, "mask=i < n) + 1, mask=i < n)", "mask=i < n) + 4, mask=i < n)")
    edit(program, "SHIFT = tl.constexpr(3)", "SHIFT = tl.constexpr(4)")
    edited = machine.run("second", *FEW, program=program)
    assert (edited["compiled"], edited["found"]) == (once("added", "shifted"), once("closure of 1"))
    edit(program, "mask=i < n) + 4, mask=i < n)", "mask=i < n) + 1, mask=i < n)")
    assert machine.run("third", *FEW, program=program)["compiled"] == {}, "the earlier kernel is still in the store"


def test_altered_kernels_are_refused_and_compiled_again(machine: Machine) -> None:
    machine.run("first", *FEW)
    store = machine.kernels
    keys = store.all_keys()
    for key in keys:
        data = bytearray(store.path(key).read_bytes())
        data[-1] ^= 1
        store.path(key).write_bytes(data)
    second = machine.run("second", *FEW)
    assert (second["compiled"], second["ptxas"]) == (once(*FEW), len(FEW))
    assert "kernel-corrupt" in second["said"]
    names = {path.name.partition(".")[0] for path in store.quarantined.iterdir()}
    assert names == set(keys)
    assert machine.run("third", *FEW)["compiled"] == {}, "the sound kernels have replaced the altered ones"


def test_kernels_that_other_users_can_write_are_refused(machine: Machine) -> None:
    machine.run("first", "added")
    machine.kernels.kernels.chmod(0o777)
    second = machine.run("second", "added")
    assert second["compiled"] == {"added": 1} and "store-untrusted" in second["said"]


def test_program_without_a_usable_store_compiles_as_plain_triton(machine: Machine) -> None:
    machine.host.store.root.joinpath("kernels").write_text("not a directory")
    found = machine.run("first", "added")
    assert found["compiled"] == {"added": 1} and "store-un" in found["said"]


# ---------------------------------------------------------------- what is left alone


def test_setting_off_leaves_triton_alone(machine: Machine) -> None:
    found = machine.run("first", "added", PRECOMPILED_TRITON="off")
    assert (found["compiled"], found["manager"]) == ({"added": 1}, None)
    assert machine.kernels.all_keys() == [] and not machine.kernels.kernels.exists()


def test_manager_of_the_program_is_kept(machine: Machine) -> None:
    found = machine.run("first", "added", TRITON_CACHE_MANAGER="own_manager:OwnManager")
    assert (found["compiled"], found["manager"]) == ({"added": 1}, "OwnManager")
    assert machine.kernels.all_keys() == []


def test_folder_of_the_program_gets_all_files(machine: Machine) -> None:
    """Libraries read kernels in TRITON_CACHE_DIR. So the folder gets the kernels of the store, too."""
    for name in ("first", "second"):
        machine.run(name, "added")
    first, second = (
        {path.name for path in (machine.host.root / name / "triton").rglob("*.*")} for name in ("first", "second")
    )
    assert {"added.cubin", "added.json", "added.ptx"} <= first
    assert second == first - {"added.source", "added.ttir", "added.ttgir", "added.llir", "added.ptx"}


def test_setting_texts_keeps_ir_and_ptx(machine: Machine) -> None:
    machine.run("first", "added")
    assert machine.run("second", "added", PRECOMPILED_TRITON="texts")["compiled"] == {"added": 1}
    assert machine.run("third", "added", PRECOMPILED_TRITON="texts")["compiled"] == {}
    found = {path.suffix for path in (machine.host.root / "third" / "triton").rglob("added.*")}
    assert {".ttir", ".ttgir", ".llir", ".ptx", ".cubin", ".json"} <= found


@pytest.mark.parametrize("variable", ["TRITON_ALWAYS_COMPILE", "TRITON_KERNEL_OVERRIDE", "TRITON_KERNEL_DUMP"])
def test_compile_that_tritons_key_does_not_describe_is_not_shared(
    machine: Machine, variable: str, tmp_path: Path
) -> None:
    given = {variable: "1", "TRITON_HOME": str(tmp_path)}
    assert machine.run("first", "added", **given)["compiled"] == {"added": 1}
    assert machine.kernels.all_keys() == []


def test_kernel_from_a_users_ir_is_not_shared(machine: Machine) -> None:
    """Triton's key contains the name of the file, but not its content."""
    machine.run("first", "added")
    keys = set(machine.kernels.all_keys())
    [ir] = (machine.host.root / "first" / "triton").rglob("added.ttir")
    for name in ("second", "third"):
        assert machine.run(name, "added", IR_OVERRIDE=str(ir))["compiled"] == {"added": 1}
    assert set(machine.kernels.all_keys()) == keys


def test_option_of_run_shares_kernels(machine: Machine) -> None:
    command = ("-m", "precompiled", "run", "--triton", "--", sys.executable, str(PROGRAM), "added")
    env = {**machine.tools, "TOOLS_LOG": os.devnull, "TRITON_CACHE_DIR": str(machine.host.root / "triton")}
    answer = machine.host.program(*command, env=env, forked=False).result()
    assert answer["manager"] == "StoreCacheManager" and len(machine.kernels.all_keys()) > 1


# ---------------------------------------------------------------- several hosts


def test_second_host_compiles_nothing_that_the_bucket_has(machine: Machine, tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    mine, theirs, strangers = (
        {
            "PRECOMPILED_REMOTE": f"file://{bucket}",
            "PRECOMPILED_REMOTE_AHEAD_S": "60",
            "XDG_CONFIG_HOME": str(tmp_path / name),
        }
        for name in "abc"
    )
    public = machine.host.answer(mine, "remote", "keys", "new")["public"]
    first = machine.run("first", *FEW, **mine)
    assert first["compiled"] == once(*FEW)
    assert helper_link.ask(machine.host.store.root, {"do": "flush"}, wait_s=TIMEOUT_S) == {}
    kinds = {row["kind"] for row in machine.host.answer(mine, "remote", "ls")["objects"]}
    assert kinds == {"kernel", "list"}

    with new_host() as host:
        second = Machine(host, machine.tools)
        host.answer(theirs, "remote", "keys", "trust", f"{public} a")
        found = second.run("ahead", *FEW, **theirs)
        assert (found["compiled"], found["ptxas"], found["cc"]) == ({}, 0, 0)
    with new_host() as host:  # trusts only a key of its own
        third = Machine(host, machine.tools)
        host.answer(strangers, "remote", "keys", "new")
        found = third.run("strangers", *FEW, **strangers)
        assert found["compiled"] == once(*FEW)
        state = host.answer(strangers, "status", status=None)["remote"]
        assert set(state["refused"]) == {"remote-untrusted"}, state
    shutil.rmtree(bucket / "programs")  # without the list, each kernel is fetched when Triton needs it
    with new_host() as host:
        fourth = Machine(host, machine.tools)
        found = fourth.run("fetched", *FEW, **theirs)
        assert (found["compiled"], found["ptxas"], found["cc"]) == ({}, 0, 0)


def test_baked_kernels_are_used_from_a_base_store(machine: Machine, tmp_path: Path) -> None:
    command = ("bake", "-o", str(tmp_path / "base"), "--", sys.executable, str(PROGRAM), *FEW)
    given = {**machine.tools, "TOOLS_LOG": os.devnull, "PRECOMPILED_TRITON": "on"}
    machine.host.program("-m", "precompiled", *command, env=given, forked=False).ended()
    found = machine.run("first", *FEW, PRECOMPILED_BASE=str(tmp_path / "base"))
    assert (found["compiled"], found["ptxas"], found["cc"]) == ({}, 0, 0)
    assert machine.kernels.all_keys() == []

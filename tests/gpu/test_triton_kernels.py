"""Tests of Triton kernels that a program launches itself (the setting ``triton``), on one host."""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
from pathlib import Path

import pytest
import torch
from support_host import edit
from support_triton import FEW, PROGRAM, Machine, once

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="NOT TESTED ON A GPU: torch.cuda.is_available() is False"),
    pytest.mark.timeout(3000),
]

ALL = 20
# Two kernels are compiled in two configurations each.
COMPILES = ALL + 2


# ---------------------------------------------------------------- one host


def test_second_process_compiles_none_of_twenty_kernels(machine: Machine) -> None:
    first = machine.run("first")
    assert first["kernels"] == ALL
    assert (first["total"], first["ptxas"], first["measured"]) == (COMPILES, COMPILES, 4)
    assert first["cc"] > 0
    second = machine.run("second")
    # ``tuned_once`` takes its configuration from the stored times. ``tuned`` measures again, because Triton does not
    # cache its times.
    assert second["compiled"] == {} and sum(second["found"].values()) == COMPILES - 1
    assert (second["ptxas"], second["cc"], second["measured"]) == (0, 0, 2)
    assert "precompiled: " not in second["said"], "nothing fell back"


def test_times_of_an_autotuner_belong_to_one_kind_of_gpu(machine: Machine) -> None:
    if not (devices := os.environ.get("CUDA_MADE_UP")):
        pytest.skip("NOT TESTED: a host has one kind of GPU")
    assert machine.run("first", "tuned_once")["measured"] == 2
    other = machine.run("second", "tuned_once", CUDA_MADE_UP=",".join(["h200"] * len(devices.split(","))))
    assert other["measured"] == 2
    # The kernels are shared although the times are not, because both kinds of GPU have the same architecture.
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

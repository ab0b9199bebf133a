"""Tests of Triton kernels that hosts share: through a bucket, and in base stores."""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from support_daemon import wait_until
from support_host import TIMEOUT_S, new_host
from support_triton import FEW, PROGRAM, Machine, once

from precompiled.remote import helper_link
from precompiled.store.requests import requests

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="NOT TESTED ON A GPU: torch.cuda.is_available() is False"),
    pytest.mark.timeout(3000),
]


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


@pytest.fixture
def fleet(machine: Machine, tmp_path: Path) -> Iterator[tuple[list[Machine], dict[str, str]]]:
    """Yield two hosts with one signing key, and the variables of their shared remote."""
    given = {
        "PRECOMPILED_REMOTE": f"file://{tmp_path / 'bucket'}",
        "PRECOMPILED_REMOTE_AHEAD_S": "60",
        "XDG_CONFIG_HOME": str(tmp_path / "keys"),
    }
    machine.host.answer(given, "remote", "keys", "new")
    with new_host() as host:
        yield [machine, Machine(host, machine.tools)], given


Fleet = tuple[list[Machine], dict[str, str]]


def test_two_hosts_that_start_at_once_compile_each_kernel_once(fleet: Fleet, tmp_path: Path) -> None:
    hosts, given = fleet
    gate = tmp_path / "gate"
    with gate.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        programs = [one.start("own", *FEW, GATE=str(gate), **given) for one in hosts]
        for program in programs:
            program.wait_for("ready")
    answers = [program.result() for program in programs]
    compiled = [name for answer in answers for name in answer["compiled"].items()]
    assert sorted(compiled) == sorted(once(*FEW).items())
    tools = [one.tools_run("own") for one in hosts]
    assert sum(log.count("ptxas") for log in tools) == len(FEW)
    modules = list((hosts[0].host.root / "own" / "triton").rglob("*.so"))
    assert modules and sum(log.count("cc") for log in tools) == len(modules)
    assert not [text for program in programs for text in program.errors if "precompiled: " in text], "nothing fell back"


def waits(machine: Machine) -> bool:
    """Whether a host has looked twice for a kernel without taking its lease."""
    made = [(request.what, request.path) for request in requests(machine.host.store.root, 0.0)]
    return any(
        made.count((what, path)) > 1 and not any(a == "create" and b.startswith(path) for a, b in made)
        for what, path in made
        if what == "list" and path.startswith("kernels/")
    )


@pytest.mark.fault("remote")
def test_second_host_compiles_the_kernel_whose_compile_is_killed(fleet: Fleet, tmp_path: Path) -> None:
    (first, second), given = fleet
    first.run("own", "shifted", **given)  # so that both hosts have the launcher, and only ``added`` is compiled below
    assert helper_link.ask(first.host.store.root, {"do": "flush"}, wait_s=TIMEOUT_S) == {}
    hold = tmp_path / "hold"
    os.mkfifo(hold)
    killed = first.start("killed", "added", HOLD=str(hold), **given)
    with hold.open("wb"):  # waits for the compiler
        waiting = second.start("own", "added", **given)
        wait_until(lambda: waits(second), "the second host waits for the first one's kernel")
        killed.process.kill()
        killed.process.wait()
        answer = waiting.result()
    assert answer["compiled"] == {"added": 1} and second.tools_run("own") == ["ptxas"]


def test_baked_kernels_are_used_from_a_base_store(machine: Machine, tmp_path: Path) -> None:
    command = ("bake", "-o", str(tmp_path / "base"), "--", sys.executable, str(PROGRAM), *FEW)
    given = {**machine.tools, "TOOLS_LOG": os.devnull, "PRECOMPILED_TRITON": "on"}
    machine.host.program("-m", "precompiled", *command, env=given, forked=False).ended()
    found = machine.run("first", *FEW, PRECOMPILED_BASE=str(tmp_path / "base"))
    assert (found["compiled"], found["ptxas"], found["cc"]) == ({}, 0, 0)
    assert machine.kernels.all_keys() == []

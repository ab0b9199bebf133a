"""Tests of ranks that start unequally: late, killed, without an artifact that others have, or on a separate host.

No rank may hang or compute a wrong result. ``PRECOMPILED_STARTS`` (`make test-ranks`) sets the number of starts.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from support_host import Client, Host, new_host

PROGRAM = Path(__file__).parent.parent / "programs" / "ranks_program.py"
STARTS = int(os.environ.get("PRECOMPILED_STARTS", "9"))
# The limit is far below gloo's timeout of 30 minutes, and far above the time of these compiles on a loaded machine.
HANGS_S = 300.0

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed"),
]

CASES = ("tensor_parallel", "several_groups", "loss_parallel_too")
FAULTS = ("none", "late", "killed", "evicted", "all evicted", "spoiled", "another host", "no daemon", "lookup")


@pytest.fixture(scope="module")
def hosts(shared_host: Host) -> Iterator[tuple[Host, Host]]:
    """Yield a host that keeps the results of earlier starts, and a host whose store is emptied before each start."""
    with new_host(shared_host.served_by) as other:
        yield shared_host, other


def artifacts(host: Host) -> list[Path]:
    return sorted(host.store.artifacts.iterdir()) if host.store.artifacts.is_dir() else []


@pytest.mark.parametrize("number", range(STARTS))
def test_ranks_that_start_unequally_finish_with_equal_results(hosts: tuple[Host, Host], number: int) -> None:
    draw = random.Random(number)
    case, fault = draw.choice(CASES), FAULTS[number % len(FAULTS)]
    host, other = hosts
    if fault == "all evicted" or draw.random() < 0.1:
        for found in artifacts(host):
            shutil.rmtree(found)
    elif fault == "evicted" and artifacts(host):
        shutil.rmtree(draw.choice(artifacts(host)))
    elif fault == "spoiled" and artifacts(host):
        os.truncate(draw.choice(artifacts(host)) / "entry.bin", 100)
    for found in artifacts(other):
        shutil.rmtree(found)
    ranks = start(host, other, case, f"{number}", fault, draw.randrange(2))
    if fault == "killed":
        for rank in ranks:
            rank.process.wait(HANGS_S)
            assert rank.process.returncode != 0
        ranks = start(host, other, case, f"{number}-again", "none", 0)
    for rank in ranks:
        rank.result(timeout_s=HANGS_S)


def start(host: Host, other: Host, case: str, name: str, fault: str, which: int) -> list[Client]:
    """Start two ranks. ``fault`` applies to the rank ``which``."""
    started = []
    for rank in range(2):
        spec = {"case": case, "rank": rank, "ranks": 2, "rendezvous": str(host.root / f"rendezvous-{name}")}
        env = {"OMP_NUM_THREADS": "1", "PRECOMPILED_PACKAGES": "function"}
        on = host
        if rank == which:
            spec |= {"late_s": 3.0} if fault == "late" else {"dies": True} if fault == "killed" else {}
            on = other if fault == "another host" else host
            env |= {"PRECOMPILED_MODE": "lookup"} if fault == "lookup" else {}
            if fault == "no daemon":
                env |= {"PRECOMPILED_AUTOSTART": "0", "PRECOMPILED_RUNTIME_DIR": str(host.root / "no-daemon")}
        started.append(on.start(spec, env=env, program=PROGRAM))
    return started

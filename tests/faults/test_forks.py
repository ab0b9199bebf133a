"""Tests of programs that fork, spawn, or start threads, DataLoader workers and subinterpreters."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support_host import TIMEOUT_S, Host

pytestmark = [pytest.mark.fault("forks"), pytest.mark.integration]

PROGRAM = Path(__file__).parent.parent / "programs" / "forking_program.py"
KINDS = [
    "fork",
    "double fork",
    "vfork",
    "spawn",
    "forkserver",
    "pool",
    "loader",
    "loader that calls",
    "threads",
    "fork in a thread",
    "subinterpreter",
]
WHEN = ["before", "during", "pending", "after"]
EXPECTED = [round(float(item), 4) for item in ((torch.arange(6.0) * 2).sin() + 1)]


@pytest.mark.parametrize("kind", KINDS)
def test_parent_and_children_compute_what_eager_computes(
    shared_host: Host, tries: Callable[[int, int], int], kind: str
) -> None:
    number = tries(1, 28)
    moments = WHEN[2:3] if number == 1 else WHEN
    for count, when in enumerate(moments):
        env = {"OMP_NUM_THREADS": "1"}
        if count % 2 == 0:  # a store of its own, so that the graph is a miss
            env["PRECOMPILED_CACHE_DIR"] = str(shared_host.root / f"store{count}{KINDS.index(kind)}")
        times = number // len(moments)
        client = shared_host.program(
            str(PROGRAM), kind, when, str(times), env=env, forked=kind not in ("spawn", "forkserver")
        )
        found = client.result(timeout_s=TIMEOUT_S)
        assert list(values(found["parent"])) == EXPECTED * 2, (kind, when)
        assert len(found["children"]) == times
        assert set(values(found["children"])) <= {*EXPECTED, 0.0, 2.0, 3.0}, (kind, when)


def values(found: Any) -> Any:
    if isinstance(found, list):
        for item in found:
            yield from values(item)
    else:
        yield found

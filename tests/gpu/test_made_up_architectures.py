"""Tests one row of `python -m benchmarks.architectures --made-up KIND`, and which deviations make a row wrong."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from benchmarks.architectures.table import examine

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(not os.environ.get("CUDA_MADE_UP"), reason="NOT TESTED: this host has no made-up device"),
]


def test_second_process_loads_cubins_and_starts_no_process() -> None:
    (row,) = examine([("bert", "inference")], print, "cuda", "sm_90")
    assert row.right and row.cubins["sm_90"] > 3, row
    assert not replace(row, cubins={}).right
    assert not replace(row, cubins={**row.cubins, "sm_80": 1}).right
    assert not replace(row, started=["subprocess.Popen ptxas"]).right
    assert not replace(row, idle=1).right
    assert replace(row, graphs=2, by_daemon=2, idle=1).right

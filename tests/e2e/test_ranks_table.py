"""Tests the table of `make ranks` with a few of its cases."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.harness import result
from benchmarks.harness.hosts import BenchmarkError
from benchmarks.ranks import CASES, table

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed"),
]


def test_ranks_are_right_served_compiled_once_and_trace_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = table.examine(["ddp_buckets", "fsdp2_checkpointing", "tensor_parallel"], print)
    for row in rows:
        assert row.right and row.graphs == row.served, row
        assert row.compiled[1] == 0, row
        assert row.traced[0] > 0 and row.traced[1] == 0, row

    for row in rows[:2]:
        assert row.compiled[0] <= row.of_one_rank, row

    page = tmp_path / "docs" / "reference" / "coverage.md"
    page.parent.mkdir(parents=True)
    page.write_text("before\n<!-- made by make ranks ARGS=--docs -->\nold\n<!-- end -->\nafter\n")
    monkeypatch.setattr(result, "ROOT", tmp_path)
    result.write_part("make ranks ARGS=--docs", table.report(rows).parts, table.PAGE)
    text = page.read_text()
    assert "old" not in text and text.startswith("before") and text.endswith("after\n")
    assert CASES["ddp_buckets"].about in text and "3 cases were run, 3 are equal" in text


def test_a_case_whose_ranks_fail_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses() -> None:
        raise BenchmarkError("rank 1 ended with 1")

    monkeypatch.setattr(table, "output_of", lambda *_: refuses())
    (row,) = table.examine(["ddp"], print)
    assert not row.right and row.error == "rank 1 ended with 1" and row.cells()[2] == "error"

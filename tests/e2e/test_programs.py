"""Tests the table of `make programs`, with two programs whose libraries are installed and one whose library is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.harness import result
from benchmarks.programs import PROGRAMS, table
from benchmarks.programs.registry import Program

pytestmark = pytest.mark.slow


def test_programs_are_served_in_each_run_and_equal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    absent = Program("not_there", "a_library_that_nobody_has", ("a_library_that_nobody_has",), PROGRAMS["lora"].steps)
    monkeypatch.setitem(PROGRAMS, "not_there", absent)
    rows = table.examine(["accelerate_loop", "physics_informed", "not_there"], print)
    for row in rows[:2]:
        assert row.right, row
        assert row.traced[1:] == [0, 0], row
    assert rows[2].absent == ("a_library_that_nobody_has",)
    assert "not run" in rows[2].cells()[-1]

    page = tmp_path / "docs" / "reference" / "coverage.md"
    page.parent.mkdir(parents=True)
    page.write_text("before\n<!-- made by make programs ARGS=--docs -->\nold\n<!-- end -->\nafter\n")
    monkeypatch.setattr(result, "ROOT", tmp_path)
    result.write_part("make programs ARGS=--docs", table.report(rows).parts, table.PAGE)
    text = page.read_text()
    assert "old" not in text and text.startswith("before") and text.endswith("after\n")
    assert PROGRAMS["accelerate_loop"].about in text
    assert "2 programs of 2 libraries were run, 2 are equal" in text


def test_difference_is_a_remark_of_its_row() -> None:
    row = table.Row("lora", "peft", "", graphs=[1, 1, 1], served=[1, 1, 1], different=["first run, step 0: loss"])
    assert not row.right
    assert row.remarks() == ["first run, step 0: loss"]

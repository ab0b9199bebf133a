"""Tests that CI's turns (tools/test_all.py) contain each test of each suite."""

from __future__ import annotations

import runpy
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_turns_of_ci_contain_all_parts_of_each_suite() -> None:
    tool = runpy.run_path(str(ROOT / "tools" / "test_all.py"))
    parts: dict[str, list[str]] = {name: ["1/1"] for name in tool["EACH_TURN"]}
    for turn in tool["TURNS"]:
        for name, part in turn.items():
            parts.setdefault(name, []).append(part)
    assert set(parts) == {suite.target for suite in tool["SUITES"]}
    assert all(found == [f"{n}/{len(found)}" for n in range(1, len(found) + 1)] for found in parts.values())

"""Tests that if two configurations of one program run in turns, each keeps its own package."""

from __future__ import annotations

from pathlib import Path

import pytest
from support_host import Host
from support_packages import run_program

pytestmark = pytest.mark.slow

PROGRAMS = Path(__file__).resolve().parent.parent / "programs"


@pytest.mark.parametrize("model", ["gpt2", "bert", "llama", "qwen2", "vit"])
def test_two_configurations_in_turns_trace_nothing_from_the_third_run(shared_host: Host, model: str) -> None:
    runs = [
        run_program(shared_host, PROGRAMS, "configurations_program.py", model, which)
        for which in ("one", "other", "one", "other")
    ]
    assert all(run["equal"] for run in runs)
    for recorded in runs[:2]:
        assert "recorded" in recorded["states"], recorded
    for used in runs[2:]:
        assert set(used["states"]) == {"used"}, used

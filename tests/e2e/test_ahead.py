"""Graphs that a program compiles by itself, ahead of their calls: served, waited for, and written down as torch's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support_host import Host

PROGRAM = Path(__file__).parents[1] / "programs" / "ahead_program.py"


def run(host: Host, tmp_path: Path, *way: str, **env: str) -> Any:
    return host.program(str(PROGRAM), str(tmp_path / "written"), *way, env=env).result()


def test_they_wait_for_their_artifacts_and_later_processes_hit(served: Host, tmp_path: Path) -> None:
    """Also in the mode that never waits: nothing of them may run eager."""
    first = run(served, tmp_path, PRECOMPILED_MODE="eager")
    assert first == {"graphs": [["compiled", "swap", "", 0]] * 2, "in_process": []}
    assert run(served, tmp_path) == {"graphs": [["compiled", "hit", "", 0]] * 2, "in_process": []}
    # What torch has written down is its own.
    assert run(served, tmp_path, "load", PRECOMPILED="0") == {"graphs": [], "in_process": []}


@pytest.mark.parametrize(
    ("way", "mode", "reason"),
    [("refused", "wait", "vllm-context"), ("", "lookup", "lookup-only")],
)
@pytest.mark.reason("vllm-context")
def test_what_cannot_be_served_is_compiled_by_the_program(
    served: Host, tmp_path: Path, way: str, mode: str, reason: str
) -> None:
    found = run(served, tmp_path, *filter(None, [way]), PRECOMPILED_MODE=mode)
    assert found == {"graphs": [["bypassed", "inline", reason, 0]] * 2, "in_process": ["all", "four"]}


@pytest.mark.reason("size-guards")
def test_what_holds_for_some_sizes_only_is_compiled_by_the_program(served: Host, tmp_path: Path) -> None:
    """A call of other sizes could not wait for another variant."""
    for _ in range(2):
        found = run(served, tmp_path, "guarded")
        assert found["graphs"][0][:3] == ["bypassed", "inline", "size-guards"] and found["in_process"][0] == "all"


def test_without_us_they_are_the_programs(served: Host, tmp_path: Path) -> None:
    assert run(served, tmp_path, PRECOMPILED="0") == {"graphs": [], "in_process": ["all", "four"]}

"""Tests of graphs that a program compiles before their first call, as vLLM does.

The daemon serves these graphs, each call waits for its artifact, and torch can save the compiled graphs to a file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support_host import Host

pytestmark = pytest.mark.integration

PROGRAM = Path(__file__).parents[1] / "programs" / "ahead_program.py"


def run(host: Host, tmp_path: Path, *way: str, **env: str) -> Any:
    return host.program(str(PROGRAM), str(tmp_path / "written"), *way, env=env).result()


def test_graphs_compiled_ahead_wait_for_artifacts_and_hit_later(served: Host, tmp_path: Path) -> None:
    """A graph that is compiled ahead must not run eager, so its call waits for the artifact even in the mode
    "eager".
    """
    first = run(served, tmp_path, PRECOMPILED_MODE="eager")
    assert first == {"graphs": [["compiled", "swap", "", 0]] * 2, "in_process": []}
    assert run(served, tmp_path) == {"graphs": [["compiled", "hit", "", 0]] * 2, "in_process": []}
    # torch has saved the graphs to a file, which must also work without precompiled.
    assert run(served, tmp_path, "load", PRECOMPILED="0") == {"graphs": [], "in_process": []}


@pytest.mark.parametrize(
    ("way", "mode", "reason"),
    [("refused", "wait", "vllm-context"), ("", "lookup", "lookup-only")],
)
@pytest.mark.reason("vllm-context")
def test_graphs_that_cannot_be_served_are_compiled_in_process(
    served: Host, tmp_path: Path, way: str, mode: str, reason: str
) -> None:
    found = run(served, tmp_path, *filter(None, [way]), PRECOMPILED_MODE=mode)
    assert found == {"graphs": [["bypassed", "inline", reason, 0]] * 2, "in_process": ["all", "four"]}


@pytest.mark.reason("size-guards")
def test_graphs_with_size_guards_are_compiled_in_process(served: Host, tmp_path: Path) -> None:
    """A graph with size guards is not served, because a call at other sizes could not wait for another variant."""
    for _ in range(2):
        found = run(served, tmp_path, "guarded")
        assert found["graphs"][0][:3] == ["bypassed", "inline", "size-guards"] and found["in_process"][0] == "all"


def test_disabled_precompiled_leaves_graphs_compiled_ahead_to_the_program(served: Host, tmp_path: Path) -> None:
    assert run(served, tmp_path, PRECOMPILED="0") == {"graphs": [], "in_process": ["all", "four"]}

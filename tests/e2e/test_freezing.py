"""Frozen weights: by their content, and as in plain torch.compile where they are changed in place afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support_host import Host

PROGRAM = Path(__file__).parent.parent / "programs" / "freezing_program.py"


def run(host: Host, scenario: str, **env: str) -> tuple[bool, list[Any]]:
    answer = host.program(str(PROGRAM), scenario, env=env).result()
    (graph,) = answer["graphs"]
    return answer["equal"], graph


@pytest.mark.slow
def test_weights_that_are_changed_after_the_swap_show_where_they_do_in_plain(served: Host) -> None:
    """Packed ones do not, others do. In the process that awaited the artifact, and in one that found it."""
    assert run(served, "after-the-swap")[1][:3] == ["compiled", "swap", ""]
    equal, (*graph, key) = run(served, "after-the-swap")
    assert (equal, graph) == (True, ["compiled", "hit", ""])

    equal, (*graph, other) = run(served, "of-another-value")
    assert (equal, graph) == (True, ["compiled", "swap", ""])
    assert other != key


@pytest.mark.reason("weights-changed")
def test_a_weight_that_is_changed_before_the_swap(host: Host) -> None:
    """What was compiled holds for the old value: it would be wrong from a moment on that nobody can tell."""
    equal, graph = run(host, "before-the-swap")
    assert equal
    assert graph[:3] == ["bypassed", "inline", "weights-changed"]
    # The old values are served all the same.
    assert run(host, "after-the-swap")[1][:3] == ["compiled", "hit", ""]


@pytest.mark.reason("freezing")
def test_weights_of_more_bytes_than_may_travel(host: Host) -> None:
    equal, graph = run(host, "of-another-value", PRECOMPILED_MAX_GRAPH_BYTES="1000")
    assert (equal, graph[:3]) == (True, ["bypassed", "inline", "freezing"])

"""Tests of frozen weights. The key contains their content. A later in-place change of a weight has the same effect as
in plain torch.compile.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support_host import Host

pytestmark = pytest.mark.integration

PROGRAM = Path(__file__).parent.parent / "programs" / "freezing_program.py"


def run(host: Host, scenario: str, **env: str) -> tuple[bool, list[Any]]:
    answer = host.program(str(PROGRAM), scenario, env=env).result()
    (graph,) = answer["graphs"]
    return answer["equal"], graph


@pytest.mark.slow
def test_weights_changed_after_the_swap_act_as_in_plain_torch(served: Host) -> None:
    """In plain torch.compile, a later change has an effect unless the weight was packed. Swaps and hits must agree."""
    assert run(served, "after-the-swap")[1][:3] == ["compiled", "swap", ""]
    equal, (*graph, key) = run(served, "after-the-swap")
    assert (equal, graph) == (True, ["compiled", "hit", ""])

    equal, (*graph, other) = run(served, "of-another-value")
    assert (equal, graph) == (True, ["compiled", "swap", ""])
    assert other != key


@pytest.mark.reason("weights-changed")
def test_weight_changed_before_the_swap_causes_a_bypass(host: Host) -> None:
    """The compiled code contains the old value of the weight, so its results would be wrong after the swap."""
    equal, graph = run(host, "before-the-swap")
    assert equal
    assert graph[:3] == ["bypassed", "inline", "weights-changed"]
    # The artifact is still a cache hit for a process whose weights have the old values.
    assert run(host, "after-the-swap")[1][:3] == ["compiled", "hit", ""]


@pytest.mark.reason("freezing")
def test_frozen_weights_above_the_size_limit_cause_a_bypass(host: Host) -> None:
    equal, graph = run(host, "of-another-value", PRECOMPILED_MAX_GRAPH_BYTES="1000")
    assert (equal, graph[:3]) == (True, ["bypassed", "inline", "freezing"])

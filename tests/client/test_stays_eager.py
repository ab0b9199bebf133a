"""Test of ``PRECOMPILED_TARGET``: graphs are compiled for a different GPU, and calls in this process run eager
(docs/decisions/0046).
"""

from __future__ import annotations

import pytest
from support_host import Host

# Eager and compiled dropout draw different numbers, so a call that returns the numbers of an eager call ran eager.
TEXT = """if 1:
    import json, sys, torch, precompiled
    def function(x):
        return torch.nn.functional.dropout(x, 0.5) + x.sum()
    def drawn(called, x):
        torch.manual_seed(1)
        return called(x).tolist()
    compiled = torch.compile(function, dynamic=True)
    precompiled.enable()
    same = []
    for size in (64, 65):
        x = torch.ones(size)
        same.append(drawn(compiled, x) == drawn(function, x))
    precompiled.wait(300)
    same.append(drawn(compiled, x) == drawn(function, x))
    print(json.dumps([same, [[graph.state, graph.source] for graph in precompiled.report()]]))
"""


@pytest.mark.slow  # compiles one graph for the CPU
def test_calls_run_eager_after_a_swap_and_a_hit(shared_host: Host) -> None:
    def run(**variables: str) -> object:
        return shared_host.program("-c", TEXT, env={"PRECOMPILED_MODE": "wait", **variables}).result()

    target = {"PRECOMPILED_TARGET": "h100"}
    assert run(**target) == [[True, True, True], [["compiled", "swap"]]]
    assert run(**target) == [[True, True, True], [["compiled", "hit"]]]
    # Without PRECOMPILED_TARGET, compiled code runs, and its dropout does not draw the numbers of eager code.
    assert run() in ([[False, False, False], [["compiled", how]]] for how in ("hit", "package"))

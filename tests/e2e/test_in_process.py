"""Tests of graphs that are compiled in process. The graphs' guards and results must be right, and no error may be
printed.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import support_corpus
from support_host import Host

from precompiled.store import eviction
from precompiled.store.artifact_format import Failure

REFUSED = Path(__file__).parent.parent / "programs" / "refused_program.py"
BROKEN = Path(__file__).parent.parent / "programs" / "broken_submit_program.py"


@pytest.mark.slow
def test_graph_above_the_size_limit_is_compiled_in_process_with_guards(served: Host) -> None:
    """A client does not submit a graph above the size limit, so the graph must be compiled in process."""
    names = ("pool_of_any_size", "branch_on_a_size", "custom_function", "checkpoint_with_dropout")
    answer = support_corpus.run(served, *names, env={"PRECOMPILED_MAX_GRAPH_BYTES": "10"})
    assert support_corpus.wrong(answer) == {}
    for name in names:
        graphs = {tuple(graph) for graph in answer[name]["graphs"]}
        # A graph is compiled at its next call. If a graph has no further call, its source is None.
        assert ("bypassed", "inline", "too-large") in graphs
        assert graphs <= {("bypassed", "inline", "too-large"), ("bypassed", None, "too-large")}


SIZES = """
import json
import precompiled
import torch
import torch.nn.functional as F

def pool(x):  # each size has code of its own
    return F.adaptive_avg_pool2d(x[None, None], 3)

compiled = torch.compile(pool, dynamic=True, backend="precompiled")
inputs = [torch.rand(size, size) for size in (9, 12, 16)]
for _ in range(3):
    for x in inputs:
        torch.testing.assert_close(compiled(x), pool(x))
    assert precompiled.wait(60)
(before,) = precompiled.report()
for x in inputs:
    torch.testing.assert_close(compiled(x), pool(x))
(graph,) = precompiled.report()
print(json.dumps([graph.state, graph.source, graph.reason, graph.calls_eager - before.calls_eager]))
"""


FLOATS = """
import json
import sys
import precompiled
import torch

class Clamped(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.low = 2.5

    def forward(self, x):
        return x[:, None].float().clamp(self.low).expand(-1, 8)

torch.manual_seed(0)
first = {"embedding": torch.nn.Embedding(20, 8), "clamp": Clamped()}[sys.argv[1]]
model = torch.nn.Sequential(first, torch.nn.Linear(8, 4))
compiled = torch.compile(model, dynamic=True, backend="precompiled")
for length in (6, 7, 8, 9, 10, 11):
    x = torch.arange(length)
    torch.testing.assert_close(compiled(x), model(x))
    assert precompiled.wait(60)
graphs = precompiled.report()
print(json.dumps([[graph.state, graph.source, graph.reason, graph.calls_compiled > 0] for graph in graphs]))
"""


@pytest.mark.integration
@pytest.mark.parametrize("mode", ["eager", "wait"])
def test_graph_with_a_fixed_float_is_retraced_and_served(served: Host, mode: str) -> None:
    """With ``dynamic=True`` a float of the module becomes a symbol. AOTAutograd then makes the float's value a
    constant.

    The graph is retraced with the constant, so that later processes can share its artifact.
    """
    file = served.project(floats=FLOATS) / "floats.py"
    found = served.program(str(file), "clamp", env={"PRECOMPILED_MODE": mode}).result()
    assert found[0][0] == "bypassed" and found[0][2] == "fixed-float"
    assert found[-1] == ["compiled", "swap", "", True], found
    again = served.program(str(file), "clamp", env={"PRECOMPILED_MODE": mode}).result()
    assert again[-1][:2] in (["compiled", "hit"], ["compiled", "package"]), again


@pytest.mark.integration
def test_float_that_no_operator_reads_costs_no_compile(served: Host) -> None:
    """No operator reads the float ``norm_type`` of an embedding. Dynamo must retrace the function before any
    compile.
    """
    file = served.project(floats=FLOATS) / "floats.py"
    assert served.program(str(file), "embedding").result() == [["compiled", "swap", "", True]]


@pytest.mark.integration
def test_later_sizes_of_a_refused_graph_are_compiled_in_process(served: Host) -> None:
    file = served.project(sizes=SIZES) / "sizes.py"
    found = served.program(str(file), env={"PRECOMPILED_MAX_GRAPH_BYTES": "10"}).result()
    assert found == ["bypassed", "inline", "too-large", 0]


@pytest.mark.integration
def test_failure_record_does_not_leave_collectives_eager(served: Host) -> None:
    """If only one rank had the failure record, it alone would run eager, and the ranks could hang.

    A graph with collectives is therefore compiled in process despite its failure record.
    """
    name = "collective"
    looked_up = support_corpus.run(served, name, env={"PRECOMPILED_MODE": "lookup"})[name]
    assert looked_up["graphs"] == [["bypassed", "inline", "lookup-only"]] and not looked_up["error"]
    (key,) = looked_up["keys"]
    served.store.publish_failure(Failure(key, name, "compile-error", "It failed.", time.time(), 3600.0))
    assert support_corpus.run(served, name)[name]["graphs"] == [["bypassed", "inline", "worker-only-error"]]


@pytest.mark.integration
def test_internal_error_during_a_miss_does_not_reach_the_program(served: Host) -> None:
    answer = served.program(str(BROKEN)).result()
    assert answer == {"state": "bypassed", "source": "inline", "reason": "internal-error", "waited": True}


@pytest.mark.reason("compile-error")
@pytest.mark.integration
def test_compile_error_is_raised_with_the_message_of_torch(served: Host) -> None:
    """The program must get plain torch's error in three cases: the daemon compiles the graph first, a failure record
    exists, or the mode is "wait".
    """

    def run(**env: str) -> Any:
        return served.program(str(REFUSED), env=env).result()

    plain, _ = run(PRECOMPILED="0")
    assert "BackendCompilerFailed" in plain[0] and "backend='inductor'" in plain[0] and len(set(plain)) == 1
    late, graphs = run()
    assert late == ["", *plain[1:]] and graphs == [["bypassed", None, "compile-error"]]
    by_its_record, graphs = run()
    # Each of the three calls fails, so Dynamo traces the graph at each call.
    assert by_its_record == plain and graphs == [["bypassed", None, "compile-error"]] * 3
    eviction.clear(served.store)
    waited, graphs = run(PRECOMPILED_MODE="wait")
    assert waited == plain and graphs == [["bypassed", None, "compile-error"]] * 3
    assert served.stats().fallbacks == {"compile-error": 7}

"""Tests that a program sees the same behaviour before and after a swap, with real artifacts.

docs/explanation/stand-in.md describes the behaviour before a swap.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support_host import Host

PROGRAM = Path(__file__).parent.parent / "programs" / "swapped_program.py"


@pytest.mark.integration
def test_retain_graph_and_double_backward_are_the_same_after_the_swap(served: Host) -> None:
    """A worker compiles the backward before any call. The compiled backward must not overwrite saved tensors, because a
    program may retain the graph and call the backward again.
    """
    before, after = served.program(str(PROGRAM)).result()
    assert (before["state"], after["state"]) == ("pending", "compiled")
    for found in (before, after):
        assert found["retained"]
        assert found["differentiated"] == "torch.compile with aot_autograd does not currently support double backward"


OVERLAPPING = """\
import json
import torch
import precompiled

precompiled.enable()

def added(x, y, number):
    return x.add_(number), y.mul_(2)

compiled = torch.compile(added, dynamic=True)
for size in (10, 12):  # that the sizes are symbols
    for _ in range(2):
        given, wanted = torch.arange(float(size)), torch.arange(float(size))
        compiled(given, given[1:-1], 3)
        added(wanted, wanted[1:-1], 3)
        torch.testing.assert_close(given, wanted)
        assert precompiled.wait(300)
print(json.dumps([graph.reason for graph in precompiled.report()]))
"""


@pytest.mark.integration
def test_dynamic_inputs_with_shared_mutated_memory_do_not_raise(served: Host) -> None:
    """Neither a worker nor, after the trace, the client can compile a graph that changes inputs with shared memory.

    The graph must stay eager instead of raising an error.
    """
    (served.root / "overlapping.py").write_text(OVERLAPPING)
    assert served.program(str(served.root / "overlapping.py")).result() == ["aliased-mutation"]


SETTINGS = """
import json, threading
import precompiled
import torch
import torch._functorch.config as functorch
import torch._inductor.config as inductor
from precompiled.torch_internals.client import load_artifact as loading

seen, load_bundle = [], loading.load_bundle

def noted(*args, **options):
    in_the_program = threading.current_thread() is threading.main_thread()
    seen.append([in_the_program, functorch.view_replay_for_aliased_outputs, inductor.triton.cudagraph_trees,
                 inductor.max_fusion_size])
    return load_bundle(*args, **options)

loading.load_bundle = noted
functorch.view_replay_for_aliased_outputs = False
inductor.triton.cudagraph_trees = False

def double(x):
    return x * 2

for _ in range(2):
    compiled = torch.compile(double, options={"max_fusion_size": 17}, backend="precompiled")
    for _ in range(2):
        compiled(torch.ones(4))
        assert precompiled.wait(60)
    torch._dynamo.reset()
print(json.dumps([seen, [graph.source for graph in precompiled.report()], inductor.max_fusion_size]))
"""


@pytest.mark.integration
def test_artifact_is_loaded_with_the_settings_of_its_compile(served: Host) -> None:
    """When torch loads an artifact, it reads settings such as cudagraph_trees.

    A thread of precompiled may load an artifact. Since torch 2.13, each thread has its own settings.
    """
    file = served.project(settled=SETTINGS) / "settled.py"
    seen, sources, after = served.program(str(file)).result()
    assert sources == ["swap", "hit"] and after != 17
    assert seen == [[False, False, False, 17], [True, False, False, 17]]

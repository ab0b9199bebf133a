"""Tests of a package whose artifacts do not serve the size of a call.

The package stays in use. The call runs eager at once, and the daemon compiles a variant for the size. From calls,
Dynamo also learns which sizes and numbers change. It must learn the same from a package hit as from a trace.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from support_host import Host

# AOTAutograd adds guards that limit the compiled code of this program to one size. Dynamo does not have these guards.
PROGRAM = """
import json, sys
import torch, precompiled
import torch.nn.functional as F

precompiled.enable()

def pool(x):
    return F.adaptive_avg_pool2d(x[None, None], 3)

compiled = torch.compile(pool, dynamic=True)
for rows in json.loads(sys.argv[1]):
    for _ in range(2):
        x = torch.randn(rows, rows)
        torch.testing.assert_close(compiled(x), pool(x))
        assert precompiled.wait(300)
(graph,) = precompiled.report()
print(json.dumps([graph.source, graph.calls_eager, graph.calls_compiled, dict(torch._dynamo.utils.counters["frames"])]))
"""


def run(host: Host, *rows: int) -> Any:
    return host.program("-c", PROGRAM, json.dumps(rows), env={"PRECOMPILED_PACKAGES": "function"}).result()


@pytest.mark.integration
def test_call_at_an_unserved_size_runs_eager_and_compiles_a_variant(served: Host) -> None:
    assert run(served, 7) == ["swap", 1, 1, {"total": 1, "ok": 1}]
    assert run(served, 7) == ["package", 0, 2, {}]
    compiled = served.stats().compiled
    assert run(served, 7, 9) == ["package", 1, 3, {}], "the first call at another size is eager, the next is compiled"
    assert served.stats().compiled == compiled + 1
    assert run(served, 9, 7) == ["package", 0, 4, {}]


# Dynamo turns a float into a symbol when a call has a second value. The float is in a frame, an inlined function and a
# closure.
LEARNS = """
import json, sys
import torch, precompiled

precompiled.enable()

def inner(x, rate):
    return x.sin() * rate + rate

def around(function):
    return lambda x, rate: function(x, rate) + 1

def frame(x, rate):
    return x.sin() * rate + rate
def inlined(x, rate):
    return inner(x, rate) + 1
closure = around(inner)

for function in (frame, inlined, closure):
    compiled = torch.compile(function)
    for rate in json.loads(sys.argv[1]):
        x = torch.randn(8)
        torch.testing.assert_close(compiled(x, rate), function(x, rate))
        assert precompiled.wait(300)
sources = [graph.source for graph in precompiled.report()]
print(json.dumps([[graph.key for graph in precompiled.report()], sources]))
"""


def learn(host: Host, *rates: float, packages: str = "function") -> Any:
    """Run LEARNS with these rates. Returns the keys and the sources of the graphs."""
    return host.program("-c", LEARNS, json.dumps(rates), env={"PRECOMPILED_PACKAGES": packages}).result()


@pytest.mark.integration
def test_trace_after_a_package_hit_knows_the_sizes_that_the_package_met(served: Host) -> None:
    keys, _sources = learn(served, 0.1, 0.2, 0.3, packages="off")
    assert len(keys) == 6 and len(set(keys)) == 4, "a static graph and a dynamic one each; two functions are alike"
    assert learn(served, 0.1) == [keys[::2], ["hit"] * 3]
    assert learn(served, 0.1, 0.2, 0.3) == [keys, ["package", "hit"] * 3]


# torch cannot compile the graph of this program once the float is a symbol.
RAISES = """
import json
import torch, precompiled
from torch.nn.attention.flex_attention import flex_attention

precompiled.enable("wait")

def attend(x, rate):
    return flex_attention(x, x, x, score_mod=lambda score, b, h, i, j: score + (i - j) * rate)

compiled = torch.compile(attend)
x = torch.randn(1, 1, 128, 16)
given = []
for rate in (0.1, 0.2, 0.1, 0.3):
    try:
        torch.testing.assert_close(compiled(x, rate), attend(x, rate))
        given.append("eager's")
    except torch._dynamo.exc.TorchDynamoException as error:
        given.append(type(error).__name__)
print(json.dumps(given))
"""


@pytest.mark.slow
def test_each_process_raises_what_plain_torch_compile_raises(served: Host) -> None:
    plain, *ours = [
        served.program("-c", RAISES, env={"PRECOMPILED_PACKAGES": "function", **more}).result()
        for more in ({"PRECOMPILED": "0"}, {}, {}, {})
    ]
    assert plain[0] == "eager's" != plain[1]
    assert ours == [plain, plain, plain]

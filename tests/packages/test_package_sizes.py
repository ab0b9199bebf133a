"""Sizes that no artifact serves: a package is used, the call runs eager at once, and a variant for it is compiled."""

from __future__ import annotations

import json
from typing import Any

from support_host import Host

# Compiled for one size, it holds for that size alone (guards of AOTAutograd's, which Dynamo's do not have).
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


def test_a_size_that_no_artifact_serves(served: Host) -> None:
    assert run(served, 7) == ["swap", 1, 1, {"total": 1, "ok": 1}]
    assert run(served, 7) == ["package", 0, 2, {}]
    compiled = served.stats().compiled
    assert run(served, 7, 9) == ["package", 1, 3, {}], "the first call at another size is eager, the next is compiled"
    assert served.stats().compiled == compiled + 1
    assert run(served, 9, 7) == ["package", 0, 4, {}]

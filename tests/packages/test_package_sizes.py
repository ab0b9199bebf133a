"""Sizes that no artifact serves: a package is used, the call runs eager at once, and a variant for it is compiled."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from support_host import TIMEOUT_S, Host

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
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(rows)], env=host.environment({"PRECOMPILED_PACKAGES": "function"}),
        cwd=host.root, capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_a_size_that_no_artifact_serves(host: Host) -> None:
    host.start_daemon()
    assert run(host, 7) == ["swap", 1, 1, {"total": 1, "ok": 1}]
    assert run(host, 7) == ["package", 0, 2, {}]
    compiled = host.stats().compiled
    assert run(host, 7, 9) == ["package", 1, 3, {}], "the first call at another size is eager, the next is compiled"
    assert host.stats().compiled == compiled + 1
    assert run(host, 9, 7) == ["package", 0, 4, {}]

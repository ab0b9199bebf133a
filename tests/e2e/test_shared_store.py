"""Tests a store on a shared file system, where another host may remove an artifact that a process uses."""

from __future__ import annotations

import pytest
from support_host import Host

# The program makes precompiled treat the store's file system as shared. The program then truncates the artifact's
# libraries. The effect is that of a removal on a network file system: the process loses the pages that it has mapped.
PROGRAM = """\
import json, os, sys
from pathlib import Path
from precompiled.core import filesystems

if sys.argv[1] == "shared":
    filesystems.NETWORK = {filesystems.kind_of(os.environ["PRECOMPILED_CACHE_DIR"])}
import torch
import precompiled

precompiled.enable()

def scaled(x, y):
    return ((x * 2.0 + y).relu() + 1).sin()

compiled = torch.compile(scaled)
x, y = torch.ones(64, 16), torch.ones(64, 16)
assert torch.equal(compiled(x, y), scaled(x, y))
assert precompiled.wait(300)
(graph,) = precompiled.report()
files = list(Path(os.environ["PRECOMPILED_CACHE_DIR"]).glob("artifacts/*/native/*.so"))
maps = Path("/proc/self/maps").read_text()
mapped = [str(file) in maps for file in files]
if sys.argv[1] == "shared":
    for file in files:
        os.truncate(file, 0)
torch.testing.assert_close(compiled(x, y), scaled(x, y))
print(json.dumps({"source": graph.source, "mapped": mapped, "fds": len(os.listdir("/proc/self/fd"))}))
"""


@pytest.mark.integration
def test_native_code_survives_the_removal_of_its_shared_file(served: Host) -> None:
    file = served.root / "train.py"
    file.write_text(PROGRAM)
    local = served.program(str(file), "local").result()
    assert local["mapped"] == [True], "it is mapped where it lies, and costs no memory of its own"
    shared = served.program(str(file), "shared").result()
    assert (shared["source"], shared["mapped"]) == ("hit", [False])

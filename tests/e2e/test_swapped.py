"""What a program sees before a swap it sees after it, with real artifacts (docs/stand-in.md)."""

from __future__ import annotations

from pathlib import Path

from support_host import Host

PROGRAM = Path(__file__).parent.parent / "programs" / "swapped_program.py"


def test_retained_and_differentiated_backwards_are_the_same_before_and_after_the_swap(served: Host) -> None:
    """A worker compiles the backward before it is called, and may let it overwrite what the forward saved for it."""
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


def test_inputs_of_any_size_over_one_memory_that_the_graph_changes(served: Host) -> None:
    """Torch cannot compile that in a worker, nor here once the trace has ended; a call must not raise for it."""
    (served.root / "overlapping.py").write_text(OVERLAPPING)
    assert served.program(str(served.root / "overlapping.py")).result() == ["aliased-mutation"]

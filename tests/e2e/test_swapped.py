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

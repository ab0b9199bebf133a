"""What a program sees before a swap it sees after it, with real artifacts (docs/stand-in.md)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from support_host import TIMEOUT_S, Host

PROGRAM = Path(__file__).parent.parent / "programs" / "swapped_program.py"


def test_retained_and_differentiated_backwards_are_the_same_before_and_after_the_swap(host: Host) -> None:
    """A worker compiles the backward before it is called, and may let it overwrite what the forward saved for it."""
    done = subprocess.run(
        [sys.executable, str(PROGRAM)], env=host.environment(), capture_output=True, text=True, timeout=TIMEOUT_S,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    before, after = json.loads(done.stdout.splitlines()[-1])
    assert (before["state"], after["state"]) == ("pending", "compiled")
    for found in (before, after):
        assert found["retained"]
        assert found["differentiated"] == "torch.compile with aot_autograd does not currently support double backward"

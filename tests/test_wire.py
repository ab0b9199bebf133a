"""The messages' decoders are whole once the module is imported."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import sys
from precompiled import wire
from precompiled.core.errors import WireError
called = []
sys.setprofile(lambda frame, event, arg: called.append(frame.f_code) if event == "call" else None)
for kind in (wire.ClientMessage, wire.DaemonMessage, wire.PoolMessage, wire.WorkerMessage, wire.ToWatcher,
             wire.FromWatcher):
    try:
        wire.decode(b"\\x80", kind)
    except WireError:
        pass
sys.setprofile(None)
assert called, "the profile saw nothing"
late = sorted({code.co_name for code in called if "msgspec" in code.co_filename})
assert not late, late
"""


def test_no_message_is_the_one_that_makes_its_decoder() -> None:
    """msgspec calls Python while it makes one; a fork then gave a child that died of a segmentation fault."""
    subprocess.run([sys.executable, "-c", SCRIPT], check=True, timeout=60)

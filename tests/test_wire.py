"""Tests that the import of ``wire`` creates all decoders of messages."""

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


def test_decoders_exist_before_the_first_message() -> None:
    """msgspec runs Python code while it creates a decoder. If another thread forks at that time, the child crashes with
    a segmentation fault.
    """
    subprocess.run([sys.executable, "-c", SCRIPT], check=True, timeout=60)

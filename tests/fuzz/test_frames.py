"""Runs ``make fuzz-frames`` for a short time."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.fuzz.frames import daemon_for_frames, fuzz


def test_fuzzed_messages_are_refused_and_harm_no_other_client(tmp_path: Path) -> None:
    with daemon_for_frames(tmp_path) as daemon:
        found = fuzz(daemon, 4000, seed=1)
    assert not found.faults, found.faults[0]
    assert found.invalid > 1000 and len(found.status_s) >= 3
    assert found.rss[-1][1] - found.rss[0][1] < 32 << 20

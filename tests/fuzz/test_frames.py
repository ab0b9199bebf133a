"""Runs ``make fuzz-frames`` for a short time."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.fuzz.frames import daemon_for_frames, fuzz


@pytest.mark.fault("frames")
@pytest.mark.timeout(1800)  # for the full form
def test_fuzzed_messages_are_refused_and_harm_no_other_client(tmp_path: Path, tries: Callable[[int, int], int]) -> None:
    count = tries(4000, 1_000_000)
    with daemon_for_frames(tmp_path) as daemon:
        found = fuzz(daemon, count, seed=1)
    assert not found.faults, found.faults[0]
    assert found.invalid > count / 4 and len(found.status_s) >= 3
    assert found.rss[-1][1] - found.rss[0][1] < 32 << 20
    assert found.growth < 10, "bytes per message, in the second half of the full form"

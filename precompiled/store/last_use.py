"""Marks what a store holds as used, for eviction by least recent use."""

from __future__ import annotations

import os
import time
from pathlib import Path

from precompiled.core import interruptions

# Seconds between two updates: a loop of steps must not write metadata all the time.
TOUCH_INTERVAL_S = 60.0


def mark_used(path: Path) -> None:
    """Mark a file or directory as used now, at most once per interval. Best effort: the store may be read-only."""
    try:
        # abs(), because the clock may have run ahead at the last use. The path would then never be evicted.
        if abs(time.time() - os.lstat(path).st_mtime) > TOUCH_INTERVAL_S:
            os.utime(path, follow_symlinks=False)
    except OSError as error:
        interruptions.pass_on(error)

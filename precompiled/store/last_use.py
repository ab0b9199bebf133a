"""Marks files of a store as used, because evictions remove the least recently used files first."""

from __future__ import annotations

import os
import time
from pathlib import Path

from precompiled.core import interruptions

# The minimum number of seconds between two updates, so that a training loop does not write metadata in each step.
TOUCH_INTERVAL_S = 60.0


def mark_used(path: Path) -> None:
    """Mark a file or directory as used now, at most once per interval. Best effort: the store may be read-only."""
    try:
        # abs(), because the clock may have been ahead at the last use. A path with a time in the future would not be
        # evicted.
        if abs(time.time() - os.lstat(path).st_mtime) > TOUCH_INTERVAL_S:
            os.utime(path, follow_symlinks=False)
    except OSError as error:
        interruptions.pass_on(error)

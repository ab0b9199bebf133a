"""Draws the processes and graphs that are checked, by the settings ``check`` and ``package_audit``."""

from __future__ import annotations

import os


def is_drawn(fraction: float) -> bool:
    """Whether this case is in the sample. Does not use ``random``, whose state belongs to the user."""
    return int.from_bytes(os.urandom(4), "little") < fraction * 2**32

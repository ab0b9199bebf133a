"""Defines spans: measured intervals of a thread, for display. No decision depends on them."""

from __future__ import annotations

import threading
import time
from typing import NamedTuple

# The moment of a graph's second call (client/ledger.py). This span has no duration.
SECOND_CALL = "second call"
# The program blocks until no graph is pending.
WAITED = "precompiled.wait()"
# A trace or lookup waits until the helper has fetched objects.
WAITED_FOR_REMOTE = "wait for the remote"
# The compile of a graph that no artifact serves.
IN_PROCESS = "compile in process"


class Span(NamedTuple):
    """One interval. ``began``: seconds since the epoch. ``thread``: the kernel's id of the thread."""

    what: str
    began: float
    seconds: float
    thread: int

    @property
    def ended(self) -> float:
        return self.began + self.seconds


def span_until_now(what: str, seconds: float) -> Span:
    """The span of work that this thread has done for ``seconds`` until now."""
    return Span(what, time.time() - seconds, seconds, threading.get_native_id())

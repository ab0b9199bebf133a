"""What took how long, for people: a name, when it began, and its seconds. Nothing is decided by it."""

from __future__ import annotations

import threading
import time
from typing import NamedTuple


class Span(NamedTuple):
    """``began``: seconds since the epoch. ``thread``: the kernel's number of the thread that did it."""

    what: str
    began: float
    seconds: float
    thread: int

    @property
    def ended(self) -> float:
        return self.began + self.seconds


def ended(what: str, seconds: float) -> Span:
    """Of something that this thread has done for ``seconds`` until now."""
    return Span(what, time.time() - seconds, seconds, threading.get_native_id())

"""Makes the daemon's log safe: one line per record, whatever a peer put into it, and a limit on lines per user.

Ids, names, paths, device names and a worker's last output come from outside. This file escapes them for all loggers.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable

from precompiled.service.bounded import put_newest

MAX_CHARS = 4000  # limit for one message
MAX_TEXT = 80  # characters of a short text from outside
BURST, PER_S = 200.0, 20.0  # lines of one user: at once, and per second afterwards
MAX_USERS = 1000  # a user may have thousands of uids (subuid(5)); the uid of the oldest line is forgotten first
REPORT_S = 10.0  # seconds between two reports of how many lines were left out
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def escape(text: str) -> str:
    """``text`` in one line, without terminal control characters."""
    return _CONTROL.sub(lambda found: found.group().encode("unicode_escape").decode(), text)


def plain(text: str, limit: int = MAX_TEXT) -> str:
    """The first ``limit`` characters of a text from outside, escaped."""
    return escape(text[:limit])


class LineFormatter(logging.Formatter):
    """One line per record. Traceback lines begin with "  | ", so that they cannot be mistaken for records."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = escape(record.message[:MAX_CHARS])
        return super().formatMessage(record)

    def formatException(self, ei: object) -> str:
        text = super().formatException(ei)  # type: ignore[arg-type]
        return "\n".join(f"  | {escape(line)}" for line in text.splitlines())


class UserLines:
    """Limits the lines per user. Call ``allows`` before each log line that a user's request causes."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # maps a uid to the number of lines that its requests may still cause, and the time of that count
        self._left: dict[int, tuple[float, float]] = {}
        self._dropped: dict[int, int] = {}
        self._report_at = 0.0

    def allows(self, uid: int) -> bool:
        now = self._clock()
        left, at = self._left.get(uid, (BURST, now))
        left = min(BURST, left + (now - at) * PER_S)
        put_newest(self._left, uid, (max(0.0, left - 1.0), now), MAX_USERS)
        if left < 1.0:
            self._dropped[uid] = self._dropped.get(uid, 0) + 1
        return left >= 1.0

    def dropped(self) -> dict[int, int]:
        """How many lines were left out since the last report, by uid.

        Empty until REPORT_S seconds after that report.
        """
        now = self._clock()
        if not self._dropped or now < self._report_at:
            return {}
        self._report_at = now + REPORT_S
        found, self._dropped = self._dropped, {}
        return found

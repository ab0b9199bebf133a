"""The log as records of the journal, with fields: `journalctl PRECOMPILED_GRAPH=<id>` shows the way of one graph.

Used where systemd has connected stderr to the journal (``JOURNAL_STREAM``). A record that cannot be sent so, for its
size or since the journal is away, is written to stderr as before.

Source of the protocol: systemd's "Native Journal Protocol" (systemd.io/JOURNAL_NATIVE_PROTOCOL).
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Mapping

SOCKET = "/run/systemd/journal/socket"
# syslog's priorities.
_PRIORITIES = ((logging.CRITICAL, 2), (logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6), (0, 7))


def is_stderr(stream: str) -> bool:
    """Whether stderr is the journal's. ``stream``: JOURNAL_STREAM, a device and an inode; a process that has inherited
    the variable may have another stderr.
    """
    try:
        found = os.fstat(2)
    except OSError:
        return False
    return stream == f"{found.st_dev}:{found.st_ino}"


class JournalHandler(logging.StreamHandler):  # type: ignore[type-arg, unused-ignore]
    """Fields are given as ``log.info(..., extra={"journal": {"PRECOMPILED_GRAPH": ...}})``."""

    def __init__(self, path: str = SOCKET) -> None:
        super().__init__()
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._socket.setblocking(False)  # a journal that hangs must not hold the daemon

    def emit(self, record: logging.LogRecord) -> None:
        try:
            priority = next(number for level, number in _PRIORITIES if record.levelno >= level)
            fields = {
                "MESSAGE": self.format(record), "PRIORITY": str(priority), "SYSLOG_IDENTIFIER": "precompiled",
                "LOGGER": record.name, "CODE_FILE": record.pathname, "CODE_LINE": str(record.lineno),
                "CODE_FUNC": record.funcName, **getattr(record, "journal", {}),
            }  # fmt: skip
            self._socket.sendto(encoded(fields), self._path)
        except OSError:
            super().emit(record)
        except Exception:  # noqa: BLE001 - as every handler of logging does
            self.handleError(record)

    def close(self) -> None:
        self._socket.close()
        super().close()


def encoded(fields: Mapping[str, str | None]) -> bytes:
    """One record: ``NAME=value`` in a line, or, where the value has lines, its length in 8 bytes before it."""
    parts = []
    for name, value in fields.items():
        data = (value or "").encode(errors="replace")
        if b"\n" in data:
            parts.append(name.encode() + b"\n" + len(data).to_bytes(8, "little") + data + b"\n")
        else:
            parts.append(name.encode() + b"=" + data + b"\n")
    return b"".join(parts)

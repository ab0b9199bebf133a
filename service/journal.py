"""Sends log records with fields to systemd's journal: `journalctl PRECOMPILED_GRAPH=<id>` shows one graph's records.

The daemon uses this file if systemd has connected stderr to the journal (``JOURNAL_STREAM``). A record that cannot be
sent (too large, or the journal is not reachable) is written to stderr.

Source of the protocol: systemd's "Native Journal Protocol" (systemd.io/JOURNAL_NATIVE_PROTOCOL).
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Mapping

SOCKET = "/run/systemd/journal/socket"
# maps a logging level to a syslog priority
_PRIORITIES = ((logging.CRITICAL, 2), (logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6), (0, 7))


def is_stderr(stream: str) -> bool:
    """Whether stderr is the journal's ``stream``. JOURNAL_STREAM alone does not show this, because a child that has a
    different stderr also inherits the variable.
    """
    try:
        found = os.fstat(2)
    except OSError:
        return False
    return stream == f"{found.st_dev}:{found.st_ino}"


class JournalHandler(logging.StreamHandler):  # type: ignore[type-arg, unused-ignore]
    """Sends records to the journal. Pass fields as ``log.info(..., extra={"journal": {"PRECOMPILED_GRAPH": ...}})``."""

    def __init__(self, path: str = SOCKET) -> None:
        super().__init__()
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._socket.setblocking(False)  # a hanging journal must not block the daemon

    def emit(self, record: logging.LogRecord) -> None:
        try:
            priority = next(number for level, number in _PRIORITIES if record.levelno >= level)
            fields = {
                "MESSAGE": self.format(record),
                "PRIORITY": str(priority),
                "SYSLOG_IDENTIFIER": "precompiled",
                "LOGGER": record.name,
                "CODE_FILE": record.pathname,
                "CODE_LINE": str(record.lineno),
                "CODE_FUNC": record.funcName,
                **getattr(record, "journal", {}),
            }
            self._socket.sendto(encode_record(fields), self._path)
        except OSError:
            super().emit(record)
        except Exception:  # noqa: BLE001 - like every handler of logging
            self.handleError(record)

    def close(self) -> None:
        self._socket.close()
        super().close()


def encode_record(fields: Mapping[str, str | None]) -> bytes:
    """Encode a record: one ``NAME=value`` line per field. A multi-line value is preceded by its length in 8 bytes."""
    parts = []
    for name, value in fields.items():
        data = (value or "").encode(errors="replace")
        if b"\n" in data:
            parts.append(name.encode() + b"\n" + len(data).to_bytes(8, "little") + data + b"\n")
        else:
            parts.append(name.encode() + b"=" + data + b"\n")
    return b"".join(parts)

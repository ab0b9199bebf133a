"""Reads the Linux kernel's records of a process (``/proc/PID/stat``) and of a connection's peer (``SO_PEERCRED``)."""

from __future__ import annotations

import socket
import struct
from typing import NamedTuple


class Peer(NamedTuple):
    """The process at the other end of a Unix socket, with the ids that it had when it connected or began to listen."""

    pid: int
    uid: int
    gid: int


def peer_of(sock: socket.socket) -> Peer:
    """The process that has connected to a socket, or listens on it. Raises OSError."""
    return Peer(*struct.unpack("iII", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)))


class ProcessStat(NamedTuple):
    """Some fields of ``/proc/PID/stat`` (man 5 proc)."""

    parent: int
    flags: int
    started: int  # in clock ticks since boot


def stat_of(pid: int | str = "self") -> ProcessStat | None:
    """The kernel's record of a process, or None if the process has ended or is not visible."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            # The process's name may contain any character. Field 3 follows the last parenthesis.
            fields = file.read().rpartition(")")[2].split()
        return ProcessStat(parent=int(fields[1]), flags=int(fields[6]), started=int(fields[19]))
    except (OSError, IndexError, ValueError):
        return None

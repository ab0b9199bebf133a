"""How a helper's process begins: in the background, the only one of its store, listening."""

from __future__ import annotations

import fcntl
import os
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from precompiled.remote import link
from precompiled.store import trust

LEAVING_S = 10.0  # one of other settings has left by then: helper.LOOK_S, and helper.DRAIN_S for what it has to put


BUDGETS = ("--max-bytes=", "--max-inodes=")


def identity(argv: Sequence[str]) -> list[str]:
    """By which arguments a helper is another one: not by how large its store may be, or programs that differ in that
    alone would end each other's.
    """
    return [item for item in argv if item != "--detach" and not item.startswith(BUDGETS)]


def listening(folder: Path) -> socket.socket:
    """The socket, in place of what a dead helper left. By the directory's descriptor: its path may be too long."""
    with trust.open_directory(folder) as directory:
        with suppress(FileNotFoundError):
            os.unlink(link.SOCKET, dir_fd=directory)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        sock.bind(f"/proc/self/fd/{directory}/{link.SOCKET}")
        sock.listen(128)
    return sock


def detach() -> int:
    """Leave the starter, whose ``os.wait()`` must not find us among its children. What it started ends when its child
    here closes the descriptor that is returned: it listens, or has ended.
    """
    reading, writing = os.pipe()
    if os.fork() != 0:
        os.close(writing)
        os.read(reading, 1)
        os._exit(0)
    os.close(reading)
    os.setsid()
    return writing


def is_ours(lock: int, store: Path, arguments: list[str]) -> bool:
    """Whether this process is the store's helper now. One of other settings, which was told to stop, is waited for."""
    deadline = time.monotonic() + LEAVING_S
    while True:
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError:
            found = link.greeting(store) or {}
            if found.get("arguments") == arguments or time.monotonic() >= deadline:
                return False
            time.sleep(0.02)

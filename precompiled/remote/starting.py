"""Starts a helper's process: it detaches, becomes the only helper of its store, and listens."""

from __future__ import annotations

import fcntl
import os
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from precompiled.remote import helper_link
from precompiled.store import trust

# Seconds within which a helper with other settings exits: helper.LOOK_S, plus helper.DRAIN_S for its puts.
LEAVING_S = 10.0


BUDGETS = ("--max-bytes=", "--max-inodes=")


def identity(argv: Sequence[str]) -> list[str]:
    """The arguments that distinguish two helpers. Budgets do not count. Otherwise, programs that set different budgets
    for one store would stop each other's helpers.
    """
    return [item for item in argv if item != "--detach" and not item.startswith(BUDGETS)]


def listening(folder: Path) -> socket.socket:
    """Return the listening socket, which replaces a dead helper's socket.

    The socket is bound through the directory's descriptor, because its full path may be too long.
    """
    with trust.open_directory(folder) as directory:
        with suppress(FileNotFoundError):
            os.unlink(helper_link.SOCKET, dir_fd=directory)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        sock.bind(f"/proc/self/fd/{directory}/{helper_link.SOCKET}")
        sock.listen(128)
    return sock


def detach() -> int:
    """Fork, so that the helper is not a child of the process that starts it. Otherwise that process's ``os.wait()``
    would return the helper.

    Only the child returns, and becomes the helper. It gets a descriptor, and closes the descriptor when it listens or
    ends. The parent exits when the descriptor is closed.
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
    """Whether this process may become the store's helper. Waits for a helper with other settings to stop."""
    deadline = time.monotonic() + LEAVING_S
    while True:
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError:
            found = helper_link.greeting(store) or {}
            if found.get("arguments") == arguments or time.monotonic() >= deadline:
                return False
            time.sleep(0.02)

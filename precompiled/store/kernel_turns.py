"""Lets one process compile a Triton kernel while the other processes of the host wait.

A turn is a lock (flock) on the file ``tmp/<key>.turn``. Linux releases the lock when the process that holds it ends.
While the holder compiles, it updates the file's time at each stage. The other processes wait while the holder compiles.
If the holder is a worker, they wait at most ``limit_s`` seconds. If the holder is suspended, or a stage takes longer
than STALL_S, the waiting processes compile, too.
"""

from __future__ import annotations

import fcntl
import math
import os
import threading
import time
from contextlib import suppress
from enum import Enum
from pathlib import Path

STALL_S = 60.0
LOOK_S = 0.02  # flock has no time limit
_WORKER = "worker"
_SUSPENDED, _DEAD = (b"T", b"t"), (b"", b"Z", b"X")  # states of processes in /proc


class KernelTurn:
    """This process's turn to compile a kernel. The turn ends with ``end``, or when the object is deleted."""

    def __init__(self, path: Path, fd: int) -> None:
        self._path, self._fd, self._pid = path, fd, os.getpid()
        self._file = _identity(fd)
        self.thread = threading.get_ident()

    def beat(self) -> None:
        """Show waiting processes that the compile makes progress."""
        if self._is_open():
            with suppress(OSError):
                os.utime(self._fd)

    def end(self) -> None:
        """End the turn, so that waiting processes continue. Idempotent."""
        if self._is_open():
            with suppress(OSError):
                if self._pid == os.getpid():  # a fork's child shares the lock, and must not release it
                    with suppress(FileNotFoundError):
                        self._path.unlink()
                    fcntl.flock(self._fd, fcntl.LOCK_UN)
                os.close(self._fd)
        self._fd = -1

    __del__ = end

    def _is_open(self) -> bool:
        """Whether the descriptor is still this object's. A program that turns into a daemon closes all descriptors."""
        return self._fd >= 0 and _identity(self._fd) == self._file


class TurnState(Enum):
    """The state of a kernel's turn: held by a process, ended by its holder, or lost (the holder has died, is suspended,
    or makes no progress).
    """

    HELD = "held"
    ENDED = "ended"
    LOST = "lost"


def find_state(folder: Path, key: str) -> TurnState:
    """The state of a turn that another process of this host has taken. Raises OSError."""
    try:
        fd = os.open(folder / f"{key}.turn", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return TurnState.ENDED
    try:
        is_stale = time.time() - os.fstat(fd).st_mtime > STALL_S
        return TurnState.LOST if is_stale or _process_state(fd) in (*_DEAD, *_SUSPENDED) else TurnState.HELD
    finally:
        os.close(fd)


def take(folder: Path, key: str, *, is_worker: bool = False, limit_s: float = math.inf) -> KernelTurn | None:
    """Begin a turn. If another process holds the turn, wait until that turn has ended, and return None. Raises OSError.

    - ``is_worker``: this process is a worker of the daemon, so its priority is low
    - ``limit_s``: the longest wait in seconds, if the holder is a worker

    The folder must exist, and only this user may be able to write to it.
    """
    path = folder / f"{key}.turn"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        if not _is_locked(fd):
            _wait(fd, limit_s)
            os.close(fd)
            return None
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()} {_WORKER if is_worker else ''}".encode(), 0)
        return KernelTurn(path, fd)
    except BaseException:
        os.close(fd)
        raise


def _wait(fd: int, limit_s: float) -> None:
    """Wait until the holder's turn has ended, or the holder makes no progress.

    If the holder is a worker, wait at most ``limit_s`` seconds.
    """
    progress, since = -1, time.monotonic()
    until = since + limit_s
    while not _is_locked(fd) and (time.monotonic() < until or _WORKER not in _holder(fd)):
        beat = os.fstat(fd).st_mtime_ns
        if beat != progress:
            progress, since = beat, time.monotonic()
        elif time.monotonic() - since > STALL_S or _is_suspended(fd):
            return
        time.sleep(LOOK_S)


def _is_locked(fd: int) -> bool:
    """Lock the file. Returns false if another process has locked it."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_suspended(fd: int) -> bool:
    """Whether a signal or a debugger has stopped the holder."""
    return _process_state(fd) in _SUSPENDED


def _process_state(fd: int) -> bytes:
    """The state of the holder's process in /proc, or b"" if no process has the holder's pid."""
    with suppress(OSError, ValueError, IndexError), open(f"/proc/{int(_holder(fd)[0])}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()[0]
    return b""


def _holder(fd: int) -> list[str]:
    """The holder's pid, and _WORKER if the holder is a worker."""
    return os.pread(fd, 40, 0).decode("ascii", "replace").split()


def _identity(fd: int) -> tuple[int, int] | None:
    try:
        status = os.fstat(fd)
    except OSError:
        return None
    return status.st_dev, status.st_ino

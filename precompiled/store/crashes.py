"""Counts the processes that crash in their first calls of an artifact. After three crashes in a row, refuses the
artifact.

Each process that loads artifacts has a locked file in ``loading/``. During an artifact's load and first calls, the file
contains the artifact's name. The kernel releases the lock when the process ends. So if an unlocked file contains a
name, its process ended during this artifact's load or first calls, by a signal for example. If the file is not older
than COUNTS_S, the next process adds one byte to the artifact's file in ``crashes/``. A process that finishes the first
calls removes the file in ``crashes/``. An error of the file system ends the counting of crashes, but does not affect
calls.
"""

from __future__ import annotations

import fcntl
import os
import re
import threading
import time
from contextlib import suppress
from pathlib import Path

from precompiled.core import interruptions
from precompiled.core.errors import CRASHES_PROCESSES, StoreError
from precompiled.store import artifact_format as fmt
from precompiled.store import lines
from precompiled.store.artifacts import Artifact, Store
from precompiled.store.trees import temporary_name

LOADING, CRASHES = "loading", "crashes"
LIMIT = 3  # crashes in a row
# A name does not count as a crash if its file is older than this many seconds: the process may have stopped calling the
# artifact, and ended much later by a signal.
COUNTS_S = 120.0
_NAME = re.compile(r"[0-9a-f]{64}\.[0-9a-f]{16}")
_MAX_BYTES = 1 << 20


def name_of(artifact: Artifact) -> str:
    """The artifact's name in ``loading/`` and ``crashes/``. The name contains the digest, so that crashes of an earlier
    artifact of the key do not count.
    """
    return f"{artifact.manifest.key}.{artifact.manifest.digest[:16]}"


class FirstCalls:
    """Records which artifacts of one store this process is loading, or calling for the first time. Thread-safe."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._reset()

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._fd = -1
        self._is_unwritable = False
        self._path = Path()
        self._crashed: set[str] = set()  # the artifacts in ``crashes/``
        self._names: dict[str, int] = {}  # maps an artifact to the number of its graphs in this state

    def begin(self, name: str) -> None:
        """Note that a load or the first calls of the artifact ``name`` begin."""
        with self._lock:
            self._names[name] = self._names.get(name, 0) + 1
            self._write()

    def finish(self, name: str, *, called: bool) -> None:
        """Note that the load or the first calls have ended. ``called``: the first calls have succeeded, so earlier
        crashes do not count any more.
        """
        with self._lock:
            self._names[name] = self._names.get(name, 1) - 1
            if self._names[name] <= 0:
                del self._names[name]
            self._write()
        if called and name in self._crashed:
            self._crashed.discard(name)
            with suppress(OSError):
                os.unlink(self._root / CRASHES / name)

    def close(self) -> None:
        """Remove the file, because the process ends normally."""
        with self._lock, suppress(OSError):
            if self._fd >= 0:
                self._path.unlink(missing_ok=True)
                fd, self._fd = self._fd, -1
                os.close(fd)

    def after_fork(self) -> None:
        """In a fork's child, leave the file to the parent."""
        if self._fd >= 0:
            os.close(self._fd)
        self._reset()

    def _write(self) -> None:
        if self._is_unwritable:
            return
        try:
            if self._fd < 0:
                self._open()
            os.ftruncate(self._fd, 0)
            if self._names:
                os.pwrite(self._fd, "\n".join(self._names).encode(), 0)
        except OSError as error:
            interruptions.pass_on(error)
            self._is_unwritable = self._fd < 0  # as in a read-only store; another attempt would cost as much

    def _open(self) -> None:
        with suppress(FileNotFoundError):
            self._crashed = set(os.listdir(self._root / CRASHES))
        self._path = lines.folder(self._root, LOADING) / temporary_name()
        self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def refuse_crashing(store: Store, ttl_s: float) -> list[Artifact]:
    """Count the crashes since the last call of this function. Refuse artifacts that have reached the limit, and return
    them.

    ``ttl_s``: seconds for which a failure record prevents another compile of a refused graph.
    """
    files: list[Path] = []
    refused: list[Artifact] = []
    try:
        with os.scandir(store.root / LOADING) as entries:
            files = [Path(entry.path) for entry in entries if entry.stat(follow_symlinks=False).st_size]
    except OSError as error:
        interruptions.pass_on(error)
    for file in files:
        try:
            for crashed in _abandoned(file):
                if _add(store.root, crashed) >= LIMIT:
                    refused += _refuse(store, crashed, ttl_s)
        except (OSError, StoreError) as error:  # another process has counted it, or the store is read-only
            interruptions.pass_on(error)
    return refused


def _abandoned(path: Path) -> list[str]:
    """Remove the file of a process that has ended, and return its artifacts. Empty if the process runs."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return []
        found = os.read(fd, _MAX_BYTES).decode(errors="replace").split()
        age_s = time.time() - os.fstat(fd).st_mtime
        path.unlink()  # raises if another process was faster
        return [name for name in found if _NAME.fullmatch(name) and age_s < COUNTS_S]
    finally:
        os.close(fd)


def _add(root: Path, name: str) -> int:
    fd = os.open(lines.folder(root, CRASHES) / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, b"x")
        return os.fstat(fd).st_size
    finally:
        os.close(fd)


def _refuse(store: Store, name: str, ttl_s: float) -> list[Artifact]:
    key = name.partition(".")[0]
    message = f"{LIMIT} processes in a row ended in their first calls of this artifact"
    artifacts = [artifact for artifact in store.lookup(key) if name_of(artifact) == name]
    for artifact in artifacts:
        graph, program = artifact.manifest.name, store.program_for_failure(artifact)
        record = fmt.Failure(key, graph, CRASHES_PROCESSES, message, time.time(), ttl_s, program=program)
        store.publish_failure(record)
        store.set_aside(artifact, message)
    (store.root / CRASHES / name).unlink(missing_ok=True)
    return artifacts

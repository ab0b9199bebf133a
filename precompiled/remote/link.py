"""Asking the helper of a store (helper.py), over a Unix socket in the store: one line of JSON each way.

::

    helper -> {"wait_s", "arguments"}         at once, when it is connected to; who asks need not wait for it
    asker  -> {"do": "turn", "key"}           helper -> {"found"}, {"again_s"} or {"compile"}, at once (claims.py); in
                                              the last case it holds the key's lease until the connection ends, or
              then, on the same one:
              {"do": "put", "key", "slot"}    helper -> {}, before it is put: until it is
              {"do": "failed"}                helper -> {}
              {"do": "turn", "key", "courier": true}    (of a courier: whether the farm has it, or takes it)
                                              helper -> {"found"}, {"again_s"}, {"keep_s"}, or {"send"}; then
              {"bytes"}, and the job          helper -> {"again_s"}
              {"do": "farm"}                  helper -> what it knows of the farm, when that has answered or failed
              {"do": "put", "key", "slot"}    (on one of its own) the same, without a lease
              {"do": "put-entry", "function", "name"}      the same
              {"do": "ahead", "program"}      helper -> {"listed"}, then {"fetched"}: what the program used last is here
              {"do": "used", "program", "keys", "fresh", "entries"}     helper -> {}, before it is listed (lists.py)
              {"do": "flush"}                 helper -> {}, when all that it was told to put is put, or was tried
              {"do": "stop"}                  helper -> {}, and it leaves, when it has tried that once more

Whoever asks goes on without an answer, as on one host: ``ask`` gives None and raises nothing. The standard library
alone: workers and clients import this.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from precompiled.core import kernel, paths, sockets

FOLDER = "remote"
SOCKET = "socket"
STATE = "state.json"
FARM_STATE = "farm.json"
STARTING = "starting"  # there while a helper starts, touched by who starts it
STARTING_S = 15.0
GREETING_S = 2.0
LOOK_S = 0.05
AGAIN_S = 1.0  # after which a worker asks again while the helper starts, or the remote is asked
SENT_S = 30.0  # a graph that goes to the farm
TURN_S = 10.0  # an answer comes at once; a worker that gives up compiles, and so does whoever has the lease then
USED_S = 0.5  # a process that ends waits no longer
MAX_LINE = 1 << 20


def folder(root: Path) -> Path:
    return paths.of_this_host(root / FOLDER)


def ask(root: Path, question: dict[str, Any], *, wait_s: float | None = None) -> dict[str, Any] | None:
    """The answer of the helper of the store at ``root``; None where there is none, or it does not answer in time.

    One that is being started is waited for. ``wait_s``: instead of what the helper itself says that it may take.
    """
    return next(answers(root, question, wait_s=wait_s), None)


def answers(root: Path, question: dict[str, Any], *, wait_s: float | None = None) -> Iterator[dict[str, Any]]:
    """The same for a question that has several answers, each of which may take so long."""
    sock = _connected(root, wait_s)
    if sock is None:
        return
    guarded, held = sockets.GuardedSocket(sock), bytearray()  # a program may close it while its remote answers
    try:
        with suppress(OSError, ValueError, KeyError, TypeError):
            soon = min(GREETING_S, wait_s or GREETING_S)
            # Before the greeting, which may be late on a busy machine: the helper reads the question all the same.
            _send(guarded, json.dumps(question).encode() + b"\n", soon)
            greeting = json.loads(_line(guarded, held, soon))
            while line := _line(guarded, held, wait_s or float(greeting["wait_s"]) + 1.0):
                answer = json.loads(line)
                if not isinstance(answer, dict):
                    return
                yield answer
    finally:
        guarded.close()


def _send(sock: sockets.GuardedSocket, data: bytes, wait_s: float) -> None:
    """Raises OSError where the peer reads nothing for so long."""
    left = memoryview(data)
    until = time.monotonic() + wait_s
    while left:
        if sent := sock.send(left):
            left, until = left[sent:], time.monotonic() + wait_s
        elif time.monotonic() > until:
            raise TimeoutError
        else:
            sockets.wait([], [sock], until - time.monotonic())


def _line(sock: sockets.GuardedSocket, held: bytearray, wait_s: float) -> bytes:
    """The next line, or b"" at the end. ``held``: what has arrived beyond the last one. Raises OSError as ``_send``."""
    until = time.monotonic() + wait_s
    while (end := held.find(b"\n")) < 0:
        data = sock.receive(1 << 16)
        if data:
            held += data
        if data == b"" or len(held) > MAX_LINE:
            return b""
        if data is None:
            if time.monotonic() > until:
                raise TimeoutError
            sockets.wait([sock], timeout_s=until - time.monotonic())
    line = bytes(held[: end + 1])
    del held[: end + 1]
    return line


def greeting(root: Path) -> dict[str, Any] | None:
    """What the helper of a store says of itself; None where none listens."""
    sock = _connect(root)
    if sock is None:
        return None
    with sock:
        try:
            sock.settimeout(GREETING_S)
            found = json.loads(sock.makefile("rb").readline(MAX_LINE))
            return found if isinstance(found, dict) else None
        except (OSError, ValueError):
            return None


def _connected(root: Path, wait_s: float | None) -> socket.socket | None:
    until = time.monotonic() + (STARTING_S if wait_s is None else wait_s)
    while True:
        sock = _connect(root)
        if sock is not None:
            return sock
        if not _is_starting(root) or time.monotonic() > until:
            return _connect(root)  # it listens by now, or there is none
        time.sleep(LOOK_S)


def _is_starting(root: Path) -> bool:
    try:
        return 0 <= time.time() - os.lstat(folder(root) / STARTING).st_mtime < STARTING_S
    except OSError:
        return False


def _connect(root: Path) -> socket.socket | None:
    directory = -1
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        # By the directory's descriptor: a socket's path may have 107 bytes, and a store's may have more.
        directory = os.open(folder(root), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        sock.settimeout(GREETING_S)
        sock.connect(f"/proc/self/fd/{directory}/{SOCKET}")
        if kernel.peer_of(sock).uid in (os.geteuid(), 0):
            return sock
    except OSError:
        pass
    finally:
        if directory >= 0:
            os.close(directory)
    sock.close()
    return None


class Turn:
    """What a worker does with a job, as its store's helper says: nothing where ``found``, which is published here by
    now; later, after ``again_s``; else it compiles, and says what becomes of it.
    """

    def __init__(self, root: Path, key: str) -> None:
        self.found, self.again_s = False, 0.0
        self._root, self._key = root, key
        self._file: Any = None

    def published(self, slot: int) -> None:
        """It was compiled: the helper puts it, then gives the lease back."""
        if not self._said({"do": "put", "key": self._key, "slot": slot}):
            put_artifact(self._root, self._key, slot)

    def failed(self) -> None:
        """It cannot be compiled: no other host is to wait for it."""
        self._said({"do": "failed"})

    def _said(self, what: dict[str, Any]) -> bool:
        if self._file is None:
            return False
        with suppress(OSError, ValueError):
            return _asked(self._file, what) is not None
        return False


@contextmanager
def turn(root: Path, key: str) -> Iterator[Turn]:
    """Ask the helper whether to compile a key. Where there is none, or it does not answer, the answer is yes."""
    found = Turn(root, key)
    sock = _connect(root)
    if sock is None:
        found.again_s = AGAIN_S if _is_starting(root) else 0.0
        yield found
        return
    with sock:
        with suppress(OSError, ValueError, TypeError):
            sock.settimeout(TURN_S)
            file = sock.makefile("rwb")
            file.readline(MAX_LINE)
            answer = _asked(file, {"do": "turn", "key": key}) or {}
            found.found, found.again_s = bool(answer.get("found")), float(answer.get("again_s", 0.0))
            found._file = file
        try:
            yield found
        finally:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)  # its file has a descriptor of its own


def offer(root: Path, key: str, job: Callable[[], bytes]) -> dict[str, Any]:
    """Offer a job to the farm: what the helper says; {} where there is none, or it does not answer."""
    sock = _connected(root, None)
    if sock is None:
        return {}
    with sock, suppress(OSError, ValueError, TypeError):
        sock.settimeout(TURN_S)
        file = sock.makefile("rwb")
        file.readline(MAX_LINE)
        answer = _asked(file, {"do": "turn", "key": key, "courier": True}) or {}
        if not answer.get("send"):
            return answer
        data = job()
        sock.settimeout(SENT_S)
        file.write(json.dumps({"bytes": len(data)}).encode() + b"\n" + data)
        file.flush()
        return json.loads(file.readline(MAX_LINE)) or {}
    return {}


def _asked(file: Any, question: dict[str, Any]) -> dict[str, Any] | None:
    file.write(json.dumps(question).encode() + b"\n")
    file.flush()
    answer = json.loads(file.readline(MAX_LINE))
    return answer if isinstance(answer, dict) else None


def put_artifact(root: Path, key: str, slot: int) -> None:
    """Tell the helper of what was published here."""
    ask(root, {"do": "put", "key": key, "slot": slot}, wait_s=GREETING_S)


def put_entry(root: Path, function: str, name: str) -> None:
    ask(root, {"do": "put-entry", "function": function, "name": name}, wait_s=GREETING_S)


def used(
    root: Path, program: str, keys: Sequence[str], fresh: Sequence[str], entries: Sequence[tuple[str, str]]
) -> bool:
    """Tell the helper what a program uses; whether it has heard. ``fresh``: those keys that were not there before."""
    question = {"do": "used", "program": program, "keys": keys, "fresh": fresh, "entries": entries}
    return ask(root, question, wait_s=USED_S) is not None


def state(root: Path, name: str = STATE) -> dict[str, Any] | None:
    """What the helper has last written of the remote, or (FARM_STATE) of the farm; None where none ever ran."""
    with suppress(OSError, ValueError):
        found = json.loads((folder(root) / name).read_bytes())
        if isinstance(found, dict):
            return found
    return None

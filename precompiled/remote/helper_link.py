"""Speaks the client's side of the helper's protocol (helper.py): a Unix socket in the store, one JSON line each way.

::

    helper -> {"wait_s", "arguments", "pid"}  at once, on each connection; the peer need not wait
    peer   -> {"do": "turn", "key"}           helper -> {"found"}, {"again_s"} or {"compile"}, at once (claims.py). With
                                              {"compile"} it holds the key's lease until the connection ends, or
                                              one of these comes on the connection:
              {"do": "put", "key", "slot"}    helper -> {}; then it puts the artifact and ends the lease
              {"do": "failed"}                helper -> {}
              {"do": "turn", "key", "courier": true}    (from a courier: does the farm have the job, or take it?)
                                              helper -> {"found"}, {"again_s"}, {"keep_s"}, or {"send"}; then
              {"bytes"}, and the job          helper -> {"again_s"}
              {"do": "farm"}                  helper -> its state of the farm, once the farm has answered or failed
              {"do": "put", "key", "slot"}    (on a separate connection) the same, without a lease
              {"do": "put-entry", "function", "name"}      the same
              {"do": "put-kernel", "key"}     the same, for a Triton kernel
              {"do": "kernel", "key", "compiles"}          helper -> {"found"}, once it has looked for a Triton kernel
                                              in the remote. If the peer has the turn to compile it, the helper takes
                                              the lease, or sends {} repeatedly while another host has it
              {"do": "withdraw", "key", "label"}           helper -> {}; then it removes an artifact's objects
              {"do": "ahead", "program"}      helper -> {"listed"}, then {"fetched"} once the program's last objects
                                              are in the store; or {"problem", "action", "code"} if the remote cannot
                                              be used
              {"do": "used", "program", "keys", "fresh", "entries", "kernels"}
                                              helper -> {}; then it lists them (lists.py)
              {"do": "flush"}                 helper -> {}, after one try of each queued put
              {"do": "stop"}                  helper -> {}; then it tries the puts again and exits

If the helper does not answer, ``ask`` returns None, and the peer continues alone. This file uses only the standard
library and core, because workers and clients import it. Messages of wire.py instead of JSON would delay a client's
first step: importing wire.py takes 0.95 to 1.9 times as long as importing this file (5 runs of ``python -X
importtime``, 2026-11-28). A client whose artifacts are all in the store does not need wire.py for anything else.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from precompiled.core import kernel, paths, sockets
from precompiled.core.json_text import parse_json
from precompiled.core.regular_file import read_bytes

FOLDER = "remote"
SOCKET = "socket"
STATE = "state.json"
FARM_STATE = "farm.json"
STARTING = "starting"  # a file that exists while a helper starts; the process that starts the helper writes it
STARTING_S = 15.0
GREETING_S = 2.0
LOOK_S = 0.05
# Seconds until a worker repeats its request while the helper starts or the remote has not answered.
AGAIN_S = 1.0
SENT_S = 30.0  # seconds for sending a graph to the farm
# Seconds to wait for a reply, which normally comes at once. Without a reply, the worker compiles. The host that gets
# the lease next may then compile as well.
TURN_S = 10.0
USED_S = 0.5  # the longest time in seconds that a process waits at its end
MAX_LINE = 1 << 20


def folder(root: Path) -> Path:
    return paths.of_this_host(root / FOLDER)


def ask(root: Path, question: Mapping[str, object], *, wait_s: float | None = None) -> dict[str, object] | None:
    """Ask the helper of the store at ``root``. Returns None if no helper answers in time.

    Waits for a helper that is starting. ``wait_s`` replaces the time limit that the helper states in its greeting.
    """
    return next(answers(root, question, wait_s=wait_s), None)


def answers(root: Path, question: Mapping[str, object], *, wait_s: float | None = None) -> Iterator[dict[str, Any]]:
    """Like ``ask``, for a request with several answers. The time limit applies to each answer."""
    sock = _connected(root, wait_s)
    if sock is None:
        return
    # Guard the socket: the program may close its descriptor during the wait.
    guarded, held = sockets.GuardedSocket(sock), bytearray()
    try:
        with suppress(OSError, ValueError, KeyError, TypeError):
            soon = min(GREETING_S, wait_s or GREETING_S)
            # Send the request before reading the greeting. On a busy machine the greeting may come too late. This
            # function then gives up, but the helper acts on the request.
            _send(guarded, json.dumps(question).encode() + b"\n", soon)
            greeting = parse_json(_line(guarded, held, soon))
            while line := _line(guarded, held, wait_s or float(greeting["wait_s"]) + 1.0):
                answer = parse_json(line)
                if not isinstance(answer, dict):
                    return
                yield answer
    finally:
        guarded.close()


def _send(sock: sockets.GuardedSocket, data: bytes, wait_s: float) -> None:
    """Send all data. Raises OSError if the peer reads no data for ``wait_s`` seconds."""
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
    """Return the next line, or b"" at the end. ``held``: received bytes after the last line. Raises OSError on a
    timeout.
    """
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


def greeting(root: Path) -> dict[str, object] | None:
    """The greeting of a store's helper, or None if no helper listens."""
    sock = _connect(root)
    if sock is None:
        return None
    with sock:
        try:
            sock.settimeout(GREETING_S)
            found = parse_json(sock.makefile("rb").readline(MAX_LINE))
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
            return _connect(root)  # the helper may listen by now
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
        # Connect through the directory's descriptor: a socket's path is limited to 107 bytes, and the store's path may
        # be longer.
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
    """The helper's answer to a worker about a key.

    If ``found``, the artifact is in the store. If ``again_s`` is set, the worker repeats its request after that many
    seconds. Otherwise the worker compiles, and reports the outcome.
    """

    def __init__(self, root: Path, key: str) -> None:
        self.found, self.again_s = False, 0.0
        self._root, self._key = root, key
        self._file: object = None

    def published(self, slot: int) -> None:
        """Report that the key was compiled. The helper puts the artifact, then ends the lease."""
        if not self._said({"do": "put", "key": self._key, "slot": slot}):
            put_artifact(self._root, self._key, slot)

    def failed(self) -> None:
        """Report that the key cannot be compiled, so that no other host waits for it."""
        self._said({"do": "failed"})

    def _said(self, what: Mapping[str, object]) -> bool:
        if self._file is None:
            return False
        with suppress(OSError, ValueError):
            return _asked(self._file, what) is not None
        return False


@contextmanager
def turn(root: Path, key: str) -> Iterator[Turn]:
    """Ask the helper whether to compile a key. If no helper answers, the worker compiles."""
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
                # close() is not enough, because ``file`` holds another descriptor of the socket.
                sock.shutdown(socket.SHUT_RDWR)


def offer(root: Path, key: str, job: Callable[[], bytes]) -> dict[str, Any]:
    """Offer a job to the farm. Returns the helper's answer, or {} if no helper answers."""
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
        return parse_json(file.readline(MAX_LINE)) or {}
    return {}


def _asked(file: Any, question: Mapping[str, object]) -> dict[str, Any] | None:
    file.write(json.dumps(question).encode() + b"\n")
    file.flush()
    answer = parse_json(file.readline(MAX_LINE))
    return answer if isinstance(answer, dict) else None


def put_artifact(root: Path, key: str, slot: int) -> None:
    """Report an artifact that this store has published, so that the helper puts it into the remote."""
    ask(root, {"do": "put", "key": key, "slot": slot}, wait_s=GREETING_S)


def put_entry(root: Path, function: str, name: str) -> None:
    ask(root, {"do": "put-entry", "function": function, "name": name}, wait_s=GREETING_S)


def put_kernel(root: Path, key: str) -> None:
    ask(root, {"do": "put-kernel", "key": key}, wait_s=GREETING_S)


def fetch_kernel(root: Path, key: str, wait_s: float, *, compiles: bool) -> bool:
    """Let the helper fetch a Triton kernel. Returns whether the helper found the kernel and published it in the store.

    ``compiles``: whether this process will compile the kernel if the remote lacks it (because it has the turn,
    store/kernel_turns.py). If this process will compile, and another host already compiles the kernel, the helper waits
    for that host. This function returns false if the helper sends no answer for ``wait_s`` seconds.
    """
    question = {"do": "kernel", "key": key, "compiles": compiles}
    found = (answer["found"] for answer in answers(root, question, wait_s=wait_s) if "found" in answer)
    return bool(next(found, False))


def withdraw(root: Path, key: str, label: str) -> None:
    ask(root, {"do": "withdraw", "key": key, "label": label}, wait_s=GREETING_S)


def report_uses(
    root: Path,
    program: str,
    keys: Sequence[str],
    fresh: Sequence[str],
    entries: Sequence[tuple[str, str]],
    kernels: Sequence[str],
) -> bool:
    """Report what a program used. Returns whether the helper answered. ``fresh``: the keys that were new to the
    store.
    """
    question = {
        "do": "used",
        "program": program,
        "keys": keys,
        "fresh": fresh,
        "entries": entries,
        "kernels": kernels,
    }
    return ask(root, question, wait_s=USED_S) is not None


def state(root: Path, name: str = STATE) -> dict[str, Any] | None:
    """Return the state of the remote (or of the farm, if ``name`` is FARM_STATE) that a helper last wrote.

    Returns None if no helper has ever run.
    """
    with suppress(OSError, ValueError):
        found = parse_json(read_bytes(folder(root) / name))
        if isinstance(found, dict):
            return found
    return None

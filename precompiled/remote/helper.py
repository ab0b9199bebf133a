"""Runs the helper of a user's store, for its remote and its farm.

The helper moves objects between the store and the remote, and sends jobs to the farm (precompiled/farm).

The helper is a separate process with its user's credentials. So programs neither wait for a network nor load network
libraries, and the daemon of all users holds no credentials. A client starts the helper (helper_process.py). The helper
exits after ``--idle-s`` seconds without a request, unless puts, leases or the farm need it. A lock ensures that a store
has only one helper. The helper's state is in ``remote/state.json`` and ``remote/farm.json``.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import select
import socket
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from precompiled.core import durable, sockets
from precompiled.core.config import Settings
from precompiled.core.errors import WireError
from precompiled.core.json_text import parse_json
from precompiled.farm import farm
from precompiled.remote import helper_link, starting, transfer
from precompiled.remote.claims import Claims
from precompiled.remote.evicting import Evicting
from precompiled.remote.job_turns import JobTurns, send_answer
from precompiled.remote.kernel_leases import KernelLeases
from precompiled.remote.opened_remote import OpenedRemote
from precompiled.remote.program_fetches import ProgramFetches
from precompiled.remote.puts import Puts
from precompiled.store import artifact_format as fmt
from precompiled.store import package_format, trust
from precompiled.store.artifacts import Store

LOOK_S = 1.0
DRAIN_S = 5.0  # seconds at exit for the remaining puts; the next helper waits that long (starting.LEAVING_S)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m precompiled.remote.helper", description=__doc__.splitlines()[0])
    parser.add_argument("--store", required=True, type=Path)
    parser.add_argument("--remote", default="")
    parser.add_argument("--farm", default="")
    parser.add_argument("--timeout-s", type=float, default=10.0)
    parser.add_argument("--idle-s", type=float, default=600.0)
    parser.add_argument("--base", type=Path, action="append", default=[], help="its objects are not fetched")
    # Pass the argument in the form "--max-bytes=N", because starting.BUDGETS compares this form.
    parser.add_argument("--max-bytes", type=int, default=Settings.cache_max_bytes)
    parser.add_argument("--max-inodes", type=int, default=Settings.cache_max_inodes)
    parser.add_argument("--unsigned", action="store_true")
    parser.add_argument("--no-put", action="store_true")
    parser.add_argument("--detach", action="store_true", help="go to the background, and end here once it listens")
    return parser


class Helper:
    """The helper's main object. ``serve`` opens the remote, and answers each request in a new thread."""

    def __init__(self, options: argparse.Namespace, arguments: Sequence[str]) -> None:
        self._options, self._arguments = options, list(arguments)
        self._folder = helper_link.folder(options.store)
        self._remote = OpenedRemote()
        self._claims = Claims(self._remote.failed, may_hold=not options.no_put)
        wanted = bool(options.remote) and not options.no_put
        self._puts = Puts(self._remote, self._claims, self._tell, wanted=wanted)
        self._fetches = ProgramFetches(self._remote, self._wait_s, self._tell)
        self._kernels = KernelLeases(self._remote, self._puts, options.store, self._wait_s, self._tell, may_hold=wanted)
        self._turns = JobTurns(self._remote, self._claims, self._puts, self._tell)
        self._lock = threading.Lock()
        store = Store(options.store, options.base)
        self._evicting = Evicting(store, options.max_bytes, options.max_inodes, self._remote.failed)
        if options.farm:
            self._turns.farm = farm.open_farm(options.farm, options.store, options.base, self._turns.on_farm_ended)
        self._farm = self._turns.farm
        self._states_written: dict[str, dict[str, Any]] = {}  # maps a file's name to the state that the file holds
        self._asked = time.monotonic()
        self._stopping = False
        self._waker = sockets.Waker()  # ends the wait for a request, when the helper must stop
        self._stop_answered = threading.Event()  # set once the peer that asked for the stop has its answer
        self._connections = 0

    @property
    def _wait_s(self) -> float:
        return 3 * float(self._options.timeout_s)

    def serve(self, listening: socket.socket) -> None:
        """Answer requests until no request has come for ``--idle-s`` seconds, or a stop request comes."""
        for target in (self._open, self._puts.run):
            threading.Thread(target=target, daemon=True).start()
        path = self._folder / helper_link.SOCKET
        # If the store was removed, the socket is gone, and the helper is unreachable.
        while not self._stopping and self._is_wanted() and path.exists():
            if listening.fileno() in select.select([listening.fileno(), self._waker.fileno()], [], [], LOOK_S)[0]:
                sock, _ = listening.accept()
                with self._lock:
                    self._connections += 1
                threading.Thread(target=self._connection, args=(sock,), daemon=True).start()
            self._evicting.look(self._published)
            if self._remote.keys_changed():
                threading.Thread(target=self._open, daemon=True).start()
            self._tell()
        with suppress(OSError):  # later requests go to the next helper
            path.unlink()
        if self._stopping:
            self._stop_answered.wait(LOOK_S)
        until = time.monotonic() + DRAIN_S
        self._puts.leave(DRAIN_S)
        self._claims.settle(until - time.monotonic())
        self._tell()

    def _is_wanted(self) -> bool:
        # Until the remote opens, no put can succeed.
        puts = self._remote.done.is_set() and self._puts.waiting > 0
        at_work = puts or self._claims.held > 0 or (self._farm is not None and self._farm.busy)
        return at_work or self._connections > 0 or time.monotonic() - self._asked < self._options.idle_s

    @property
    def _published(self) -> int:
        """How many objects have arrived in this store."""
        there, farm = self._remote.transfer, self._farm
        return (there.counts.fetched if there is not None else 0) + (farm.counts.compiled if farm is not None else 0)

    # ------------------------------------------------ requests

    def _connection(self, sock: socket.socket) -> None:
        try:
            self._answered(sock)
        finally:
            with self._lock:
                self._connections -= 1

    def _answered(self, sock: socket.socket) -> None:
        with sock, suppress(OSError, ValueError, KeyError, TypeError, AttributeError, WireError):
            sock.settimeout(helper_link.GREETING_S)
            file: IO[bytes] = sock.makefile("rwb")  # type: ignore[assignment]
            with suppress(OSError):  # a peer that has closed after its request is still served
                send_answer(file, {"wait_s": self._wait_s, "arguments": self._arguments, "pid": os.getpid()})
            line = file.readline(helper_link.MAX_LINE)
            if not line:
                return  # the peer only checked that the helper runs
            self._asked = time.monotonic()
            question = parse_json(line)
            if question.get("do") == "turn":
                try:
                    self._turns.answer(sock, file, question)
                finally:
                    self._asked = time.monotonic()
                return
            try:
                for answer in self._answers(question):
                    send_answer(file, answer)
            finally:
                if question.get("do") == "stop":
                    self._stop_answered.set()

    def _answers(self, question: dict[str, Any]) -> Iterator[dict[str, Any]]:
        match question:
            case {"do": "ahead", "program": str(program)} if fmt.is_key(program):
                yield from self._fetches.fetch(program)
            case {"do": "kernel", "key": str(key), "compiles": bool(compiles)} if fmt.is_key(key):
                yield from self._kernels.answers(key, compiles=compiles)
            case _:
                yield self._answer(question)

    def _answer(self, question: dict[str, Any]) -> dict[str, Any]:
        match question:
            case {"do": "put", "key": str(key), "slot": int()} if fmt.is_key(key):
                self._puts.add(question)
            case {"do": "withdraw", "key": str(key), "label": str()} if fmt.is_key(key):
                self._puts.add(question)
            case {"do": "put-entry", "function": str(function), "name": str(name)} if fmt.is_key(
                function
            ) and package_format.is_name(name):
                self._puts.add(question)
            case {"do": "put-kernel", "key": str(key)} if fmt.is_key(key):
                self._puts.add(question)
            case {"do": "used", "program": str(program), "keys": [*keys], "fresh": [*_], "entries": [*entries]} if all(
                map(fmt.is_key, [program, *keys, *question.get("kernels", ())])
            ) and all(fmt.is_key(function) and package_format.is_name(name) for function, name in entries):
                self._puts.add(question)
            case {"do": "flush"}:
                self._remote.done.wait()
                self._puts.flush()
                self._tell()
            case {"do": "farm"} if self._farm is not None:
                self._farm.look(self._wait_s)
                self._tell()
                return self._farm.document()
            case {"do": "stop"}:
                self._stopping = True
                with suppress(OSError):  # later requests go to the next helper
                    (self._folder / helper_link.SOCKET).unlink()
                self._waker.wake()
        return {}

    # ------------------------------------------------ its state

    def _open(self) -> None:
        try:
            self._remote.open(self._options)
            self._puts.flush(timeout_s=0.0)  # puts that an unusable remote has delayed
        finally:
            self._tell()

    def _tell(self) -> None:
        """Write the states of the remote and of the farm to their files, if they have changed."""
        if self._farm is not None:
            self._write(helper_link.FARM_STATE, self._farm.document())
        if self._remote.problem is not None:
            state: dict[str, Any] = {
                "remote": self._options.remote,
                "state": "unusable",
                "code": self._remote.problem.code,
                "reason": str(self._remote.problem),
                **dataclasses.asdict(transfer.TransferCounts()),
            }
        elif self._remote.transfer is not None:
            state = self._remote.transfer.document()
        else:
            return
        self._write(helper_link.STATE, {**state, "waiting": self._puts.waiting})

    def _write(self, name: str, state: dict[str, Any]) -> None:
        with self._lock, suppress(OSError):
            if state != self._states_written.get(name):
                with durable.replacing(self._folder / name, 0o600, sync=False) as file:
                    file.write(json.dumps({**state, "pid": os.getpid(), "at": time.time()}).encode())
                self._states_written[name] = state


def main(argv: Sequence[str]) -> int:
    options = _parser().parse_args(argv)
    parent_fd = starting.detach() if options.detach else -1
    # The user's umask stays, because it applies to directories that users share. Other files get explicit modes.
    os.chdir("/")
    folder = helper_link.folder(options.store)
    for directory in (options.store, folder):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        trust.check_stat(os.lstat(directory), str(directory), directory=True)
    arguments = starting.identity(argv)
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    if not starting.is_ours(lock, options.store, arguments):
        return 0
    listening = starting.listening(folder)
    with suppress(FileNotFoundError):
        (folder / helper_link.STARTING).unlink()
    if options.detach:
        os.close(parent_fd)
    helper = Helper(options, arguments)
    try:
        helper.serve(listening)
    finally:
        with suppress(OSError):
            (folder / helper_link.SOCKET).unlink()
    return 0


if __name__ == "__main__":
    status = main(sys.argv[1:])
    os._exit(status)  # do not wait for the threads of hanging requests and of network libraries

"""Runs the helper of a user's store, for its remote and its farm.

It moves objects between the store and the remote, and sends jobs to the farm (precompiled/farm).

The helper is a process of its own with its user's credentials. So no program waits for a network or loads network
libraries, and the daemon, which serves all users, holds no credentials. A client starts the helper
(client/remote_helper.py). The helper exits after ``--idle-s`` seconds without a request. A store has only one helper,
which holds a lock while it runs. The helper's state is in ``remote/state.json`` and ``remote/farm.json``.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
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

from precompiled import wire
from precompiled.core import durable
from precompiled.core.config import Settings
from precompiled.core.errors import PrecompiledError, StoreError, WireError
from precompiled.farm import farm
from precompiled.remote import lease, link, lists, starting, transfer, trusting
from precompiled.remote.claims import Claims
from precompiled.remote.errors import RemoteError
from precompiled.remote.evicting import Evicting
from precompiled.remote.puts import Puts, QueuedPut
from precompiled.store import artifact_format as fmt
from precompiled.store import package_format, trust
from precompiled.store.artifacts import Store

LOOK_S = 1.0
DRAIN_S = 5.0  # seconds at exit for the remaining puts; the next helper waits for them (starting.LEAVING_S)
STREAM_KEPT_S = 10.0  # for this many seconds, processes of one program share a fetch that one of them began
MAX_JOB_BYTES = 1 << 30


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m precompiled.remote.helper", description=__doc__.splitlines()[0])
    parser.add_argument("--store", required=True, type=Path)
    parser.add_argument("--remote", default="")
    parser.add_argument("--farm", default="")
    parser.add_argument("--timeout-s", type=float, default=10.0)
    parser.add_argument("--idle-s", type=float, default=600.0)
    parser.add_argument("--base", type=Path, action="append", default=[], help="what it has is not fetched")
    # Pass the argument in the form "--max-bytes=N", as starting.BUDGETS has it.
    parser.add_argument("--max-bytes", type=int, default=Settings.cache_max_bytes)
    parser.add_argument("--max-inodes", type=int, default=Settings.cache_max_inodes)
    parser.add_argument("--unsigned", action="store_true")
    parser.add_argument("--no-put", action="store_true")
    parser.add_argument("--detach", action="store_true", help="go to the background, and end here once it listens")
    return parser


class _Stream:
    """The fetch of the objects that a program used last. ``listed``: the number of objects. ``fetched``: the number of
    objects that the store lacked.
    """

    def __init__(self, there: transfer.Transfer, program: str) -> None:
        self._there, self._program = there, program
        self.begun, self.ended = threading.Event(), threading.Event()
        self.listed = self.fetched = 0
        self.ended_at = math.inf

    def run(self) -> None:
        _lists, objects = lists.read_lists(self._there, self._program)
        self.listed = len(objects)
        self.begun.set()
        before = self._there.counts.fetched
        try:
            self._there.bring(objects)
        finally:
            self.fetched = self._there.counts.fetched - before  # includes objects that workers requested meanwhile


class Helper:
    """The helper's main object. ``serve`` opens the remote and answers requests, each in a thread of its own."""

    def __init__(self, options: argparse.Namespace, arguments: Sequence[str]) -> None:
        self._options, self._arguments = options, list(arguments)
        self._folder = link.folder(options.store)
        self._transfer: transfer.Transfer | None = None
        self._problem: PrecompiledError | None = None
        self._opened = threading.Event()
        self._claims = Claims(self._failed, may_hold=not options.no_put)
        self._streams: dict[str, _Stream] = {}  # program -> its last fetch of this kind
        self._lock = threading.Lock()
        self._puts = Puts(self._put, failed=self._failed, given_up=self._gave_up, changed=self._tell, rests=self._rests)
        store = Store(options.store, options.base)
        self._evicting = Evicting(store, options.max_bytes, options.max_inodes, self._failed)
        self._farm = farm.open_farm(options.farm, options.store, options.base, self._came) if options.farm else None
        self._states_written: dict[str, dict[str, Any]] = {}  # file name -> the state that it holds
        self._began = self._asked = time.monotonic()
        self._stopping = False
        self._connections = 0

    @property
    def _wait_s(self) -> float:
        return 3 * float(self._options.timeout_s)

    def serve(self, listening: socket.socket) -> None:
        """Answer requests until no request has come for ``--idle-s`` seconds, or a stop request comes."""
        for target in (self._open, self._put_all):
            threading.Thread(target=target, daemon=True).start()
        path = self._folder / link.SOCKET
        # Without its socket, no peer can connect. The socket is gone if the store was removed.
        while not self._stopping and self._is_wanted() and path.exists():
            if select.select([listening], [], [], LOOK_S)[0]:
                sock, _ = listening.accept()
                with self._lock:
                    self._connections += 1
                threading.Thread(target=self._connection, args=(sock,), daemon=True).start()
            self._evicting.look(self._published)
            self._tell()
        with suppress(OSError):  # later requests go to the next helper
            path.unlink()
        until = time.monotonic() + DRAIN_S
        self._puts.leave(DRAIN_S)
        self._claims.settle(until - time.monotonic())
        self._tell()

    def _is_wanted(self) -> bool:
        # If the remote never opens, no put can succeed.
        puts = self._opened.is_set() and self._puts.waiting > 0
        at_work = puts or self._claims.held > 0 or (self._farm is not None and self._farm.busy)
        return at_work or self._connections > 0 or time.monotonic() - self._asked < self._options.idle_s

    @property
    def _published(self) -> int:
        """How many objects have arrived in this store."""
        there, farm = self._transfer, self._farm
        return (there.counts.fetched if there is not None else 0) + (farm.counts.compiled if farm is not None else 0)

    # ------------------------------------------------ requests

    def _connection(self, sock: socket.socket) -> None:
        try:
            self._answered(sock)
        finally:
            with self._lock:
                self._connections -= 1

    def _answered(self, sock: socket.socket) -> None:
        with sock, suppress(OSError, ValueError, KeyError, TypeError, WireError):
            sock.settimeout(link.GREETING_S)
            file: IO[bytes] = sock.makefile("rwb")  # type: ignore[assignment]
            with suppress(OSError):  # a peer that has sent its request and closed is still served
                _say(file, {"wait_s": self._wait_s, "arguments": self._arguments})
            line = file.readline(link.MAX_LINE)
            if not line:
                return  # the peer only checked whether this helper runs
            self._asked = time.monotonic()
            question = json.loads(line)
            if question.get("do") == "turn":
                self._turn(sock, file, question)
                return
            for answer in self._answers(question):
                _say(file, answer)

    def _turn(self, sock: socket.socket, file: IO[bytes], question: dict[str, Any]) -> None:
        """Answer a worker that asks for its turn at a key, and take its reports on the same connection; or answer a
        courier.
        """
        key, courier = question["key"], bool(question.get("courier"))
        if not fmt.is_key(key):
            return
        answer = self._farm.ask(key, courier=courier) if self._farm is not None else {} if courier else None
        if answer is None:
            answer = self._remotes(key)
            if courier and "compile" in answer:
                answer = {"send": True}
        self._tell()
        # From here on, this method must end the key's lease, if it has one: the peer may have closed the connection
        # already.
        said, ours = "", "compile" in answer or "send" in answer
        try:
            _say(file, answer)
            if "send" in answer:
                ours = False  # ``_take`` or the farm ends it
                _say(file, self._take(sock, file, key))
                return
            sock.settimeout(None)  # no time limit while the worker compiles
            while "compile" in answer and (line := file.readline(link.MAX_LINE)):
                what = json.loads(line)
                if what.get("do") == "put" and what.get("key") == key and isinstance(what.get("slot"), int):
                    said = "put" if self._will_put(what) else ""
                    if self._farm is not None:
                        self._farm.published_here(key)
                elif what.get("do") == "failed":
                    said = "failed"
                _say(file, {})
        finally:
            self._asked = time.monotonic()
            if ours and said != "put":  # a put ends the lease later
                self._claims.ended(key, said)

    def _remotes(self, key: str) -> dict[str, Any]:
        """The remote's answer about a key, for a worker or a courier."""
        if not self._opened.wait(link.AGAIN_S / 2):
            return {"again_s": link.AGAIN_S} if time.monotonic() - self._began < link.STARTING_S else {"compile": True}
        return {"compile": True} if self._transfer is None else self._claims.ask(self._transfer, key)

    def _take(self, sock: socket.socket, file: IO[bytes], key: str) -> dict[str, Any]:
        """Take a courier's job for the farm, which then holds the key's lease."""
        assert self._farm is not None
        taken = False
        try:
            sock.settimeout(link.SENT_S)
            size = int(json.loads(file.readline(link.MAX_LINE))["bytes"])
            job: wire.PoolMessage = wire.decode(file.read(min(size, MAX_JOB_BYTES)), wire.PoolMessage, MAX_JOB_BYTES)
            if isinstance(job, wire.Job) and job.key == key and job.offer is not None:
                answer, taken = self._farm.take(job), True
                return answer
            return {}
        finally:
            if not taken:
                self._claims.ended(key, "")

    def _came(self, key: str, slots: list[int]) -> None:
        """Called when the farm has ended a key. The results are published in these slots."""
        put = [self._will_put({"do": "put", "key": key, "slot": slot}) for slot in slots]
        if not any(put):
            self._claims.ended(key, "")
        self._tell()

    def _answers(self, question: dict[str, Any]) -> Iterator[dict[str, Any]]:
        match question:
            case {"do": "ahead", "program": str(program)} if fmt.is_key(program):
                yield from self._ahead(program)
            case _:
                yield self._answer(question)

    def _answer(self, question: dict[str, Any]) -> dict[str, Any]:
        match question:
            case {"do": "put", "key": str(key), "slot": int()} if fmt.is_key(key):
                self._will_put(question)
            case {"do": "put-entry", "function": str(function), "name": str(name)} if fmt.is_key(
                function
            ) and package_format.is_name(name):
                self._will_put(question)
            case {"do": "used", "program": str(program), "keys": [*keys], "fresh": [*_], "entries": [*entries]} if all(
                map(fmt.is_key, [program, *keys])
            ) and all(fmt.is_key(function) and package_format.is_name(name) for function, name in entries):
                self._will_put(question)
            case {"do": "flush"}:
                self._opened.wait()
                self._puts.flush()
                self._tell()
            case {"do": "farm"} if self._farm is not None:
                self._farm.look(self._wait_s)
                self._tell()
                return self._farm.document()
            case {"do": "stop"}:
                self._stopping = True
                with suppress(OSError):  # later requests go to the next helper
                    (self._folder / link.SOCKET).unlink()
        return {}

    def _ahead(self, program: str) -> Iterator[dict[str, Any]]:
        """Fetch the objects that a program used last, once for all of the program's processes that request them
        meanwhile.
        """
        if not self._opened.wait(self._wait_s) or self._transfer is None:
            return
        with self._lock:
            stream = self._streams.get(program)
            if stream is None or time.monotonic() - stream.ended_at > STREAM_KEPT_S:
                stream = self._streams[program] = _Stream(self._transfer, program)
                threading.Thread(target=self._stream, args=(stream,), daemon=True).start()
        if stream.begun.wait(self._wait_s):
            yield {"listed": stream.listed}
            if stream.ended.wait(self._wait_s):
                yield {"fetched": stream.fetched}

    def _stream(self, stream: _Stream) -> None:
        try:
            stream.run()
        except (RemoteError, StoreError) as error:
            self._failed(error)
        finally:
            stream.ended_at = time.monotonic()
            stream.begun.set()
            stream.ended.set()
            self._tell()

    def _will_put(self, what: dict[str, Any]) -> bool:
        return bool(self._options.remote) and not self._options.no_put and self._puts.add(what)

    def _put_all(self) -> None:
        self._opened.wait()
        self._puts.run()

    def _put(self, item: QueuedPut) -> None:
        there, what = self._transfer, item.what
        if there is None:
            return  # the remote is unusable; the state file gives the reason
        if what["do"] == "used":
            lists.note(there, what["program"], what["keys"], what["fresh"], what["entries"])
            return
        if what["do"] == "put-entry":
            there.put_entry(what["function"], what["name"])
            return
        try:
            for artifact in there.store.lookup(what["key"]):
                is_it = artifact.slot == what["slot"] and there.store.is_own(artifact)
                # If an earlier try has put the object, it is in the remote already.
                if is_it and (there.put_artifact(artifact) or item.tries):
                    lease.remove_given_up(there, what["key"])
        finally:
            if not item.tries:  # a second try has no lease: another worker may hold the key's lease by then
                self._claims.ended(what["key"], "put")

    def _rests(self) -> bool:
        there = self._transfer
        return there is not None and (there.bucket.writing.rests or there.bucket.reading.rests)

    def _gave_up(self, number: int, why: str) -> None:
        if self._transfer is not None:
            self._transfer.gave_up(number, why)

    # ------------------------------------------------ its state

    def _open(self) -> None:
        options = self._options
        try:
            if not options.remote:
                return
            self._transfer = transfer.open_transfer(
                options.store, options.remote, options.timeout_s, trusting.trust(options.unsigned), options.base
            )
        except PrecompiledError as error:
            self._problem = error
        finally:
            self._opened.set()
            self._tell()

    def _failed(self, error: Exception) -> None:
        if isinstance(error, RemoteError) and self._transfer is not None:
            self._transfer.failed(error)
        # The log's disk is full, but a thread that puts or holds a lease must go on.
        with suppress(OSError, ValueError):
            sys.stderr.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {type(error).__name__}: {error}\n")
            sys.stderr.flush()

    def _tell(self) -> None:
        """Write the states of the remote and of the farm to their files, if they have changed."""
        if self._farm is not None:
            self._write(link.FARM_STATE, self._farm.document())
        if self._problem is not None:
            state: dict[str, Any] = {
                "remote": self._options.remote,
                "state": "unusable",
                "code": self._problem.code,
                "reason": str(self._problem),
                **dataclasses.asdict(transfer.TransferCounts()),
            }
        elif self._transfer is not None:
            state = self._transfer.document()
        else:
            return
        self._write(link.STATE, {**state, "waiting": self._puts.waiting})

    def _write(self, name: str, state: dict[str, Any]) -> None:
        with self._lock, suppress(OSError):
            if state != self._states_written.get(name):
                with durable.replacing(self._folder / name, 0o600, sync=False) as file:
                    file.write(json.dumps({**state, "pid": os.getpid(), "at": time.time()}).encode())
                self._states_written[name] = state


def _say(file: IO[bytes], answer: dict[str, Any]) -> None:
    file.write(json.dumps(answer).encode() + b"\n")
    file.flush()


def main(argv: Sequence[str]) -> int:
    options = _parser().parse_args(argv)
    parent_fd = starting.detach() if options.detach else -1
    # The user's umask stays, because it applies to directories that other users share. All other files get explicit
    # modes.
    os.chdir("/")
    folder = link.folder(options.store)
    for directory in (options.store, folder):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        trust.check_stat(os.lstat(directory), str(directory), directory=True)
    arguments = starting.identity(argv)
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    if not starting.is_ours(lock, options.store, arguments):
        return 0
    listening = starting.listening(folder)
    with suppress(FileNotFoundError):
        (folder / link.STARTING).unlink()
    if options.detach:
        os.close(parent_fd)
    helper = Helper(options, arguments)
    try:
        helper.serve(listening)
    finally:
        with suppress(OSError):
            (folder / link.SOCKET).unlink()
    return 0


if __name__ == "__main__":
    status = main(sys.argv[1:])
    os._exit(status)  # a request that hangs keeps its thread, and network libraries may wait for theirs

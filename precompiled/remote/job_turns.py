"""Answers workers and couriers about a job: compile it, wait, use a published artifact, or send it to the farm."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from typing import IO, Any

from precompiled import wire
from precompiled.core.json_text import parse_json
from precompiled.farm.farm import Farm
from precompiled.remote import helper_link
from precompiled.remote.claims import Claims
from precompiled.remote.opened_remote import OpenedRemote
from precompiled.remote.puts import Puts
from precompiled.store import artifact_format as fmt

MAX_JOB_BYTES = 1 << 30


class JobTurns:
    """Answers workers and couriers about their jobs. Thread-safe. ``changed`` is called when the state of the farm may
    have changed.
    """

    def __init__(self, remote: OpenedRemote, claims: Claims, puts: Puts, changed: Callable[[], None]) -> None:
        self._remote, self._claims, self._puts, self._changed = remote, claims, puts, changed
        self._began = time.monotonic()
        self.farm: Farm | None = None

    def answer(self, sock: socket.socket, file: IO[bytes], question: dict[str, Any]) -> None:
        """Answer a worker's request to compile a key, and receive the worker's reports on the same connection.

        Also answers a courier.
        """
        key, courier = question["key"], bool(question.get("courier"))
        if not fmt.is_key(key):
            return
        answer = self.farm.ask(key, courier=courier) if self.farm is not None else {} if courier else None
        if answer is None:
            answer = self._remotes(key)
            if courier and "compile" in answer:
                answer = {"send": True}
        self._changed()
        # The answer may give the peer the key's lease. If the peer has already closed the connection, it cannot end the
        # lease. So from this line on, this method must end it.
        said, ours = "", "compile" in answer or "send" in answer
        try:
            send_answer(file, answer)
            if "send" in answer:
                ours = False  # ``_take`` or the farm ends the lease
                send_answer(file, self._take(sock, file, key))
                return
            sock.settimeout(None)  # no time limit while the worker compiles
            while "compile" in answer and (line := file.readline(helper_link.MAX_LINE)):
                what = parse_json(line)
                if what.get("do") == "put" and what.get("key") == key and isinstance(what.get("slot"), int):
                    said = "put" if self._puts.add(what) else ""
                    if self.farm is not None:
                        self.farm.published_here(key)
                elif what.get("do") == "failed":
                    said = "failed"
                send_answer(file, {})
        finally:
            if ours and said != "put":  # a put ends the lease itself
                self._claims.ended(key, said)

    def _remotes(self, key: str) -> dict[str, Any]:
        """Return the remote's answer to a worker or courier that requests a key."""
        if not self._remote.done.wait(helper_link.AGAIN_S / 2):
            is_starting = time.monotonic() - self._began < helper_link.STARTING_S
            return {"again_s": helper_link.AGAIN_S} if is_starting else {"compile": True}
        there = self._remote.transfer
        return {"compile": True} if there is None else self._claims.ask(there, key)

    def _take(self, sock: socket.socket, file: IO[bytes], key: str) -> dict[str, Any]:
        """Receive a courier's job and give it to the farm. The farm then holds the key's lease."""
        assert self.farm is not None
        taken = False
        try:
            sock.settimeout(helper_link.SENT_S)
            size = int(parse_json(file.readline(helper_link.MAX_LINE))["bytes"])
            job: wire.PoolMessage = wire.decode(file.read(min(size, MAX_JOB_BYTES)), wire.PoolMessage, MAX_JOB_BYTES)
            if isinstance(job, wire.Job) and job.key == key and job.offer is not None:
                answer, taken = self.farm.take(job), True
                return answer
            return {}
        finally:
            if not taken:
                self._claims.ended(key, "")

    def on_farm_ended(self, key: str, slots: list[int]) -> None:
        """Queue a put for each result of a job that the farm has finished. ``key``: the job's key.

        ``slots``: the slots, in this store, of the results that the farm has compiled.
        """
        put = [self._puts.add({"do": "put", "key": key, "slot": slot}) for slot in slots]
        if not any(put):
            self._claims.ended(key, "")
        self._changed()


def send_answer(file: IO[bytes], answer: dict[str, Any]) -> None:
    file.write(json.dumps(answer).encode() + b"\n")
    file.flush()

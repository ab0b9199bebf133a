"""Submits known keys over precompiled's own connection, one at a time or many at once.

Usage: python -m benchmarks.scale.program SPEC. SPEC is a JSON object:
- ``submits``: number of submits
- ``window``: number of submits that may wait for a first reply at the same time
- ``keys``: taken in turn
- ``blob``: the file with the graph of all keys
- ``environment``: as wire.Interpreter

Directories come from environment variables. Prints "ready", waits for a line on stdin, and prints a JSON line:
- ``accepted``: for each submit, seconds until its first reply; ``answered``: seconds until the reply that its artifact
  is published
- ``lost``: number of submits without the reply that the artifact is published
- ``other``: number of replies of other kinds
- ``submitted_s``: seconds until the last submit
"""

from __future__ import annotations

import functools
import json
import sys
import threading
import time
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

from precompiled import wire
from precompiled.client.connection import DaemonConnection
from precompiled.core import config

LIMIT_S = 300.0  # longest time without any reply, in seconds


class Clients:
    """Sends the submits and collects their replies, which arrive in the connection's thread."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.spec = spec
        self.settings = config.load()
        self.connection = DaemonConnection(self.settings)
        self.interpreter = wire.Interpreter(**spec["environment"])
        self.blob = Path(spec["blob"]).read_bytes()
        self.sent: dict[str, float] = {}
        self.accepted: dict[str, float] = {}
        self.answered: dict[str, float] = {}
        self.other: Counter[str] = Counter()
        self.changed = threading.Condition()

    def submit(self, key: str) -> None:
        id = uuid.uuid4().hex
        message = wire.Submit(
            id=id, key=key, store=str(self.settings.cache_dir), environment=self.interpreter, device="cpu", name="scale"
        )
        self.sent[id] = time.perf_counter()
        self.connection.submit(message, self.blob, self.on_reply)

    def on_reply(self, reply: wire.DaemonMessage) -> None:
        now = time.perf_counter()
        if not isinstance(reply, wire.Accepted):
            self.other[f"{type(reply).__name__} {getattr(reply, 'code', '')}".strip()] += 1
            return
        with self.changed:
            self.accepted.setdefault(reply.id, now - self.sent[reply.id])
            if reply.state == "published":
                self.answered[reply.id] = now - self.sent[reply.id]
            self.changed.notify()
        if reply.state == "published":
            self.connection.forget(reply.id)

    def has_room(self, number: int, window: int) -> bool:
        return number - len(self.accepted) < window

    def run(self) -> dict[str, Any]:
        keys, count, window = self.spec["keys"], self.spec["submits"], self.spec["window"]
        started = time.perf_counter()
        for number in range(count):
            with self.changed:
                if not self.changed.wait_for(functools.partial(self.has_room, number, window), LIMIT_S):
                    break
            self.submit(keys[number % len(keys)])
        submitted = time.perf_counter() - started
        with self.changed:
            before = -1
            while len(self.answered) < count and len(self.answered) > before:
                before = len(self.answered)
                self.changed.wait_for(lambda: len(self.answered) == count, LIMIT_S)
        return {
            "accepted": list(self.accepted.values()),
            "answered": list(self.answered.values()),
            "lost": count - len(self.answered),
            "other": dict(self.other),
            "submitted_s": submitted,
        }


def main() -> None:
    clients = Clients(json.loads(sys.argv[1]))
    print("ready", flush=True)
    sys.stdin.readline()
    print(json.dumps(clients.run()), flush=True)
    clients.connection.close()


if __name__ == "__main__":
    main()

"""Fetches the objects that a program used last, once for all of its processes."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from precompiled.core.errors import StoreError
from precompiled.remote import lists, transfer
from precompiled.remote.errors import RemoteError
from precompiled.remote.opened_remote import OpenedRemote

STREAM_KEPT_S = 10.0  # seconds for which processes of one program share a fetch that any of them began


class _Stream:
    """The fetch of the objects that a program used last. ``listed``: their number. ``fetched``: how many of them the
    store lacked.
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
            # includes objects that workers requested in the same time
            self.fetched = self._there.counts.fetched - before


class ProgramFetches:
    """The fetches of a helper, one for each program. Thread-safe. ``changed`` is called after each fetch."""

    def __init__(self, remote: OpenedRemote, wait_s: float, changed: Callable[[], None]) -> None:
        self._remote, self._wait_s, self._changed = remote, wait_s, changed
        self._streams: dict[str, _Stream] = {}  # maps a program to its latest fetch
        self._lock = threading.Lock()

    def fetch(self, program: str) -> Iterator[dict[str, Any]]:
        """Fetch the objects that a program used last. Other processes of the program share the fetch."""
        if not self._remote.done.wait(self._wait_s) or (there := self._remote.transfer) is None:
            if (problem := self._remote.problem) is not None:
                yield {"problem": problem.message, "action": problem.action, "code": problem.code}
            return
        with self._lock:
            stream = self._streams.get(program)
            if stream is None or time.monotonic() - stream.ended_at > STREAM_KEPT_S:
                stream = self._streams[program] = _Stream(there, program)
                threading.Thread(target=self._stream, args=(stream,), daemon=True).start()
        if stream.begun.wait(self._wait_s):
            yield {"listed": stream.listed}
            if stream.ended.wait(self._wait_s):
                yield {"fetched": stream.fetched}

    def _stream(self, stream: _Stream) -> None:
        try:
            stream.run()
        except (RemoteError, StoreError) as error:
            self._remote.failed(error)
        finally:
            stream.ended_at = time.monotonic()
            stream.begun.set()
            stream.ended.set()
            self._changed()

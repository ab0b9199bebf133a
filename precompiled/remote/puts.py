"""Uploads the objects that a helper's peers report, and ends the leases of the objects' keys.

Puts run in the order of the requests. If the remote fails, puts are repeated.

- An item that was not tried yet is *fresh*, and is tried at once.
- A failed item is tried again after ``AGAIN_S``, but not while the remote rests (bucket.py).
- An item that is older than KEPT_S is given up.
- A list of a program's objects is put after all items that were added earlier, because it must name only objects in the
  remote.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from precompiled.core.errors import PrecompiledError
from precompiled.remote import lease, lists
from precompiled.remote.bucket import REST_S
from precompiled.remote.claims import Claims
from precompiled.remote.envelope import KERNEL
from precompiled.remote.errors import RemoteError
from precompiled.remote.opened_remote import OpenedRemote

MAX_WAITING = 10_000
AGAIN_S = REST_S
KEPT_S = 600.0  # seconds; after a longer outage, only `precompiled remote push` puts the objects
LOOK_S = 1.0  # seconds between two checks whether the remote still rests


@dataclass
class QueuedPut:
    """One put. ``what``: the request (helper_link.py)."""

    what: dict[str, Any]
    since: float
    due: float = 0.0
    tries: int = 0
    error: PrecompiledError | None = None  # why the last try failed


class Puts:
    """The puts of a helper. Thread-safe. ``run`` needs its own thread.

    ``changed`` is called after each try. ``wanted``: whether this host puts anything.
    """

    def __init__(self, remote: OpenedRemote, claims: Claims, changed: Callable[[], None], *, wanted: bool) -> None:
        self._remote, self._claims, self._changed, self._wanted = remote, claims, changed, wanted
        self._fresh: deque[QueuedPut] = deque()
        self._again: deque[QueuedPut] = deque()  # ordered by their due times
        self._trying: QueuedPut | None = None
        self._left = False
        self._state = threading.Condition()

    @property
    def waiting(self) -> int:
        """The number of items that are not put yet, including the current one."""
        with self._state:
            return len(self._fresh) + len(self._again) + (self._trying is not None)

    def add(self, what: dict[str, Any]) -> bool:
        """Queue a put. Returns whether the put will be tried."""
        if not self._wanted:
            return False
        with self._state:
            if not self._left and len(self._fresh) + len(self._again) < MAX_WAITING:
                self._fresh.append(QueuedPut(what, time.monotonic()))
                self._state.notify_all()
                return True
        self._remote.gave_up(1, "the helper has left" if self._left else f"{MAX_WAITING} objects already wait")
        return False

    def awaits_kernel(self, key: str) -> bool:
        """Whether a Triton kernel is queued, and the first try to put it has not ended."""
        with self._state:
            items = [item for item in (self._trying, *self._fresh) if item is not None and not item.tries]
        return any(item.what["do"] == "put-kernel" and item.what["key"] == key for item in items)

    def flush(self, timeout_s: float | None = None) -> bool:
        """Try each queued item once, including failed ones. Returns whether all were tried in time."""
        with self._state:
            self._fresh.extendleft(reversed(self._again))
            self._again.clear()
            self._state.notify_all()
            return self._state.wait_for(lambda: not self._fresh and self._trying is None, timeout_s)

    def leave(self, timeout_s: float) -> None:
        """Flush at the helper's exit, and give up the remaining items."""
        self.flush(timeout_s)
        with self._state:
            self._left = True
            self._state.notify_all()
            left = [*([self._trying] if self._trying is not None else []), *self._fresh, *self._again]
            self._fresh.clear()
            self._again.clear()
        self._give_up(left, "the helper has left")

    def run(self) -> None:
        """Wait until the remote is open, then put items until ``leave``."""
        self._remote.done.wait()
        while (item := self._next()) is not None:
            item.error = None
            try:
                self._put(item)
            except RemoteError as error:
                item.error = error
                self._remote.failed(error)
            except Exception as error:  # noqa: BLE001 - the thread continues; the artifact is unreadable or evicted
                self._remote.failed(error)
            finally:
                with self._state:
                    item.tries += 1
                    self._trying = None
                    if item.error is not None:
                        self._later(item, time.monotonic() + AGAIN_S)
                    self._state.notify_all()
            self._changed()

    def _put(self, item: QueuedPut) -> None:
        there, what = self._remote.transfer, item.what
        if there is None:
            item.error = self._remote.problem  # try again when the remote is usable
            return
        if what["do"] == "used":
            lists.note(there, what["program"], what["keys"], what["fresh"], what["entries"], what.get("kernels", ()))
            return
        if what["do"] == "put-kernel":
            if there.put_kernel(what["key"]) or item.tries:
                lease.remove_given_up(there, what["key"], KERNEL)
            return
        if what["do"] == "put-entry":
            there.put_entry(what["function"], what["name"])
            return
        if what["do"] == "withdraw":
            there.withdraw(what["key"], what["label"])
            return
        try:
            for artifact in there.store.lookup(what["key"]):
                is_it = artifact.slot == what["slot"] and there.store.is_own(artifact)
                # If this is not the first try, an earlier try may have put the object.
                if is_it and (there.put_artifact(artifact) or item.tries):
                    lease.remove_given_up(there, what["key"])
        finally:
            if not item.tries:  # a second try has no lease, because another worker may hold it by then
                self._claims.ended(what["key"], "put")

    def _later(self, item: QueuedPut, due: float) -> None:
        item.due = due
        self._again.append(item)

    def _taken(self, items: deque[QueuedPut]) -> QueuedPut | None:
        """Take the first of ``items``. A list of used objects must be put after the objects that it names. So if the
        item is such a list and failed puts of objects are queued, requeue the list behind them and return None.
        """
        item = items.popleft()
        if item.what.get("do") == "used" and any(other.what.get("do") != "used" for other in self._again):
            self._later(item, self._again[-1].due)
            return None
        self._trying = item
        return item

    def _next(self) -> QueuedPut | None:
        while True:
            with self._state:
                if self._left:
                    return None
                now = time.monotonic()
                old = [item for item in self._again if now - item.since > KEPT_S]
                for item in old:
                    self._again.remove(item)
                if not old:
                    due = self._again[0].due - now if self._again else None
                    may_retry = due is not None and due <= 0 and not self._remote.rests()
                    ready = self._fresh or (self._again if may_retry else None)
                    if ready:
                        if (taken := self._taken(ready)) is not None:
                            return taken
                        self._state.notify_all()  # ``flush`` waits until there is no fresh item
                        continue
                    self._state.wait(None if due is None else LOOK_S if due <= 0 else min(due, LOOK_S))
            if old:
                self._give_up(old, f"the remote did not accept them for {KEPT_S:g} s")
                self._changed()

    def _give_up(self, items: list[QueuedPut], why: str) -> None:
        if items:
            errors = [item.error.message for item in items if item.error is not None]
            self._remote.gave_up(len(items), f"{why}: {errors[-1]}" if errors else why)

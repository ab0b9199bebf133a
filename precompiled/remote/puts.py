"""What a helper is to put into the remote: in the order in which it was told, and again where the remote fails.

What was not tried yet is *fresh*, and tried at once, so who waits in ``flush`` waits for one try of each. What the
remote did not take is tried again, ``AGAIN_S`` later and not while the remote rests (bucket.py), until it is KEPT_S
old; then it is given up. What a program has used is listed after what was told before it: a list names what is there.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from precompiled.remote.bucket import REST_S
from precompiled.remote.errors import RemoteError

MAX_WAITING = 10_000
AGAIN_S = REST_S
KEPT_S = 600.0  # a remote that is away for longer has its objects by `precompiled push`
LOOK_S = 1.0  # whether the remote still rests


@dataclass
class Item:
    """``what``: as the helper was told (link.py)."""

    what: dict[str, Any]
    since: float
    due: float = 0.0
    tries: int = 0
    error: RemoteError | None = None  # of the last try


class Puts:
    """Thread-safe; ``run`` has a thread of its own.

    ``put`` tries an item. ``failed`` is told each error, ``given_up`` what is not tried again: how many, and why;
    ``changed`` is called after each try. ``rests``: whether the remote is left alone now.
    """

    def __init__(
        self, put: Callable[[Item], None], *, failed: Callable[[Exception], None],
        given_up: Callable[[int, str], None], changed: Callable[[], None] = lambda: None,
        rests: Callable[[], bool] = lambda: False,
    ) -> None:  # fmt: skip
        self._put, self._failed, self._given_up, self._changed, self._rests = put, failed, given_up, changed, rests
        self._fresh: deque[Item] = deque()
        self._again: deque[Item] = deque()  # by when they are due
        self._trying: Item | None = None
        self._left = False
        self._state = threading.Condition()

    @property
    def waiting(self) -> int:
        """How many are still to be put, with the one that is on its way."""
        with self._state:
            return len(self._fresh) + len(self._again) + (self._trying is not None)

    def add(self, what: dict[str, Any]) -> bool:
        """Whether there was room for it."""
        with self._state:
            if not self._left and len(self._fresh) + len(self._again) < MAX_WAITING:
                self._fresh.append(Item(what, time.monotonic()))
                self._state.notify_all()
                return True
        self._given_up(1, "the helper has left" if self._left else f"{MAX_WAITING} are waiting already")
        return False

    def flush(self, timeout_s: float | None = None) -> bool:
        """Try each once, now; whether all were, in time."""
        with self._state:
            self._fresh.extendleft(reversed(self._again))
            self._again.clear()
            self._state.notify_all()
            return self._state.wait_for(lambda: not self._fresh and self._trying is None, timeout_s)

    def leave(self, timeout_s: float) -> None:
        """The same at the helper's end: what is not put then is given up."""
        self.flush(timeout_s)
        with self._state:
            self._left = True
            self._state.notify_all()
            left = [*([self._trying] if self._trying is not None else []), *self._fresh, *self._again]
            self._fresh.clear()
            self._again.clear()
        self._give_up(left, "the helper has left")

    def run(self) -> None:
        """Until ``leave``."""
        while (item := self._next()) is not None:
            item.error = None
            try:
                self._put(item)
            except RemoteError as error:
                item.error = error
                self._failed(error)
            except Exception as error:  # noqa: BLE001 - the thread goes on; here it cannot be read, or was evicted
                self._failed(error)
            finally:
                with self._state:
                    item.tries += 1
                    self._trying = None
                    if item.error is not None:
                        self._later(item, time.monotonic() + AGAIN_S)
                    self._state.notify_all()
            self._changed()

    def _later(self, item: Item, due: float) -> None:
        item.due = due
        self._again.append(item)

    def _taken(self, items: deque[Item]) -> Item | None:
        """The first of these, to be tried; None where that is a list, and what was told before it is not there yet."""
        item = items.popleft()
        if item.what.get("do") == "used" and any(other.what.get("do") != "used" for other in self._again):
            self._later(item, self._again[-1].due)
            return None
        self._trying = item
        return item

    def _next(self) -> Item | None:
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
                    ready = self._fresh or (self._again if due is not None and due <= 0 and not self._rests() else None)
                    if ready:
                        if (taken := self._taken(ready)) is not None:
                            return taken
                        self._state.notify_all()  # nothing may be fresh any more
                        continue
                    self._state.wait(None if due is None else LOOK_S if due <= 0 else min(due, LOOK_S))
            if old:
                self._give_up(old, f"for {KEPT_S:g} s the remote did not take them")
                self._changed()

    def _give_up(self, items: list[Item], why: str) -> None:
        if items:
            errors = [item.error.message for item in items if item.error is not None]
            self._given_up(len(items), f"{why}: {errors[-1]}" if errors else why)

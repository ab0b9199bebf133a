"""The helper evicts: where nothing is compiled no worker does, and what is fetched would fill the disk."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from precompiled.store.artifacts import Store

INTERVAL_S = 60.0  # to add up the sizes of a large store takes a second


class Evicting:
    """``failed``: is told what keeps an eviction from being done. ``look`` is for one thread."""

    def __init__(
        self, store: Store, max_bytes: int, max_inodes: int, failed: Callable[[Exception], None], *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._store, self._max_bytes, self._max_inodes = store, max_bytes, max_inodes
        self._failed, self._clock = failed, clock
        self._published = 0
        self._last = -INTERVAL_S + clock()
        self._thread: threading.Thread | None = None

    @property
    def busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def look(self, published: int) -> None:
        """Have the store kept within its budgets, in a thread, where more was ``published`` than at the last time and
        that is long enough ago.
        """
        now = self._clock()
        if published != self._published and now - self._last >= INTERVAL_S and not self.busy:
            self._published, self._last = published, now
            self._thread = threading.Thread(target=self._evict, daemon=True)
            self._thread.start()

    def _evict(self) -> None:
        try:
            self._store.evict(self._max_bytes, self._max_inodes)
        except Exception as error:  # noqa: BLE001 - what is published is published; `precompiled gc` shows what is wrong
            self._failed(error)

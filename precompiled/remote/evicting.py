"""Evicts artifacts from the store for the helper. Workers evict only after compiles, so fetched objects could fill the
disk.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from precompiled.store import eviction
from precompiled.store.artifacts import Store

INTERVAL_S = 60.0  # seconds between two evictions, because adding up the sizes of a large store takes a second


class Evicting:
    """Evicts in its own thread. ``failed`` is called with each error. Only one thread may call ``look``."""

    def __init__(
        self,
        store: Store,
        max_bytes: int,
        max_inodes: int,
        failed: Callable[[Exception], None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._max_bytes, self._max_inodes = store, max_bytes, max_inodes
        self._failed, self._clock = failed, clock
        self._published = 0
        self._last = -INTERVAL_S + clock()
        self._thread: threading.Thread | None = None

    @property
    def busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def look(self, published: int) -> None:
        """Evict, in a thread, if ``published`` has grown since the last eviction and INTERVAL_S have passed."""
        now = self._clock()
        if published != self._published and now - self._last >= INTERVAL_S and not self.busy:
            self._published, self._last = published, now
            self._thread = threading.Thread(target=self._evict, daemon=True)
            self._thread.start()

    def _evict(self) -> None:
        try:
            eviction.evict(self._store, self._max_bytes, self._max_inodes)
        except Exception as error:  # noqa: BLE001 - published artifacts stay; `precompiled cache gc` shows the error
            self._failed(error)

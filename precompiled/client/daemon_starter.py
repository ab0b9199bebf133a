"""Starts a daemon for this process's graphs, at most once, and reports why no daemon runs."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from precompiled.client.connection import DaemonConnection
from precompiled.client.daemon_link import daemon_reachable
from precompiled.core.errors import DaemonError, PrecompiledError
from precompiled.store.artifacts import Store

if TYPE_CHECKING:
    from collections.abc import Callable

    from precompiled.client.start import Starting
    from precompiled.core.config import Settings

# The first graph waits this many seconds for the daemon that this process starts.
START_S = 10.0


class DaemonStarter:
    """Starts the daemon of a session. Thread-safe.

    ``settings``: returns the current settings, which a program can change.
    """

    def __init__(self, settings: Callable[[], Settings], connection: DaemonConnection, store: Store) -> None:
        self._settings, self._connection, self._store = settings, connection, store
        self._starting: Starting | None = None
        self._without_daemon: DaemonError | None = None
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Start a daemon if none runs. Does not wait for the daemon: meanwhile, the client captures the graph."""
        if self._without_daemon is not None or not self._settings().starts_daemon or daemon_reachable(self._settings()):
            return
        if self._connection.was_stopped_on_request():
            return
        with self._lock:
            if self._starting is None:
                from precompiled.client.start import Starting

                self._starting = Starting(self._settings())

    def expect_graph(self) -> None:
        """Start a daemon and a worker when Dynamo begins to trace and the store is empty (early_worker.py)."""
        if self._settings().mode not in ("eager", "wait") or not self._store.is_empty():
            return
        self.begin()
        if self._starting is None and not daemon_reachable(self._settings()):
            return  # no daemon runs, and this process may not start one
        from precompiled.client import early_worker
        from precompiled.graph import environment

        try:
            message = early_worker.message(self._settings(), environment.likely_device(), tracing=True)
        except PrecompiledError:
            return  # the graph's capture reports this error
        self._connection.expect(message)

    def problem(self) -> DaemonError | None:
        """Return None if a daemon runs, else the reason why no daemon runs.

        This method starts a daemon at most once per process, so that a program does not retry for every graph. A daemon
        that starts later serves later graphs. ``connection.py`` restarts a daemon that died.
        """
        if daemon_reachable(self._settings()):
            return None
        if self._without_daemon is not None:
            return self._without_daemon
        if self._connection.was_stopped_on_request():
            # ``_without_daemon`` stays unset, because a daemon may run when the next graph comes.
            return DaemonError("the daemon was stopped", "Run `precompiled doctor`")
        if self._starting is not None:
            outcome = self._starting.result(START_S)
            if outcome.runs:
                return None  # if that daemon has ended, the connection starts a new daemon
            problem = outcome.error()
        else:
            said = f"no daemon runs in {self._settings().runtime_dir}, and starting one is switched off"
            problem = DaemonError(said, "Run `precompiled daemon start`")
        self._without_daemon = problem
        return problem

    def after_fork(self) -> None:
        """In a fork's child, forget a pending start, which is the parent's."""
        self._lock = threading.Lock()
        self._starting = None

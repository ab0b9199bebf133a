"""The daemon's side of the watcher (service/watch): starts it for a watch, relays messages, restarts it.

The watcher is a separate process because it hashes files, handles bursts of events and supervises users' code, and the
daemon's loop must not wait for these. The watcher runs as the daemon's user, so a system daemon starts no watcher.
"""

from __future__ import annotations

import logging
import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from precompiled.service import processes
from precompiled.service.channel import Channel

from precompiled import parts, wire
from precompiled.core.children import start_with_stream
from precompiled.core.errors import WireError

log = logging.getLogger("precompiled.watcher_link")

RESTART_MIN_S, RESTART_MAX_S = 0.5, 60.0  # pause before a restart; doubles with each restart
STEADY_S = 60.0  # a watcher that ran longer is restarted after the shortest pause
STOP_S = 3.0
MAX_ASKED = 256  # requests without a reply; the watcher writes each new watch to disk, so peers can send them faster
ASKED_BYTES = 4 << 20  # if more bytes wait for the watcher, further requests are rejected
UNREAD_BYTES = 16 << 20  # if more bytes wait, the watcher hangs, and is replaced

REFUSED = wire.Rejected(
    "watch-needs-own-daemon",
    "this daemon serves all users, and a watch runs commands of yours",
    "Set PRECOMPILED_RUNTIME_DIR and PRECOMPILED_CACHE_DIR to directories of your own, for instance in "
    "~/.config/precompiled/config.toml, and run `precompiled daemon start`: watches, and runs, then use that daemon",
)


NOT_INSTALLED = wire.Rejected(
    "no-watcher",
    "this daemon's installation lacks the part `watch`",
    "Install all of precompiled, and restart the daemon",
)


BUSY = wire.Rejected("watcher-busy", "the watcher has too many unfinished requests", "Try again")


class WatcherLink:
    """The daemon's connection to the watcher; used from the daemon's one thread."""

    def __init__(self, watch: parts.WatchProtocol, runtime_dir: Path, cache_dir: Path) -> None:
        self._runtime_dir, self._cache_dir = runtime_dir, cache_dir
        self._popen: subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None
        self._asked: dict[int, bytes] = {}  # maps the number of a request to the peer that sent it
        self._waiting_peers: list[bytes] = []  # peers that requested the watches before the watcher's first report
        self._has_report = False
        self._number = 0
        self._started = 0.0
        self._start_at: float | None = 0.0 if watch.any_registered(cache_dir) else None
        self._pause = RESTART_MIN_S
        self._problem = ""
        self.watches: list[wire.WatchStatus] = []
        self._degraded: list[str] = []
        self.replies: list[tuple[bytes, wire.DaemonMessage]] = []
        self.cancelled: list[str] = []

    @property
    def active(self) -> bool:
        """Whether a watch exists, or may exist because the watcher has not reported yet. In both cases, an idle daemon
        does not exit.
        """
        return bool(self.watches) or self._start_at is not None or (self._channel is not None and not self._has_report)

    @property
    def degraded(self) -> list[str]:
        return [*self._degraded, *([self._problem] if self._problem else [])]

    def ask(self, peer: bytes, request: wire.Watch | wire.Unwatch) -> None:
        """Relay a request; the reply is appended to ``replies`` later."""
        if self._channel is None:
            self._start()
        if self._channel is None:
            self.replies.append((peer, wire.Rejected("no-watcher", self._problem, "See the daemon's log")))
            return
        if len(self._asked) >= MAX_ASKED or self._channel.waiting > ASKED_BYTES:
            self.replies.append((peer, BUSY))
            return
        self._number += 1
        self._asked[self._number] = peer
        self._channel.send(wire.Ask(self._number, request))

    def ask_for_watches(self, peer: bytes) -> None:
        """Append the reply to ``replies``. If the watcher is starting, do so after its first report."""
        if len(self._waiting_peers) >= MAX_ASKED:
            self.replies.append((peer, BUSY))
            return
        self._waiting_peers.append(peer)
        if self._has_report or not self.active:
            self._satisfy()

    def _satisfy(self) -> None:
        reply = wire.WatchesReply(self.watches, self.degraded)
        self.replies += [(peer, reply) for peer in self._waiting_peers]
        self._waiting_peers = []

    def job_ended(self, ids: Sequence[str], state: str, why: str) -> None:
        if self._channel is None or not self.watches:
            return
        if not self._channel.send(wire.JobEnded(list(ids), state, why[:1000])):
            self._lost("the watcher does not read its messages")

    def fds(self) -> dict[int, int]:
        if self._channel is None:
            return {}
        import select

        return {self._channel.fileno(): select.POLLIN | (select.POLLOUT if self._channel.wants_write else 0)}

    def next_wake(self, now: float) -> float | None:
        return None if self._start_at is None else max(0.0, self._start_at - now)

    def check(self) -> None:
        """Handle the watcher's messages, and start it if a start is due."""
        if self._channel is not None:
            self._channel.flush()
            try:
                for message in self._channel.receive():
                    self._on_message(message)
            except WireError as error:
                log.error("the watcher's stream failed: %s", error)
                self._lost()
                return
            if self._channel.closed:
                self._lost()
        elif self._start_at is not None and time.monotonic() >= self._start_at:
            self._start()

    def close(self) -> None:
        """End the watcher and the processes that it has started."""
        self._start_at = None
        if self._popen is None or self._channel is None:
            return
        self._channel.close()  # at the end of the stream, the watcher ends its captures and exits
        try:
            self._popen.wait(STOP_S)
        except subprocess.TimeoutExpired:
            log.error("the watcher did not exit within %s s", STOP_S)
        self._kill()

    def _on_message(self, message: wire.Answer | wire.Cancel | wire.Watched) -> None:
        match message:
            case wire.Answer(number, reply):
                peer = self._asked.pop(number, None)
                if peer is not None:
                    self.replies.append((peer, reply))
            case wire.Cancel(ids):
                self.cancelled += ids
            case wire.Watched(watches, degraded):
                self.watches, self._degraded, self._has_report = watches, degraded, True
                self._satisfy()

    def _start(self) -> None:
        self._start_at = None
        try:
            self._popen, control = start_with_stream(
                *("-m", "precompiled.service.watch"),
                *("--runtime-dir", str(self._runtime_dir), "--cache-dir", str(self._cache_dir)),
                *("--log", logging.getLevelName(log.getEffectiveLevel())),
                start_new_session=True,
                env={**os.environ, "PRECOMPILED": "0"},
            )
        except OSError as error:
            self._problem = f"watch: the watcher cannot be started: {error}"
            log.error("%s", self._problem)
            self._again()
            return
        self._channel = Channel(control, wire.FromWatcher, limit=UNREAD_BYTES)
        self._started = time.monotonic()
        self._problem = ""
        log.info("watcher: pid %d", self._popen.pid)

    def _lost(self, what: str = "the watcher ended unexpectedly") -> None:
        assert self._popen is not None and self._channel is not None
        self._channel.close()
        self._channel = None
        self._kill()
        if time.monotonic() - self._started > STEADY_S:
            self._pause = RESTART_MIN_S
        self._problem = f"watch: {what}, and restarts within {self._pause:g} s"
        log.error("%s", self._problem)
        for peer in self._asked.values():
            self.replies.append((peer, wire.Rejected("no-watcher", what, "Try again")))
        self._asked.clear()
        self._satisfy()
        self._again()

    def _again(self) -> None:
        self._start_at = time.monotonic() + self._pause
        self._pause = min(2 * self._pause, RESTART_MAX_S)

    def _kill(self) -> None:
        """Kill the watcher's process tree. Captures run in sessions of their own, and their guards end the captures."""
        assert self._popen is not None
        processes.kill_tree(self._popen.pid, processes.find(self._popen.pid))
        self._popen.wait()
        self._popen = None

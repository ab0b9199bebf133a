"""Connects the client to the daemon, and sends graphs without blocking a thread of the program.

This module imports quickly. The first message imports msgspec, which takes 20 ms, in the thread that sends it
(client/daemon_link.py).

::

    any thread ── submit, expect, tally ──▶ Connection ──▶ one I/O thread ── DEALER ──▶ daemon
                                             submits: id -> message, graph, state

The connection keeps each submit message, with its graph, until ``forget``. A killed daemon loses its queue, so the
connection sends these messages to the next daemon. A repeated message is harmless: its id joins the same job, or the
daemon finds the published artifact.

Per submit::

    unsent --send--> sent --accepted--> accepted --forget--> (gone)
      ^                |--busy, later-----|---> unsent
      '---- the connection is lost, or the daemon stops ----'      rejected: on_reply is called, and it is gone

A fork's child closes its copy of the parent's socket, and starts its own connection without submits. If a program
closes this connection's descriptors and reuses their numbers (core/sockets.py), the connection opens new descriptors.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from precompiled.client.ask import send_now
from precompiled.client.daemon_link import Link, daemon_reachable, import_messages, is_busy
from precompiled.core import forking, interruptions, sockets
from precompiled.core.config import Settings
from precompiled.core.errors import ConfigError
from precompiled.core.reasons import Outcome, outcome

if TYPE_CHECKING:
    from precompiled import wire
    from precompiled.client.start import Starting

log = logging.getLogger("precompiled.client.connection")

IDLE_S = 2.0  # the thread ends after this many seconds without work
RETRY_MIN_S, RETRY_MAX_S = 0.05, 2.0  # seconds between two attempts to connect to a daemon
STARTS_MIN_S, STARTS_MAX_S = 5.0, 120.0  # seconds between two starts of daemons
REVIVAL_MIN_S = 1.0  # seconds between two threads of ensure_running; doubles up to STARTS_MAX_S
MAX_TALLIES = 200
EXPECTED_S = 10.0  # how long an Expect stays valid while the daemon starts
MAX_LOST = 5  # a graph is rejected if this many connections broke before its reply

OnReply = Callable[["wire.DaemonMessage"], None]


# ---------------------------------------------------------------- fork

_connections: weakref.WeakSet[DaemonConnection] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for connection in list(_connections):
        connection.reset_after_fork()


os.register_at_fork(after_in_child=_after_fork_in_child)


@dataclass(eq=False)
class _Submit:
    message: wire.Submit
    blob: bytes
    on_reply: OnReply
    state: str = "unsent"  # unsent | sent | accepted
    due: float = 0.0  # not sent before this time
    lost: int = 0


class DaemonConnection:
    """This process's connection to the daemon. Thread-safe. Only ``flush`` and ``close`` block."""

    _expected: tuple[wire.Expect, float] | None  # the message, and the time at which it expires
    _link: Link | None = None
    _waker: sockets.Waker | None = None

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.starts = 0  # daemons started by this process
        self.reset_after_fork()
        _connections.add(self)

    def submit(self, message: wire.Submit, blob: bytes, on_reply: OnReply) -> None:
        """Submit a graph. The I/O thread calls ``on_reply`` with each Accepted, Busy and Rejected about the graph.

        Until ``forget``, the I/O thread repeats the submit after Busy, and sends it to the next daemon if the
        connection is lost. A Rejected reply ends the submit, except for the code "stopping": then the submit waits for
        the next daemon, and ``on_reply`` is not called.
        """
        with self._changed:
            self._submits[message.id] = _Submit(message, blob, on_reply)
            self._wake()

    def forget(self, id: str) -> None:
        """Drop a submit whose artifact is loaded or no longer needed."""
        with self._changed:
            self._submits.pop(id, None)
            self._changed.notify_all()
            self._poke()

    def tally(self, message: wire.Tally) -> None:
        """Send counts to the daemon, best effort. If no daemon runs, the counts are lost."""
        with self._changed:
            if len(self._tallies) < MAX_TALLIES:
                self._tallies.append(message)
            self._wake()
            left = list(self._tallies) if self._thread is None else []
            if left:
                self._tallies.clear()
        if left:  # no thread can start (since Python 3.12, none can start at exit)
            send_now(self._settings, left)

    def expect(self, message: wire.Expect) -> None:
        """Announce to the daemon that Dynamo traces a graph. The daemon may still be starting. A submit drops the
        announcement.
        """
        with self._changed:
            self._expected = message, time.monotonic() + EXPECTED_S
            self._wake()

    def flush(self, timeout_s: float) -> bool:
        """Wait until every submit is accepted or rejected, and every tally is sent. False after ``timeout_s`` seconds.

        Returns false at once if no I/O thread runs and none can start. Since Python 3.12, no thread can start at exit.
        """
        with self._changed:
            done = self._changed.wait_for(lambda: self._is_flushed() or self._thread is None, timeout_s)
            return done and self._is_flushed()

    def close(self, timeout_s: float = 2.0) -> None:
        """End the I/O thread. Drops all submits. The thread may still complete a half-sent message, within LINGER_S."""
        with self._changed:
            thread = self._thread
            self._closing = True
            self._submits.clear()
            self._tallies.clear()
            self._expected = None
            self._changed.notify_all()
            self._poke()
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout_s)

    def reset_after_fork(self) -> None:
        """Replace all state. The old state is unusable, because a thread of the parent may hold its locks, and the
        socket is the parent's.
        """
        if self._link is not None:
            self._link.abandon()
        if self._waker is not None:
            self._waker.close()
        self._link = self._waker = None
        self._changed = threading.Condition(threading.Lock())
        self._submits: dict[str, _Submit] = {}
        self._tallies: deque[wire.Tally] = deque()
        self._expected = None
        self._thread: threading.Thread | None = None
        self._closing = False
        self._starting: Starting | None = None
        self._next_start = 0.0
        self._start_pause = STARTS_MIN_S
        self._daemon_was_stopped = False
        self._alone_since: float | None = None
        self._next_revival = 0.0
        self._revival_pause = REVIVAL_MIN_S

    def alone_s(self) -> float:
        """Seconds for which no daemon has accepted or answered this process's submits; 0 without submits."""
        since = self._alone_since
        return 0.0 if since is None else time.monotonic() - since

    def was_stopped_on_request(self) -> bool:
        """Whether a user stopped the daemon and no other daemon runs. If so, this process starts no daemon."""
        return self._daemon_was_stopped and not daemon_reachable(self._settings)

    def ensure_running(self) -> None:
        """Start an I/O thread if there are submits, but the last thread failed or could not start.

        You may call this method every second, because it costs little. The pauses between its attempts grow.
        """
        if self._thread is None and self._submits and time.monotonic() >= self._next_revival:
            with self._changed:
                if self._thread is None and self._submits:
                    self._next_revival = time.monotonic() + self._revival_pause
                    self._revival_pause = min(2 * self._revival_pause, STARTS_MAX_S)
                    self._wake()

    # ------------------------------------------------ between the threads

    def _is_flushed(self) -> bool:
        return not self._tallies and all(submit.state == "accepted" for submit in self._submits.values())

    def _wake(self) -> None:
        """Wake the I/O thread, or start one. The caller holds the lock."""
        if self._closing:
            return
        if self._thread is None:
            thread = threading.Thread(target=self._work, name="precompiled-client", daemon=True)
            try:
                self._open_waker()
                thread.start()
            except (RuntimeError, OSError) as error:
                interruptions.pass_on(error)
                # The interpreter is shutting down, or memory or descriptors are used up. So the program stays eager.
                log.info("no thread for the connection to the daemon: %s", error)
                return
            self._thread = thread
        self._poke()

    def _poke(self) -> None:
        if self._waker is not None:
            self._waker.wake()

    def _open_waker(self) -> sockets.Waker:
        """Return the waker, or a new waker if the program closed it. The caller holds the lock. Raises OSError."""
        if self._waker is None or not self._waker.is_open():
            if self._waker is not None:
                self._waker.close()
            self._waker = sockets.Waker()
        return self._waker

    # ------------------------------------------------ the I/O thread

    def _work(self) -> None:
        try:
            import_messages()
            link = self._serve()
        except Exception:  # otherwise the dead thread would count as alive
            log.exception("the connection to the daemon failed")
            with self._changed:
                link = self._retire()
                for submit in self._submits.values():
                    submit.state = "unsent"  # its replies are lost with the link
                if self._alone_since is None:
                    self._alone_since = time.monotonic()
        if link is not None:
            link.close()

    def _retire(self) -> Link | None:
        """Make the next submit start a new I/O thread, because this one ends. The caller holds the lock.

        Returns the link. The thread closes the link without the lock, because closing takes time and the next thread
        may need the lock.
        """
        self._thread = None
        link, self._link = self._link, None
        if self._closing and self._waker is not None:
            self._waker.close()
            self._waker = None
        self._changed.notify_all()
        return link

    def _serve(self) -> Link | None:
        """Send and receive until there is nothing to do. Returns the link for the caller to close."""
        retry = RETRY_MIN_S
        next_look = 0.0
        idle_since: float | None = None
        while True:
            now = time.monotonic()
            with self._changed:
                if self._expected is not None and (self._submits or now > self._expected[1]):
                    self._expected = None
                work = bool(self._submits or self._tallies or self._expected)
                if self._closing:
                    return self._retire()
                if not self._submits:
                    self._alone_since = None
                if work:
                    idle_since = None
                elif idle_since is None:
                    idle_since = now
                elif now - idle_since >= IDLE_S:
                    return self._retire()
            if self._link is None and work and now >= next_look:
                if self._connect():
                    retry = RETRY_MIN_S
                else:
                    next_look = now + retry
                    retry = min(2 * retry, RETRY_MAX_S)
            if self._link is not None and self._link.up:
                self._send_due(now)
                self._alone_since = self._link.silent_since(now) if self._submits else None
            elif self._submits and self._alone_since is None:
                self._alone_since = now
            self._wait(now, next_look, idle_since)
            if self._link is not None:
                was_up = self._link.up
                replies = self._link.receive()
                if self._link.up and not was_up:
                    self._daemon_was_stopped = False  # not at the connect, which a stopping daemon accepts
                for reply in replies:
                    self._replied(reply)
                if self._link.is_lost(time.monotonic()):
                    self._lose_link()
                    next_look = 0.0

    def _wait(self, now: float, next_look: float, idle_since: float | None) -> None:
        times = [RETRY_MAX_S]
        if idle_since is not None:
            times.append(idle_since + IDLE_S - now)
        if self._link is None:
            times.append(next_look - now if idle_since is None else RETRY_MAX_S)
        with self._changed:
            times += [p.due - now for p in self._submits.values() if p.state == "unsent" and p.due > now]
            if self._closing:
                return
            waker = self._open_waker()
        if self._link is not None:
            self._link.wait(min(times), waker)
        else:
            sockets.wait([waker], timeout_s=min(times))
        waker.clear()

    def _connect(self) -> bool:
        try:
            self._link = Link(self._settings)
            return True
        except (OSError, ConfigError) as error:
            if is_busy(error):
                return False
        with self._changed:
            self._tallies.clear()  # without a daemon, counts are dropped
            wanted = bool(self._submits)
            self._changed.notify_all()
        if wanted:
            self._start_daemon()
        return False

    def _start_daemon(self) -> None:
        """Start a daemon if none runs, unless a user stopped the daemon. The pauses between starts grow."""
        settings = self._settings
        if not settings.starts_daemon or self._daemon_was_stopped:
            return
        if self._starting is not None:
            outcome = self._starting.poll()
            if outcome is None:
                return
            self._starting = None
            if not outcome.runs:
                log.warning("no daemon: %s", outcome.reason)
        now = time.monotonic()
        if now < self._next_start:
            return
        with forking.held():  # no fork may happen during an import
            from precompiled.client.start import Starting

        self._next_start = now + self._start_pause
        self._start_pause = min(2 * self._start_pause, STARTS_MAX_S)
        self.starts += 1
        self._starting = Starting(settings)

    def _send_due(self, now: float) -> None:
        from precompiled import wire

        assert self._link is not None
        with self._changed:
            due = [p for p in self._submits.values() if p.state == "unsent" and p.due <= now]
            # Graphs for which a call of the program waits come first, as in the daemon's queue.
            due.sort(key=lambda submit: not submit.message.waiting)
        for submit in due:
            size, limit = len(submit.blob), self._settings.max_graph_bytes
            if size > limit or submit.lost >= MAX_LOST:
                # Reject the graph here. The daemon would only close the connection, without a reply.
                what = f"the graph has {size} bytes, over the limit of {limit}"
                if size <= limit:
                    what = (
                        f"the connection failed {submit.lost} times during the transfer of this graph of {size} bytes"
                    )
                self._replied(
                    wire.Rejected(
                        "too-large",
                        what,
                        "Raise max_graph_bytes",
                        submit.message.id,
                        submit.message.key,
                    )
                )
                continue
            if not self._link.send(submit.message, submit.blob):
                return  # the link still sends an earlier message; the next round sends the rest
            with self._changed:
                if submit.state == "unsent":
                    submit.state = "sent"
        with self._changed:
            if self._expected is not None and self._link.send(self._expected[0], None):
                self._expected = None
            while self._tallies:
                if not self._link.send(self._tallies[0], None):
                    return
                self._tallies.popleft()
            self._changed.notify_all()

    def _replied(self, reply: wire.DaemonMessage) -> None:
        import msgspec

        from precompiled import wire

        now = time.monotonic()
        answered: list[_Submit] = []
        with self._changed:
            if isinstance(reply, wire.Accepted | wire.Busy | wire.Rejected):
                if isinstance(reply, wire.Rejected) and not reply.id:
                    # The daemon could not read the id, for example because its protocol version differs. So the reply
                    # is for every sent submit.
                    found = [p for p in self._submits.values() if p.state == "sent"]
                else:
                    found = [p for p in [self._submits.get(reply.id)] if p is not None]
                for submit in found:
                    if isinstance(reply, wire.Accepted):
                        submit.state = "accepted"
                        submit.lost = 0
                    elif isinstance(reply, wire.Busy):
                        submit.state = "unsent"
                        submit.due = now + max(0.1, min(reply.retry_after_s, 300.0))
                    elif outcome(reply.code, runs=True) is Outcome.AGAIN:  # the daemon is stopping
                        self._daemon_was_stopped = True  # a user stopped it, so this process starts no daemon
                        submit.state = "unsent"
                        submit.due = now + RETRY_MAX_S
                        continue
                    else:
                        self._submits.pop(submit.message.id, None)
                    answered.append(submit)
            self._changed.notify_all()
        for submit in answered:
            try:
                submit.on_reply(msgspec.structs.replace(reply, id=submit.message.id))
            except Exception:  # an error in the caller's code must not end this thread
                log.exception("a reply for graph %s cannot be processed", submit.message.id)

    def _lose_link(self) -> None:
        assert self._link is not None
        self._link.close()
        self._link = None
        with self._changed:
            for submit in self._submits.values():
                if submit.state == "sent" and len(submit.blob) > 1 << 20:
                    submit.lost += 1
                # Accepted Submit messages are repeated, because the daemon may have lost its queue.
                submit.state = "unsent"

"""The daemon: connects the socket, the scheduler and the pool. One thread, one loop, no decisions.

::

    peers ──ROUTER── Server ──Request──▶ Daemon ──Event──▶ Scheduler ──Instruction──▶ Daemon ──▶ Server | Pool | Metrics
                                           ▲                                                          │
                                           └───────────────────────── Event ──────────────────────────┘

Workers evict artifacts after they publish. The daemon never touches a user's files: as root it would follow links that
the user puts there.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

import psutil
from precompiled.service import budget
from precompiled.service.events import (
    Asked,
    Cancelled,
    Count,
    Event,
    Expected,
    Instruction,
    KillWorker,
    Moved,
    Reply,
    RunJob,
    SetPriority,
    ShutDown,
    StartWorker,
    StopWorker,
    Submitted,
    Tick,
)
from precompiled.service.gpus import DeviceError, Devices
from precompiled.service.job_states import SchedulerError
from precompiled.service.log_lines import UserLines
from precompiled.service.metrics import Metrics
from precompiled.service.notify import Notifier
from precompiled.service.pool import Pool
from precompiled.service.processes import become_subreaper
from precompiled.service.scheduler import Scheduler
from precompiled.service.server import ClientRequest, Lock, Sender, Server, prepare_runtime_dir
from precompiled.service.watcher_link import NOT_INSTALLED, REFUSED, WatcherLink

from precompiled import parts, wire
from precompiled.core.config import CLIENT_ONLY, NAMES, Settings
from precompiled.core.errors import DaemonError
from precompiled.core.paths import LOCK_NAME
from precompiled.version import VERSION

log = logging.getLogger("precompiled.daemon")

MAX_WAIT_S = 30.0  # the longest wait of one round
SELF_CHECK_S = 5.0  # seconds between two checks of the lock and the socket
STOP_GRACE_S = 3.0  # seconds that workers have to exit at shutdown
ENDED = frozenset({"published", "failed", "quarantined", "dropped"})  # states of a job that has ended


class AlreadyRunning(DaemonError):
    """Another daemon holds this runtime directory's lock."""

    code = "already-running"


class Daemon:
    """``open`` (raises AlreadyRunning, DaemonError), then ``run`` until a signal or Stop, then ``close``."""

    def __init__(
        self,
        settings: Settings,
        *,
        system: bool = False,
        notifier: Notifier | None = None,
        devices: Devices | None = None,
    ) -> None:
        self._settings = settings
        self._system = system
        self._devices = devices or Devices()
        limits = budget.limits(settings)
        self._memory_limit = budget.job_memory_bytes(settings, limits.slots)
        self._lock = Lock(settings.runtime_dir / LOCK_NAME)
        self._server = Server(
            settings.runtime_dir,
            system=system,
            max_graph_bytes=settings.max_graph_bytes,
            max_parts_bytes=limits.max_queue_bytes,
        )
        self._scheduler = Scheduler(limits)
        self._lines = UserLines()
        self._pool = Pool(
            system=system,
            job_memory_bytes=self._memory_limit,
            devices=self._devices,
            cache_dir=settings.cache_dir if system else None,
            memory_bytes=self._memory_limit * limits.slots,
            lines=self._lines,
        )
        watch = None if system else parts.WATCH.get()
        self._watcher = None if watch is None else WatcherLink(watch, settings.runtime_dir, settings.cache_dir)
        self._metrics = Metrics()
        self._notifier = notifier or Notifier()
        self._wake = (-1, -1)
        self._stop_reason = ""
        self._lost = ""  # why clients can no longer reach this daemon
        self._started = time.monotonic()
        self._process = psutil.Process()
        self._last_work = self._started
        self._next_check = 0.0

    # ------------------------------------------------ start and stop

    def open(self) -> None:
        """Take the lock, bind the socket, install signal handlers, and notify systemd."""
        if self._system and os.geteuid() != 0:
            raise DaemonError("the system daemon must run as root", "Leave --system out", code="not-root")
        prepare_runtime_dir(self._settings.runtime_dir, system=self._system)
        try:
            locked = self._lock.acquire()
        except OSError as error:
            raise DaemonError(
                f"the lock {self._lock.path} cannot be acquired: {error}",
                "Remove it, or set PRECOMPILED_RUNTIME_DIR to another directory",
                code="lock",
            ) from error
        if not locked:
            raise AlreadyRunning(f"another daemon serves {self._settings.runtime_dir}")
        self._metrics.load(self._settings.runtime_dir)
        if self._system:
            self._prepare_cache_dir()
        become_subreaper()
        self._watch_signals()
        self._server.open()
        self._notifier.send("READY=1", f"STATUS=serving {self._server.path}")

    def run(self) -> int:
        """Serve until a signal or Stop; returns the exit status."""
        users = "all users" if self._system else f"uid {os.geteuid()}"
        log.info("precompiled %s serves %s (%s)", VERSION, self._server.path, users)
        for name in NAMES:
            origin = self._settings.origins.get(name, "default")
            if name not in CLIENT_ONLY and origin != "default":
                log.info("setting %s = %s (%s)", name, self._settings.text(name), origin)
        log.debug("%s", self._scheduler.limits)
        while not self._stop_reason:
            self._round()
        log.info("stopping: %s", self._stop_reason)
        self._notifier.send("STOPPING=1", f"STATUS=stopping: {self._stop_reason}")
        self._do(ShutDown())
        deadline = time.monotonic() + STOP_GRACE_S
        while self._scheduler.has_processes and time.monotonic() < deadline:
            self._round(deadline - time.monotonic())
        return 1 if self._lost else 0

    def close(self) -> None:
        """End all processes, remove the socket, and release the lock."""
        if self._watcher is not None:
            self._watcher.close()
        self._pool.close()
        self._server.close()
        self._metrics.save()
        self._lock.release()
        if self._wake[0] >= 0:
            signal.set_wakeup_fd(-1)
            for fd in self._wake:
                os.close(fd)
            self._wake = (-1, -1)

    def _prepare_cache_dir(self) -> None:
        try:
            self._settings.cache_dir.mkdir(mode=0o755, parents=True, exist_ok=True)
        except OSError as error:
            raise DaemonError(
                f"the cache directory cannot be created: {error}",
                "Correct the modes of its parent, or set cache_dir to another directory",
                code="cache-dir",
            ) from error

    def _watch_signals(self) -> None:
        """Let signals write a byte to a pipe that the loop polls, so that no signal is lost between two rounds."""
        self._wake = os.pipe()
        for fd in self._wake:
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(self._wake[1], warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # closing the terminal must not stop the daemon
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        del frame
        self._stop_reason = self._stop_reason or signal.Signals(number).name

    # ------------------------------------------------ the loop

    def _round(self, limit_s: float = MAX_WAIT_S) -> None:
        """Wait for events, and handle them and all events that they cause."""
        fds = self._pool.fds()
        if self._watcher is not None:
            fds |= self._watcher.fds()
        fds[self._wake[0]] = select.POLLIN
        for fd, events in self._server.poll(fds, min(limit_s, self._wait_s())):
            if fd == self._wake[0]:
                self._drain_wake()
            else:
                self._pool.on_fd(fd, events)
        for request in self._server.requests():
            self._request(request)
        self._pool.check()
        self._watch()
        self._do(Tick())
        # Repeat until no event is left: an instruction may fail at once (an interpreter that does not exist), and the
        # wait of the next round may be long.
        while found := self._pool.take_events():
            for event in found:
                self._do(event)
        self._look_after_ourselves()

    def _watch(self) -> None:
        """Send the watcher's replies to peers, and cancel the Submit messages that the watcher withdraws."""
        watcher = self._watcher
        if watcher is None:
            return
        watcher.check()
        for peer, reply in watcher.replies:
            self._server.send(peer, reply)
        if watcher.cancelled:
            self._do(Cancelled(os.geteuid(), tuple(watcher.cancelled)))
        watcher.replies, watcher.cancelled = [], []

    def _wait_s(self) -> float:
        now = time.monotonic()
        waits = [MAX_WAIT_S, max(0.0, self._next_check - now)]
        if self._settings.daemon_idle_s > 0:
            waits.append(self._last_work + self._settings.daemon_idle_s - now)
        watcher_wait = self._watcher.next_wake(now) if self._watcher is not None else None
        for wait in (self._scheduler.next_wake(now), self._pool.next_wake(now), watcher_wait):
            if wait is not None:
                waits.append(wait)
        return max(0.0, min(waits))

    def _drain_wake(self) -> None:
        try:
            while os.read(self._wake[0], 512):
                pass
        except BlockingIOError:
            pass

    def _do(self, event: Event) -> None:
        """Give the scheduler an event, and carry out its instructions."""
        try:
            instructions = self._scheduler.handle(event, time.monotonic())
        except SchedulerError:
            # A bug in precompiled: the log has the steps that led to it. The loop continues.
            log.exception("the scheduler refused %s", type(event).__name__)
            return
        for instruction in instructions:
            self._carry_out(instruction)

    def _carry_out(self, instruction: Instruction) -> None:
        match instruction:
            case Reply(client, message):
                self._server.send(client, message)
            case StartWorker():
                self._pool.start(instruction)
            case RunJob():
                self._pool.run(instruction)
            case SetPriority(number, until):
                self._pool.set_priority(number, until)
            case StopWorker():
                self._pool.stop(instruction)
            case KillWorker():
                self._pool.kill(instruction)
            case Count(uid, counter, amount, reason):
                self._metrics.add(uid, counter, amount, reason)
            case Moved(job, key, uid, state, why, ids):
                self._last_work = time.monotonic()
                fields = {"GRAPH": job, "KEY": key, "UID": str(uid), "STATE": state}
                if self._lines.allows(uid):
                    log.info(
                        "graph %s: %s%s (job %s, uid %d)",
                        key[:12],
                        state,
                        f", {why}" if why not in ("", state) else "",
                        job,
                        uid,
                        extra={"journal": {f"PRECOMPILED_{name}": fields[name] for name in fields}},
                    )
                if self._watcher is not None and state in ENDED:
                    self._watcher.job_ended(ids, state, why)

    def _look_after_ourselves(self) -> None:
        """Check that clients can connect, and feed the watchdog if they can. Stop an idle daemon."""
        now = time.monotonic()
        for uid, count in self._lines.dropped().items():
            log.warning("uid %d: %d log lines were dropped, over the limit", uid, count)
        idle = self._settings.daemon_idle_s
        if self._scheduler.busy or (self._watcher is not None and self._watcher.active):
            self._last_work = now
        elif idle > 0 and now - self._last_work >= idle:
            self._stop_reason = self._stop_reason or f"idle for {idle:g} s"
        if now < self._next_check:
            return
        watchdog = self._notifier.watchdog_s
        self._next_check = now + min(SELF_CHECK_S, watchdog / 3 if watchdog else SELF_CHECK_S)
        self._metrics.save()
        try:
            reachable = self._lock.is_ours() and self._server.is_ours()
        except OSError as error:
            # Memory or descriptors may be used up, or the disk has an error. The next check decides. Until then, this
            # daemon does not feed the watchdog.
            log.warning("cannot check %s: %s", self._server.path, error)
            return
        if not reachable:
            # The directory was removed or replaced: clients cannot connect, and another daemon may serve it already.
            self._lost = f"another process replaced {self._server.path}"
            log.error("%s", self._lost)
            self._stop_reason = self._stop_reason or self._lost
        elif watchdog:
            self._notifier.send("WATCHDOG=1")

    # ------------------------------------------------ requests

    def _request(self, request: ClientRequest) -> None:
        peer, message = request.peer, request.message
        match message:
            case wire.Submit():
                self._last_work = time.monotonic()
                try:
                    self._devices.visible(message.device)
                except DeviceError as error:
                    self._metrics.add(peer.uid, "rejected", reason="no-such-device")
                    self._server.send(
                        peer.routing_id,
                        wire.Rejected(
                            "no-such-device", str(error), "See `precompiled doctor`", message.id, message.key
                        ),
                    )
                    return
                self._do(Submitted(peer.routing_id, peer.uid, peer.gid, message, request.blob))
            case wire.Expect():
                self._last_work = time.monotonic()
                with suppress(DeviceError):  # the graph's Submit will be rejected with this error
                    self._devices.visible(message.device)
                    expected = Expected(
                        peer.uid, peer.gid, message.environment, message.device, message.store, message.tracing
                    )
                    self._do(expected)
            case wire.Tally():
                self._metrics.tally(peer.uid, message)
            case wire.Status():
                self._server.send(peer.routing_id, self._status(peer))
            case wire.Stats():
                self._server.send(peer.routing_id, self._metrics.reply(self._seen_by(peer)))
            case wire.Watch() | wire.Unwatch() | wire.Watches():
                self._asked_to_watch(peer, message)
            case wire.GiveUp() | wire.Retry():
                self._do(Asked(peer.routing_id, self._seen_by(peer), message))
            case wire.Stop():
                self._server.send(peer.routing_id, wire.Stopping(os.getpid()))
                self._stop_reason = self._stop_reason or f"requested by uid {peer.uid}, pid {peer.pid}"

    def _asked_to_watch(self, peer: Sender, message: wire.Watch | wire.Unwatch | wire.Watches) -> None:
        watcher = self._watcher
        if watcher is None:
            self._server.send(peer.routing_id, REFUSED if self._system else NOT_INSTALLED)
        elif isinstance(message, wire.Watches):
            watcher.ask_for_watches(peer.routing_id)
        elif peer.uid != os.geteuid():  # root's registrations would run as this user
            text = f"this daemon watches only for uid {os.geteuid()}"
            self._server.send(peer.routing_id, wire.Rejected("not-permitted", text, "Use your own daemon"))
        else:
            watcher.ask(peer.routing_id, message)

    @staticmethod
    def _seen_by(peer: Sender) -> int | None:
        """The uid whose workers, jobs and counters a peer may see and change; None: all (root, the daemon's user)."""
        return None if peer.uid in (0, os.geteuid()) else peer.uid

    def _status(self, peer: Sender) -> wire.StatusReply:
        uid = self._seen_by(peer)
        cache_dir = self._settings.cache_dir
        watcher = self._watcher
        depth = self._scheduler.queue_depth if uid is None else self._scheduler.queue_depth_of(uid)
        return wire.StatusReply(
            running=not self._stop_reason,
            pid=os.getpid(),
            version=VERSION,
            socket=str(self._server.path),
            cache_dir=str(cache_dir / str(peer.uid) if self._system else cache_dir),
            uptime_s=time.monotonic() - self._started,
            queue_depth=depth,
            workers=self._pool.statuses(uid),
            rss_bytes=self._process.memory_info().rss,
            degraded=[*([self._lost] if self._lost else []), *(watcher.degraded if watcher else [])],
            watches=watcher.watches if watcher else [],
            settings={name: self._settings.text(name) for name in NAMES if name not in CLIENT_ONLY},
        )


def serve(
    settings: Settings, *, system: bool, notifier: Notifier | None = None, on_ready: Callable[[], None] | None = None
) -> int:
    """Run a daemon until it stops; returns the exit status. Raises AlreadyRunning or DaemonError if it cannot start."""
    daemon = Daemon(settings, system=system, notifier=notifier)
    try:
        daemon.open()
        if on_ready is not None:
            on_ready()
        return daemon.run()
    finally:
        daemon.close()

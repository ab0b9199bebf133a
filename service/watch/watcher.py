"""The watcher's loop: handles the daemon's requests, file hints and captures' reports in one thread."""

from __future__ import annotations

import logging
import os
import select
import signal
import socket
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from precompiled.service import budget
from precompiled.service.bounded import put_newest
from precompiled.service.channel import Channel
from precompiled.service.processes import become_subreaper
from precompiled.service.watch import capture as capturing
from precompiled.service.watch.capture import Capture
from precompiled.service.watch.files import Files
from precompiled.service.watch.hints import Hints
from precompiled.service.watch.registry import MAX_WATCHES, Record, Registry, identify, problem_of
from precompiled.service.watch.watch import RunningWatch, Tools, shortened, store_names

from precompiled import wire
from precompiled.core.errors import PrecompiledError, WireError
from precompiled.core.json_text import parse_json

log = logging.getLogger("precompiled.watch")

DATAGRAM_BYTES = 1 << 18
CHECK_S = 0.1  # seconds between two checks of running captures
STORE_S = 1.0  # seconds between two checks of the store while compiles are awaited
TELL_S = 0.05  # seconds between two reports to the daemon
HINT_S = 0.02  # seconds between a hint and the check, so that a burst of events causes one check
IDLE_S = 60.0  # seconds between two checks if there is no watch
REQUEST_BYTES = 16 << 20  # an Ask is larger than the client's message; a JobEnded has up to 4096 ids
REPORT_BYTES = wire.MAX_MESSAGE_BYTES // 2  # of all watches: the daemon's replies to clients contain the report
CAPTURES = 2  # how many captures may run at the same time


class Watcher:
    """All watches. ``open``, then ``run`` until the daemon's stream ends, then ``close``."""

    def __init__(self, control: socket.socket, runtime_dir: Path, cache_dir: Path) -> None:
        self._channel = Channel(control, wire.ToWatcher, max_bytes=REQUEST_BYTES)
        self._runtime_dir = runtime_dir
        self._registry = Registry(cache_dir)
        self._watches: dict[str, RunningWatch] = {}
        self._files = Files()
        self._reading, self._writing = os.pipe()
        self._hints = Hints(self._poke)
        self._reports = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        self._tools = Tools(self._files, self._begin_capture, self._cancel, self._save)
        self._memory_limit = budget.usable_memory() // 2
        self._stopping = False
        self._changed = True
        self._look_at = self._store_at = self._tell_at = 0.0
        self._problems: dict[str, str] = {}

    def open(self) -> None:
        become_subreaper()
        for fd in (self._reading, self._writing):
            os.set_blocking(fd, False)
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # signals of the daemon's terminal are for the daemon
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.set_wakeup_fd(self._writing, warn_on_full_buffer=False)
        path = capturing.report_path(self._runtime_dir)
        path.unlink(missing_ok=True)  # a dead watcher left it: a daemon has one watcher at a time
        self._reports.bind(str(path))
        self._reports.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        for id, record in self._registry.load():
            watch = RunningWatch(id, record.registration, self._tools)
            self._watches[id] = watch
            names = store_names(Path(record.registration.store) / "artifacts")
            with self._guarding(watch):
                watch.restore(record, lambda key, names=names: bool(names(key)))  # type: ignore[misc]
                log.info("watch %s: %s", id, watch.name)

    def run(self) -> None:
        while not self._stopping and not self._channel.closed:
            self._round()

    def close(self) -> None:
        """End the captures.

        Jobs of captures continue, and the next watcher recaptures watches that were not complete.
        """
        for watch in self._watches.values():
            watch.close(cancel=False)
        self._hints.close()
        self._reports.close()
        capturing.report_path(self._runtime_dir).unlink(missing_ok=True)

    def _on_signal(self, number: int, frame: object) -> None:
        del number, frame
        self._stopping = True

    def _poke(self) -> None:
        """Wake the loop, from any thread."""
        try:
            os.write(self._writing, b"h")
        except BlockingIOError:
            pass  # the pipe is full, so the loop wakes anyway

    # ------------------------------------------------ the loop

    def _round(self) -> None:
        now = time.monotonic()
        poll = select.poll()
        poll.register(self._channel.fileno(), select.POLLIN | (select.POLLOUT if self._channel.wants_write else 0))
        poll.register(self._reports.fileno(), select.POLLIN)
        poll.register(self._reading, select.POLLIN)
        outputs: dict[int, Capture] = {}
        for capture in self._captures():
            outputs[capture.output] = capture
            if not capture.output_ended:
                poll.register(capture.output, select.POLLIN)
            poll.register(capture.pidfd, select.POLLIN)
        for fd, _ in poll.poll(max(1, int(self._wait_s(now) * 1000) + 1)):
            if fd == self._reading:
                self._drain_pokes()
            elif fd in outputs:
                outputs[fd].read_output()
        now = time.monotonic()
        self._channel.flush()
        for capture in self._captures():
            capture.look()
        self._take_reports()
        self._take_requests()
        if now >= self._look_at:
            self._look(now)
        for watch in list(self._watches.values()):
            with self._guarding(watch):
                if watch.check(now):
                    self._changed, self._look_at = True, 0.0  # its capture has reported the sources
                if len(list(self._captures())) < CAPTURES:
                    self._changed |= watch.tick(now)
        if now >= self._store_at:
            self._store_at = now + STORE_S
            self._look_into_stores()
        self._tell(now)

    def _wait_s(self, now: float) -> float:
        waits = [self._look_at - now]
        if self._changed:
            waits.append(self._tell_at - now)
        busy = list(self._captures())
        if busy:
            waits.append(CHECK_S)
        if any(watch.waits_for_jobs for watch in self._watches.values()):
            waits.append(self._store_at - now)
        if len(busy) < CAPTURES:
            waits += [due for watch in self._watches.values() if (due := watch.plan.next_wake(now)) is not None]
        return max(0.0, min(waits))

    @contextmanager
    def _guarding(self, watch: RunningWatch) -> Iterator[None]:
        """If a watch raises, set it aside: other watches continue, and no later start loads it."""
        try:
            yield
        except Exception as error:  # a bug in precompiled, or unchecked input
            log.exception("watch %s", watch.id)
            text = f"the watch {watch.id} ({watch.name[:100]!r}) is set aside: {type(error).__name__}: {error}"
            self._watches.pop(watch.id, None)
            put_newest(self._problems, watch.id, text[:500], MAX_WATCHES)
            self._registry.set_aside(watch.id, f"{type(error).__name__}: {error}")
            self._changed = True
            with suppress(OSError, PrecompiledError):
                watch.close(cancel=True)

    def _captures(self) -> list[Capture]:
        return [watch.capture for watch in self._watches.values() if watch.capture is not None]

    def _drain_pokes(self) -> None:
        hinted = False
        try:
            while data := os.read(self._reading, 4096):
                hinted |= b"h" in data
        except BlockingIOError:
            pass
        if hinted:
            self._look_at = min(self._look_at, time.monotonic() + HINT_S)

    def _look(self, now: float) -> None:
        """Make every watch compare its sources with their last known digests."""
        for watch in list(self._watches.values()):
            with self._guarding(watch):
                self._changed |= watch.look(now)
        paths = {path for watch in self._watches.values() for path in watch.sources}
        self._files.keep(paths)
        before = self._hints.problem
        self._hints.observe(paths, now)
        self._changed |= before != self._hints.problem
        self._look_at = time.monotonic() + (self._hints.interval_s if self._watches else IDLE_S)

    def _look_into_stores(self) -> None:
        for watch in self._watches.values():
            if watch.waits_for_jobs:
                self._changed |= watch.look_in(store_names(Path(watch.registration.store) / "artifacts"))

    # ------------------------------------------------ captures

    def _begin_capture(self, watch: RunningWatch) -> Capture:
        return Capture(
            uuid.uuid4().hex,
            watch.registration,
            self._runtime_dir,
            str(capturing.report_path(self._runtime_dir)),
            self._memory_limit,
            watch.real,
        )

    def _take_reports(self) -> None:
        while True:
            try:
                data = self._reports.recv(DATAGRAM_BYTES)
            except BlockingIOError:
                return
            try:
                message: Mapping[str, object] = parse_json(data)
                token = message["token"]
            except (ValueError, TypeError, KeyError):
                log.warning("not a report: %r", data[:100])
                continue
            for watch in self._watches.values():
                if watch.capture is not None and watch.capture.token == token:  # an ended capture may have left reports
                    watch.on_report(message)
                    self._changed = True

    def _cancel(self, ids: list[str]) -> None:
        self._channel.send(wire.Cancel(ids))

    def _save(self, watch: RunningWatch) -> None:
        try:
            self._registry.save(watch.id, watch.record())
            self._problems.pop(watch.id, None)
        except (OSError, PrecompiledError) as error:
            text = f"the watch {watch.id} cannot be saved, so it ends with the daemon: {error}"
            put_newest(self._problems, watch.id, text[:500], MAX_WATCHES)

    # ------------------------------------------------ the daemon

    def _take_requests(self) -> None:
        try:
            messages = self._channel.receive()
        except WireError as error:
            log.error("the daemon's stream failed: %s", error)
            self._stopping = True
            return
        answers: list[wire.Answer] = []
        for message in messages:
            match message:
                case wire.Ask(number, request):
                    answers.append(wire.Answer(number, self._answer(request)))
                case wire.JobEnded(ids, state, why):
                    for watch in self._watches.values():
                        self._changed |= watch.job_ended(ids, state, why)
                case wire.Exit():
                    self._stopping = True
        if answers:
            # Report before the answers: after its answer, a peer requests the watches, and must not get an older state.
            self._tell_at = 0.0
            self._tell(time.monotonic())
        for answer in answers:
            self._channel.send(answer)

    def _answer(self, request: wire.Watch | wire.Unwatch) -> wire.Watching | wire.Rejected:
        self._changed = True
        if isinstance(request, wire.Unwatch):
            known = [id for id in request.ids if id in self._watches]
            for id in known:
                self._watches.pop(id).close(cancel=True)
                self._registry.remove(id)
                self._problems.pop(id, None)
            return wire.Watching(known)
        registration = request.registration
        if problem := problem_of(registration):
            return wire.Rejected("bad-registration", f"the watch is invalid: {problem}", "Register it again")
        id = identify(registration)
        if id not in self._watches and len(self._watches) >= MAX_WATCHES:
            return wire.Rejected(
                "too-many-watches", f"there are {MAX_WATCHES} watches", "Run `precompiled watch --remove NAME`"
            )
        try:
            self._registry.save(id, Record(registration))
        except (OSError, PrecompiledError) as error:
            return wire.Rejected("watch-not-saved", f"the watch cannot be saved: {error}", "See `precompiled doctor`")
        old = self._watches.pop(id, None)
        if old is not None:
            old.close(cancel=False)
        watch = self._watches[id] = RunningWatch(id, registration, self._tools)
        watch.plan.begin(time.monotonic())
        self._look_at = 0.0
        log.info("watch %s: %s", id, watch.name)
        return wire.Watching([id])

    def _tell(self, now: float) -> None:
        if not self._changed or now < self._tell_at:
            return
        self._changed, self._tell_at = False, now + TELL_S
        degraded = [f"watch: {text}" for text in (self._hints.problem, *self._problems.values()) if text]
        watches = [watch.status() for watch in self._watches.values()]
        if len(wire.encode(wire.Watched(watches, degraded))) > REPORT_BYTES:
            watches = [shortened(watch) for watch in watches]
        self._channel.send(wire.Watched(watches, degraded))

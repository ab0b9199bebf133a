"""Starts workers, reads their messages and output, and ends them. The scheduler decides when.

::

    daemon ──socketpair (wire.frame)── worker (session and group leader) ── guardian, compilers, ...
       ├──── pidfd: its death, at once ──┤
       └──── pipe: its stdout + stderr ──┘   (the last 64 KiB are kept, for the message about its death)

service/launcher.py executes a worker as ``<the client's python> -m precompiled.service.worker``. The worker runs as the
client's user, has its own variables, and is pinned to one device. A worker's memory is the memory of its process tree.
After the pool has killed the tree and reaped the worker (or after GONE_S), it reports that the worker is gone. So the
scheduler may then start another worker at once.

The pool never waits for anything that a user controls: the launcher does the exec, and poll() reports a worker's end.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import psutil
from precompiled.service import launcher, processes
from precompiled.service.budget import SPARE_BYTES, require_memory
from precompiled.service.events import (
    Event,
    KillWorker,
    RunJob,
    StartWorker,
    StopWorker,
    WorkerDone,
    WorkerGone,
    WorkerLowered,
    WorkerReady,
)
from precompiled.service.gpus import DeviceError, Devices
from precompiled.service.log_lines import UserLines, plain
from precompiled.service.stacks import read_stacks
from precompiled.service.worker_process import StartError, WorkerProcess, start_worker

from precompiled import wire
from precompiled.core.errors import WireError

log = logging.getLogger("precompiled.pool")

LOG_BYTES = 64 << 10  # the last bytes of a worker's output are kept
DETAIL_BYTES = 1500  # bytes of that output that a message shows
EXIT_GRACE_S = 3.0  # seconds between Exit and SIGKILL
STACK_S = 0.5  # seconds between SIGQUIT and SIGKILL, in which a worker writes its stack
REAP_S = 0.05  # seconds between two attempts to reap killed descendants
REAPED_PER_TURN = 256  # orphans; a user can create them without limit
ORPHAN_S = 10.0  # how long to wait for a killed descendant
ENDED_BY_US = ("idle", "evicted", "shut-down")  # reasons of an end that need no details
READS_AT_END = 32  # reads of a dead worker's output; a descendant in another session may write to it forever
GONE_S = 2.0  # how long to wait for a killed worker: it may hang in the kernel (a driver, NFS)
STREAM_S = 8.0  # how much longer to wait for the end of its stream, which tells whether it had read its job
MESSAGE_CHARS = 8000  # limit for a worker's message about a job, because every waiting client gets a copy
YIELDING = 19  # the autogroup niceness of a worker that gives way
AUTOGROUP_RETRY_S = 0.11  # the kernel accepts one change per 0.1 s over all unprivileged processes
MEMORY_CHECK_S = 1.0  # seconds between two measurements of one worker's memory


class Pool:
    """All worker processes. ``system``: workers run as their clients' users; this requires root."""

    def __init__(
        self,
        *,
        system: bool,
        job_memory_bytes: int,
        devices: Devices,
        cache_dir: Path | None = None,
        memory_bytes: int = 0,
        lines: UserLines | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._system = system
        self._job_memory_bytes = job_memory_bytes
        self._memory_bytes = memory_bytes  # limit for all busy workers; 0: none
        self._devices = devices
        self._cache_dir = cache_dir
        self._lines = lines or UserLines()
        self._clock = clock
        self._processes: dict[int, WorkerProcess] = {}
        self._by_fd: dict[int, WorkerProcess] = {}
        self._events: list[Event] = []  # events that the next take_events() returns
        # Killed descendants may become our children. Maps the pid of each killed descendant to the time until which the
        # pool tries to reap the process.
        self._orphans: dict[int, float] = {}

    # ------------------------------------------------ instructions

    def start(self, order: StartWorker) -> None:
        """Start a worker. If the start fails, the next ``take_events`` reports that the worker is gone."""
        try:
            process = start_worker(order, self._devices, system=self._system, cache_dir=self._cache_dir)
        except (StartError, DeviceError) as error:
            if self._lines.allows(order.uid):
                log.warning("worker %d does not start: %s", order.worker, error)
            reason = error.reason if isinstance(error, StartError) else "cannot-start"
            self._events.append(WorkerGone(order.worker, reason, str(error)))
            return
        self._processes[order.worker] = process
        self._yield(process, order.yields_until)
        for fd in (process.channel.fileno(), process.output, process.pidfd):
            self._by_fd[fd] = process
        if self._lines.allows(order.uid):
            log.info(
                "worker %d: pid %d, %s, uid %d, %s",
                order.worker,
                process.pid,
                order.device,
                order.uid,
                order.interpreter.executable,
            )

    def run(self, order: RunJob) -> None:
        process = self._processes.get(order.worker)
        if process is None or process.ending is not None:
            return  # it died in this round; the scheduler gets its WorkerGone
        process.jobs.append(order.job.key)
        process.job_since = self._clock()
        process.memory_checked = 0.0
        self._yield(process, order.yields_until)
        try:
            if len(order.job.graph) > SPARE_BYTES:
                require_memory(2 * len(order.job.graph))  # the encoder's buffer grows by half at a time
            process.channel.send(order.job)
        except MemoryError:
            self._end(process, "memory", f"the daemon has no memory to send a graph of {len(order.job.graph)} bytes")

    def set_priority(self, worker: int, yields_until: float) -> None:
        process = self._processes.get(worker)
        if process is not None:
            self._yield(process, yields_until)

    def stop(self, order: StopWorker) -> None:
        """Send Exit to a worker; ``check`` kills it if it does not exit."""
        process = self._processes.get(order.worker)
        if process is not None and process.leave_by is None:
            process.reason = process.reason or order.reason
            process.leave_by = self._clock() + EXIT_GRACE_S
            process.channel.send(wire.Exit())

    def kill(self, order: KillWorker) -> None:
        process = self._processes.get(order.worker)
        if process is None:
            return
        if order.reason == "timeout" and process.ending is None:
            process.popen.send_signal(signal.SIGQUIT)  # it then writes its stack to its output (worker.py)
            process.reason, process.leave_by = order.reason, self._clock() + STACK_S
        else:
            self._end(process, order.reason)

    # ------------------------------------------------ the main loop's side

    def fds(self) -> dict[int, int]:
        """Map each polled descriptor to select.POLLIN, plus select.POLLOUT if messages wait to be written."""
        wanted: dict[int, int] = {}
        for process in self._processes.values():
            if not process.channel.closed and process.ending is None:
                wanted[process.channel.fileno()] = select.POLLIN | (
                    select.POLLOUT if process.channel.wants_write else 0
                )
            if process.output >= 0 and process.ending is None:
                wanted[process.output] = select.POLLIN
            if process.pidfd >= 0:
                wanted[process.pidfd] = select.POLLIN
        return wanted

    def next_wake(self, now: float) -> float | None:
        """Seconds until ``check`` has something to do."""
        times = [p.leave_by - now for p in self._processes.values() if p.leave_by is not None]
        times += [
            max(AUTOGROUP_RETRY_S, p.yields_until - now) for p in self._processes.values() if p.yields_until is not None
        ]
        times += [MEMORY_CHECK_S for p in self._processes.values() if p.jobs or p.pidfd < 0]
        if self._events:
            times.append(0.0)
        if self._orphans or any(p.ending is not None for p in self._processes.values()):
            times.append(REAP_S)
        return max(0.0, min(times)) if times else None

    def on_fd(self, fd: int, events: int) -> None:
        """Handle ``events`` on a descriptor of ``fds``. ``take_events`` returns the results for the scheduler."""
        process = self._by_fd.get(fd)
        if process is None or process.number not in self._processes:
            return  # ended earlier in this round
        if process.ending is not None:
            self._reap(process)
        elif fd == process.output:
            self._read_output(process)
        elif fd == process.pidfd:
            self._end(process, "")
        else:
            if events & select.POLLOUT:
                process.channel.flush()
            self._read_control(process)

    def check(self) -> None:
        """Check what no descriptor reports: memory, grace periods, deaths on kernels without pidfd."""
        now = self._clock()
        for process in list(self._processes.values()):
            if process.ending is not None:
                self._reap(process)
                continue
            if process.yields_until is not None and now >= process.yields_until:
                self._yield(process, 0.0)
            if processes.has_exited(process.pid):
                self._end(process, "")
            elif process.leave_by is not None and now >= process.leave_by:
                self._end(process, process.reason or "no-exit")
        self._check_memory(now)
        self._reap_orphans()

    def _check_memory(self, now: float) -> None:
        """Measure the worker that was measured longest ago, and no other, because a tree may be large.

        Enforce the limits.
        """
        there = [p for p in self._processes.values() if p.ending is None]
        busy = [p for p in there if p.jobs or p.ready is None]
        process = min(there, key=lambda p: p.memory_checked, default=None)
        if process is None or now - process.memory_checked < MEMORY_CHECK_S:
            return
        members = self._look_at_memory(process, now)
        allowed, mib = self._job_memory_bytes, process.rss >> 20
        if members >= processes.MAX_TREE:
            self._end(process, "memory", f"the worker has {members} processes or more")
        elif process.rss > allowed:
            self._end(process, "memory", f"{mib} MiB resident, over the limit of {allowed >> 20} MiB")
        elif self._memory_bytes and sum(p.rss for p in busy) > self._memory_bytes:
            largest = max(busy, key=lambda p: p.rss)
            text = f"{largest.rss >> 20} MiB resident, the most of {len(busy)} workers that together exceed the limit"
            self._end(largest, "memory", text)

    def _look_at_memory(self, process: WorkerProcess, now: float) -> int:
        """Measure the resident memory of a worker's tree; returns its number of processes."""
        members = processes.tree(process.ps)
        process.memory_checked, process.rss = now, processes.resident(members)
        return len(members)

    def take_events(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def statuses(self, uid: int | None) -> list[wire.WorkerStatus]:
        """The workers of one uid; None: all."""
        now = self._clock()
        found = []
        for process in self._processes.values():
            if uid is not None and process.uid != uid:
                continue
            state = (
                "stopping"
                if process.leave_by is not None or process.ending is not None
                else "starting"
                if process.ready is None
                else "busy"
                if process.jobs
                else "idle"
            )
            if now - process.memory_checked >= MEMORY_CHECK_S:  # a measurement is too expensive to do per request
                self._look_at_memory(process, now)
            ready = process.ready
            found.append(
                wire.WorkerStatus(
                    pid=process.pid,
                    device=process.device,
                    python=ready.python if ready else process.interpreter.python,
                    torch=ready.torch if ready else process.interpreter.torch,
                    state=state,  # type: ignore[arg-type]
                    rss_bytes=process.rss,
                    jobs_done=process.jobs_done,
                    uid=process.uid,
                    job=process.jobs[-1] if process.jobs else "",
                    job_s=now - process.job_since if process.jobs else 0.0,
                )
            )
        return found

    def close(self) -> None:
        """End and reap all workers and their descendants."""
        for process in list(self._processes.values()):
            self._end(process, process.reason or "shut-down")
        deadline = self._clock() + EXIT_GRACE_S
        while (self._orphans or self._processes) and self._clock() < deadline:
            for process in list(self._processes.values()):
                self._reap(process)
            self._reap_orphans()
            if self._orphans or self._processes:
                time.sleep(0.01)  # all are killed, but the kernel needs time to end them

    # ------------------------------------------------ shares

    def _yield(self, process: WorkerProcess, until: float) -> None:
        """Make this worker and its compilers give way to other programs until ``until``. With 0, they stop giving way.

        This method sets the niceness of the worker's autogroup (sched(7)). A worker leads a session, so its own
        niceness has no effect on other sessions. Lowering a worker's niceness needs privileges; lowering an autogroup's
        needs none.
        """
        yields = until > self._clock()
        if yields == (process.yields_until is not None):
            process.yields_until = until if yields else None
            return
        try:
            Path(f"/proc/{process.pid}/autogroup").write_text(str(YIELDING if yields else 0))
        except BlockingIOError:
            return  # the kernel's limit of one change per 0.1 s: a later check tries again
        except OSError as error:
            log.debug("worker %d: its autogroup cannot be set: %s", process.number, error)
        process.yields_until = until if yields else None

    # ------------------------------------------------ reading

    def _read_control(self, process: WorkerProcess) -> None:
        try:
            messages = process.channel.receive()
        except WireError as error:
            self._end(process, "protocol", error.message)
            return
        for message in messages:
            match message:
                case wire.Ready():
                    if process.ready is not None:
                        self._end(process, "protocol", "the worker sent Ready twice")
                        return
                    if message.protocol != wire.PROTOCOL:
                        text = (
                            f"its precompiled {message.version} speaks protocol {message.protocol}, not {wire.PROTOCOL}"
                        )
                        self._end(process, "protocol-version", text)
                        return
                    process.ready = msgspec.structs.replace(
                        message, python=plain(message.python), torch=plain(message.torch)
                    )
                    self._events.append(WorkerReady(process.number))
                case wire.Lowered():
                    self._events.append(WorkerLowered(process.number, message))
                case wire.Finished():
                    if not process.jobs:
                        self._end(process, "protocol", "the worker finished a job that it did not have")
                        return
                    # The scheduler checks the key.
                    process.jobs.remove(message.key if message.key in process.jobs else process.jobs[0])
                    process.jobs_done += 1
                    shown = msgspec.structs.replace(
                        message, message=message.message[-MESSAGE_CHARS:], reason=plain(message.reason)
                    )
                    self._events.append(WorkerDone(process.number, shown))
        if process.channel.closed and process.leave_by is None:
            # The worker is exiting, or has closed the stream, so it gets no more jobs.
            process.leave_by = self._clock() + EXIT_GRACE_S

    def _read_output(self, process: WorkerProcess) -> None:
        try:
            data = os.read(process.output, 1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._close_output(process)
            return
        process.tail += data
        del process.tail[:-LOG_BYTES]
        if log.isEnabledFor(logging.DEBUG):
            log.debug("output of worker %d: %s", process.number, data.decode(errors="replace").rstrip())

    def _close_output(self, process: WorkerProcess) -> None:
        if process.output >= 0:
            self._by_fd.pop(process.output, None)
            os.close(process.output)
            process.output = -1

    # ------------------------------------------------ ending

    def _end(self, process: WorkerProcess, reason: str, detail: str = "") -> None:
        """Kill a worker's tree. When the worker is reaped, or after GONE_S, close its descriptors and report it."""
        if process.ending is not None or process.number not in self._processes:
            return
        process.ending = reason, detail
        process.gone_by = self._clock() + GONE_S
        self._yield(process, 0.0)  # at a low priority, its processes need long to die on a busy host
        self._kill_tree(process)  # before the reap, which frees its pid for another process
        self._reap(process)

    def _reap(self, process: WorkerProcess) -> None:
        """If a killed worker has ended, report that it is gone.

        Does not wait: a user can delay the end of a killed process.
        """
        assert process.ending is not None
        status = process.popen.poll()
        unread = process.channel.left_unread() if process.jobs else True
        died = not process.ending[0]
        # The guardian keeps the stream open until the guardian ends, a moment after the worker.
        if status is None and self._clock() < process.gone_by:
            return
        if died and unread is None and self._clock() < process.gone_by + STREAM_S:
            return
        if status is None:
            self._orphans[process.pid] = self._clock() + ORPHAN_S
        self._processes.pop(process.number, None)
        reason, detail = process.ending
        for _ in range(READS_AT_END):
            if process.output >= 0 and processes.readable(process.output):
                self._read_output(process)
        for fd in (process.channel.fileno(), process.pidfd):
            self._by_fd.pop(fd, None)
        process.channel.close()
        if process.pidfd >= 0:
            os.close(process.pidfd)
        self._close_output(process)
        if not reason and process.ready is None and status == launcher.CANNOT_START:
            reason = "cannot-start"
        reason = reason or process.reason or "died"
        if not detail:
            detail = "killed, but still alive" if status is None else processes.describe(status)
            if status == -signal.SIGKILL and reason == "died":
                detail += " (by the kernel for memory, or by hand)"
        tail = bytes(process.tail[-DETAIL_BYTES:]).decode(errors="replace").strip()
        if reason == "timeout":
            detail = "; ".join([detail, *read_stacks(bytes(process.tail))])
        elif tail and process.reason == "" and reason not in ENDED_BY_US:
            detail += f"; its last output: {tail}"
        if self._lines.allows(process.uid):
            text = reason if reason in ENDED_BY_US else f"{reason}, {detail}"
            log.info("worker %d (pid %d) ended: %s", process.number, process.pid, text)
        self._events.append(WorkerGone(process.number, reason, detail, died and unread is True))

    def _kill_tree(self, process: WorkerProcess) -> None:
        members = processes.kill_tree(process.pid, process.ps)
        lost = processes.session_processes(process.pid)
        processes.kill(lost)
        for member in [*members, *lost]:
            if member.pid != process.pid:
                self._orphans[member.pid] = self._clock() + ORPHAN_S

    def _reap_orphans(self) -> None:
        """Reap descendants whose parents have died.

        The daemon is a subreaper, so such descendants become its children.
        """
        now = self._clock()
        ours = {process.pid for process in self._processes.values()}
        for pid, deadline in list(self._orphans.items()):
            if pid in ours:  # the kernel has reused the pid
                del self._orphans[pid]
                continue
            try:
                reaped, _ = os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                # The parent has reaped this process, or the parent is ending, so that the process soon becomes our
                # child.
                reaped = 0 if psutil.pid_exists(pid) else pid
            if reaped or now >= deadline:
                del self._orphans[pid]
        # Also reap orphans that ended by themselves. Workers, and processes of our own session (nvidia-smi, started by
        # another thread), are left alone: other code waits for their statuses.
        for _ in range(REAPED_PER_TURN):
            pid = processes.ended_child()
            if not pid or pid in ours or processes.session_of(pid) == os.getsid(0):
                break
            os.waitpid(pid, os.WNOHANG)

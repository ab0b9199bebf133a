"""A worker: compiles jobs, or offers them to a farm (``--courier``), in the client's interpreter, as its user.

::

    main thread      Ready, then for each Job: precompiled.compiler.steps -> Lowered or Finished
    build threads    each runs the rest of a lowered job: waits for the C++ compilers -> Finished
    control thread   reads the control stream. The stream's end means that the daemon has died: kill the whole group
    guardian         a process forked before the heavy imports; it also kills the group when the stream ends. It does
                     not need the worker's GIL, and survives if worker and daemon die together

PR_SET_PDEATHSIG is not used: it would kill only the worker, before the worker could end its compilers. Output of user
code goes to stderr (the pool keeps the last part); the control stream has its own descriptor.
"""

from __future__ import annotations

import argparse
import faulthandler
import functools
import os
import queue
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Protocol

from precompiled import wire
from precompiled.core.errors import WireError
from precompiled.version import VERSION

AUTOGROUP_TRIES = 20
LOOK_S = 1.0  # between two checks for the end of the stream during a job; the guardian waits for the end itself
MESSAGE_CHARS = 20_000  # limit for a traceback; the message must stay far below wire.MAX_MESSAGE_BYTES


Steps = Generator[None, None, wire.Finished]  # a job, which pauses once only C++ compilers run for it


class Compiler(Protocol):
    """The interface of precompiled.compiler and of test doubles."""

    def warm_up(self) -> None: ...

    def steps(self, job: wire.Job) -> Steps: ...


class _Courier:
    """Offers jobs to a farm (parts.COURIER)."""

    def __init__(self) -> None:
        from precompiled import parts

        self._courier = parts.COURIER.require()
        self.warm_up = self._courier.warm_up

    def steps(self, job: wire.Job) -> Steps:
        return self._courier.run_job(job)
        yield


def _kill_group() -> None:
    """Kill this worker, its guardian and its compilers. The pool has made the worker the leader of its own session."""
    if os.getpgrp() == os.getsid(0):
        _stop_yielding()
        os.killpg(0, signal.SIGKILL)
    os._exit(1)  # started by hand, so the group belongs to another program


def _stop_yielding() -> None:
    """End the low priority of this session (Pool._yield): on a busy host, its processes would take a minute to die."""
    for _ in range(AUTOGROUP_TRIES):
        try:
            with open("/proc/self/autogroup", "w") as file:
                file.write("0")
        except BlockingIOError:  # the kernel accepts one change per 0.1 s
            time.sleep(0.02)
            continue
        except OSError:
            pass  # this kernel has no autogroups
        return


def _say(text: str) -> None:
    sys.stderr.write(f"precompiled worker: {text}\n")
    sys.stderr.flush()


def _interrupt_nobody() -> None:
    """Use SCHED_BATCH (sched(7)), so that the worker and its compilers preempt no other program when they wake up."""
    try:
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    except OSError as error:  # a sandbox may forbid it
        _say(f"its scheduling class cannot be changed: {error}")


def _guard(control_fd: int) -> None:
    """Fork the guardian. Called before threads and heavy imports, so that the fork is safe and the process small."""
    if os.fork() != 0:
        return
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        # Close the output pipe, or the pool would never see its end.
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        poll = select.poll()
        poll.register(control_fd, select.POLLHUP | getattr(select, "POLLRDHUP", 0))
        while not poll.poll():
            pass
        _kill_group()
    finally:
        os._exit(1)  # never return into the worker's code


def _receive(sock: socket.socket, size: int) -> bytearray | None:
    """Receive exactly ``size`` bytes; None at the end of the stream. Raises WireError if the bytes do not fit in
    memory.
    """
    try:
        data = bytearray(size)
    except MemoryError as error:
        raise WireError(f"this worker has no memory for a graph of {size} bytes") from error
    view = memoryview(data)
    while view:
        got = sock.recv_into(view)
        if got == 0:
            return None
        view = view[got:]
    return data


def _control(sock: socket.socket, inbox: queue.SimpleQueue[wire.PoolMessage], idle: threading.Semaphore) -> None:
    """Put each message into ``inbox``. A job stays unread until the main thread waits for it (``idle``). So the daemon
    can see whether this process died before it began the job.
    """
    ended = select.poll()
    ended.register(sock, select.POLLHUP | getattr(select, "POLLRDHUP", 0))
    try:
        while True:
            while not idle.acquire(timeout=LOOK_S):
                if ended.poll(0):
                    _kill_group()
            head = _receive(sock, wire.LENGTH_BYTES)
            if head is None:
                break
            length = int.from_bytes(head, "big")
            body = _receive(sock, length)
            if body is None:
                break
            message: wire.PoolMessage = wire.decode(body, wire.PoolMessage, limit=length)
            if isinstance(message, wire.Exit):
                _kill_group()  # safe at any time: a publish is one rename, so it is done or not
            inbox.put(message)
    except (OSError, WireError) as error:
        _say(f"the control stream failed: {error}")
    _kill_group()


def _advance(steps: Steps, job: wire.Job) -> wire.Finished | None:
    """Run a job until its pause (None) or its end. An exception of user code fails the job, and ends no worker."""
    try:
        next(steps)
        return None
    except StopIteration as end:
        return end.value
    except (Exception, SystemExit):  # noqa: BLE001 - custom ops and backends raise anything
        import traceback

        text = traceback.format_exc()[-MESSAGE_CHARS:]
        return wire.Finished(job.id, job.key, "failed", 0.0, reason="worker-error", message=text)


def _finish(steps: Steps, job: wire.Job, send: Callable[[wire.WorkerMessage], None]) -> None:
    """Run the rest of a lowered job. An error outside the job's own code ends this process, as in the main thread."""
    try:
        finished = _advance(steps, job)
        assert finished is not None, "a job pauses at most once"
        send(finished)
    except BaseException:  # noqa: BLE001 - otherwise the daemon would wait for this job until its time is up
        import traceback

        traceback.print_exc()
        _kill_group()


def serve(sock: socket.socket, compiler: Compiler, warm_up: Callable[[], None] | None = None) -> None:
    """Send Ready, then run jobs until the process is killed.

    ``warm_up`` replaces the compiler's method of that name.
    """
    inbox: queue.SimpleQueue[wire.PoolMessage] = queue.SimpleQueue()
    idle = threading.Semaphore(0)
    threading.Thread(target=_control, args=(sock, inbox, idle), name="control", daemon=True).start()
    (warm_up or compiler.warm_up)()
    torch = sys.modules.get("torch")
    ready = wire.Ready(
        pid=os.getpid(),
        python=".".join(map(str, sys.version_info[:3])),
        torch=str(getattr(torch, "__version__", "")),
        version=VERSION,
    )
    sending = threading.Lock()

    def send(message: wire.WorkerMessage) -> None:
        with sending:
            sock.sendall(wire.frame(message))

    send(ready)
    while True:
        idle.release()
        job = inbox.get()
        assert isinstance(job, wire.Job)
        steps = compiler.steps(job)
        finished = _advance(steps, job)
        if finished is None:
            send(wire.Lowered(job.id, job.key))
            threading.Thread(target=_finish, args=(steps, job, send), name="build", daemon=True).start()
        else:
            send(finished)
        del steps, job, finished  # free the graph's bytes while waiting for the next job


def main(argv: Sequence[str], compiler: Compiler | None = None) -> int:
    """Run a worker. ``--control-fd N``: the inherited socket. ``compiler``: only for tests."""
    parser = argparse.ArgumentParser(prog="python -m precompiled.service.worker", description="Started by the daemon.")
    parser.add_argument("--control-fd", type=int, required=True, help="the inherited socket")
    parser.add_argument("--store", type=Path, help="where the first job is expected")
    parser.add_argument("--courier", action="store_true", help="offer jobs to the user's farm, compile none")
    arguments = parser.parse_args(argv)
    fd = arguments.control_fd
    faulthandler.register(signal.SIGQUIT)  # the pool sends it when the time is up
    _guard(fd)  # in the normal scheduling class, so that the guardian runs at once when the daemon dies
    _interrupt_nobody()
    sock = socket.socket(fileno=fd)
    sock.set_inheritable(False)  # a compiler process must not keep the stream open
    warm_up = None
    if compiler is None:
        if arguments.courier:
            compiler = _Courier()
        else:
            from precompiled import compiler as real  # type: ignore[attr-defined, unused-ignore]

            compiler = real
            if arguments.store is not None:
                warm_up = functools.partial(real.warm_up, arguments.store)
    try:
        serve(sock, compiler, warm_up)  # type: ignore[arg-type, unused-ignore]
    except OSError as error:  # the daemon closed the stream between two messages
        _say(f"{error}")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""A worker: compiles one job after the other, in the client's interpreter, as the client's user.

::

    main thread      Ready, then for each Job: precompiled.compiler.run_job -> Finished
    control thread   reads the control stream; its end means that the daemon is gone: the whole group dies
    guardian         a process forked before anything is imported, that waits for the same end and does the same.
                     It needs no GIL, and it also outlives a worker that dies with the daemon.

PR_SET_PDEATHSIG is not used on purpose: it would kill the worker alone, and before it could end its compilers.
Output of user code goes to stderr (the pool keeps its tail); the control stream is a descriptor of its own.
"""

from __future__ import annotations

import argparse
import os
import queue
import select
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from typing import Protocol

from precompiled import wire
from precompiled.core.errors import WireError
from precompiled.version import VERSION

MESSAGE_CHARS = 20_000  # of a traceback: the whole must stay far below wire.MAX_MESSAGE_BYTES


class Compiler(Protocol):
    """precompiled.compiler; precompiled.courier, which offers jobs to a farm; or a test's stand-in."""

    def warm_up(self) -> None: ...

    def run_job(self, job: wire.Job) -> wire.Finished: ...


def _kill_group() -> None:
    """End this worker, its guardian and its compilers: it leads its own session and group (the pool sees to that)."""
    if os.getpgrp() == os.getsid(0):
        os.killpg(0, signal.SIGKILL)
    os._exit(1)  # started by hand, in somebody else's group


def _say(text: str) -> None:
    sys.stderr.write(f"precompiled worker: {text}\n")
    sys.stderr.flush()


def _interrupt_nobody() -> None:
    """When this worker or a compiler of it wakes up, whoever runs goes on to the end of his time slice (sched(7))."""
    try:
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    except OSError as error:  # a sandbox may forbid it
        _say(f"stays in the scheduling class that it was started in: {error}")


def _guard(control_fd: int) -> None:
    """Fork the guardian. Called before any thread or import of weight: it stays small, and the fork is safe."""
    if os.fork() != 0:
        return
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        # Not the output pipe, or the pool would wait for its end.
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        poll = select.poll()
        poll.register(control_fd, select.POLLHUP | getattr(select, "POLLRDHUP", 0))
        while not poll.poll():
            pass
        _kill_group()
    finally:
        os._exit(1)  # never back into the worker's code


def _receive(sock: socket.socket, size: int) -> bytes | None:
    """Exactly ``size`` bytes; None at the end of the stream."""
    data = bytearray(size)
    view = memoryview(data)
    while view:
        got = sock.recv_into(view)
        if got == 0:
            return None
        view = view[got:]
    return bytes(data)


def _control(sock: socket.socket, inbox: queue.SimpleQueue[wire.PoolMessage]) -> None:
    try:
        while True:
            head = _receive(sock, wire.LENGTH_BYTES)
            if head is None:
                break
            length = int.from_bytes(head, "big")
            body = _receive(sock, length)
            if body is None:
                break
            message: wire.PoolMessage = wire.decode(body, wire.PoolMessage, limit=length)
            if isinstance(message, wire.Exit):
                _kill_group()  # nothing of a job is worth saving: a publish is one rename, done or not
            inbox.put(message)
    except (OSError, WireError) as error:
        _say(f"the control stream broke: {error}")
    _kill_group()


def _run(compiler: Compiler, job: wire.Job) -> wire.Finished:
    """run_job, guarded: whatever user code raises ends the job and never the worker."""
    try:
        return compiler.run_job(job)
    except (Exception, SystemExit):  # noqa: BLE001 - custom ops and backends raise anything
        import traceback

        text = traceback.format_exc()[-MESSAGE_CHARS:]
        return wire.Finished(job.id, job.key, "failed", 0.0, reason="worker-error", message=text)


def serve(sock: socket.socket, compiler: Compiler) -> None:
    """Say Ready, then answer jobs until the process is ended."""
    inbox: queue.SimpleQueue[wire.PoolMessage] = queue.SimpleQueue()
    threading.Thread(target=_control, args=(sock, inbox), name="control", daemon=True).start()
    compiler.warm_up()
    torch = sys.modules.get("torch")
    ready = wire.Ready(
        pid=os.getpid(),
        python=".".join(map(str, sys.version_info[:3])),
        torch=str(getattr(torch, "__version__", "")),
        version=VERSION,
    )
    sock.sendall(wire.frame(ready))
    while True:
        job = inbox.get()
        assert isinstance(job, wire.Job)
        finished = _run(compiler, job)
        sock.sendall(wire.frame(finished))
        del job, finished  # the graph's bytes, until the next job


def main(argv: Sequence[str], compiler: Compiler | None = None) -> int:
    """``--control-fd N``: the inherited socket. ``compiler`` is precompiled.compiler but in tests."""
    parser = argparse.ArgumentParser(prog="python -m precompiled.service.worker", description="Started by the daemon.")
    parser.add_argument("--control-fd", type=int, required=True, help="the inherited socket")
    parser.add_argument("--courier", action="store_true", help="offer jobs to the user's farm, compile none")
    arguments = parser.parse_args(argv)
    fd = arguments.control_fd
    _interrupt_nobody()
    _guard(fd)
    sock = socket.socket(fileno=fd)
    sock.set_inheritable(False)  # a compiler must not keep the stream open
    if compiler is None:
        if arguments.courier:
            from precompiled import courier as real  # type: ignore[attr-defined, unused-ignore]
        else:
            from precompiled import compiler as real  # type: ignore[attr-defined, unused-ignore, no-redef]

        compiler = real
    try:
        serve(sock, compiler)  # type: ignore[arg-type, unused-ignore]
    except OSError as error:  # the daemon closed the stream between two messages
        _say(f"{error}")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

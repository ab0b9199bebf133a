"""A worker's process: its data in the pool, and its start through service/launcher.py."""

from __future__ import annotations

import errno
import json
import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from precompiled.service import launcher, processes
from precompiled.service.channel import Channel
from precompiled.service.events import COURIER, StartWorker
from precompiled.service.gpus import Devices

from precompiled import wire
from precompiled.core import worker_variables
from precompiled.core.children import start_with_stream

LAUNCHER = Path(launcher.__file__)
# The host has no process, memory or descriptor left. Another user may have exhausted these, so the failed start says
# nothing about the interpreter.
_HOST_IS_FULL = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)
# How many messages one read accepts from a worker. A worker sends Ready, then Lowered and Finished for each job.
MESSAGES_AT_ONCE = 4


class StartError(Exception):
    """A worker cannot be started; the message says why. ``reason``: "host-full" or "cannot-start"."""

    def __init__(self, message: str, cause: BaseException | None = None) -> None:
        super().__init__(message)
        full = isinstance(cause, OSError) and cause.errno in _HOST_IS_FULL
        self.reason = "host-full" if full else "cannot-start"


@dataclass(eq=False)
class WorkerProcess:
    """A worker's data in the pool."""

    number: int
    uid: int
    device: str
    interpreter: wire.Interpreter
    popen: subprocess.Popen[bytes]
    channel: Channel
    output: int  # the reading end of the worker's stdout and stderr
    pidfd: int
    ps: psutil.Process | None  # None if the worker has ended already, which the next check() notices
    tail: bytearray = field(default_factory=bytearray)
    ready: wire.Ready | None = None
    jobs: list[str] = field(default_factory=list)  # the keys of its jobs
    job_since: float = 0.0
    jobs_done: int = 0
    rss: int = 0
    memory_checked: float = 0.0
    leave_by: float | None = None  # set after Exit was sent: the time at which the worker is killed
    reason: str = ""  # why Exit was sent; "" before that
    # the time until which the worker gives way to other programs; None if it does not
    yields_until: float | None = None
    ending: tuple[str, str] | None = None  # set while the worker is killed but not reaped: reason code, text for people
    gone_by: float = 0.0  # the time at which the worker is reported gone even if it is not reaped

    @property
    def pid(self) -> int:
        return self.popen.pid


def start_worker(order: StartWorker, devices: Devices, *, system: bool, cache_dir: Path | None) -> WorkerProcess:
    """Start a worker. Raises StartError or DeviceError.

    ``system``: the worker becomes the client's user, and its store is in ``cache_dir``.
    """
    interpreter = order.interpreter
    if not os.path.isabs(interpreter.executable) or "\0" in interpreter.executable:
        raise StartError(f"the interpreter {interpreter.executable[:200]!r} is not an absolute path")
    courier = order.device == COURIER
    visible = "" if courier else devices.visible(order.device)
    # A system daemon's variables are root's, so the worker gets none of them. The launcher adds the variables of the
    # user's account.
    here = {} if system else os.environ
    arguments = ["--courier"] if courier else ["--store", order.store] if order.store else []
    what: dict[str, object] = {
        "executable": interpreter.executable,
        "variables": worker_variables.variables(here, interpreter.variables, visible),
        # The interpreter's path is not checked here: root's answer would reveal files that the user cannot see.
        "user": (order.uid, order.gid) if system else None,
        "cache_dir": str(cache_dir or ""),
        "arguments": ["-m", "precompiled.service.worker", *arguments],
    }
    try:
        with os.fdopen(os.memfd_create("order"), "w+b") as file:
            file.write(json.dumps(what).encode())
            file.seek(0)
            reading, writing = os.pipe()
            try:
                # The launcher inherits the daemon's variables, which the daemon's interpreter may need. The worker gets
                # only the variables that the order contains.
                popen, control = start_with_stream(
                    *("-I", "-S", str(LAUNCHER), "--fd", str(file.fileno())),
                    pass_fds=(file.fileno(),),
                    stdout=writing,
                    stderr=writing,
                    start_new_session=True,
                    umask=0o077,
                )
            except BaseException:
                os.close(reading)
                raise
            finally:
                os.close(writing)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise StartError(f"{interpreter.executable} cannot be executed: {error}", error) from error
    os.set_blocking(reading, False)
    try:
        pidfd = os.pidfd_open(popen.pid)
    except (AttributeError, OSError):
        pidfd = -1  # a kernel before 5.3: check() and the closed stream reveal deaths
    channel = Channel(control, at_once=MESSAGES_AT_ONCE)
    return WorkerProcess(
        order.worker, order.uid, order.device, interpreter, popen, channel, reading, pidfd, processes.find(popen.pid)
    )

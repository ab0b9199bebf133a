"""A worker's process: its data in the pool, and its start through service/launcher.py."""

from __future__ import annotations

import errno
import json
import os
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from precompiled.service import launcher, processes
from precompiled.service.channel import Channel
from precompiled.service.events import COURIER, StartWorker
from precompiled.service.gpus import Devices

from precompiled import wire
from precompiled.core import worker_variables

LAUNCHER = Path(launcher.__file__)
# The host has no process, memory or descriptor left. Another user may have taken them, so the interpreter is not at
# fault.
_HOST_IS_FULL = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)
MESSAGES_AT_ONCE = 4  # from a worker, which sends Ready, and one Finished per job


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
    output: int  # the reading end of its stdout and stderr
    pidfd: int
    ps: psutil.Process | None  # None: it has ended already, which the next check() notices
    tail: bytearray = field(default_factory=bytearray)
    ready: wire.Ready | None = None
    job: str = ""
    job_since: float = 0.0
    jobs_done: int = 0
    rss: int = 0
    memory_checked: float = 0.0
    leave_by: float | None = None  # set after Exit was sent: when the worker is killed
    reason: str = ""  # why Exit was sent; "" before that
    yields_until: float | None = None  # until when it gives way to other programs; None: it does not
    ending: tuple[str, str] | None = None  # once killed and not reaped yet: reason code, text for people
    gone_by: float = 0.0  # when it is reported gone even if it is not reaped

    @property
    def pid(self) -> int:
        return self.popen.pid


def start_worker(order: StartWorker, devices: Devices, *, system: bool, cache_dir: Path | None) -> WorkerProcess:
    """Start a worker. Raises StartError or DeviceError.

    ``system``: the worker becomes the client's user, with a store below ``cache_dir``.
    """
    interpreter = order.interpreter
    if not os.path.isabs(interpreter.executable) or "\0" in interpreter.executable:
        raise StartError(f"the interpreter {interpreter.executable[:200]!r} is not an absolute path")
    courier = order.device == COURIER
    visible = "" if courier else devices.visible(order.device)
    # A system daemon's variables are root's, so the worker gets none. The launcher adds the variables of the user's
    # account.
    here = {} if system else os.environ
    what: dict[str, object] = {
        "executable": interpreter.executable,
        "variables": worker_variables.variables(here, interpreter.variables, visible),
        # The interpreter's path is not checked here: root's answer would reveal files that the user cannot see.
        "user": (order.uid, order.gid) if system else None,
        "cache_dir": str(cache_dir or ""),
    }
    try:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            reading, writing = os.pipe()
        except OSError:
            ours.close()
            theirs.close()
            raise
    except OSError as error:  # no descriptors are left
        raise StartError(f"no channel to a worker can be had: {error}", error) from error
    what["arguments"] = [
        "-m",
        "precompiled.service.worker",
        "--control-fd",
        str(theirs.fileno()),
        *(["--courier"] if courier else []),
    ]
    try:
        with os.fdopen(os.memfd_create("order"), "w+b") as file:
            file.write(json.dumps(what).encode())
            file.seek(0)
            # The launcher inherits the daemon's variables, which the daemon's interpreter may need. The worker gets the
            # variables in the order.
            popen = subprocess.Popen(
                [sys.executable, "-I", "-S", str(LAUNCHER), "--fd", str(file.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=writing,
                stderr=writing,
                cwd="/",
                pass_fds=(theirs.fileno(), file.fileno()),
                start_new_session=True,
                umask=0o077,
            )
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        ours.close()
        os.close(reading)
        raise StartError(f"{interpreter.executable} cannot be executed: {error}", error) from error
    finally:
        theirs.close()
        os.close(writing)
    os.set_blocking(reading, False)
    try:
        pidfd = os.pidfd_open(popen.pid)
    except (AttributeError, OSError):
        pidfd = -1  # a kernel before 5.3: check() and the closed stream reveal deaths
    channel = Channel(ours, at_once=MESSAGES_AT_ONCE)
    return WorkerProcess(
        order.worker, order.uid, order.device, interpreter, popen, channel, reading, pidfd, processes.find(popen.pid)
    )

"""Support for tests of the daemon: a real daemon process, and a worker that compiles nothing.

The test's worker is a script in place of the interpreter (``wire.Interpreter.executable``). The script runs the real
worker loop (control thread, guardian, stream) with a fake compiler. The bytes of a graph are an order for this
compiler::

    {"do": "publish" | "exists" | "fail" | "raise" | "sleep" | "die" | "die-once" | "end-once" | "hang" | "hog"
           | "spawn" | "outlive" | "print" | "leave" | "garbage" | "say" | "wait-for", ...}
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from precompiled import wire
from precompiled.core.config import Settings

TIMEOUT_S = 30.0

FAKE_INTERPRETER = """\
#!{python}
import ctypes, json, os, pathlib, signal, subprocess, sys, threading, time
from precompiled import wire
from precompiled.service import worker

def end(how):
    if how == "_exit":
        os._exit(0)
    os.kill(os.getpid(), getattr(signal, how))
    time.sleep(1000)  # another thread may get the signal a moment later

def end_in(phase, how, job):
    store = pathlib.Path(job.store)
    store.mkdir(parents=True, exist_ok=True)
    finished = wire.frame(wire.Finished(job.id, job.key, "published", 0.25))
    fd = int(sys.argv[sys.argv.index("--control-fd") + 1])
    if phase == "thread":
        threading.Thread(target=end, args=(how,)).start()
        time.sleep(1000)
    if phase == "compiler":
        subprocess.Popen(["sleep", "1005"])
    if phase == "fork" and os.fork() == 0:
        time.sleep(1000)
    if phase == "writing":
        (store / (job.key + ".tmp")).write_text("do")
    if phase in ("published", "replying", "replied"):
        (store / job.key).write_text("done")
    if phase in ("replying", "replied"):
        os.write(fd, finished[: len(finished) // 2] if phase == "replying" else finished)
    end(how)

def hang_in_user_code(how):
    if how == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    if how == "masked":
        signal.pthread_sigmask(signal.SIG_BLOCK, {{signal.SIGQUIT}})
    if how == "gil":  # a call into C that does not release the interpreter
        ctypes.PyDLL(None).sleep(1000)
    time.sleep(1000)

class Fake:
    def warm_up(self):
        start = os.environ.get("FAKE_START", "")
        if start == "die":
            print("cannot import torch", file=sys.stderr, flush=True)
            os._exit(3)
        if start == "hang":
            time.sleep(1000)
        if start.startswith("die-once:"):
            path = pathlib.Path(start.partition(":")[2])
            if not path.exists():
                path.touch()
                os.kill(os.getpid(), signal.SIGKILL)

    def steps(self, job):
        if json.loads(job.graph).get("lowered") and job.may_overlap:
            yield
        return self.run_job(job)

    def run_job(self, job):
        order = json.loads(job.graph)
        do = order["do"]
        log = order.get("log")
        if log:
            with open(log, "a") as file:
                file.write(json.dumps({{"key": job.key, "pid": os.getpid(), "attempt": job.attempt,
                    "cuda": os.environ.get("CUDA_VISIBLE_DEVICES"), "threads": job.compile_threads,
                    "env": dict(os.environ), "cwd": os.getcwd(), "uid": os.getuid(),
                    "groups": os.getgroups()}}) + "\\n")
        if do == "die-once":
            path = pathlib.Path(order["mark"])
            if not path.exists():
                path.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            do = "publish"
        if do == "panic-once":
            path = pathlib.Path(order["mark"])
            if not path.exists():
                path.touch()
                raise KeyboardInterrupt  # no Exception, like the panic of an extension in Rust
            do = "publish"
        if do == "end-once":
            path = pathlib.Path(order["mark"])
            if not path.exists():
                path.touch()
                end_in(order["phase"], order["how"], job)
            do = "publish"
        if do == "die":
            print("I am dying", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        if do == "hang":
            hang_in_user_code(order["how"])
        if do == "sleep":
            time.sleep(1000)
        if do == "wait-for":
            while not os.path.exists(order["path"]):
                time.sleep(0.01)
            do = "publish"
        if do == "hog":
            hog = bytearray(order["bytes"])
            hog[::4096] = b"x" * len(hog[::4096])
            time.sleep(1000)
        if do == "spawn":
            # a child in a session of its own, and its child: they must die with the worker
            child = subprocess.Popen(["setsid", "sh", "-c", "sleep 1001 & sleep 1002"])
            plain = subprocess.Popen(["sleep", "1003"])
            pathlib.Path(order["path"]).write_text(f"{{child.pid}} {{plain.pid}}")
            time.sleep(1000)
        if do == "outlive":
            # a child in the worker's session, which the end of the worker's group does not reach
            child = subprocess.Popen(["sleep", "1004"], preexec_fn=os.setpgrp)
            pathlib.Path(order["path"]).write_text(str(child.pid))
            time.sleep(1000)
        if do == "raise":
            raise RuntimeError("user code went wrong")
        if do == "leave":
            sys.exit("user code leaves")
        if do == "print":
            print("x" * 200000)
            os.write(1, b"raw bytes on the standard output" * 100)
            do = "publish"
        if do == "say":
            fd = int(sys.argv[sys.argv.index("--control-fd") + 1])
            os.write(fd, bytes.fromhex(order["hex"]) * order.get("times", 1))
            time.sleep(1000)
        if do == "garbage":
            fd = int(sys.argv[sys.argv.index("--control-fd") + 1])
            os.write(fd, b"\\xff" * 100)
            time.sleep(1000)
        if do == "fail":
            return wire.Finished(job.id, job.key, "failed", 0.1, reason="boom", message="it does not compile")
        if do == "exists":
            return wire.Finished(job.id, job.key, "exists", 0.0)
        store = pathlib.Path(job.store)
        store.mkdir(parents=True, exist_ok=True)
        (store / job.key).write_text("done")
        return wire.Finished(job.id, job.key, "published", 0.25)

sys.exit(worker.main(sys.argv[3:], compiler=Fake()))
"""

_numbers = itertools.count()


def wait_until(
    condition: Callable[[], Any], what: str = "", timeout_s: float = TIMEOUT_S, *, pause_s: float = 0.01
) -> Any:
    """Poll until ``condition()`` is true, and return its value. The timeout only ends a test that hangs.

    ``pause_s``: seconds between two polls, 0 if the condition itself does the work that the test waits for.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"did not happen within {timeout_s:g} s: {what or condition}")
        time.sleep(pause_s)


def alive(pid: int) -> bool:
    """Returns whether the process runs. A zombie counts as ended."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def processes_with(text: str) -> list[int]:
    """Returns the pids of other processes whose command line or environment contains ``text``."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE:
                variables = process.environ()
                if text in " ".join([*process.cmdline(), *variables.values()]):
                    found.append(process.pid)
    return found


@dataclass
class DaemonUnderTest:
    """A daemon process with its own directories."""

    directory: Path
    flags: dict[str, Any] = field(default_factory=dict)
    settings: Settings = field(default_factory=Settings)
    process: subprocess.Popen[bytes] | None = None
    start_report: dict[str, Any] = field(default_factory=dict)
    prefix: list[str] = field(default_factory=list)  # a command that runs the daemon's command line, such as nice

    def __post_init__(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        self.interpreter = self.directory / "python"
        self.interpreter.write_text(FAKE_INTERPRETER.format(python=sys.executable))
        self.interpreter.chmod(0o755)
        self.store = self.directory / "store"
        # The name is short, because a socket's path has at most 107 bytes and pytest's directories have long paths.
        self.runtime_dir = self.directory / "r"
        self.settings = Settings(
            runtime_dir=self.runtime_dir,
            cache_dir=self.store,
            autostart=False,
            **{name: value for name, value in self.flags.items()},
        )

    def start(self, *extra: str, expect: str = "ready") -> dict[str, Any]:
        reading, writing = os.pipe()
        command = [
            sys.executable,
            "-m",
            "precompiled.service",
            "--ready-fd",
            str(writing),
            "--runtime-dir",
            str(self.runtime_dir),
            "--cache-dir",
            str(self.store),
            "--log",
            "info",
        ]
        for name, value in self.flags.items():
            command += ["--" + name.replace("_", "-"), str(value)]
        environment = {**os.environ, "PRECOMPILED": "0", "MARK": str(self.directory)}
        with (self.directory / "daemon.stderr").open("ab") as errors:
            self.process = subprocess.Popen(
                [*self.prefix, *command, *extra],
                pass_fds=[writing],
                env=environment,
                stdin=subprocess.DEVNULL,
                stderr=errors,
            )
        os.close(writing)
        with os.fdopen(reading) as lines:
            line = lines.readline()
        self.start_report = json.loads(line) if line else {}
        assert self.start_report.get("outcome") == expect, (self.start_report, self.log())
        return self.start_report

    def log(self) -> str:
        return (self.directory / "daemon.stderr").read_text()

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal, wait, and return the exit status."""
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(TIMEOUT_S)

    def cleanup(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.stop()
        for pid in processes_with(str(self.directory)):
            with contextlib.suppress(psutil.Error):
                psutil.Process(pid).kill()

    def environment(self, **variables: str) -> wire.Interpreter:
        return wire.Interpreter(
            executable=str(self.interpreter), prefix="/", python="3.0", torch="2.0", triton="", variables=variables
        )

    def submit(self, key: str = "", *, environment: wire.Interpreter | None = None, **values: Any) -> wire.Submit:
        number = next(_numbers)
        return wire.Submit(
            id=f"id{number}-{uuid.uuid4().hex[:8]}",
            key=key or f"key{number}",
            store=str(self.store),
            environment=environment or self.environment(),
            device=values.pop("device", "cpu"),
            **values,
        )

    def stats(self) -> wire.StatsReply:
        from precompiled.client.ask import request

        return request(self.settings, wire.Stats(), TIMEOUT_S)

    def status(self) -> wire.StatusReply:
        from precompiled.client.ask import request

        return request(self.settings, wire.Status(), TIMEOUT_S)


def graph(do: str = "publish", **values: Any) -> bytes:
    return json.dumps({"do": do, **values}).encode()


class RawClient:
    """A bare DEALER socket of libzmq. A test can send frames that no real client sends."""

    def __init__(self, settings: Settings, identity: bytes = b"") -> None:
        import zmq

        from precompiled.core import paths

        self._zmq = zmq
        self._context = zmq.Context()
        self.socket = self._context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 0)
        if identity:
            self.socket.setsockopt(zmq.IDENTITY, identity)
        self.socket.connect(f"ipc://{paths.socket_path(settings.runtime_dir)}")

    def send(self, *frames: bytes) -> None:
        self.socket.send_multipart(list(frames))

    def submit(self, message: wire.Submit, blob: bytes) -> None:
        self.send(wire.PREAMBLE, wire.encode(message), blob)

    def receive(self, timeout_s: float = TIMEOUT_S) -> Any:
        if not self.socket.poll(int(timeout_s * 1000)):
            raise AssertionError("no reply")
        preamble, data = self.socket.recv_multipart()
        assert preamble == wire.PREAMBLE
        return wire.decode(data, wire.DaemonMessage)

    def receive_until(self, wanted: Callable[[Any], bool]) -> Any:
        while True:
            reply = self.receive()
            if wanted(reply):
                return reply

    def ended(self, id: str) -> Any:
        """Wait until the submit is rejected or its artifact is published. Returns this reply."""
        return self.receive_until(
            lambda reply: (
                getattr(reply, "id", None) == id
                and (isinstance(reply, wire.Rejected) or getattr(reply, "state", "") == "published")
            )
        )

    def close(self) -> None:
        self.socket.close()
        self._context.term()


@contextlib.contextmanager
def raw_client(settings: Settings) -> Iterator[RawClient]:
    client = RawClient(settings)
    try:
        yield client
    finally:
        client.close()


@contextlib.contextmanager
def running_daemon(directory: Path, **flags: Any) -> Iterator[DaemonUnderTest]:
    daemon = DaemonUnderTest(directory, flags)
    try:
        daemon.start()
        yield daemon
    finally:
        daemon.cleanup()

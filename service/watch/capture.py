"""One capture: a new process of the user's interpreter, in its own session, with limits on time and memory.

A capture is a client: it submits graphs over the daemon's socket like any program. The capture reports to the watcher
by datagrams (precompiled/watch/recorder.py). The capture's output goes to a pipe; an error message shows the last part.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from precompiled.service import processes

from precompiled import wire
from precompiled.core import paths, python_path
from precompiled.core.paths import CAPTURE_VARIABLE

TAIL_BYTES = 64 << 10
ERROR_CHARS = 8000
NICENESS = "5"  # low priority, but not the lowest: the user waits for a capture
MEMORY_LOOK_S = 0.1  # seconds between two memory measurements: a process can fill a gigabyte in less than a second
TREE_LOOK_S = 1.0  # seconds between two listings of the capture's processes, since a listing can be slow
SETTLE_S = 10.0  # how long other ranks may take after the first rank has ended its first steps
GUARD = Path(__file__).with_name("guard.py")


@dataclass
class CapturedGraph:
    """A graph reported by a capture.

    ``state``: as in wire.WatchedGraph. ``slots``: the graph's variants at that time.
    """

    id: str
    name: str
    key: str
    state: str
    reason: str = ""
    slots: tuple[int, ...] = ()
    dynamic: bool = False


@dataclass
class End:
    """How a capture ended. ``error``: "" if it succeeded."""

    error: str = ""
    note: str = ""
    fake: bool = False
    missing: list[str] = field(default_factory=list)


class Capture:
    """A capture's process and its reports. The constructor starts the process. Raises OSError if the start fails."""

    def __init__(
        self,
        token: str,
        registration: wire.Registration,
        runtime_dir: Path,
        report_path: str,
        memory_limit: int,
        real: str,
    ) -> None:
        self.token = token
        self.registration = registration
        self.memory_limit = registration.memory_limit_bytes or memory_limit
        self.started = time.monotonic()
        self.graphs: dict[str, CapturedGraph] = {}  # maps a graph's id to the graph
        # maps a path to the digest of the content that the capture read; "" if not digested yet
        self.sources: dict[str, str] = {}
        self.written: set[str] = set()
        self.packages: set[str] = set()  # functions whose packages the capture has written
        self.end: End | None = None
        self.rss = 0
        self._capturing: set[int] = set()  # pids that have captured graphs
        self._settled: set[int] = set()
        self._settled_at: float | None = None
        self._memory_at = self._tree_at = 0.0
        self._members: list[psutil.Process] = []
        self._tail = bytearray()
        self.output_ended = False
        self._status: int | None = None
        held, self._hold = os.pipe()  # when self._hold is closed, the guard ends the capture
        self.output, writing = os.pipe()
        try:
            self._popen = subprocess.Popen(
                [
                    sys.executable,
                    "-I",
                    "-S",
                    str(GUARD),
                    "--fd",
                    str(held),
                    "--nice",
                    NICENESS,
                    "--",
                    *command(registration, real),
                ],
                cwd=registration.directory,
                env=variables(registration, runtime_dir, token, report_path),
                stdin=subprocess.DEVNULL,
                stdout=writing,
                stderr=writing,
                pass_fds=(held,),
                start_new_session=True,
            )
        except BaseException:
            os.close(self._hold)
            os.close(self.output)
            raise
        finally:
            os.close(held)
            os.close(writing)
        os.set_blocking(self.output, False)
        self.pidfd = os.pidfd_open(self._popen.pid)
        self._ps = processes.find(self._popen.pid)

    # ------------------------------------------------ reports

    def on_report(self, message: Mapping[str, Any]) -> None:
        """Handle a datagram of this capture."""
        match message:
            case {"event": "files", "files": dict(files)}:
                self.sources.update({str(path): str(digest) for path, digest in files.items()})
            case {"event": "graph", "id": str(id), "pid": int(pid)}:
                self._capturing.add(pid)
                self._settled.discard(pid)
                self.graphs[id] = CapturedGraph(
                    id,
                    str(message.get("name", ""))[:200],
                    str(message.get("key", ""))[:200],
                    str(message.get("state", "")),
                    str(message.get("reason", ""))[:1000],
                    tuple(int(slot) for slot in message.get("slots", ())),
                    bool(message.get("dynamic")),
                )
            case {"event": "packages", "functions": list(functions)}:
                self.packages.update(str(name)[:500] for name in functions)
            case {"event": "written", "path": str(path)}:
                self.written.add(path)
            case {"event": "rejected", "id": str(id)} if id in self.graphs:
                graph = self.graphs[id]
                graph.state, graph.reason = "failed", f"{message.get('code')}: {message.get('message')}"[:1000]
            case {"event": "settled", "pid": int(pid)}:
                self._settled.add(pid)
                self._settled_at = self._settled_at or time.monotonic()
            case {"event": "done"}:
                ok = bool(message.get("ok"))
                error = str(message.get("error", ""))[-ERROR_CHARS:] or "it failed"
                self.end = End(
                    "" if ok else error,
                    str(message.get("note", ""))[:1000],
                    bool(message.get("fake")),
                    [str(path) for path in message.get("missing", ())][:50],
                )

    def read_output(self) -> None:
        """Read the output, and keep the last TAIL_BYTES."""
        try:
            data = os.read(self.output, 1 << 16)
        except BlockingIOError:
            return
        self._tail += data
        del self._tail[:-TAIL_BYTES]
        self.output_ended = not data

    # ------------------------------------------------ progress

    def look(self) -> None:
        """Record whether the process has exited.

        Call this before you read the capture's reports, because ``check`` needs all of them.
        """
        self._status = self._popen.poll()

    def check(self, now: float) -> End | None:
        """Return how the capture has ended, or why it must be ended now. Returns None while it may continue."""
        if self.end is None:
            self.end = self._limits(now)
        if self.end is None and self._status is not None:
            self.end = self._exited(self._status)
        return self.end

    def _limits(self, now: float) -> End | None:
        limit = self.registration.time_limit_s
        if self._capturing and self._capturing <= self._settled:
            return End()
        if self._settled_at is not None and now - self._settled_at > SETTLE_S:
            return End(note="some processes did not finish their first steps")
        if now - self.started > limit:
            if self.registration.kind == "run" and self.graphs:
                return End(note=f"stopped after {limit:g} s, before its first steps ended")
            return End(f"stopped: it captured nothing within {limit:g} s{self._last_words()}")
        if now - self._memory_at >= MEMORY_LOOK_S:
            self._memory_at = now
            if now - self._tree_at >= TREE_LOOK_S:
                self._tree_at, self._members = now, processes.tree(self._ps)
            self.rss = processes.resident(self._members)
            if self.rss > self.memory_limit:
                return End(
                    f"stopped: it had {self.rss >> 20} MiB resident, over the limit of {self.memory_limit >> 20} MiB"
                    f"{self._last_words()}"
                )
        return None

    def _exited(self, status: int) -> End:
        self._drain()
        if status == 0 and self.registration.kind == "run":
            if self.graphs:
                return End()
            return End(
                "the command had no graph: it does not call torch.compile, or its Python lacks precompiled"
                + self._last_words()
            )
        how = f"signal {signal.Signals(status - 128).name}" if 128 < status < 160 else f"exit status {status}"
        who = "the command" if self.registration.kind == "run" else "the capture"
        return End(f"{who} ended with {how}{self._last_words() or ', and printed nothing'}")

    def _last_words(self) -> str:
        text = bytes(self._tail).decode(errors="replace").strip()
        at = text.rfind("Traceback (most recent call last)")
        return f"; its last output:\n{text[max(at, len(text) - ERROR_CHARS, 0) :]}" if text else ""

    def _drain(self) -> None:
        while not self.output_ended and processes.readable(self.output):
            self.read_output()

    # ------------------------------------------------ end

    def close(self) -> None:
        """Kill the remaining processes, and wait until they have ended."""
        # poll() may have reaped the leader. While its group has members, the kernel does not reuse its pid.
        members = processes.kill_tree(self._popen.pid, self._ps)
        self._popen.wait()
        psutil.wait_procs(members, 2.0)
        for fd in (self.output, self._hold, self.pidfd):
            os.close(fd)


def command(registration: wire.Registration, real: str) -> list[str]:
    if registration.kind == "run":
        return list(registration.command)
    return [
        registration.executable,
        "-m",
        "precompiled.watch.entry",
        registration.command[0],
        *(["--real", real] if real else []),
    ]


def variables(registration: wire.Registration, runtime_dir: Path, token: str, report_path: str) -> dict[str, str]:
    """The user's environment variables, with the watch's store and daemon, and the variable that makes the process a
    capture. For a command, also with the hook.
    """
    found = {name: value for name, value in registration.variables.items() if name != "PRECOMPILED"}
    if registration.kind == "run":
        found = python_path.with_hook(found)
    found.update(
        PRECOMPILED_MODE="eager",
        PRECOMPILED_AUTOSTART="0",
        PRECOMPILED_CACHE_DIR=registration.store,
        PRECOMPILED_RUNTIME_DIR=str(runtime_dir),
        PYTHONUNBUFFERED="1",
    )
    found[CAPTURE_VARIABLE] = f"{token}:{registration.steps if registration.kind == 'run' else 0}:{report_path}"
    return found


def report_path(runtime_dir: Path) -> Path:
    return runtime_dir / "watch"


assert len("watch") <= len(paths.SOCKET_NAME)  # so the path is short enough if the socket's path is

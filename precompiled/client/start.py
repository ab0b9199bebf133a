"""Starts a daemon on demand, for clients and for `precompiled daemon start`. A failed start raises no error.

The daemon reports the outcome of its start through a socket, and detaches from this process. If several processes start
a daemon at the same time, a lock lets one succeed, and the others get "already-running".
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from precompiled.client.daemon_link import daemon_reachable
from precompiled.core import config, files, sockets
from precompiled.core.config import Settings
from precompiled.core.errors import DaemonError
from precompiled.core.json_text import parse_json
from precompiled.core.paths import NO_PLACE_ACTION

DEFAULT_TIMEOUT_S = 20.0
TAIL_BYTES = 4096  # how much of the end of a failed daemon's stderr is kept

Kind = Literal["ready", "already-running", "timed-out", "failed"]


@dataclass(frozen=True)
class StartOutcome:
    """The outcome of a start.

    ``pid``: the daemon's pid if ``kind`` is "ready", else 0. ``reason``: why the start failed, as a sentence.
    """

    kind: Kind
    reason: str = ""
    pid: int = 0
    action: str = "Run `precompiled doctor`"
    code: str = "no-daemon"

    @property
    def runs(self) -> bool:
        """Whether a daemon answers now."""
        return self.kind in ("ready", "already-running")

    def error(self) -> DaemonError:
        """The reason why no daemon runs, as an error."""
        return DaemonError(self.reason, self.action, code=self.code)


class Starting:
    """The start of a daemon for ``settings``, in the background."""

    def __init__(self, settings: Settings) -> None:
        self._outcome: StartOutcome | None = None
        self._done = threading.Event()
        if problem := settings.why_no_store:
            self._finish(StartOutcome("failed", problem, action=NO_PLACE_ACTION, code="no-place"))
            return
        try:
            process, ready, errors = _spawn(settings)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            self._finish(StartOutcome("failed", f"a daemon cannot be started: {error}"))
            return
        # Use a thread, because the child process must be reaped even if no caller waits for the result. (The daemon
        # detaches from this child process.)
        try:
            threading.Thread(
                target=self._follow, args=(settings, process, ready, errors), name="precompiled-start", daemon=True
            ).start()
        except RuntimeError as error:  # the interpreter is shutting down, or no thread can start
            ready.close()
            errors.close()
            process.wait()
            self._finish(StartOutcome("failed", f"a daemon was started, but its start cannot be observed: {error}"))

    def poll(self) -> StartOutcome | None:
        """The outcome, or None while the start is under way."""
        return self._outcome

    def result(self, timeout_s: float = DEFAULT_TIMEOUT_S) -> StartOutcome:
        """Wait for the outcome, for at most ``timeout_s`` seconds."""
        self._done.wait(timeout_s)
        return self._outcome or StartOutcome("timed-out", f"no answer from the daemon within {timeout_s:g} s")

    def _finish(self, outcome: StartOutcome) -> None:
        self._outcome = outcome
        self._done.set()

    def _follow(
        self,
        settings: Settings,
        process: subprocess.Popen[bytes],
        ready: sockets.GuardedSocket,
        errors: sockets.GuardedSocket,
    ) -> None:
        line, said = _read(ready, errors)
        # If the program closed the socket, the daemon's message is lost, but the daemon may run
        was_closed = ready.fileno() < 0
        ready.close()
        errors.close()
        process.wait()  # the daemon has detached or failed
        if not line and was_closed and daemon_reachable(settings):
            self._finish(StartOutcome("already-running", "the program closed the daemon's descriptor"))
        else:
            self._finish(_outcome(line, said))


def start_daemon(settings: Settings, timeout_s: float = DEFAULT_TIMEOUT_S) -> StartOutcome:
    """Start a daemon for ``settings``. Wait at most ``timeout_s`` seconds until the daemon serves requests."""
    return Starting(settings).result(timeout_s)


def arguments(settings: Settings) -> list[str]:
    """Return the daemon's flags. They pass on this process's settings, except those from settings files.

    The daemon reads the settings files itself.
    """
    flags = ["--runtime-dir", str(settings.runtime_dir), "--cache-dir", str(settings.cache_dir)]
    defaults = {item.name: item.default for item in settings.__dataclass_fields__.values()}
    for name in config.NAMES:
        if name in config.CLIENT_ONLY:
            continue
        value, origin = getattr(settings, name), settings.origins.get(name, "default")
        if name == "log":  # PRECOMPILED_LOG applies to the client alone
            counts = origin == "flag"
        else:  # an explicit default counts too, because it overrides a file
            counts = origin.startswith(("flag", "env")) or (origin == "default" and value != defaults[name])
        if counts:
            flags += ["--" + name.replace("_", "-"), settings.text(name)]
    return flags


def _spawn(settings: Settings) -> tuple[subprocess.Popen[bytes], sockets.GuardedSocket, sockets.GuardedSocket]:
    """Start the process. Returns the process, the socket for its report and its stderr."""
    if not sys.executable:
        raise ValueError("the path of this interpreter is unknown")
    ready, telling = socket.socketpair()
    errors, saying = socket.socketpair()
    ours = sockets.GuardedSocket(ready), sockets.GuardedSocket(errors)
    with telling, saying:
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "precompiled.service",
                "--detach",
                "--ready-fd",
                str(telling.fileno()),
                *arguments(settings),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=saying.fileno(),
            cwd="/",
            env=variables(),
            pass_fds=(telling.fileno(),),
            close_fds=True,
        )
    return process, *ours


def variables() -> dict[str, str]:
    """Return the environment variables for a daemon or helper that this process starts: all variables of this process,
    including credentials.
    """
    found = {
        name: value
        for name, value in os.environ.items()
        # Leave out the variables of settings, because the new process gets its settings as arguments and has a log
        # level of its own. Leave out systemd's variables, because they are meant for this client only.
        if not name.startswith(config.ENV_PREFIX) and name not in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
    }
    found["PRECOMPILED"] = "0"  # keeps the hook inactive in that process
    if source := _source_root():
        found["PYTHONPATH"] = os.pathsep.join(filter(None, [source, found.get("PYTHONPATH", "")]))
    return found


def _source_root() -> str:
    """The folder that contains this package; "" if a new interpreter searches it anyway."""
    root = Path(files.PACKAGE).resolve().parent
    packages = {Path(entry).resolve() for entry in sys.path if "site-packages" in entry or "dist-packages" in entry}
    return "" if root in packages or not (root / "precompiled" / "service").is_dir() else str(root)


def _read(ready: sockets.GuardedSocket, errors: sockets.GuardedSocket) -> tuple[bytes, bytes]:
    """Read the daemon's line, which is empty if the daemon ends first. Returns the line and the stderr."""
    said = {ready: b"", errors: b""}
    waiting = [ready, errors]
    # If the daemon ends without a line, its start failed, and its stderr has the error message.
    while waiting and not said[ready].endswith(b"\n"):
        sockets.wait(waiting)
        for each in list(waiting):
            data = each.receive(65536)
            if data:
                said[each] = (said[each] + data)[-TAIL_BYTES:]
            elif data is not None:
                waiting.remove(each)
    return said[ready], said[errors]


def _outcome(line: bytes, said: bytes) -> StartOutcome:
    words = said.decode(errors="replace").strip()
    try:
        report = parse_json(line)
        kind, reason, pid = report["outcome"], str(report["reason"]), int(report["pid"])
    except (ValueError, KeyError, TypeError):
        return StartOutcome("failed", words or "the daemon ended without output")
    if kind == "ready":
        return StartOutcome("ready", reason, pid)
    if kind == "already-running":
        return StartOutcome("already-running", reason)
    return StartOutcome("failed", reason or words)

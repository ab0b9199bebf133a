"""Reports to the watcher each graph that a capture's process traces, and the sources that the process has read.

The hook (in a recorded run) or entry.py starts the recorder before the user's modules are imported. Each message is one
datagram with JSON, sent to a Unix socket in the daemon's runtime directory. Each process of the capture gets the
socket's path in an environment variable. The messages::

    {"event": "graph", "id", "name", "key", "state", "reason", "slots", "dynamic"}   before its submit
    {"event": "files", "files": {path: digest}}      sources that were read; with each graph and at the end
    {"event": "written", "path"}                     a file that is opened for writing
    {"event": "packages", "functions"}               functions whose packages were written so far
    {"event": "rejected", "id", "code", "message"}   the daemon rejected a submit
    {"event": "settled"}                             a run's first steps are captured, and all graphs submitted
    {"event": "done", "ok", "error", ...}            the end of an entry point

A source's digest is computed from the bytes that Python compiled. User modules are loaded without bytecode caches.
Python would use a stale cache if the new source has the same size and was saved in the same second.
"""

from __future__ import annotations

import hashlib
import importlib.machinery
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from precompiled.client.process import PROCESS
from precompiled.core.files import is_ours, is_standard, is_users
from precompiled.core.paths import CAPTURE_VARIABLE

if TYPE_CHECKING:
    from precompiled import wire
    from precompiled.client.ledger import GraphReport

DATAGRAM_BYTES = 32 << 10  # bytes of paths per datagram; Linux allows 200 KiB by default
ERROR_CHARS = 8000
ACCEPT_S = 60.0  # seconds for which a capture's end waits until the daemon has accepted all submitted graphs
TELL_S = 5.0
MAX_WRITTEN = 10_000
MAX_FUNCTIONS = 200
LOOK_S = 0.05
# The first steps of a run without an optimizer count as captured after a pause without new graphs. The pause lasts this
# many seconds, or twice the time from the first to the last graph if this is longer.
QUIET_S = 5.0
# If a run with an optimizer has no new graph for this many seconds, its first steps count as captured, even if the
# steps are slow.
QUIET_BETWEEN_STEPS_S = 20.0
KERNEL_SOURCES = (".c", ".cc", ".cpp", ".cxx", ".cu", ".cuh", ".h", ".hpp", ".hip", ".metal")


def begin() -> Recorder | None:
    """Begin to record, once, if the environment marks this process as a capture. Returns the process's recorder."""
    found = PROCESS.recorder
    described = os.environ.get(CAPTURE_VARIABLE)
    if found is None and described:
        token, steps, path = described.split(":", 2)
        PROCESS.recorder = found = Recorder(token, int(steps), path)
        found.begin()
        os.register_at_fork(after_in_child=found.after_fork)
    assert found is None or isinstance(found, Recorder)
    return found


class Recorder:
    """Records the files and graphs of a capture. Thread-safe. Raises no errors into the user's program."""

    def __init__(self, token: str, steps: int, path: str) -> None:
        self._token, self._wanted_steps, self._path = token, steps, path
        self._lock = threading.RLock()  # an audit hook may run at any point
        self._files: dict[str, str] = {}  # read paths that are not sent yet
        self._known: set[str] = set()
        self._written: set[str] = set()
        self._thread: threading.Thread | None = None
        self._first = self._last = 0.0  # times of the first and the last graph, by time.monotonic()
        self._steps = self._steps_in_all = 0
        self._unanswered: set[str] = set()  # ids of the Submit messages to which the daemon has not replied

    # ------------------------------------------------ sources

    def begin(self) -> None:
        recorder = self
        loader = importlib.machinery.SourceFileLoader
        path_stats, get_data = loader.path_stats, loader.get_data

        def stats(self: Any, path: Any) -> Any:
            if is_users(str(path)):
                # Make importlib compile the source instead of reading its bytecode
                raise OSError("a watch reads the source")
            return path_stats(self, path)

        def data(self: Any, path: Any) -> bytes:
            found = get_data(self, path)
            if str(path).endswith(".py") and is_users(str(path)):
                recorder._note(str(path), hashlib.sha256(found).hexdigest())
            return found

        loader.path_stats = stats  # type: ignore[method-assign]
        loader.get_data = data  # type: ignore[method-assign]
        sys.addaudithook(self._audit)

    def _audit(self, event: str, args: tuple[Any, ...]) -> None:
        """Record files that the run writes, and sources without a module (those of torch.utils.cpp_extension).

        If the run's command line names a file, the watcher treats the file as a source, unless the run writes it.
        Otherwise a log file on the command line would change in each capture and cause the next capture.
        """
        if event != "open" or not isinstance(args[0], str):
            return
        path, _, flags = args
        if isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR):
            path = os.path.abspath(path)
            if len(self._written) < MAX_WRITTEN and path not in self._written and is_users(path):
                self._written.add(path)
                # Report the path before the file has content, so that the watcher does not treat it as a source.
                self.tell("written", path=path)
        elif path.endswith(KERNEL_SOURCES) and is_users(path):
            with self._lock:
                self._files.setdefault(os.path.abspath(path), "")

    def _note(self, path: str, digest: str) -> None:
        path = os.path.abspath(path)
        with self._lock:
            if path not in self._known:
                self._known.add(path)
                self._files[path] = digest

    def _note_others(self, files: Iterable[str]) -> None:
        """Record files that Python's loaders do not read: extension modules, libraries, files of inlined library
        functions.
        """
        found = set(files)
        for module in list(sys.modules.values()):
            file = getattr(module, "__file__", None)
            if isinstance(file, str) and not file.endswith((".py", ".pyc")) and is_users(file):
                found.add(file)
        torch = sys.modules.get("torch")
        found |= set(getattr(getattr(torch, "ops", None), "loaded_libraries", ()))
        with self._lock:
            for path in map(os.path.abspath, found):
                if path not in self._known and not is_ours(path) and not is_standard(path) and os.path.isfile(path):
                    self._known.add(path)
                    self._files.setdefault(path, "")  # "": the watcher computes the digest

    # ------------------------------------------------ graphs

    def graph(
        self,
        report: GraphReport,
        state: str,
        *,
        files: Iterable[str] = (),
        slots: Iterable[int] = (),
        dynamic: bool = False,
    ) -> None:
        """Report a captured graph.

        ``slots``: the variants in the store. ``dynamic``: whether the graph has symbolic sizes.
        """
        self._note_others(files)
        self.tell_files()
        reason = f"{report.reason}: {report.message}" if report.message else report.reason
        self.tell(
            "graph",
            id=report.id,
            name=report.name,
            key=report.key,
            state=state,
            reason=reason[:1000],
            slots=list(slots),
            dynamic=dynamic,
        )
        if state == "compiling":
            self._unanswered.add(report.id)
        with self._lock:
            now = time.monotonic()
            self._first, self._last = self._first or now, now
            self._steps = 0
        if self._wanted_steps > 0 and self._thread is None:
            from precompiled.torch_internals.client import optimizer_steps

            optimizer_steps.count(self._on_step)
            self._thread = threading.Thread(target=self._watch_steps, name="precompiled-capture", daemon=True)
            self._thread.start()

    def on_reply(self, reply: wire.DaemonMessage) -> None:
        """Handle the daemon's reply to a submit."""
        kind = type(reply).__name__  # an import of wire would import msgspec
        if kind in ("Accepted", "Rejected"):
            self._unanswered.discard(reply.id)  # type: ignore[union-attr]
        if kind == "Rejected":
            self.tell("rejected", id=reply.id, code=reply.code, message=reply.message)  # type: ignore[union-attr]

    def _on_step(self) -> None:
        with self._lock:
            self._steps += 1
            self._steps_in_all += 1

    def _watch_steps(self) -> None:
        while not self._is_settled():
            time.sleep(LOOK_S)
        self.flush()
        self.tell("settled")

    def _is_settled(self) -> bool:
        with self._lock:
            quiet = time.monotonic() - self._last
            if self._steps_in_all:
                return self._steps >= self._wanted_steps or (self._steps > 0 and quiet > QUIET_BETWEEN_STEPS_S)
            return quiet > max(QUIET_S, 2 * (self._last - self._first))

    # ------------------------------------------------ messages

    def flush(self) -> None:
        """Wait until the daemon has accepted all submits, then send the files and packages to the watcher."""
        packages = PROCESS.packages
        if packages is not None and packages.flush(ACCEPT_S):
            kept = [report.name for report in packages.reports if report.state == "recorded" and report.guards]
            self.tell("packages", functions=sorted(set(kept))[:MAX_FUNCTIONS])
        taken = PROCESS.session.flush(ACCEPT_S) if PROCESS.session is not None else None
        if taken is not None:  # without a daemon, the watcher is about to end
            until = time.monotonic() + (TELL_S if taken else 0.0)
            while self._unanswered and time.monotonic() < until:
                time.sleep(0.01)  # the connection counts a reply shortly before it calls on_reply
            # The daemon's queue stayed full, and submits are not repeated after this process ends.
            for id in list(self._unanswered):
                message = f"the daemon did not accept the graph within {ACCEPT_S:g} s: save again later"
                self.tell("rejected", id=id, code="not-accepted", message=message)
        self._note_others(())
        self.tell_files()

    def tell_files(self) -> None:
        with self._lock:
            files, self._files = self._files, {}
        part: dict[str, str] = {}
        size = 0
        for path, digest in files.items():
            part[path] = digest
            size += len(path) + len(digest)
            if size > DATAGRAM_BYTES:
                self.tell("files", files=part)
                part, size = {}, 0
        if part:
            self.tell("files", files=part)

    def tell(self, event: str, **values: Any) -> None:
        data = json.dumps({"token": self._token, "pid": os.getpid(), "event": event, **values}).encode()
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
            # If the watcher is gone, the guard process of this capture is about to end the capture.
            sock.sendto(data, self._path)

    def after_fork(self) -> None:
        self._lock = threading.RLock()  # an audit hook may run at any point
        self._thread = None

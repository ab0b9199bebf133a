"""A host of its own for a test: private directories, a real daemon, client processes to run against it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import support_zygote

from precompiled import wire
from precompiled.client import ask, link, start
from precompiled.core import config
from precompiled.core.config import Settings
from precompiled.store.artifacts import Store

PROGRAM = Path(__file__).parent / "programs" / "client_program.py"
# Far above what anything here takes on a loaded 2-core machine: a bound, so that nothing hangs for ever.
TIMEOUT_S = 400.0


@dataclass
class Client:
    """A client process."""

    process: subprocess.Popen[str] | support_zygote.Forked
    lines: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._changed = threading.Condition()
        assert self.process.stdout is not None and self.process.stderr is not None
        self._threads = [
            threading.Thread(target=self._read, args=(self.process.stdout, self.lines)),
            threading.Thread(target=self._read, args=(self.process.stderr, self.errors)),
        ]
        for thread in self._threads:
            thread.start()

    def _read(self, stream: Any, into: list[str]) -> None:
        for line in stream:
            with self._changed:
                into.append(line.rstrip("\n"))
                self._changed.notify_all()

    def wait_for(self, event: str) -> None:
        """Until the program said ``@event``; fails with its output when it ended without."""
        with self._changed:
            self._changed.wait_for(lambda: f"@{event}" in self.lines or self.process.poll() is not None, TIMEOUT_S)
            if f"@{event}" not in self.lines:
                raise AssertionError(f"no @{event}:\n{self.text()}")

    def result(self, *, status: int = 0) -> Any:
        """The program's JSON line."""
        self.process.wait(TIMEOUT_S)
        for thread in self._threads:
            thread.join(TIMEOUT_S)
        assert self.process.returncode == status, self.text()
        answers = [line for line in self.lines if line.startswith("{")]
        return json.loads(answers[-1]) if answers else None

    def text(self) -> str:
        return "\n".join(["--- stdout", *self.lines, "--- stderr", *self.errors])


@dataclass
class Host:
    """Directories of one host, its daemon and its clients."""

    root: Path
    python: str = sys.executable
    clients: list[Client] = field(default_factory=list)

    @property
    def store(self) -> Store:
        return Store(self.root / "store")

    @property
    def settings(self) -> Settings:
        return config.load({"cache_dir": self.root / "store", "runtime_dir": self.root / "run"})

    def environment(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PRECOMPILED")}
        return {
            **kept,
            "PRECOMPILED_CACHE_DIR": str(self.root / "store"),
            "PRECOMPILED_RUNTIME_DIR": str(self.root / "run"),
            # An Inductor cache of its own, and empty: what a client finds there it has compiled itself.
            "TORCHINDUCTOR_CACHE_DIR": str(self.root / "inductor"),
            "HF_HUB_OFFLINE": "1",
            # Most tests are about graphs, which a package's process does not capture; the others take this away.
            "PRECOMPILED_PACKAGES": "off",
            "PRECOMPILED_PACKAGE_AUDIT": "0",  # no dice
            **(extra or {}),
        }

    def start(
        self, spec: Mapping[str, Any], env: Mapping[str, str] | None = None, python: str | None = None,
        program: Path = PROGRAM,
    ) -> Client:  # fmt: skip
        """Start the client program, or another one, with ``spec``."""
        arguments = [python or self.python, str(program), json.dumps(spec)]
        client_process = Client(support_zygote.start(arguments, self.environment(env), self.root))
        self.clients.append(client_process)
        return client_process

    def run(self, spec: Mapping[str, Any], env: Mapping[str, str] | None = None, python: str | None = None) -> Any:
        return self.start(spec, env, python).result()

    def start_daemon(self) -> int:
        """Start a daemon and return its pid."""
        outcome = start.start_daemon(self.settings, TIMEOUT_S)
        assert outcome.kind == "ready", outcome
        return outcome.pid

    def status(self) -> wire.StatusReply:
        reply: wire.StatusReply = ask.request(self.settings, wire.Status(), TIMEOUT_S)
        return reply

    def stats(self) -> wire.StatsReply:
        reply: wire.StatsReply = ask.request(self.settings, wire.Stats(), TIMEOUT_S)
        return reply

    def close(self) -> None:
        """Stop everything, and prove that nothing is left."""
        for item in self.clients:
            if item.process.poll() is None:
                item.process.kill()
            item.process.wait()
        if link.daemon_reachable(self.settings):
            daemon = psutil.Process(self.status().pid)
            processes = [daemon, *daemon.children(recursive=True)]
            ask.request(self.settings, wire.Stop(), TIMEOUT_S)
            _gone, alive = psutil.wait_procs(processes, TIMEOUT_S)
            assert not alive, alive
        assert not (self.root / "run" / "socket").exists()


@contextmanager
def new_host() -> Iterator[Host]:
    """A host in a short path (a Unix socket's may have 107 bytes)."""
    with tempfile.TemporaryDirectory(prefix="pc-", ignore_cleanup_errors=False) as directory:
        host = Host(Path(directory))
        try:
            yield host
        finally:
            host.close()

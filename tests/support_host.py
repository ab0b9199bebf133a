"""Support: a separate host for a test, with private directories, a real daemon and client processes."""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import psutil
import support_zygote

from precompiled import wire
from precompiled.client import ask, daemon_link, start
from precompiled.core import config
from precompiled.core.config import Settings
from precompiled.remote import helper_link as remote
from precompiled.store import scratch
from precompiled.store.artifacts import Store

PROGRAM = Path(__file__).parent / "programs" / "client_program.py"
# This timeout only ends tests that hang. Each step takes far less time, even on a loaded machine with 2 cores.
TIMEOUT_S = 400.0
SHARED = "PRECOMPILED_TESTS_SHARED"  # a directory for the files that all processes of a test run share


def edit(file: Path, old: str, new: str) -> None:
    """Replace ``old`` by ``new`` in the file. ``old`` must occur in it."""
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


@dataclass
class Client:
    """A client process and the lines of its output and errors."""

    process: subprocess.Popen[str] | support_zygote.Forked
    lines: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._changed = threading.Condition()
        self._open = 2  # the streams that the program still holds open
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
        with self._changed:
            self._open -= 1
            self._changed.notify_all()

    def wait_for(self, event: str) -> None:
        """Wait until the program prints ``@event``. Raises AssertionError with its output if the program ends first."""
        with self._changed:
            self._changed.wait_for(
                lambda: f"@{event}" in self.lines or not self._open or self.process.poll() is not None, TIMEOUT_S
            )
            if f"@{event}" not in self.lines:
                raise AssertionError(f"no @{event}:\n{self.text()}")

    def ended(self, *, status: int = 0, timeout_s: float = TIMEOUT_S) -> str:
        """Wait until the program ends with ``status``, and return its output."""
        self.process.wait(timeout_s)
        for thread in self._threads:
            thread.join(timeout_s)
        assert self.process.returncode == status, f"status {self.process.returncode}\n{self.text()}"
        return "\n".join(self.lines)

    def result(self, *, status: int = 0, timeout_s: float = TIMEOUT_S) -> Any:
        """Wait until the program ends with ``status``, and return its last line of JSON, parsed."""
        self.ended(status=status, timeout_s=timeout_s)
        answers = [line for line in self.lines if line.startswith(("{", "["))]
        return json.loads(answers[-1]) if answers else None

    def text(self) -> str:
        return "\n".join(["--- stdout", *self.lines, "--- stderr", *self.errors])


_PREPARE = """
import pathlib, sys
from torch._inductor import codecache, cpu_vec_isa
from precompiled.torch_internals.worker import cpp_builds
cpp_builds.use(pathlib.Path(sys.argv[1]))
cpu_vec_isa.valid_vec_isa_list()
codecache.CppPythonBindingsCodeCache.load_pybinding([], '''
#include <torch/csrc/inductor/cpp_prefix.h>
extern "C" void kernel() {}
''')
"""


@functools.cache
def _prepared() -> Path:
    """Returns a scratch directory with files that Inductor creates when it compiles its first kernel.

    The files are Inductor's test programs of vector units and its precompiled header. Without the directory, each host
    would need ten seconds of CPU to create them. The parallel processes of a test run share one directory
    (conftest.py).
    """
    shared = os.environ.get(SHARED)
    if shared is None:
        directory = tempfile.TemporaryDirectory(prefix="pc-shared-")
        atexit.register(directory.cleanup)
        shared = directory.name
    prepared, building = Path(shared, "inductor"), Path(shared, "inductor.building")
    with Path(shared, "inductor.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not prepared.exists():
            building.mkdir()
            command = [sys.executable, "-c", _PREPARE, str(building)]
            assert support_zygote.start(command, dict(os.environ), building).wait(TIMEOUT_S) == 0
            building.rename(prepared)
    return prepared


def prepare(scratch: Path) -> None:
    """Hard-link the prepared files into ``scratch``. A copy of the header would take 150 MB per host.

    Hosts can share the files, because no process writes into them.
    """
    shutil.copytree(_prepared(), scratch, copy_function=os.link, dirs_exist_ok=True)


THERE: list[Host] = []  # the open hosts of this process, for the report of a failed test


@dataclass
class Host:
    """The directories, daemon and clients of a host.

    ``served_by`` is the host whose daemon serves this host. None: this host has its own daemon.
    """

    root: Path
    python: str = sys.executable
    served_by: Host | None = None
    clients: list[Client] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._before = self.served_by.stats() if self.served_by else wire.StatsReply()
        prepare(self.root / "inductor")
        if self.served_by is None:
            prepare(scratch.directory(self.store.root))
            self.store.root.chmod(0o700)

    @property
    def store(self) -> Store:
        return Store(self.root / "store")

    @property
    def runtime_dir(self) -> Path:
        return (self.served_by or self).root / "run"

    @property
    def settings(self) -> Settings:
        return config.load({"cache_dir": self.root / "store", "runtime_dir": self.runtime_dir})

    def project(self, **files: str) -> Path:
        """Create a user's project folder. Each keyword is the name of a module, and its value is the source text."""
        folder = self.root / "project"
        folder.mkdir()
        for name, text in files.items():
            (folder / f"{name}.py").write_text(text)
        return folder

    def environment(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PRECOMPILED")}
        return {
            **kept,
            "PRECOMPILED_CACHE_DIR": str(self.root / "store"),
            "PRECOMPILED_RUNTIME_DIR": str(self.runtime_dir),
            # A separate Inductor cache, in which a client finds only what clients of this host compiled themselves.
            "TORCHINDUCTOR_CACHE_DIR": str(self.root / "inductor"),
            "HF_HUB_OFFLINE": "1",
            # Most tests need a lookup for each graph. A package would skip the lookup. Tests of packages override this
            # setting.
            "PRECOMPILED_PACKAGES": "off",
            "PRECOMPILED_PACKAGE_AUDIT": "0",  # otherwise a random audit would trace a frame again
            "PRECOMPILED_CHECK": "never",  # otherwise a random check would run graphs more often
            **(extra or {}),
        }

    def start(
        self,
        spec: Mapping[str, Any],
        env: Mapping[str, str] | None = None,
        python: str | None = None,
        program: Path = PROGRAM,
    ) -> Client:
        """Start the client program, or ``program``, with ``spec``."""
        return self.program(str(program), json.dumps(spec), env=env, python=python)

    def cached(self) -> list[Path]:
        """Returns the files in the clients' Inductor cache."""
        return sorted((self.root / "inductor").rglob("*"))

    def program(
        self,
        *arguments: str,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        python: str | None = None,
        forked: bool = True,
    ) -> Client:
        """Start Python with these arguments in the host's environment.

        ``forked``: the program may be a fork of a process that has imported torch (support_zygote.py).
        """
        command = [python or self.python, *arguments]
        start = support_zygote.start if forked else support_zygote.execute
        client = Client(start(command, self.environment(env), cwd or self.root))
        self.clients.append(client)
        return client

    def command(self, *arguments: str, cwd: Path | None = None, status: int = 0) -> str:
        """Run a `precompiled` command and return its output."""
        return self.program("-m", "precompiled", *arguments, cwd=cwd, forked=False).ended(status=status)

    def answer(self, env: Mapping[str, str], *arguments: str, status: int | None = 0) -> Any:
        """Run a `precompiled` command with ``--json`` and the variables of ``env``. Returns the parsed output.

        With ``status=None``, the exit status may be any.
        """
        done = subprocess.run(
            [sys.executable, "-m", "precompiled", *arguments, "--json"],
            env=self.environment(env),
            check=False,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
        assert status in (None, done.returncode), done.stdout + done.stderr
        return json.loads(done.stdout)

    def run(self, spec: Mapping[str, Any], env: Mapping[str, str] | None = None, python: str | None = None) -> Any:
        return self.start(spec, env, python).result()

    def said(self) -> str:
        """Returns the store's failure records and the last 40 lines of the daemon's log. A test's end deletes both."""
        parts = [f"{failure.name}: {failure.reason}: {failure.message}" for failure in self.store.failures()]
        if self.served_by is None:
            with contextlib.suppress(OSError):
                parts += (self.runtime_dir / "daemon.log").read_text().splitlines()[-40:]
        return "\n".join(parts)

    def start_daemon(self) -> int:
        """Start a daemon and return its pid."""
        outcome = start.start_daemon(self.settings, TIMEOUT_S)
        assert outcome.kind == "ready", outcome
        return outcome.pid

    def status(self) -> wire.StatusReply:
        reply: wire.StatusReply = ask.request(self.settings, wire.Status(), TIMEOUT_S)
        return reply

    def stats(self) -> wire.StatsReply:
        """Wait until the daemon is idle, and return its counts since this host was created.

        The wait is necessary because a client may load an artifact before the daemon counts it.
        """
        self._until_idle()
        now = msgspec.structs.asdict(ask.request(self.settings, wire.Stats(), TIMEOUT_S))
        for name, before in msgspec.structs.asdict(self._before).items():
            if isinstance(before, dict):
                now[name] = {code: count for code, total in now[name].items() if (count := total - before.get(code, 0))}
            else:
                now[name] -= before
        return wire.StatsReply(**now)

    def close(self) -> None:
        """Stop the clients, the helper and the host's own daemon. Check that the daemon left no process behind."""
        for item in self.clients:
            if item.process.poll() is None:
                item.process.kill()
            item.process.wait()
        self.stop_helper()
        if self.served_by is not None:
            self._until_idle()
            return
        if daemon_link.daemon_reachable(self.settings):
            daemon = psutil.Process(self.status().pid)
            processes = [daemon, *daemon.children(recursive=True)]
            ask.request(self.settings, wire.Stop(), TIMEOUT_S)
            _gone, alive = psutil.wait_procs(processes, TIMEOUT_S)
            assert not alive, alive
        assert not (self.root / "run" / "socket").exists()

    def stop_helper(self) -> None:
        """Stop the helper process of a remote or a farm, if it runs, and wait until it has ended."""
        root, state = self.store.root, None
        if remote.greeting(root):
            state = remote.state(root) or remote.state(root, remote.FARM_STATE)
        if remote.ask(self.store.root, {"do": "stop"}, wait_s=TIMEOUT_S) is not None and state is not None:
            with contextlib.suppress(psutil.NoSuchProcess):
                psutil.Process(state["pid"]).wait(TIMEOUT_S)

    def _until_idle(self) -> None:
        """Wait until the daemon has no jobs. The caller may then remove the store."""
        deadline = time.monotonic() + TIMEOUT_S
        while (status := self.status()).queue_depth or any(worker.state == "busy" for worker in status.workers):
            assert time.monotonic() < deadline, status
            time.sleep(0.02)  # a poll, because the daemon does not report the end of another client's job


@contextmanager
def new_host(served_by: Host | None = None) -> Iterator[Host]:
    """Create a host in a directory with a short path: the path of a Unix socket has at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="pc-", ignore_cleanup_errors=False) as directory:
        host = Host(Path(directory), served_by=served_by)
        THERE.append(host)
        try:
            yield host
        finally:
            THERE.remove(host)
            host.close()

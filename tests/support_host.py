"""Support: a separate host for a test, with private directories, a real daemon and client processes."""

from __future__ import annotations

import atexit
import contextlib
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
# Far above the time of any step on a loaded machine with 2 cores. It only prevents endless waits.
TIMEOUT_S = 400.0


def edit(file: Path, old: str, new: str) -> None:
    """Replace a text that must occur in the file."""
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


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
        """Wait until the program printed ``@event``. Fails with its output if the program ended first."""
        with self._changed:
            self._changed.wait_for(lambda: f"@{event}" in self.lines or self.process.poll() is not None, TIMEOUT_S)
            if f"@{event}" not in self.lines:
                raise AssertionError(f"no @{event}:\n{self.text()}")

    def ended(self, *, status: int = 0, timeout_s: float = TIMEOUT_S) -> str:
        """Wait for the end of the program, and return its output."""
        self.process.wait(timeout_s)
        for thread in self._threads:
            thread.join(timeout_s)
        assert self.process.returncode == status, self.text()
        return "\n".join(self.lines)

    def result(self, *, status: int = 0, timeout_s: float = TIMEOUT_S) -> Any:
        """Returns the program's last line of JSON."""
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
    """A scratch directory after a first, empty kernel: it takes ten seconds of a core, which each host would otherwise
    spend.

    It has Inductor's test programs for vector units, and its precompiled header.
    """
    directory = tempfile.TemporaryDirectory(prefix="pc-prepared-")
    atexit.register(directory.cleanup)
    command = [sys.executable, "-c", _PREPARE, directory.name]
    assert support_zygote.start(command, dict(os.environ), directory.name).wait(TIMEOUT_S) == 0
    return Path(directory.name)


def prepare(scratch: Path) -> None:
    """Links the prepared files into ``scratch``. The header has 150 MB, and no process writes into these files."""
    shutil.copytree(_prepared(), scratch, copy_function=os.link, dirs_exist_ok=True)


THERE: list[Host] = []  # the hosts of this process, for the report of a failed test


@dataclass
class Host:
    """The directories, daemon and clients of a host. ``served_by``: the host whose daemon serves it, if another."""

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
        """A user's folder of modules, from their names and texts."""
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
            # A separate, empty Inductor cache: a client finds there only what it compiled itself.
            "TORCHINDUCTOR_CACHE_DIR": str(self.root / "inductor"),
            "HF_HUB_OFFLINE": "1",
            # Most tests are about graphs, which are not captured in a process with packages. Other tests override this.
            "PRECOMPILED_PACKAGES": "off",
            "PRECOMPILED_PACKAGE_AUDIT": "0",  # no random audits
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
        """The contents of the clients' Inductor cache."""
        return sorted((self.root / "inductor").rglob("*"))

    def program(
        self,
        *arguments: str,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        python: str | None = None,
        forked: bool = True,
    ) -> Client:
        """Start Python with these arguments in the host's environment. ``forked``: may fork (support_zygote.py)."""
        command = [python or self.python, *arguments]
        start = support_zygote.start if forked else support_zygote.execute
        client = Client(start(command, self.environment(env), cwd or self.root))
        self.clients.append(client)
        return client

    def command(self, *arguments: str, cwd: Path | None = None, status: int = 0) -> str:
        """Returns the output of a `precompiled` command."""
        return self.program("-m", "precompiled", *arguments, cwd=cwd, forked=False).ended(status=status)

    def answer(self, env: Mapping[str, str], *arguments: str, status: int = 0) -> Any:
        """Returns the JSON of a command that runs with these variables."""
        done = subprocess.run(
            [sys.executable, "-m", "precompiled", *arguments, "--json"],
            env=self.environment(env),
            check=False,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
        assert done.returncode == status, done.stdout + done.stderr
        return json.loads(done.stdout)

    def run(self, spec: Mapping[str, Any], env: Mapping[str, str] | None = None, python: str | None = None) -> Any:
        return self.start(spec, env, python).result()

    def said(self) -> str:
        """The failures in the store and the end of the daemon's log, which are deleted after a test."""
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
        """The counts since this host was created, once the daemon is idle. Clients may see an artifact earlier."""
        self._until_idle()
        now = msgspec.structs.asdict(ask.request(self.settings, wire.Stats(), TIMEOUT_S))
        for name, before in msgspec.structs.asdict(self._before).items():
            if isinstance(before, dict):
                now[name] = {code: count for code, total in now[name].items() if (count := total - before.get(code, 0))}
            else:
                now[name] -= before
        return wire.StatsReply(**now)

    def close(self) -> None:
        """Stop all processes, and check that none is left."""
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
        """Stop the helper of a remote or a farm, if one runs, and check that it ended."""
        root, state = self.store.root, None
        if remote.greeting(root):
            state = remote.state(root) or remote.state(root, remote.FARM_STATE)
        if remote.ask(self.store.root, {"do": "stop"}, wait_s=TIMEOUT_S) is not None and state is not None:
            with contextlib.suppress(psutil.NoSuchProcess):
                psutil.Process(state["pid"]).wait(TIMEOUT_S)

    def _until_idle(self) -> None:
        """Wait until the daemon has finished or given up all jobs of this store, which will be removed."""
        deadline = time.monotonic() + TIMEOUT_S
        while (status := self.status()).queue_depth or any(worker.state == "busy" for worker in status.workers):
            assert time.monotonic() < deadline, status
            time.sleep(0.02)  # the end of another client's job is not announced


@contextmanager
def new_host(served_by: Host | None = None) -> Iterator[Host]:
    """A host in a short path, because the path of a Unix socket has at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="pc-", ignore_cleanup_errors=False) as directory:
        host = Host(Path(directory), served_by=served_by)
        THERE.append(host)
        try:
            yield host
        finally:
            THERE.remove(host)
            host.close()

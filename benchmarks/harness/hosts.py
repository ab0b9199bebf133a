"""Hosts to measure on: each sample has directories of its own, and a daemon of its own where it needs one."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from precompiled import wire
from precompiled.client import ask, start
from precompiled.core import config, python_path
from precompiled.core.config import Settings

ROOT = Path(__file__).parent.parent.parent
# Far above what anything takes: nothing hangs for ever.
LIMIT_S = 1200.0

# The default of programs. Measured by themselves: most measures are about graphs, which are traced and hit.
PACKAGES = {"PRECOMPILED_PACKAGES": "program"}

Command = dict[str, Any]  # argv, env, cwd


class BenchmarkError(Exception):
    """A sample could not be taken; the text says why."""


def expect(reports: Sequence[Mapping[str, Any]], state: str, source: str | None) -> None:
    """A sample of something else than what is to be measured is an error, not a figure."""
    for graph in reports:
        if graph["state"] != state or (source is not None and graph["source"] != source):
            raise BenchmarkError(f"a graph is not {state} by {source}: {graph}")
    if not reports:
        raise BenchmarkError("no graph came to precompiled")


@dataclass(frozen=True)
class Host:
    """Directories like a fresh machine's, and what runs with them; ``flags``: settings of its daemon's."""

    root: Path
    flags: Mapping[str, Any] = field(default_factory=dict)

    @property
    def settings(self) -> Settings:
        return config.load({**self.flags, "cache_dir": self.root / "store", "runtime_dir": self.root / "run"})

    def environment(self, *, hook: bool, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        """Of a process on this host; ``hook``: with precompiled switched on."""
        ours = ("PRECOMPILED", "TORCHIND", "TORCH_CACHING")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        found = {
            **kept,
            "HF_HUB_OFFLINE": "1",
            "PRECOMPILED_CACHE_DIR": str(self.root / "store"),
            "PRECOMPILED_RUNTIME_DIR": str(self.root / "run"),
            "TORCHINDUCTOR_CACHE_DIR": str(self.root / "inductor"),
            "PRECOMPILED_PACKAGES": "off",
            "PRECOMPILED_PACKAGE_AUDIT": "0",
            # Where the hook is on for good on this machine, plain torch.compile is to stay plain.
            **({} if hook else {"PRECOMPILED": "0"}),
            **(extra or {}),
        }
        return python_path.with_hook(found) if hook else found

    def command(self, spec: Mapping[str, Any], *, hook: bool, extra: Mapping[str, str] | None = None) -> Command:
        """benchmarks/models/program.py with ``spec``, in a process of its own."""
        environment = self.environment(hook=hook, extra=extra)
        return {"argv": program("models.program", spec), "env": environment, "cwd": str(ROOT)}

    def run(self, spec: Mapping[str, Any], *, hook: bool, extra: Mapping[str, str] | None = None) -> dict[str, Any]:
        """The program in a fresh process; its result."""
        return run_json(program("models.program", spec), self.environment(hook=hook, extra=extra))

    def tree(self, commands: Sequence[Command], *, daemon: bool | None, limit_s: float = LIMIT_S) -> dict[str, Any]:
        """What tree.py says of ``commands``, started at once, and of all that they leave in the background.

        ``daemon``: whether one is started before, and stopped at the end; None: the commands start it, if any.
        """
        own = {"env": self.environment(hook=True), "cwd": str(ROOT)}
        spec = {
            "before": {"argv": self.daemon_command("start"), **own} if daemon else None,
            "commands": list(commands),
            "stop": None if daemon is False else {"argv": self.daemon_command("stop"), **own},
            "limit_s": limit_s,
        }
        return run_json(program("harness.tree", spec), dict(os.environ), limit_s + 120.0)

    def start_daemon(self) -> int:
        outcome = start.start_daemon(self.settings, LIMIT_S)
        if outcome.kind != "ready":
            raise BenchmarkError(f"the daemon did not start: {outcome.kind}, {outcome.reason}")
        return outcome.pid

    def status(self) -> wire.StatusReply:
        reply: wire.StatusReply = ask.request(self.settings, wire.Status(), 60.0)
        return reply

    @staticmethod
    def daemon_command(verb: str) -> list[str]:
        return [sys.executable, "-m", "precompiled", verb]

    def stop_daemon(self) -> None:
        subprocess.run(
            self.daemon_command("stop"), env=self.environment(hook=True), stdout=subprocess.DEVNULL, check=True,
            timeout=LIMIT_S,
        )  # fmt: skip


@contextmanager
def fresh_host() -> Iterator[Host]:
    """A host with nothing cached; it and what runs on it are gone afterwards."""
    # A short path: a Unix socket's may have 107 bytes.
    root = Path(tempfile.mkdtemp(prefix="pc-bench-"))
    host = Host(root)
    try:
        yield host
    finally:
        host.stop_daemon()
        shutil.rmtree(root)


def program(name: str, spec: Mapping[str, Any]) -> list[str]:
    """The command line of one of the benchmarks' programs; its working directory is ROOT."""
    return [sys.executable, "-m", f"benchmarks.{name}", json.dumps(spec)]


def run_json(command: list[str], environment: Mapping[str, str], limit_s: float = LIMIT_S) -> dict[str, Any]:
    """Run a command; the JSON of its last line."""
    done = subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False, timeout=limit_s
    )
    if done.returncode != 0:
        raise BenchmarkError(f"{command[2]} ended with {done.returncode}:\n{done.stderr[-4000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found

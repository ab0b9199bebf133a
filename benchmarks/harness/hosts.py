"""Provides isolated hosts to measure on: each sample has its own directories and, if it needs one, its own daemon."""

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

from precompiled.client import start
from precompiled.core import config, python_path
from precompiled.core.config import Settings

ROOT = Path(__file__).parent.parent.parent
# The timeout of a sample, in seconds. Samples take far less.
LIMIT_S = 1200.0

# The defaults that users have: packages and pieces. Most measures disable packages, because they measure the steps
# after Dynamo's trace. They disable pieces, because they measure whole graphs.
PACKAGES = {"PRECOMPILED_PACKAGES": "program"}
IN_PIECES = {"PRECOMPILED_TIERS": "quick,default"}
DEFAULTS = {**PACKAGES, **IN_PIECES}

Command = dict[str, Any]  # a JSON object: argv, env, cwd


class BenchmarkError(Exception):
    """A sample could not be taken. The message gives the reason."""


def expect(reports: Sequence[Mapping[str, Any]], state: str, source: str | None) -> None:
    """Raise BenchmarkError unless each graph's report has this ``state`` and, if ``source`` is given, this ``source``.

    Also raises BenchmarkError if there is no graph, because the sample would be meaningless.
    """
    for graph in reports:
        if graph["state"] != state or (source is not None and graph["source"] != source):
            raise BenchmarkError(f"a graph is not {state} by {source}: {graph}")
    if not reports:
        raise BenchmarkError("no graph came to precompiled")


@dataclass(frozen=True)
class Host:
    """A host with its own directories. ``flags``: settings of its daemon."""

    root: Path
    flags: Mapping[str, Any] = field(default_factory=dict)

    @property
    def settings(self) -> Settings:
        return config.load({**self.flags, "cache_dir": self.root / "store", "runtime_dir": self.root / "run"})

    def variables(self, *, hook: bool, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return the environment variables of a process on this host. ``hook``: whether precompiled is enabled."""
        ours = ("PRECOMPILED", "TORCHIND", "TORCH_CACHING")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        found = {
            **kept,
            "HF_HUB_OFFLINE": "1",
            "PRECOMPILED_CACHE_DIR": str(self.root / "store"),
            "PRECOMPILED_RUNTIME_DIR": str(self.root / "run"),
            "TORCHINDUCTOR_CACHE_DIR": str(self.root / "inductor"),
            "PRECOMPILED_PACKAGES": "off",
            "PRECOMPILED_TIERS": "default",
            "PRECOMPILED_PACKAGE_AUDIT": "0",
            "PRECOMPILED_CHECK": "never",
            # The machine may have the hook installed permanently. The hook must have no effect on samples of plain
            # torch.compile.
            **({} if hook else {"PRECOMPILED": "0"}),
            **(extra or {}),
        }
        return python_path.with_hook(found) if hook else found

    def temporary(self) -> dict[str, str]:
        """Return the variable that names the folder for temporary files. These files are removed with the host."""
        path = self.root / "temporary"
        path.mkdir(exist_ok=True)
        return {"TMPDIR": str(path)}

    def command(
        self,
        spec: Mapping[str, Any],
        *,
        hook: bool,
        extra: Mapping[str, str] | None = None,
        program: str = "models.program",
    ) -> Command:
        """Return the command of a benchmark's program with ``spec``."""
        variables = self.variables(hook=hook, extra=extra)
        return {"argv": _program(program, spec), "env": variables, "cwd": str(ROOT)}

    def run(self, spec: Mapping[str, Any], *, hook: bool, **more: Any) -> dict[str, Any]:
        """Run ``command`` and return its result."""
        return run_command(self.command(spec, hook=hook, **more))

    def tree(self, commands: Sequence[Command], *, daemon: bool | None) -> dict[str, Any]:
        """Start ``commands`` at the same time. Return tree.py's figures. These include the processes that the commands
        leave in the background.

        ``daemon``: if true, start a daemon before the commands and stop it at the end. If None, only stop a daemon at
        the end, because the commands may have started one. If false, do neither.
        """
        spec = {
            "before": self.precompiled("daemon", "start") if daemon else None,
            "commands": list(commands),
            "stop": None if daemon is False else self.precompiled("daemon", "stop"),
            "limit_s": LIMIT_S,
        }
        command = {"argv": _program("harness.tree", spec), "env": dict(os.environ), "cwd": str(ROOT)}
        return run_command(command, LIMIT_S + 120.0)

    def start_daemon(self) -> int:
        outcome = start.start_daemon(self.settings, LIMIT_S)
        if outcome.kind != "ready":
            raise BenchmarkError(f"the daemon did not start: {outcome.kind}, {outcome.reason}")
        return outcome.pid

    def precompiled(self, *arguments: str, hook: bool = True) -> Command:
        """Return a `precompiled` command on this host."""
        argv = [sys.executable, "-m", "precompiled", *arguments]
        return {"argv": argv, "env": self.variables(hook=hook), "cwd": str(ROOT)}

    def stop_daemon(self) -> None:
        self._tell("daemon", "stop")

    def clear(self) -> None:
        """Empty the store. Caches in the workers' memory stay."""
        self._tell("cache", "clear", "--yes")

    def _tell(self, *arguments: str) -> None:
        command = self.precompiled(*arguments)
        subprocess.run(command["argv"], env=command["env"], stdout=subprocess.DEVNULL, check=True, timeout=LIMIT_S)


@contextmanager
def fresh_host() -> Iterator[Host]:
    """Yield a host with empty caches, then remove its directories and processes."""
    # The path is short, because a Unix socket's path has at most 107 bytes.
    root = Path(tempfile.mkdtemp(prefix="pc-bench-"))
    host = Host(root)
    try:
        yield host
    finally:
        host.stop_daemon()
        shutil.rmtree(root)


class Child:
    """A running benchmark program that reads instructions as lines and prints answers as JSON lines."""

    def __init__(self, command: Command, errors: int | None = None) -> None:
        self._name = command["argv"][2]
        self._process = subprocess.Popen(
            command["argv"],
            env=command["env"],
            cwd=command["cwd"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._in, self._out = self._process.stdin, self._process.stdout

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *exception: object) -> None:
        with self._process:
            self._process.kill()

    def _line(self) -> str:
        line = self._out.readline()
        if not line:
            raise BenchmarkError(f"{self._name} ended with {self._process.wait()}")
        return line.strip()

    def wait_ready(self) -> None:
        while self._line() != "ready":
            pass

    def tell(self, line: str) -> None:
        self._in.write(f"{line}\n")
        self._in.flush()

    def answer(self) -> Any:
        return json.loads(self._line())

    def finish(self) -> Any:
        """Close the program's stdin, and return its last answer after it has ended."""
        self._in.close()
        found = self.answer()
        self._process.wait(LIMIT_S)
        return found


def with_precompiled(command: Command) -> Command:
    """Return the same command, run by `precompiled run`."""
    return {**command, "argv": [sys.executable, "-m", "precompiled", "run", "--", *command["argv"]]}


def _program(name: str, spec: Mapping[str, Any]) -> list[str]:
    return [sys.executable, "-m", f"benchmarks.{name}", json.dumps(spec)]


def run_command(command: Command, limit_s: float = LIMIT_S) -> dict[str, Any]:
    """Run a command and return the JSON value of its last line. Raises BenchmarkError as ``output_of`` does."""
    found: dict[str, Any] = json.loads(output_of(command, limit_s).splitlines()[-1])
    return found


def output_of(command: Command, limit_s: float = LIMIT_S) -> str:
    """Run a command and return its output. Raises BenchmarkError if the command fails or exceeds ``limit_s``."""
    try:
        done = subprocess.run(
            command["argv"],
            env=command["env"],
            cwd=command["cwd"],
            capture_output=True,
            text=True,
            check=False,
            timeout=limit_s,
        )
    except subprocess.TimeoutExpired as error:
        raise BenchmarkError(f"{command['argv'][2]} took longer than {limit_s:.0f} s") from error
    if done.returncode != 0:
        raise BenchmarkError(f"{command['argv'][2]} ended with {done.returncode}:\n{done.stderr[-4000:]}")
    return done.stdout

"""Hosts to measure on: each sample has directories of its own, and a daemon of its own where it needs one."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from precompiled import client, config, start, wire
from precompiled.config import Settings

PROGRAM = Path(__file__).parent / "program.py"
# Far above what anything takes: nothing hangs for ever.
LIMIT_S = 1200.0


class BenchmarkError(Exception):
    """A sample could not be taken; the text says why."""


@dataclass(frozen=True)
class Model:
    """GPT-2, as benchmarks/program.py builds it."""

    layers: int
    width: int
    vocabulary: int
    batch: int
    length: int

    def spec(self, **more: Any) -> dict[str, Any]:
        return {**vars(self), **more}


@dataclass(frozen=True)
class Host:
    """Directories like a fresh machine's, and what runs with them."""

    root: Path

    @property
    def settings(self) -> Settings:
        return config.load({"cache_dir": self.root / "store", "runtime_dir": self.root / "run"})

    def environment(self, *, hook: bool, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PRECOMPILED", "TORCHIND"))}
        return {
            **kept,
            "HF_HUB_OFFLINE": "1",
            "PRECOMPILED_CACHE_DIR": str(self.root / "store"),
            "PRECOMPILED_RUNTIME_DIR": str(self.root / "run"),
            "TORCHINDUCTOR_CACHE_DIR": str(self.root / "inductor"),
            # Where the hook is on for good on this machine, plain torch.compile is to stay plain.
            **({} if hook else {"PRECOMPILED": "0"}),
            **(extra or {}),
        }

    @staticmethod
    def command(spec: Mapping[str, Any], *, hook: bool) -> list[str]:
        switched_on = [sys.executable, "-m", "precompiled", "run", "--"] if hook else []
        return [*switched_on, sys.executable, str(PROGRAM), json.dumps(spec)]

    def run(self, spec: Mapping[str, Any], *, hook: bool, extra: Mapping[str, str] | None = None) -> dict[str, Any]:
        """The program in a fresh process; its result."""
        return run_json(self.command(spec, hook=hook), self.environment(hook=hook, extra=extra))

    def start_daemon(self) -> int:
        outcome = start.start_daemon(self.settings, LIMIT_S)
        if outcome.kind != "ready":
            raise BenchmarkError(f"the daemon did not start: {outcome.kind}, {outcome.reason}")
        return outcome.pid

    def status(self) -> wire.StatusReply:
        reply: wire.StatusReply = client.request(self.settings, wire.Status(), 60.0)
        return reply

    def stop_command(self) -> list[str]:
        return [sys.executable, "-m", "precompiled", "stop"]

    def stop_daemon(self) -> None:
        subprocess.run(
            self.stop_command(), env=self.environment(hook=True), stdout=subprocess.DEVNULL, check=True, timeout=LIMIT_S
        )


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


def run_json(command: list[str], environment: Mapping[str, str]) -> dict[str, Any]:
    """Run a command; the JSON of its last line."""
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    if done.returncode != 0:
        program = next(Path(item).name for item in command if item.endswith(".py"))
        raise BenchmarkError(f"{program} ended with {done.returncode}:\n{done.stderr[-4000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found

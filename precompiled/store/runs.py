"""What became of the graphs of each process, for people: nothing is ever served by it.

::

    runs/<run>/<rank>-<pid>.jsonl

A run is what was started together: the ranks of a job, or a process alone (client/runs.py). Each line of a file is a
JSON object. The first one says which process it is; each other what became of a graph by then; the last one, at the
process's end, how often each graph was called, and which functions Dynamo had to trace.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from precompiled.core.errors import PrecompiledError, StoreError
from precompiled.store import trust

RUNS = "runs"
KEPT = 64  # runs; older ones are removed
MAX_BYTES = 1 << 20  # of one process's file, about; what comes after that is not kept
BY_DAEMON = ("hit", "swap", "package")
# The ways of graphs that no artifact serves, in words.
NOT_SERVED = {"eager": "eager", "in process": "compiled in process", "error": "not run, an error"}


def way(graph: Mapping[str, Any]) -> str:
    """How a graph runs, by fields of its report: "pending", "compiled" (by the daemon), "error" (with ``require`` its
    calls raise), "in process" or "eager".
    """
    state, source = graph.get("state"), graph.get("source")
    if state == "pending":
        return "pending"
    if state == "compiled" and source in BY_DAEMON:
        return "compiled"
    if source == "error":
        return "error"
    return "in process" if state == "bypassed" or source == "inline" else "eager"


@dataclass
class Process:
    """One process of a run. ``graphs``: fields of a GraphReport (client/ledger.py) by id, without those that are 0."""

    rank: int
    ranks: int
    pid: int
    started: str  # when the kernel started it, so that nobody takes another process of that number for it
    program: str  # as people call it: the file's name
    argv: list[str]
    executable: str
    directory: str
    began: float  # seconds since the epoch
    graphs: dict[str, dict[str, Any]] = field(default_factory=dict)
    functions: list[dict[str, Any]] = field(default_factory=list)  # those that were traced
    files: dict[str, str] = field(default_factory=dict)  # the program's own: path -> digest of the text
    ended: float = 0.0

    @property
    def is_alive(self) -> bool:
        return not self.ended and start_of(self.pid) == self.started


@dataclass
class Run:
    name: str
    processes: list[Process]  # by rank; of a rank that was started again, the last one

    @property
    def ranks(self) -> int:
        return max(process.ranks for process in self.processes)

    @property
    def began(self) -> float:
        return max(process.began for process in self.processes)

    @property
    def is_alive(self) -> bool:
        return any(process.is_alive for process in self.processes)


def start_of(pid: int) -> str:
    """When the kernel started a process, in its own ticks; "" where there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def runs(root: Path) -> list[Run]:
    """The runs of the store at ``root``, the newest first. What cannot be trusted or read is left out."""
    found = [Run(name, processes) for name in _names(root) if (processes := list(_processes(root, name)))]
    return sorted(found, key=lambda run: run.began, reverse=True)


def last_command(root: Path) -> Process:
    """The newest process that was started by a command, and not by hand at Python's prompt. Raises PrecompiledError.

    Not its environment: programs are given passwords in it, and nobody asked for these to be kept.
    """
    for run in runs(root):
        for process in run.processes:
            if len(process.argv) > 1 and process.executable:
                return process
    raise PrecompiledError(
        "no run has used the hook yet", "Run it once: `precompiled run -- python train.py`", code="no-last-run"
    )


def _names(root: Path) -> list[str]:
    try:
        with trust.open_directory(root) as fd, trust.open_directory(RUNS, fd, shown=str(root / RUNS)) as runs_fd:
            return os.listdir(runs_fd)
    except (OSError, StoreError):
        return []


def _processes(root: Path, name: str) -> Iterator[Process]:
    found: dict[int, Process] = {}
    with suppress(OSError, StoreError), trust.open_directory(root / RUNS / name) as fd:
        for file in os.listdir(fd):
            with suppress(OSError, StoreError, ValueError, TypeError, KeyError, AttributeError):
                process = _process(trust.read_file(file, fd, 2 * MAX_BYTES, shown=str(root / RUNS / name / file)))
                known = found.get(process.rank)
                if known is None or known.began < process.began:
                    found[process.rank] = process
    yield from (found[rank] for rank in sorted(found))


def _process(data: bytes) -> Process:
    # What is being written has no end yet.
    first, *lines = [line for line in data.split(b"\n")[:-1] if line]
    process = Process(**json.loads(first))
    for line in map(json.loads, lines):
        if "ended" in line:
            process.ended = line["ended"]
            process.functions, process.files = line["functions"], line.get("files", {})
            for id, (eager, compiled) in line["calls"].items():
                if id in process.graphs:
                    process.graphs[id] |= {"calls_eager": eager, "calls_compiled": compiled}
        else:
            process.graphs[line["id"]] = line
    return process


def begin(root: Path, run: str) -> Path:
    """The folder of a run, which is made; of the other runs, the oldest are removed. Raises OSError."""
    folder = root / RUNS / run
    if not folder.is_dir():
        # Each by itself: a parent would get the umask's mode, and a store that a group may write is not trusted.
        for directory in (root, folder.parent, folder):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        others = sorted((path for path in (root / RUNS).iterdir() if path != folder), key=_changed, reverse=True)
        for old in others[KEPT - 1 :]:
            shutil.rmtree(old, ignore_errors=True)
    return folder


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0

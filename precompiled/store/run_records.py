"""Records how each process's graphs ran, for display. No lookup reads these records.

::

    runs/<run>/<rank>-<pid>.jsonl
    runs/<run>/<key>.program.gz

A run is a set of processes that were started together: the ranks of torchrun, or a program with its DataLoader's
processes (client/run_recorder.py). Each line of a file is a JSON object:

- the first line describes the process
- each further line holds one of these: the current state of a graph; the time that Dynamo or a package took for a
  frame; the time for which the program waited for the remote or in ``precompiled.wait()``
- the last line, at the process's end, holds the number of calls of each graph, the functions that Dynamo traced, the
  program's files and modules, and the error that ended the program

A program file has the program of a missed graph that is pending, or that was not submitted (mode "lookup", or no
daemon). The process removes the file of a pending graph after the compile.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from precompiled.core import kernel
from precompiled.core.errors import PrecompiledError, StoreError
from precompiled.core.spans import WAITED_FOR_REMOTE, Span
from precompiled.store import artifact_format as fmt
from precompiled.store import lines, trust

RUNS = "runs"
KEPT = 64  # number of runs; older ones are removed
_PROGRAM = ".program.gz"
MAX_PROGRAM_BYTES = 1 << 20
# The error of commands that need a recorded run, if there is none.
NO_RUN, RUN_FIRST = "no run is recorded yet", "Run a program first: `precompiled run -- python train.py`"
BY_DAEMON = ("hit", "swap", "package")
# The words that commands show for how a graph runs without an artifact.
NOT_SERVED = {"eager": "eager", "in process": "compiled in process", "error": "not run, an error"}


def way(graph: Mapping[str, object]) -> str:
    """How a graph runs, from the fields of its report.

    Returns "pending", "compiled" (by the daemon), "error" (each call raises, because ``require`` is set), "in process"
    or "eager".
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
class RunProcess:
    """One process of a run.

    ``graphs`` maps a graph's id to the fields of its GraphReport (client/ledger.py). Fields that are 0 or empty are
    left out.
    """

    rank: int
    ranks: int
    pid: int
    # The process's start time according to Linux. This time distinguishes the process from a later process with the
    # same pid.
    started: str
    program: str  # the program's name for display: its file's name
    argv: list[str]
    executable: str
    directory: str
    began: float  # when the process's first graph was traced; all times are in seconds since the epoch
    graphs: dict[str, dict[str, Any]] = field(default_factory=dict)
    functions: list[dict[str, Any]] = field(default_factory=list)  # functions that Dynamo traced
    ended: float = 0.0
    # The times of each graph's second call, sorted. Only processes that `precompiled timeline` starts record these
    # times.
    second_calls: list[float] = field(default_factory=list)
    launched: float = 0.0  # when the process was started; 0 for a fork, which inherits its parent's imports
    torch: tuple[float, float] = (0.0, 0.0)  # begin and end of torch's import; 0 if unknown
    timeline: str = ""  # the name of the `precompiled timeline` command that started the process
    # For each frame, its name and the time that Dynamo or a package took.
    frames: list[tuple[str, Span]] = field(default_factory=list)
    waits: list[Span] = field(default_factory=list)  # in ``precompiled.wait()``, or for the remote
    # maps the paths of the program's own source files to digests of their texts
    files: dict[str, str] = field(default_factory=dict)
    # Maps each installed top-level module that the program has loaded to two digests, separated by a space: of the
    # names of its modules, and of the modules' files.
    modules: dict[str, str] = field(default_factory=dict)
    error: str = ""  # the uncaught exception that ended the program
    is_worker: bool = False  # whether a library started the process for the program (DataLoader, pytest-xdist)

    @property
    def main_file(self) -> str:
        """The path of the first Python file that the command names; "" if none."""
        name = next((word for word in self.argv[1:] if word.endswith(".py")), "")
        return os.path.normpath(os.path.join(self.directory, name)) if name else ""

    @property
    def identity(self) -> tuple[str, ...]:
        """Identifies the program in all its runs: by the main file, or else by the program's name and directory."""
        return (self.main_file,) if self.main_file else (self.program, self.directory)

    @property
    def since(self) -> float:
        """The time at which the process was started, for display. For a fork, the time of its first graph."""
        return self.launched or self.began

    @property
    def last_seen(self) -> float:
        """The time at which the process ended. If it has no recorded end, the time of its last record of a graph."""
        return self.ended or max((graph["at"] for graph in self.graphs.values()), default=self.began)

    @property
    def is_alive(self) -> bool:
        return not self.ended and start_of(self.pid) == self.started


@dataclass
class Run:
    name: str
    # One process per rank, ordered by rank. If a rank was restarted, only its last process is here. The program's
    # worker processes come last.
    processes: list[RunProcess]

    @property
    def graphs(self) -> list[dict[str, Any]]:
        """The graphs of all processes."""
        return [graph for process in self.processes for graph in process.graphs.values()]

    @property
    def ranks(self) -> int:
        return max(process.ranks for process in self.processes)

    @property
    def since(self) -> float:
        """The time at which the run's first process was started, for display."""
        return min(process.since for process in self.processes)

    @property
    def began(self) -> float:
        """The time at which the last process of the run began its first graph. Runs are ordered by this time."""
        return max(process.began for process in self.processes)

    @property
    def is_alive(self) -> bool:
        return any(process.is_alive for process in self.processes)


def start_of(pid: int) -> str:
    """Return the time at which Linux started a process, in clock ticks. Returns "" if the process does not exist."""
    stat = kernel.stat_of(pid)
    return str(stat.started) if stat is not None else ""


def runs(root: Path) -> list[Run]:
    """The runs of the store at ``root``, newest first. Leaves out untrusted and unreadable files."""
    found = [Run(name, processes) for name in _names(root) if (processes := list(_processes(root, name)))]
    return sorted(found, key=lambda run: run.began, reverse=True)


def last_command(root: Path) -> RunProcess:
    """The newest recorded process that was started with a command, and not as Python's interactive prompt. Raises
    PrecompiledError.

    The process's environment is not recorded, because environments may hold passwords.
    """
    for run in runs(root):
        for process in run.processes:
            if len(process.argv) > 1 and process.executable and not process.is_worker:
                return process
    raise PrecompiledError(NO_RUN, RUN_FIRST, code="no-last-run")


def _names(root: Path) -> list[str]:
    try:
        with trust.open_directory(root) as fd, trust.open_directory(RUNS, fd, shown=str(root / RUNS)) as runs_fd:
            return os.listdir(runs_fd)
    except (OSError, StoreError):
        return []


def check_readable(root: Path) -> None:
    """Raise StoreError if the folder of the runs exists, but cannot be read or trusted."""
    for folder in (root, root / RUNS):
        try:
            if not os.path.lexists(folder):
                return  # no run is recorded
            with trust.open_directory(folder, setting="cache_dir" if folder is root else ""):
                pass
        except StoreError as error:
            raise StoreError(f"runs cannot be read: {error.message}", error.action, code=error.code) from error
        except OSError as error:
            message = f"runs cannot be read: {folder}: {error.strerror}"
            action = f"Make {folder} readable, or set PRECOMPILED_CACHE_DIR"
            raise StoreError(message, action, code="store-unreadable") from error


def processes(root: Path) -> list[RunProcess]:
    """All processes of the recorded runs, in the order of their first graphs."""
    return sorted((item for name in _names(root) for item in _all(root, name)), key=lambda process: process.began)


def _processes(root: Path, name: str) -> Iterator[RunProcess]:
    found: dict[tuple[int, int], RunProcess] = {}
    for process in _all(root, name):
        which = process.rank, process.pid if process.is_worker else 0
        known = found.get(which)
        if known is None or known.began < process.began:
            found[which] = process
    yield from (found[which] for which in sorted(found))


def _all(root: Path, name: str) -> Iterator[RunProcess]:
    with suppress(OSError, StoreError), trust.open_directory(root / RUNS / name) as fd:
        for file in (name for name in os.listdir(fd) if name.endswith(".jsonl")):
            with suppress(OSError, StoreError, ValueError, TypeError, KeyError, AttributeError, IndexError):
                yield _process(lines.read(file, fd, shown=str(root / RUNS / name / file)))


def _process(found: list[dict[str, Any]]) -> RunProcess:
    # A later version may write further fields, which are ignored.
    process = RunProcess(**{name: value for name, value in found[0].items() if name in _PROCESS_FIELDS})
    for line in found[1:]:
        if "ended" in line:
            process.ended = line["ended"]
            process.functions, process.files = line["functions"], line.get("files", {})
            process.modules = line.get("modules", {})
            process.second_calls, process.error = line.get("second_calls", []), line.get("error", "")
            for id, (eager, compiled) in line["calls"].items():
                if id in process.graphs:
                    after = line.get("eager_after_swap", {}).get(id, {})
                    process.graphs[id] |= {"calls_eager": eager, "calls_compiled": compiled, "eager_after_swap": after}
        elif "frame" in line:
            process.frames.append((line["frame"], Span(*line["span"])))
        elif "wait" in line:
            process.waits.append(Span(*line["wait"]))
        elif "id" in line:
            spans_of(line)  # raises if a span is unreadable, so that the file is left out
            process.graphs[line["id"]] = line
    return process


_PROCESS_FIELDS = {item.name for item in fields(RunProcess)}


def spans_of(graph: Mapping[str, Any]) -> list[Span]:
    """The times that a process spent on a graph: ``lookup``, ``submit``, ``wait``, ``load``, ``check``, ``compile in
    process``.
    """
    return [Span(*span) for span in graph.get("spans", ())]


def waited_s(graph: Mapping[str, object]) -> float:
    """The seconds for which a miss blocked the program. Loads do not count, because they run in another thread or
    during a wait. A check is not part of a miss.
    """
    return sum(span.seconds for span in spans_of(graph) if span.what not in ("load", "check"))


def saved_s(process: RunProcess) -> float:
    """The seconds of compile time that the store saved for a process. Graphs with one key share an artifact, which
    counts once.
    """
    by_key: dict[str, float] = {}
    for id, graph in process.graphs.items():
        key = graph.get("key") or id
        by_key[key] = max(by_key.get(key, 0.0), graph.get("saved_s", 0.0))
    return sum(by_key.values())


def eager_s(process: RunProcess, graph: Mapping[str, Any]) -> float:
    """The seconds for which a graph ran eager until its swap. Seconds in which the program waited for artifacts (of any
    graph) do not count.
    """
    began = next((span.began for span in spans_of(graph) if span.what == "submit"), None)
    lasted: float = graph.get("swapped_after_s", 0.0)
    if began is None:
        return lasted
    blocked = [*process.waits]
    for other in process.graphs.values():
        blocked += [span for span in spans_of(other) if span.what in ("submit", "wait")]
    return max(0.0, lasted - _covered_s(blocked, began, began + lasted))


def traces(process: RunProcess) -> list[tuple[str, float]]:
    """The functions that Dynamo traced, and the seconds of each trace. The seconds exclude the work for the function's
    graphs and the waits for the remote.
    """
    done = [span for graph in process.graphs.values() for span in spans_of(graph)]
    done += [span for span in process.waits if span.what == WAITED_FOR_REMOTE]
    found = []
    for name, trace in process.frames:
        if trace.what == "trace":
            until = trace.ended + _CLOCK_S
            inside = [
                span
                for span in done
                if span.thread == trace.thread and trace.began <= span.began and span.ended <= until
            ]
            found.append((name, max(0.0, trace.seconds - _covered_s(inside, trace.began, until))))
    return found


def _covered_s(spans: Iterable[Span], began: float, ended: float) -> float:
    """The seconds from ``began`` to ``ended`` that at least one span covers."""
    covered, until = 0.0, began
    for span in sorted(spans, key=lambda span: span.began):
        end = min(span.ended, ended)
        covered += max(0.0, end - max(span.began, until))
        until = max(until, end)
    return covered


# Tolerance in seconds, because a span's begin and length come from different clocks.
_CLOCK_S = 0.01


def keep_program(folder: Path, key: str, program: bytes) -> None:
    """Store the program of a graph, unless the program is too large. Raises OSError."""
    data = fmt.pack_program(program)
    if len(data) > MAX_PROGRAM_BYTES:
        return
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(folder / f"{key}{_PROGRAM}", flags, 0o600)
    try:
        os.write(fd, data)
    finally:
        os.close(fd)


def drop_program(folder: Path, key: str) -> None:
    """Remove the program of a graph. Raises OSError."""
    os.unlink(folder / f"{key}{_PROGRAM}")


def programs(root: Path) -> dict[str, tuple[float, str]]:
    """Map the key of each kept program to two facts: when the program was last kept, and which run kept it.

    The time is in seconds since the epoch.
    """
    found: dict[str, tuple[float, str]] = {}
    for run in _names(root):
        with suppress(OSError, StoreError), trust.open_directory(root / RUNS / run) as fd:
            for name in (name for name in os.listdir(fd) if name.endswith(_PROGRAM)):
                key = name.removesuffix(_PROGRAM)
                at = os.stat(name, dir_fd=fd, follow_symlinks=False).st_mtime
                if fmt.is_key(key) and at > found.get(key, (0.0, ""))[0]:
                    found[key] = at, run
    return found


def read_program(root: Path, run: str, key: str) -> bytes:
    """A kept program. Raises OSError, StoreError."""
    with trust.open_directory(root / RUNS / run) as fd:
        return fmt.unpack_program(trust.read_file(f"{key}{_PROGRAM}", fd, MAX_PROGRAM_BYTES))


def begin(root: Path, run: str) -> Path:
    """Create the folder of a run, and remove the oldest runs. Raises OSError."""
    folder = root / RUNS / run
    if not folder.is_dir():
        lines.folder(root, RUNS, run)
        lines.drop_oldest(root / RUNS, KEPT, folder)
    return folder

"""Records a process's part of a run: its rank, and the outcome of each graph (store/run_records.py).

The process writes each event to a file at once. So the record exists even without a daemon, or if the process is
killed. Best effort: errors do not reach the program.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from precompiled.client.ledger import GraphReport
from precompiled.client.process import PROCESS
from precompiled.core import interruptions, kernel
from precompiled.core.files import launch_time
from precompiled.core.paths import TIMELINE_VARIABLE
from precompiled.core.spans import SECOND_CALL, Span
from precompiled.store import lines, run_records

log = logging.getLogger("precompiled")

MAX_MESSAGE = 300  # characters
MAX_FUNCTIONS = 200
MAX_FILES = 500
MAX_KEPT = 16  # limit of the programs of cache misses that a process keeps at one time
UNTRACED = ("used", "skipped")  # the states of functions (packages/function_report.py) that a package served
# The variables in which torchrun, Slurm and Open MPI pass a process's rank and the number of ranks.
_RANKS = (("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_NTASKS"), ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"))
# A command line with one of these parts belongs to a worker process of multiprocessing, joblib's loky or execnet. (The
# first two may also fork a worker. execnet starts the workers of pytest-xdist.)
_WORKERS = (
    "multiprocessing.spawn",
    "multiprocessing.forkserver",
    "backend.popen_loky",
    "exec(eval(sys.stdin.readline()))",
)


@dataclass(frozen=True)
class RunMembership:
    """A process's run and rank. All processes that were started together have the same ``run``."""

    run: str
    rank: int
    ranks: int


def place(variables: Mapping[str, str]) -> RunMembership:
    """Return this process's run and its rank in the run.

    The rank comes from torch.distributed if it is initialised, else from the environment variables.
    """
    rank, ranks = next(
        (
            (int(variables[one]), int(variables[all]))
            for one, all in _RANKS
            if variables.get(one, "").isdecimal() and variables.get(all, "").isdecimal()
        ),
        (0, 1),
    )
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        rank, ranks = distributed.get_rank(), distributed.get_world_size()
    if (known := variables.get("TORCHELASTIC_RUN_ID", "none")) != "none":  # "none" is torchrun's default name
        name = f"torchrun-{known}"
    elif (job := variables.get("SLURM_JOB_ID")) is not None and ranks > 1:
        name = f"slurm-{job}.{variables.get('SLURM_STEP_ID', '0')}"
    elif ranks > 1:
        name = f"parent-{os.getppid()}-{run_records.start_of(os.getppid())}"
    else:
        program = _program_pid()
        name = f"process-{program}-{run_records.start_of(program)}"
    return RunMembership(re.sub(r"[^A-Za-z0-9._-]", "_", name)[:100].lstrip(".") or "run", rank, ranks)


def _program_pid() -> int:
    """The pid of the process that the user started. In a worker of multiprocessing or pytest-xdist, this is the process
    that started the worker.
    """
    pid = os.getpid()
    module = sys.modules.get("multiprocessing.process")
    parent = module.parent_process() if module is not None else None
    if parent is not None and parent.pid is not None:
        pid = parent.pid
    while _is_worker(pid):
        stat = kernel.stat_of(pid)
        pid = stat.parent if stat is not None else 0
    return pid if run_records.start_of(pid) else os.getpid()  # the starter has ended or is not visible


def _is_worker(pid: int) -> bool:
    """Whether the command line shows that a library started the process as a worker."""
    return any(sign in word for word in _command(pid)[1:] for sign in _WORKERS)


def _command(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").rstrip("\0").split("\0")
    except OSError as error:
        interruptions.pass_on(error)
        return []


class RunRecord:
    """This process's file in the run's folder. Thread-safe; raises nothing."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._reset(forked=False)

    def _reset(self, *, forked: bool) -> None:
        self._lock = threading.Lock()
        self._file: lines.AppendedFile | None = None
        self._broken = False
        self._kept: set[str] = set()  # keys of the programs that this process has stored
        self._forked = forked

    def after_fork(self) -> None:
        """In a fork's child, let the first graph begin a new file. Most children (data loaders) have no graph, and must
        not appear as runs.
        """
        self._reset(forked=True)

    def note(self, report: GraphReport) -> None:
        """Write the current state of a graph."""
        document = {name: value for name, value in vars(report).items() if value}
        document["message"] = report.message[:MAX_MESSAGE]
        self._write({**document, "at": time.time()})

    def frame(self, name: str, span: Span) -> None:
        """Write the time that Dynamo ("trace") or a package ("package") took for a frame."""
        self._write({"frame": name[:MAX_MESSAGE], "span": span})

    def waited(self, span: Span) -> None:
        """Write how long the program waited in ``precompiled.wait()`` or for the remote."""
        self._write({"wait": span})

    def keep(self, key: str, program: Callable[[], bytes]) -> None:
        """Store the captured graph of a miss that is pending or not submitted. ``program`` returns the graph's bytes,
        and is called only below the limit MAX_KEPT.
        """
        if self._broken or key in self._kept or len(self._kept) >= MAX_KEPT:
            return
        try:
            with self._lock:
                if self._file is None:
                    self._file = self._begin()
                folder = self._file.file.parent
            run_records.keep_program(folder, key, program())  # without the lock, for which the program would wait
            self._kept.add(key)
        except OSError as error:  # for example, another rank of the run has stored it
            interruptions.pass_on(error)
            log.info("the program of %s is not recorded: %s", key[:12], error)

    def drop(self, key: str) -> None:
        """Remove a graph that ``keep`` of this process has stored, because the store has its artifact or failure."""
        if key not in self._kept or self._file is None:
            return
        self._kept.discard(key)
        try:
            run_records.drop_program(self._file.file.parent, key)
        except OSError as error:
            interruptions.pass_on(error)
            log.info("the program of %s is not removed: %s", key[:12], error)

    def end(
        self,
        reports: Iterable[GraphReport],
        functions: Iterable[Any],
        files: Mapping[str, str],
        modules: Mapping[str, str],
    ) -> None:
        """Write the end of the process, even if it used torch.compile and had no graph.

        ``functions``: reports of the functions whose packages were searched (packages/automatic.py). ``files`` maps the
        paths of the program's own source files to digests. ``modules`` maps the installed modules that it has loaded.
        """
        if self._file is None and self._forked:
            return
        calls, after_swap, second_calls = {}, {}, []
        for report in reports:
            if report.calls_are_counted:
                calls[report.id] = [report.calls_eager, report.calls_compiled]
            if report.eager_after_swap:
                after_swap[report.id] = report.eager_after_swap
            second_calls += [span.began for span in report.spans if span.what == SECOND_CALL]
        traced = [
            {
                "name": item.name,
                "state": item.state,
                "reason": item.reason,
                "message": item.message[:MAX_MESSAGE],
                "reasons": [reason[:MAX_MESSAGE] for reason in list(dict.fromkeys(item.reasons))[:3]],
            }
            for item in functions
            if item.state not in UNTRACED
        ]
        if self._file is not None:
            # The file has room for this last line, even if earlier lines were left out.
            self._file.left = max(self._file.left, lines.MAX_BYTES // 2)
        digests = dict(list(files.items())[:MAX_FILES])
        self._write(
            {
                "ended": time.time(),
                "calls": calls,
                "eager_after_swap": after_swap,
                "second_calls": sorted(second_calls),
                "functions": traced[:MAX_FUNCTIONS],
                "files": digests,
                "modules": dict(list(modules.items())[:MAX_FILES]),
                "error": uncaught_error(),
            }
        )

    def _write(self, line: Mapping[str, object]) -> None:
        if self._broken:
            return
        try:
            with self._lock:
                if self._file is None:
                    self._file = self._begin()
                self._file.append(line)
        except OSError as error:
            interruptions.pass_on(error)
            self._broken = True
            log.info("this run is not recorded: %s", error)

    def _begin(self) -> lines.AppendedFile:
        here = place(os.environ)
        folder = run_records.begin(self._root, here.run)
        file = lines.AppendedFile(folder / f"{here.rank}-{os.getpid()}.jsonl")
        original = list(getattr(sys, "orig_argv", []))
        file.append(
            {
                "rank": here.rank,
                "ranks": here.ranks,
                "pid": os.getpid(),
                "started": run_records.start_of(os.getpid()),
                "program": _program(),
                "argv": original[:1000],
                "executable": sys.executable,
                "directory": os.getcwd(),
                "began": time.time(),
                "launched": 0.0 if self._forked else launch_time(),
                "torch": PROCESS.torch_imported,
                "timeline": os.path.basename(os.environ.get(TIMELINE_VARIABLE, ""))[:64],
                "is_worker": here.ranks == 1 and _program_pid() != os.getpid(),
            }
        )
        return file


def uncaught_error() -> str:
    """The exception that ended the main program: its class and the first line of its message. "" if there is none.

    ``sys.last_value`` may also hold an exception of an interactive session or of a test. Such an exception does not end
    the program.
    """
    error = getattr(sys, "last_value", None)
    traceback = getattr(error, "__traceback__", None)
    if traceback is None or hasattr(sys, "ps1"):
        return ""
    outermost = traceback.tb_frame
    if outermost.f_code.co_name not in ("<module>", "_run_module_as_main"):
        return ""
    try:
        message = str(error).strip().splitlines()[:1]
    except Exception as problem:  # noqa: BLE001 - the program's class may raise anything
        interruptions.pass_on(problem)
        message = []
    return ": ".join([type(error).__name__, *message])[:MAX_MESSAGE]


def _program() -> str:
    """Return the name for display: the name of the script, of the module after ``-m``, or of the notebook."""
    if "ipykernel" in sys.modules:
        # Jupyter sets the variable to the notebook's file
        return os.path.basename(os.environ.get("JPY_SESSION_NAME", ""))[:100] or "notebook"
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if spec is not None:
        return str(spec.name).removesuffix(".__main__")[:100]
    name = sys.argv[0] if sys.argv and sys.argv[0] else "python"
    # In a worker of pytest-xdist, argv lacks the script's name.
    if name == "-c" and (program := _program_pid()) != os.getpid():
        words = _command(program)[1:]
        after = words[words.index("-m") + 1 :] if "-m" in words else words
        name = next((word for word in after if not word.startswith("-")), name)
    return os.path.basename(name)[:100] or "python"

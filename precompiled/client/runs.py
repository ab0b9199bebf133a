"""This process's part of its run: which one it is, and what becomes of its graphs (store/runs.py).

Written to a file as it happens, and not told to the daemon, so that it is there where no daemon runs, and where a
process ends without a word. Best effort: a program does not depend on it.
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
from precompiled.core import kernel
from precompiled.core.files import process_start
from precompiled.core.paths import TIMELINE_VARIABLE
from precompiled.core.spans import Span
from precompiled.store import lines, runs

log = logging.getLogger("precompiled")

MAX_MESSAGE = 300  # characters
MAX_FUNCTIONS = 200
MAX_FILES = 500
MAX_KEPT = 16  # programs
UNTRACED = ("used", "skipped")  # states of functions (packages/automatic.FunctionReport) that a package served
# Where whoever starts ranks says which one a process is, and of how many: torchrun, Slurm, Open MPI.
_RANKS = (("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_NTASKS"), ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"))
# Of multiprocessing and joblib's loky, where they do not fork, and of execnet, which pytest-xdist starts workers with.
_WORKERS = ("multiprocessing.spawn", "multiprocessing.forkserver", "backend.popen_loky",
            "exec(eval(sys.stdin.readline()))")  # fmt: skip


@dataclass(frozen=True)
class Place:
    """``run``: one name for all processes that were started together."""

    run: str
    rank: int
    ranks: int


def place(variables: Mapping[str, str]) -> Place:
    """Where this process is: by torch.distributed where that is initialised, else by the environment."""
    rank, ranks = next(
        ((int(variables[one]), int(variables[all])) for one, all in _RANKS
         if variables.get(one, "").isdecimal() and variables.get(all, "").isdecimal()),
        (0, 1),
    )  # fmt: skip
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        rank, ranks = distributed.get_rank(), distributed.get_world_size()
    if (known := variables.get("TORCHELASTIC_RUN_ID", "none")) != "none":  # torchrun's own name where none is given
        name = f"torchrun-{known}"
    elif (job := variables.get("SLURM_JOB_ID")) is not None and ranks > 1:
        name = f"slurm-{job}.{variables.get('SLURM_STEP_ID', '0')}"
    elif ranks > 1:
        name = f"parent-{os.getppid()}-{runs.start_of(os.getppid())}"
    else:
        program = _program_pid()
        name = f"process-{program}-{runs.start_of(program)}"
    return Place(re.sub(r"[^A-Za-z0-9._-]", "_", name)[:100].lstrip(".") or "run", rank, ranks)


def _program_pid() -> int:
    """The process that the user started: of a worker of multiprocessing or pytest-xdist, the one that started it."""
    pid = os.getpid()
    module = sys.modules.get("multiprocessing.process")
    parent = module.parent_process() if module is not None else None
    if parent is not None and parent.pid is not None:
        pid = parent.pid
    while _is_worker(pid):
        stat = kernel.stat_of(pid)
        pid = stat.parent if stat is not None else 0
    return pid if runs.start_of(pid) else os.getpid()  # it has ended, or is out of sight


def _is_worker(pid: int) -> bool:
    """Whether a command line is one that a library starts workers with, and no user's."""
    return any(sign in word for word in _command(pid)[1:] for sign in _WORKERS)


def _command(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").rstrip("\0").split("\0")
    except OSError:
        return []


class RunRecord:
    """The file of this process. Thread-safe; raises nothing."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._reset(forked=False)

    def _reset(self, *, forked: bool) -> None:
        self._lock = threading.Lock()
        self._file: lines.Lines | None = None
        self._broken = False
        self._kept = 0
        self._forked = forked

    def after_fork(self) -> None:
        """A child has a file of its own, from its first graph on: most have none (data loaders), and are no runs."""
        self._reset(forked=True)

    def note(self, report: GraphReport) -> None:
        """What has become of a graph by now."""
        told = {name: value for name, value in vars(report).items() if value}
        told["message"] = report.message[:MAX_MESSAGE]
        self._write({**told, "at": time.time()})

    def frame(self, name: str, span: Span) -> None:
        """What Dynamo ("trace") or a package ("package") took for a frame."""
        self._write({"frame": name[:MAX_MESSAGE], "span": span})

    def keep(self, key: str, program: Callable[[], bytes]) -> None:
        """The program of a graph that was a miss, and is sent to nobody. ``program`` gives its bytes, where wanted."""
        if self._broken or self._kept >= MAX_KEPT:
            return
        self._kept += 1
        try:
            with self._lock:
                if self._file is None:
                    self._file = self._begin()
                runs.keep_program(self._file.file.parent, key, program())
        except OSError as error:
            log.info("the program of %s is not kept: %s", key[:12], error)

    def end(self, reports: Iterable[GraphReport], functions: Iterable[Any], files: Mapping[str, str]) -> None:
        """The process ends; one that asked for compiles and had no graph is a run, too. ``functions``: the reports of
        what packages were looked for (packages/automatic.py). ``files``: the program's own, path -> digest.
        """
        if self._file is None and self._forked:
            return
        calls = {report.id: [report.calls_eager, report.calls_compiled] for report in reports}
        traced = [
            {"name": item.name, "state": item.state, "reason": item.reason, "message": item.message[:MAX_MESSAGE],
             "reasons": [reason[:MAX_MESSAGE] for reason in list(dict.fromkeys(item.reasons))[:3]]}
            for item in functions
            if item.state not in UNTRACED
        ]  # fmt: skip
        if self._file is not None:
            # Whatever was left out before, the end is told.
            self._file.left = max(self._file.left, lines.MAX_BYTES // 2)
        told = dict(list(files.items())[:MAX_FILES])
        self._write({"ended": time.time(), "calls": calls, "functions": traced[:MAX_FUNCTIONS], "files": told})

    def _write(self, line: Mapping[str, Any]) -> None:
        if self._broken:
            return
        try:
            with self._lock:
                if self._file is None:
                    self._file = self._begin()
                self._file.append(line)
        except OSError as error:
            self._broken = True
            log.info("this run is not kept: %s", error)

    def _begin(self) -> lines.Lines:
        here = place(os.environ)
        folder = runs.begin(self._root, here.run)
        file = lines.Lines(folder / f"{here.rank}-{os.getpid()}.jsonl")
        original = list(getattr(sys, "orig_argv", []))
        file.append({
            "rank": here.rank, "ranks": here.ranks, "pid": os.getpid(), "started": runs.start_of(os.getpid()),
            "program": _program(), "argv": original[:1000], "executable": sys.executable,
            "directory": os.getcwd(), "began": time.time(),
            "launched": 0.0 if self._forked else process_start(), "torch": PROCESS.torch_imported,
            "timeline": os.environ.get(TIMELINE_VARIABLE, "")[:64],
            "is_worker": here.ranks == 1 and _program_pid() != os.getpid(),
        })  # fmt: skip
        return file


def _program() -> str:
    """How people call it: the script's name, or the module's where it was started by ``-m``; a notebook's."""
    if "ipykernel" in sys.modules:
        return os.path.basename(os.environ.get("JPY_SESSION_NAME", ""))[:100] or "notebook"  # Jupyter says the file
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if spec is not None:
        return str(spec.name).removesuffix(".__main__")[:100]
    name = sys.argv[0] if sys.argv and sys.argv[0] else "python"
    if name == "-c" and (program := _program_pid()) != os.getpid():  # of pytest-xdist, which hides the script's name
        words = _command(program)[1:]
        after = words[words.index("-m") + 1 :] if "-m" in words else words
        name = next((word for word in after if not word.startswith("-")), name)
    return os.path.basename(name)[:100] or "python"

"""Lets the helper fetch the objects that this program used in earlier runs, while torch is imported.

The fetch begins in its own thread when the program is about to import torch (bootstrap.py). Traces wait for the fetch.
All traces of a process together wait at most ``remote_ahead_s``. The process reports to the helper which objects it has
used. It does so when its last graph is swapped, and when the process ends.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import sys
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from precompiled.client.process import PROCESS
from precompiled.core.regular_file import read_bytes
from precompiled.remote import helper_link, helper_process
from precompiled.remote.errors import RemoteError

if TYPE_CHECKING:
    from precompiled.core.config import Settings

QUIET = 0.25  # A process waits at most this fraction of ``remote_ahead_s`` for a remote that has not answered at all.
# The CPU instruction sets that affect the code that torch generates (torch/_inductor/cpu_vec_isa.py).
_INSTRUCTIONS = frozenset(
    {"avx2", "avx512f", "avx512_bf16", "amx_tile", "amx_fp16", "asimd", "asimddp", "sve", "sve2", "bf16"}
)


class Ahead:
    """Lets the helper fetch objects for this process, and reports which objects the process has used. Thread-safe.

    Implements parts.AheadProtocol.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._program = ""
        self._answered, self._ended = threading.Event(), threading.Event()
        self._listed = self._fetched = 0
        self._left_s = settings.remote_ahead_s if settings.remote else 0.0
        self._last_report: set[object] = set()
        self._lock = threading.Lock()
        self._problem: Exception | None = None
        self._on_problem: Callable[[Exception], None] | None = None
        try:
            threading.Thread(target=self._run, name="precompiled-ahead", daemon=True).start()
        except RuntimeError as error:  # no thread can be started, or the interpreter is shutting down
            self._fails(error)

    def _run(self) -> None:
        try:
            helper_process.ensure(self._settings)
            if not self._settings.remote:
                return  # with a farm but no remote, nothing is fetched, and uses are not reported
            self._program = identity()
            for answer in helper_link.answers(self._settings.cache_dir, {"do": "ahead", "program": self._program}):
                if "problem" in answer:
                    raise RemoteError(answer["problem"], answer["action"], code=answer["code"])
                self._listed = int(answer.get("listed", self._listed))
                self._fetched = int(answer.get("fetched", 0))
                self._answered.set()
        except Exception as error:  # noqa: BLE001 - the program runs without the remote
            self._fails(error)
        finally:
            self._answered.set()
            self._ended.set()

    def _fails(self, error: Exception) -> None:
        self._answered.set()
        self._ended.set()
        with self._lock:
            self._problem, on_problem = error, self._on_problem
        if on_problem is not None:
            on_problem(error)

    def on_problem(self, callback: Callable[[Exception], None]) -> None:
        """Call ``callback`` with the error, once, if the remote cannot be used or no helper can be started."""
        with self._lock:
            self._on_problem, problem = callback, self._problem
        if problem is not None:
            callback(problem)

    def after_fork(self) -> None:
        """In a fork's child: forget the thread, which belongs to the parent. The child finds fetched objects in the
        store.
        """
        self._lock = threading.Lock()
        self._answered, self._ended = threading.Event(), threading.Event()
        self._answered.set()
        self._ended.set()

    # ------------------------------------------------ waiting

    @property
    def under_way(self) -> bool:
        return not self._ended.is_set()

    def wait(self) -> bool:
        """Wait for the fetch, at most for the process's remaining time.

        Returns whether the store may have new objects.
        """
        with self._lock:
            began, left = time.monotonic(), self._left_s
            if not self._answered.wait(left * QUIET):
                self._left_s = 0.0  # later traces do not wait for a slow remote again
                return False
            self._ended.wait(max(0.0, left - (time.monotonic() - began)))
            self._left_s = max(0.0, left - (time.monotonic() - began))
        # If the fetch has not ended, some objects are missing, but those for this frame may be in the store.
        return self._fetched > 0 if self._ended.is_set() else self._listed > 0

    # ------------------------------------------------ reports of used objects

    def used(
        self,
        keys: Collection[str],
        fresh: Collection[str],
        entries: Collection[tuple[str, str]],
        kernels: Collection[str],
    ) -> None:
        """Report to the helper which objects this process has used, unless the last report listed all of them."""
        now: set[object] = {*keys, *entries, *kernels}
        if not self._program or not now - self._last_report:
            return
        if helper_link.report_uses(
            self._settings.cache_dir, self._program, sorted(keys), sorted(fresh), sorted(entries), sorted(kernels)
        ):
            self._last_report = now


def begin(settings: Settings) -> Ahead | None:
    """Start the helper, and fetch what this program used in earlier runs. One fetch per process.

    Returns None if neither a remote nor a farm is set, or if the mode is "off".
    """
    if not settings.has_helper or settings.mode == "off":
        return None
    with _begin_lock:
        if PROCESS.ahead is None:
            PROCESS.ahead = Ahead(settings)
        found = PROCESS.ahead
    assert isinstance(found, Ahead)
    return found


def identity(file: str | None = None) -> str:
    """Return a digest that identifies this program, or the program with the main file ``file``.

    The digest covers facts that are known before torch is imported: the main file's text, Python, torch, and the
    machine. The digest ignores arguments and imported modules, because a program's list of objects is only a hint.
    """
    main = _main() if file is None else _text(file)
    facts = [main, sys.implementation.cache_tag, _torch(), platform.machine(), *_processors()]
    return hashlib.sha256(repr(facts).encode()).hexdigest()


def _main() -> tuple[str, str]:
    path = sys.argv[0] if sys.argv else ""
    if path in ("", "-c") or not os.path.isfile(path):
        path = getattr(sys.modules.get("__main__"), "__file__", None) or ""
    with suppress(OSError):
        if path:
            return _text(path)
    given = list(getattr(sys, "orig_argv", []))
    return "", given[given.index("-c") + 1] if "-c" in given[:-1] else ""


def _text(path: str) -> tuple[str, str]:
    text = read_bytes(path)
    # A script's first line may hold the path of a Python, which differs between environments
    if text.startswith(b"#!"):
        text = text.partition(b"\n")[2]
    return os.path.basename(path), hashlib.sha256(text).hexdigest()


def _torch() -> str:
    torch = sys.modules.get("torch")
    spec = importlib.util.find_spec("torch") if torch is None else getattr(torch, "__spec__", None)
    if spec is not None and spec.origin is not None:
        with suppress(OSError):
            return (Path(spec.origin).parent / "version.py").read_text()
    return ""


def _processors() -> list[str]:
    """The CPU's instruction sets, and the models of the GPUs."""
    found = []
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as file:
        for line in file:
            name, _, value = line.partition(":")
            if name.strip().lower() in ("flags", "features"):
                found += sorted(_INSTRUCTIONS & set(value.split()))
                break
    models = set()
    for path in Path("/proc/driver/nvidia/gpus").glob("*/information"):
        with suppress(OSError):
            models.add(path.read_text().partition("\n")[0].partition(":")[2].strip())
    return [*found, *sorted(models)]


_begin_lock = threading.Lock()


def _after_fork_in_child() -> None:
    global _begin_lock  # noqa: PLW0603 - a thread of the parent may have held it
    _begin_lock = threading.Lock()
    if isinstance(PROCESS.ahead, Ahead):
        PROCESS.ahead.after_fork()


os.register_at_fork(after_in_child=_after_fork_in_child)

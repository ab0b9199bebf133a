"""Which program runs in this process: a digest of the source files of all modules that it has loaded.

What a package depends on beside its guards is compared value by value (packages/dynamo/unguarded.py), and no list of
such values is known to be complete. But every edit changes a file. So by default a package is used only in a process
whose source files are those of the process that traced; the comparison decides only about other inputs of the same
program (with ``packages = "function"`` it decides about all, decision 0017).

The user's own Python files count by their content, wherever they lie: a fresh checkout of the same text is the same
program. Installed files count by place, size and time, as for Python's own bytecode. Python's library, torch and
precompiled are not counted: an entry requires their versions.
"""

from __future__ import annotations

import hashlib
import importlib.machinery
import math
import os
import sys
import time
from types import ModuleType
from typing import Any

from precompiled.core import files
from precompiled.packages.describe.errors import NotPortable
from precompiled.packages.dynamo import dynamo_state

LOOK_S = 1.0  # between two looks whether files were saved
# Not counted, since a trace or a compile loads more of their modules: torch and precompiled, whose versions are in an
# entry's requirements, and what these import for it.
_NOT_THE_PROGRAMS = frozenset(
    {"torch", "torchgen", "functorch", "triton", "sympy", "mpmath", "networkx", "jinja2", "markupsafe",
     "precompiled", "zmq", "msgspec", "psutil", "watchdog",
     "__mp_main__"}  # the main program, under multiprocessing's name
)  # fmt: skip


class SourceFiles:
    """The source files of this process. One object per process: each file counts as it was when it was first seen."""

    def __init__(self) -> None:
        self._own: dict[str, tuple[os.stat_result, str]] = {}  # file -> its status when read, digest of its content
        self._files: dict[str, str] = {}  # module of the user's own -> file
        self._installed: dict[str, tuple[Any, ...]] = {}  # installed module -> file, size, time
        self._aside: set[str] = set()  # installed modules that a trace or a load has imported
        self._seen: dict[str, int] = {}  # module -> id of its object, at the last look
        self._problem: NotPortable | None = None  # the error of the last look
        self._looked, self._found = -math.inf, ""
        self._asked = False  # whether ``digest`` was called since ``leave_out``

    def digest(self) -> str:
        """Equal for equal source files. Raises NotPortable where they are not known: no file, or one that was saved."""
        self._asked = True
        main = _main()
        modules = dict(sys.modules)
        seen = {name: id(module) for name, module in modules.items()}
        if seen != self._seen:
            known = self._seen if self._problem is None else {}
            self._seen, self._problem, self._looked = seen, None, -math.inf
            try:
                self._look({name: module for name, module in modules.items() if known.get(name) != seen[name]})
            except NotPortable as problem:
                self._problem = problem
        if self._problem is not None:
            raise self._problem
        now = time.monotonic()
        if now - self._looked > LOOK_S:  # not at each frame: a first call has many, and a program may have many files
            own = [self._content(name, path) for name, path in self._files.items()]
            self._found = _sha256([main, sorted(own), sorted(self._installed.items())])
            self._looked = now
        return self._found

    def leave_out(self) -> None:
        """Do not count installed modules that came since ``digest``: a trace or a load has imported them."""
        if self._asked:  # else the program itself may have imported them
            self._aside |= {*list(sys.modules)} - self._seen.keys()  # the user's own are counted nevertheless
        self._asked = False

    def _look(self, new: dict[str, ModuleType]) -> None:
        """Sort ``new`` modules: all at first, later those that came. Of thousands, few are the user's."""
        self._files = {name: path for name, path in self._files.items() if name in self._seen and name not in new}
        for name, module in new.items():
            path = None if name.partition(".")[0] in _NOT_THE_PROGRAMS else _file_of(module)
            if path is None:
                continue
            if files.is_users(path):
                if not dynamo_state.is_inductors(path):
                    self._files[name] = path
            elif not (name in self._installed or name in self._aside or files.is_standard(path) or files.is_ours(path)):
                status = _status(path)
                if files.saved(path) > files.process_start():
                    raise _saved(path)
                self._installed[name] = path, *_size_and_time(status)

    def _content(self, name: str, path: str) -> tuple[str, str]:
        """The module's name, and its file's digest. Raises NotPortable where the file may not be what was loaded."""
        now = _status(path)
        read = self._own.get(path)
        if read is not None:
            if _size_and_time(read[0]) != _size_and_time(now):
                raise NotPortable(f"{path} was saved while this process ran", code="package-program")
            return name, read[1]
        if files.saved(path) > files.process_start():
            raise _saved(path)
        if path.endswith(tuple(importlib.machinery.EXTENSION_SUFFIXES)):  # it may have any size, so it is not read
            content = _sha256(_size_and_time(now))
        else:
            with open(path, "rb") as file:
                content = hashlib.sha256(file.read()).hexdigest()
        self._own[path] = now, content
        return name, content


def _saved(path: str) -> NotPortable:
    return NotPortable(f"{path} was saved after this process started", code="package-program")


def _main() -> list[str]:
    """The text of a main program without a file (``python -c``); [] where it has one. Raises NotPortable."""
    main = sys.modules.get("__main__")
    typed = sys.flags.inspect or sys.flags.interactive or hasattr(sys, "ps1")
    path = _file_of(main)
    if path is not None and not typed and not files.is_standard(path):
        return []
    if sys.argv[:1] == ["-c"] and "-c" in sys.orig_argv and not typed:
        return sys.orig_argv[sys.orig_argv.index("-c") + 1 :][:1]
    raise NotPortable(
        "the program is no file that Python knows of (a notebook, an interactive session, a pipe, below cProfile): "
        "nobody can tell whether it is the same",
        code="package-program",
    )


def _file_of(module: ModuleType | None) -> str | None:
    file = getattr(module, "__dict__", {}).get("__file__")  # not by getattr: a module's __getattr__ may import anything
    return os.path.abspath(file) if isinstance(file, str) and not file.startswith("<") else None  # "<stdin>"


def _status(path: str) -> os.stat_result:
    try:
        return os.stat(path)
    except OSError as error:
        said = f"{path}, which this process has loaded, cannot be read: {error}"
        raise NotPortable(said, code="package-program") from error


def _size_and_time(status: os.stat_result) -> tuple[int, int]:
    return status.st_size, status.st_mtime_ns


def _sha256(value: Any) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()

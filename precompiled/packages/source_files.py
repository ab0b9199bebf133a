"""Which program runs in this process: a digest of the source files of all modules that it has loaded.

What a package depends on beside its guards is compared value by value (packages/dynamo/unguarded.py), and no list of
such values is known to be complete. But every edit changes a file. So by default a package is used only in a process
whose source files are those of the process that traced; the comparison decides only about other inputs of the same
program (with ``packages = "function"`` it decides about all, decision 0017).

The user's own Python files count by their content, wherever they lie: a fresh checkout of the same text is the same
program, and so is one in which an edit has changed nothing (program_text.py). What runs without a file of its own (a
notebook's cells, ``python -c``, a pipe, a script below cProfile) counts by its text or code, and so does a module that
a library generates in a temporary file. Installed files count by place, size and time, as for Python's own bytecode.
Python's library and torch are not counted: an entry requires their versions. Nor is precompiled: what an entry says
changes with the version of its format.
"""

from __future__ import annotations

import importlib.machinery
import math
import os
import sys
import tempfile
import time
from collections.abc import Iterable
from types import CodeType, ModuleType
from typing import Any

from precompiled.core import files
from precompiled.core.looks import is_a, module_named, namespace_of
from precompiled.packages import executed, main_program
from precompiled.packages.describe.codes import code_digest, outermost
from precompiled.packages.describe.errors import NotPortable
from precompiled.packages.describe.places import codes_of
from precompiled.packages.dynamo import dynamo_state
from precompiled.packages.executed import Place
from precompiled.packages.main_program import file_of
from precompiled.packages.program import Program, digest_of
from precompiled.packages.program_text import Text

LOOK_S = 1.0  # between two looks whether files were saved
# Not counted, since a trace or a compile loads more of their modules: torch, whose version is in an
# entry's requirements, and what these import for it.
_NOT_THE_PROGRAMS = frozenset(
    {"torch", "torchgen", "functorch", "triton", "sympy", "mpmath", "networkx", "jinja2", "markupsafe",
     "precompiled", "msgspec", "psutil",
     "__mp_main__"}  # the main program, under multiprocessing's name
)  # fmt: skip

_PLAIN = (type(None), bool, int, float, complex, str, bytes)


class SourceFiles:
    """The source files of this process. One object per process: each file counts as it was when it was first seen."""

    def __init__(self) -> None:
        self._own: dict[str, tuple[os.stat_result, Text]] = {}  # file -> its status when read, its content
        self._files: dict[str, str] = {}  # module of the user's own -> file
        self._generated: dict[str, str] = {}  # module that this process has generated -> digest of what it holds
        self._installed: dict[str, tuple[Any, ...]] = {}  # installed module -> file, size, time
        self._aside: set[str] = set()  # installed modules that a trace or a load has imported
        self._seen: dict[str, int] = {}  # module -> id of its object, at the last look
        self._problem: NotPortable | None = None  # the error of the last look
        self._looked = -math.inf
        self._texts: list[tuple[str, Text]] = []  # at the last look, by module
        self._digest: str | None = None  # of all there was at the last look
        self._functions: dict[str, executed.Module] = {}
        self._met: set[str] = set()  # qualified names of functions
        self._asked = False  # whether ``program`` was called since ``leave_out``

    def program(self) -> Program:
        """Raises NotPortable where the source files are not known: no file, or one that was saved."""
        self._asked = True
        main = [("", text) for text in main_program.texts()]
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
            self._texts = [(name, self._content(path)) for name, path in sorted(self._files.items())]
            self._looked, self._digest = now, None
        texts, others = [*main, *self._texts], [sorted(self._generated.items()), sorted(self._installed.items())]
        if main or self._digest is None:
            self._digest = digest_of([[(name, text.digest) for name, text in texts], others])
        return Program(self._digest, texts, others, self._unrun)

    def met(self, qualnames: Iterable[str]) -> None:
        """Dynamo has traced functions of these names, or used a package in their place: as good as run."""
        self._met.update(qualnames)

    def digests(self) -> dict[str, str]:
        """The user's own files that were read: path -> digest of the text."""
        return {path: text.digest for path, (_status, text) in sorted(self._own.items())}

    def _unrun(self) -> dict[str, dict[Place, CodeType]]:
        """By module, what of the program has not run."""
        found = {}
        for name, path in self._files.items():
            module = sys.modules.get(name)
            if module is not None and name not in self._functions:
                self._functions[name] = executed.Module(module, path)
            if name in self._functions:
                codes = self._functions[name].unrun().items()
                found[name] = {place: code for place, code in codes if outermost(code) not in self._met}
        return found

    def leave_out(self) -> None:
        """Do not count installed modules that came since ``digest``: a trace or a load has imported them."""
        if self._asked:  # else the program itself may have imported them
            self._aside |= {*list(sys.modules)} - self._seen.keys()  # the user's own are counted nevertheless
        self._asked = False

    def _look(self, new: dict[str, ModuleType]) -> None:
        """Sort ``new`` modules: all at first, later those that came. Of thousands, few are the user's."""
        for known in (self._files, self._generated):
            for name in [name for name in known if name in new or name not in self._seen]:
                del known[name]
                self._functions.pop(name, None)
        for name, module in new.items():
            path = None if name.partition(".")[0] in _NOT_THE_PROGRAMS else file_of(module)
            if path is None:
                continue
            if files.is_users(path):
                if dynamo_state.is_inductors(path):
                    continue
                if _is_generated(name, path):
                    self._generated[name] = _held(module)
                else:
                    self._files[name] = path
            elif not (name in self._installed or name in self._aside or files.is_standard(path) or files.is_ours(path)):
                status = _status(path)
                if files.saved(path) > files.process_start():
                    raise _saved(path)
                self._installed[name] = path, *_size_and_time(status)

    def _content(self, path: str) -> Text:
        """The text of a module. Raises NotPortable where the file may not be what was loaded."""
        now = _status(path)
        read = self._own.get(path)
        if read is not None:
            if _size_and_time(read[0]) != _size_and_time(now):
                raise NotPortable(f"{path} was saved while this process ran", code="package-program")
            return read[1]
        if files.saved(path) > files.process_start():
            raise _saved(path)
        if path.endswith(tuple(importlib.machinery.EXTENSION_SUFFIXES)):  # it may have any size, so it is not read
            text = Text(None, digest_of(_size_and_time(now)))
        else:
            with open(path, "rb") as file:
                text = Text(file.read())
        self._own[path] = now, text
        return text


def _is_generated(name: str, path: str) -> bool:
    """Whether a library of this process has written the module's file (torch_geometric does), and loaded it by path.

    It lies among temporary files, where no import finds it, and is younger than the process. An edit of such a file
    cannot be met by a later process as generated: for that it is too old.
    """
    if not os.path.realpath(path).startswith(os.path.join(os.path.realpath(tempfile.gettempdir()), "")):
        return False
    parent = sys.modules.get(name.rpartition(".")[0])
    folders = namespace_of(parent).get("__path__", ())
    found_in = [*sys.path, *(folder for folder in folders if type(folder) is str)]
    try:
        return os.path.dirname(path) not in map(os.path.abspath, found_in) and files.saved(path) > files.process_start()
    except OSError:  # removed since
        return True


def _held(module: ModuleType) -> str:
    """Digest of what a generated module holds: of its functions and classes by their code, of values by what they are.

    Its file has another name in each process, and may be gone.
    """
    held = sorted(namespace_of(module).items(), key=lambda item: item[0])
    return digest_of([(name, _shown(value, module)) for name, value in held if name[:2] != "__"])


def _shown(value: Any, module: ModuleType) -> Any:
    if type(value) in _PLAIN:
        return repr(value)
    if is_a(value, type) and namespace_of(value).get("__module__") != module_named(module):
        return str(namespace_of(value).get("__module__")), type.__dict__["__qualname__"].__get__(value)
    return type(value).__qualname__, sorted(code_digest(code) for code in codes_of(value))


def _saved(path: str) -> NotPortable:
    return NotPortable(f"{path} was saved after this process started", code="package-program")


def _status(path: str) -> os.stat_result:
    try:
        return os.stat(path)
    except OSError as error:
        said = f"{path}, which this process has loaded, cannot be read: {error}"
        raise NotPortable(said, code="package-program") from error


def _size_and_time(status: os.stat_result) -> tuple[int, int]:
    return status.st_size, status.st_mtime_ns

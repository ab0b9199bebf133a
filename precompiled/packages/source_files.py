"""Identifies this process's program by a digest of the source files of all loaded modules.

Besides guards, packages compare the values that a trace read without guards (packages/dynamo/unguarded.py). That list
of values may be incomplete, but every edit of the code changes a file. So by default, a package serves only processes
with the same source files as the process that traced. The comparison of values then only has to distinguish inputs of
one program. With ``packages = "function"``, only the comparison of values decides. A digest of only the function's
module and its imports would not suffice, because any module can patch the function.

What the digest covers:

- For the user's own Python files, the digest covers the content, and not the path. A new checkout, or an edit that
  cannot matter (program_text.py), does not make a different program.
- For code without a file (a notebook's cells, ``python -c``, a pipe, a script under cProfile), the digest covers the
  text or the code.
- For a module that a library generates in a temporary file, the digest covers the functions, classes and values.
- For installed files, the digest covers path, size and modification time, as Python does for its bytecode.
- The digest leaves out Python's library and torch, because an entry requires their versions. The digest also leaves out
  precompiled, because each relevant change of precompiled raises the version of the entries' format.
"""

from __future__ import annotations

import importlib.machinery
import math
import os
import sys
import tempfile
import time
import weakref
from collections.abc import Callable, Iterable
from types import CodeType, ModuleType

from precompiled.core import files, interruptions
from precompiled.core.looks import is_a, module_named, namespace_of
from precompiled.packages import executed, main_program
from precompiled.packages.describe.codes import code_digest, outermost
from precompiled.packages.describe.errors import NotPortable
from precompiled.packages.describe.object_paths import codes_of
from precompiled.packages.dynamo import dynamo_state
from precompiled.packages.executed import Place
from precompiled.packages.main_program import file_of
from precompiled.packages.program import Program, digest_of
from precompiled.packages.program_text import Text
from precompiled.torch_internals.user_code import user_values

LOOK_S = 1.0  # seconds between two checks for saved files
# Top-level modules that do not count: torch (an entry requires its version), and modules that torch and precompiled
# import. A trace or a compile imports further modules below these. ``__mp_main__`` is multiprocessing's name for the
# main program.
_NOT_THE_PROGRAMS = frozenset(
    """
    __mp_main__ functorch jinja2 markupsafe mpmath msgspec networkx precompiled psutil sympy torch torchgen triton
    """.split()
)

_PLAIN = (type(None), bool, int, float, complex, str, bytes)


class SourceFiles:
    """The source files of this process.

    A process has one such object. It keeps the state that each file had when it was first read.
    """

    def __init__(self) -> None:
        # maps a file to its status when it was read, and its content
        self._own: dict[str, tuple[os.stat_result, Text]] = {}
        self._files: dict[str, str] = {}  # maps a module of the user's own to its file
        self._generated: dict[str, str] = {}  # maps a module that this process has generated to a digest of its content
        self._installed: dict[str, tuple[object, ...]] = {}  # maps an installed module to its file, size and time
        self._aside: set[str] = set()  # installed modules that a trace or load imported, which do not count
        self._seen: dict[str, Callable[[], object]] = {}  # maps a module to a weak reference to its object
        self._problem: NotPortable | None = None  # the error of the last check
        self._looked = -math.inf
        self._texts: list[tuple[str, Text]] = []  # each module and its text at the last check
        self._digest: str | None = None  # digest of the whole program at the last check
        self._functions: dict[str, executed.Module] = {}
        self._met: set[str] = set()  # qualified names of functions that Dynamo traced or that a package served
        self._asked = False  # whether ``program`` was called since the last ``leave_out``

    def program(self) -> Program:
        """The program as it is now.

        Raises NotPortable if the program's source is unknown: the main program has no text, or a file was saved after
        its load.
        """
        self._asked = True
        main = [("", text) for text in main_program.texts()]
        modules, seen = dict(sys.modules), self._seen
        if modules.keys() != seen.keys() or any(seen[name]() is not module for name, module in modules.items()):
            known = seen if self._problem is None else {}
            new = {name: module for name, module in modules.items() if known.get(name, _nothing)() is not module}
            self._seen = {name: _reference(module) if name in new else known[name] for name, module in modules.items()}
            self._problem, self._looked = None, -math.inf
            try:
                self._look(new)
            except NotPortable as problem:
                self._problem = problem
        if self._problem is not None:
            raise self._problem
        now = time.monotonic()
        # LOOK_S limits how often the files are checked, because a first call has many frames, and a program has many
        # files
        if now - self._looked > LOOK_S:
            self._texts = [(name, self._content(name, path)) for name, path in sorted(self._files.items())]
            self._looked, self._digest = now, None
        texts, others = [*main, *self._texts], [sorted(self._generated.items()), sorted(self._installed.items())]
        if main or self._digest is None:
            self._digest = digest_of([[(name, text.digest) for name, text in texts], others])
        return Program(self._digest, texts, others, self._unrun)

    def met(self, qualnames: Iterable[str]) -> None:
        """Record that functions with these names have run: Dynamo traced them, or a package replaced the trace."""
        self._met.update(qualnames)

    def digests(self) -> dict[str, str]:
        """Map the paths of the user's own files to the digests of their texts."""
        return {path: text.digest for path, (_status, text) in sorted(self._own.items())}

    def modules(self) -> dict[str, str]:
        """Map installed top-level modules of the program to digests: one of their modules' names, one of the files."""
        found: dict[str, list[tuple[object, ...]]] = {}
        for name, file in sorted(self._installed.items()):
            found.setdefault(name.partition(".")[0], []).append((name, *file))
        return {
            name: f"{digest_of([item[0] for item in those])[:16]} {digest_of(those)[:16]}"
            for name, those in found.items()
        }

    def _unrun(self) -> dict[str, dict[Place, CodeType]]:
        """The functions of the program that have not run, by module."""
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
        """Leave out installed modules that a trace or load has imported since the last call of ``program``."""
        if self._asked:  # otherwise the program itself may have imported them
            # The user's own modules count even if a trace imported them
            self._aside |= {*list(sys.modules)} - self._seen.keys()
        self._asked = False

    def _look(self, new: dict[str, ModuleType]) -> None:
        """Classify ``new`` modules.

        At the first call, and after a problem, these are all loaded modules. Otherwise these are the modules that were
        added or replaced since the last call.
        """
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
                _check_save_time(name, path)
                self._installed[name] = path, *_size_and_time(status)

    def _content(self, name: str, path: str) -> Text:
        """The text of a module. Raises NotPortable if the file may differ from the loaded text."""
        now = _status(path)
        read = self._own.get(path)
        if read is not None:
            if _size_and_time(read[0]) != _size_and_time(now):
                raise NotPortable(f"{path} was saved while this process ran", code="package-program")
            return read[1]
        _check_save_time(name, path)
        # Extension modules are not read, because they may have any size.
        if path.endswith(tuple(importlib.machinery.EXTENSION_SUFFIXES)):
            text = Text(None, digest_of(_size_and_time(now)))
        else:
            with open(path, "rb") as file:
                text = Text(file.read())
        self._own[path] = now, text
        return text


def _nothing() -> object:
    return _nothing


def _reference(module: ModuleType) -> Callable[[], object]:
    """Return a weak reference to a module. The module's id would not identify it, because another module may later get
    the same id.
    """
    try:
        return weakref.ref(module)
    except TypeError:  # a program may put any object into sys.modules
        return lambda: module


def _is_generated(name: str, path: str) -> bool:
    """Whether a library generated the module's file in this process and loaded it by path, as torch_geometric does.

    Such a file is in the folder for temporary files, where no import finds it, and is younger than the process. A file
    that the user edits in this folder is older than later processes, so they do not treat it as generated.
    """
    if not os.path.realpath(path).startswith(os.path.join(os.path.realpath(tempfile.gettempdir()), "")):
        return False
    parent = sys.modules.get(name.rpartition(".")[0])
    folders = namespace_of(parent).get("__path__", ())
    found_in = [*sys.path, *(folder for folder in folders if type(folder) is str)]
    try:
        if os.path.dirname(path) in map(os.path.abspath, found_in):
            return False
        return files.save_time(path) > files.earliest_load(name, path)
    except OSError as error:  # the file was removed
        interruptions.pass_on(error)
        return True


def _held(module: ModuleType) -> str:
    """Digest of the content of a generated module.

    The digest covers the code of functions and of the module's own classes, the module and name of other classes, the
    ``repr`` of plain values, and the types of other values. A digest of the file would be useless, because the file has
    a different name in each process and may have been removed.
    """
    held = sorted(user_values.set_by_program(namespace_of(module)).items())
    return digest_of([(name, _shown(value, module)) for name, value in held])


def _shown(value: object, module: ModuleType) -> object:
    if type(value) in _PLAIN:
        return repr(value)
    if is_a(value, type) and namespace_of(value).get("__module__") != module_named(module):
        return str(namespace_of(value).get("__module__")), type.__dict__["__qualname__"].__get__(value)
    return type(value).__qualname__, sorted(code_digest(code) for code in codes_of(value))


def _check_save_time(name: str, path: str) -> None:
    """Raise NotPortable if this process may have loaded an earlier version of a module's file."""
    if files.save_time(path) > files.earliest_load(name, path):
        raise NotPortable(f"{path} was saved after this process started", code="package-program")


def _status(path: str) -> os.stat_result:
    try:
        return os.stat(path)
    except OSError as error:
        said = f"{path}, which this process has loaded, cannot be read: {error}"
        raise NotPortable(said, code="package-program") from error


def _size_and_time(status: os.stat_result) -> tuple[int, int]:
    return status.st_size, status.st_mtime_ns

"""Which program this is, as text: a digest of the sources of all that it has loaded.

What a package takes for granted beside its guards is compared value by value (torch_internals/package_seen.py), and no
such list is known to be complete. Whatever an edit changes, it changes a file. So by default a package is used only in
a process whose sources are those of the process that traced: what is left to the comparison is what the same program
makes of other inputs (``packages = "function"`` leaves all of it to the comparison, decision 0012).

The user's own Python files count by their content, wherever they lie: a fresh checkout of the same text is the same
program. Installed files count by place, size and time, as for Python's own bytecode. Python's library, torch and we
ourselves are what an entry requires anyway.
"""

from __future__ import annotations

import hashlib
import os
import sys
from types import ModuleType
from typing import Any

from precompiled import files
from precompiled.package.identity import NotPortable
from precompiled.torch_internals import package_state

CODE = "package-program"
# What of these is loaded depends on whether something was traced or compiled here: torch and we, whose versions are in
# an entry's environment, and what torch and we import for it.
_NOT_THE_PROGRAMS = frozenset(
    {"torch", "torchgen", "functorch", "triton", "sympy", "mpmath", "networkx", "jinja2", "markupsafe",
     "precompiled", "zmq", "msgspec", "psutil", "watchdog",
     "__mp_main__"}  # the program, under the name that an import of multiprocessing gives it
)  # fmt: skip


class Program:
    """The sources of this process. One object for the process: what was loaded before it counts as it was then."""

    def __init__(self) -> None:
        # Once, at the first look: later ones find also what tracing itself has imported, where something was traced.
        self._installed: str | None = None
        self._own: dict[str, tuple[os.stat_result, str]] = {}  # file -> as it was read, digest of its content
        self._files: dict[str, str] = {}  # module -> file, of the user's own
        self._modules: list[int] = []  # when that was looked at

    def digest(self) -> str:
        """What must be equal. Raises NotPortable where it is not known: no file, or one saved since it was loaded."""
        main = _main()
        if (modules := list(map(id, list(sys.modules.values())))) != self._modules:
            self._look_again()
            self._modules = modules
        own = [(name, self._content(path)) for name, path in self._files.items()]
        return _sha256([main, sorted(own), self._installed])

    def _look_again(self) -> None:
        """Thousands of modules, of which few are the user's: only when some came or went."""
        paths = {
            name: path
            for name, module in list(sys.modules.items())
            if name.partition(".")[0] not in _NOT_THE_PROGRAMS and (path := _file_of(module)) is not None
        }
        if self._installed is None:
            installed = [
                (name, path, *_size_and_time(_stat(path))) for name, path in paths.items() if _is_installed(path)
            ]
            self._installed = _sha256(sorted(installed))
        self._files = {name: path for name, path in paths.items() if _is_own(path)}

    def _content(self, path: str) -> str:
        """Digest of a file of the user's, which is what was loaded: raises NotPortable where that is not certain."""
        now = _stat(path)
        read = self._own.get(path)
        if read is not None:
            if _size_and_time(read[0]) != _size_and_time(now):
                raise NotPortable(f"{path} was saved while this process ran", code=CODE)
            return read[1]
        if files.saved(path) > files.process_start():
            raise NotPortable(f"{path} was saved after this process started", code=CODE)
        if path.endswith(".py"):
            with open(path, "rb") as file:
                content = hashlib.sha256(file.read()).hexdigest()
        else:  # an extension may have any size
            content = _sha256(_size_and_time(now))
        self._own[path] = now, content
        return content


def _main() -> list[str]:
    """What there is to say of a program that is no file."""
    main = sys.modules.get("__main__")
    typed = sys.flags.inspect or sys.flags.interactive or hasattr(sys, "ps1")
    if main is not None and _file_of(main) is not None and not typed:
        return []
    if sys.argv[:1] == ["-c"] and "-c" in sys.orig_argv and not typed:
        return sys.orig_argv[sys.orig_argv.index("-c") + 1 :][:1]
    raise NotPortable(
        "the program is no file (a notebook, an interactive session, a pipe): nobody can tell whether it is the same",
        code=CODE,
    )


def _file_of(module: ModuleType) -> str | None:
    file = getattr(module, "__dict__", {}).get("__file__")  # not its __getattr__, which may import anything
    return os.path.abspath(file) if isinstance(file, str) and not file.startswith("<") else None  # "<stdin>"


def _is_own(path: str) -> bool:
    return files.is_users(path) and not package_state.is_inductors(path)


def _is_installed(path: str) -> bool:
    return not (files.is_users(path) or files.is_standard(path) or files.is_ours(path))


def _stat(path: str) -> os.stat_result:
    try:
        return os.stat(path)
    except OSError as error:
        raise NotPortable(f"{path}, which this process has loaded, cannot be read: {error}", code=CODE) from error


def _size_and_time(status: os.stat_result) -> tuple[int, int]:
    return status.st_size, status.st_mtime_ns


def _sha256(value: Any) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()

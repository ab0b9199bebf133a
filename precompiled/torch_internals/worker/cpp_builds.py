"""In a worker: a file that a compiler writes gets its name when the compiler has succeeded, and where such files lie.

Whoever finds a file of Inductor's C++ builds (kernels, objects, the precompiled header, test programs for vector units)
takes it for whole: torch looks whether it is there (codecache.py: _worker_compile_cpp; cpu_vec_isa.py: check_build).
But a linker creates its output empty and fills it at the end, so a kill in between left a file that each later worker
believed: no kernel of that graph could be loaded, or with half of a header no kernel at all be built, until somebody
cleared the store. So the compiler writes under a name that nobody looks for, and a rename follows.

The precompiled header takes seconds of every core to build. Where the user's own programs have built just this one, in
torch's directory for temporary files, and nobody else can have put it there, it is copied; such a program may have been
killed as well, so a build that fails with a header is tried once more without.

All of torch's C++ builds go through one function, which is where this file sits. The other caches that a worker uses
below the scratch directory are renamed into their places by those who write them (docs/reference/artifact-format.md).

Private names: torch._inductor.cpp_builder.run_compile_cmd, torch._inductor.codecache.{_HEADER_DIR, _HEADER_LOCK_DIR,
_precompile_header, CacheBase.get_local_cache_path}. Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import itertools
import os
import shlex
import shutil
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch._inductor import codecache, cpp_builder

from precompiled.core.errors import UntrustedStore
from precompiled.store import trust

BUILDING = ".building"  # ends the name of what a compiler is writing
_HEADERS = "precompiled_headers"
_HEADER_SUFFIXES = (".gch", ".pch")  # GCC's, Clang's
_TORCHS_HEADERS = Path(codecache._HEADER_DIR)  # for all programs of the user

_original: Callable[[str, str], None] = cpp_builder.run_compile_cmd
_original_header: Any = codecache._precompile_header
_last = threading.local()  # .error: what the last build of this thread failed with
_damaged: set[Path] = set()  # of torch's headers, those that no compiler could read


def use(scratch: Path) -> None:
    """From now on, Inductor's files lie in ``scratch``, and those that compilers write are whole."""
    if os.environ.get("TORCHINDUCTOR_CACHE_DIR") != str(scratch):
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(scratch)
        # Torch asks once where it keeps what it has measured: that would be another store's folder, or a removed one.
        codecache.CacheBase.get_local_cache_path.cache_clear()
    headers = scratch / _HEADERS
    if str(headers) != codecache._HEADER_DIR:
        # Torch has them in the system's directory for temporary files, for all programs of the user: there, another
        # user may come first, and any program that was killed leaves half of one.
        codecache._HEADER_DIR, codecache._HEADER_LOCK_DIR = str(headers), str(headers / "locks")
        _original_header.cache_clear()
    cpp_builder.run_compile_cmd = _run
    codecache._precompile_header = _header


def last_error() -> Exception | None:
    """What the last build of this thread failed with, once."""
    error: Exception | None = getattr(_last, "error", None)
    _last.error = None
    return error


def _run(cmd_line: str, cwd: str) -> None:
    _last.error = None
    try:
        _run_whole(cmd_line, cwd)
    except Exception as error:
        _last.error = error
        raise


def _run_whole(cmd_line: str, cwd: str) -> None:
    arguments = shlex.split(cmd_line)  # as torch splits it
    if arguments.count("-o") != 1:
        _original(cmd_line, cwd)
        return
    place = arguments.index("-o") + 1
    target = arguments[place]
    # Its own for each try: the compilers of a worker that was killed may be alive for a moment, and write on.
    building = f"{target}.{os.getpid()}-{os.urandom(8).hex()}{BUILDING}"
    arguments[place] = building
    path = os.path.join(cwd, building)
    try:
        if not _copied(os.path.join(cwd, target), path):
            _built(shlex.join(arguments), cwd)
        os.rename(path, os.path.join(cwd, target))
    except BaseException:
        with suppress(OSError):
            os.unlink(path)
        raise


def _built(cmd_line: str, cwd: str) -> None:
    try:
        _original(cmd_line, cwd)
    except Exception:
        arguments = shlex.split(cmd_line)
        included = [after for before, after in itertools.pairwise(arguments) if before == "-include"]
        headers = [compiled for header in included for compiled in _compiled(header)]
        if not headers:
            raise
        for compiled in headers:  # the error is the program's if it comes again
            _damaged.add(_torchs(compiled))
            with suppress(OSError):
                os.unlink(compiled)
        _original(cmd_line, cwd)


def _copied(target: str, to: str) -> bool:
    """Whether a precompiled header was there, built by a program of this user, and was copied to ``to``."""
    source = _torchs(target)
    if not target.endswith(_HEADER_SUFFIXES) or source in _damaged:
        return False
    try:
        for part in (source.parent.parent, source.parent, source):
            trust.check_stat(os.lstat(part), str(part), directory=part != source)
        shutil.copyfile(source, to)
    except (OSError, UntrustedStore):
        return False
    return True


def _torchs(compiled: str) -> Path:
    """Where torch has the precompiled header that a worker has as ``compiled``."""
    return _TORCHS_HEADERS / Path(compiled).name


def _header(header: str, command_line: str = "", *arguments: Any, **options: Any) -> str:
    """The precompiled header; torch looks for it once in a process, and a worker lives longer than files in scratch.

    One for all that is built alike: what a build adds is for its own file (torch pops ``extra_flags`` from 2.13 on, and
    leaves them in the header's name), and a second header is seconds of a core and 150 MB.
    """
    own = " ".join(options.pop("extra_flags", ()))  # as torch writes them
    arguments = (command_line.replace(own, "", 1), *arguments)
    path: str = _original_header(header, *arguments, **options)
    if not _in_use(path):
        for name in _compiled(path):
            with suppress(OSError):
                os.unlink(name)  # a compiler may refuse one that is older than its source
        _original_header.cache_clear()
        path = _original_header(header, *arguments, **options)
        _in_use(path)
    return path


def _compiled(path: str) -> list[str]:
    return [name for suffix in _HEADER_SUFFIXES if os.path.exists(name := path + suffix)]


def _in_use(path: str) -> bool:
    """Whether a precompiled header is there. It is young again for those who remove old files (store/scratch.py)."""
    compiled = _compiled(path)
    try:
        for name in (path, *compiled):
            # Not the time of the last change, by which Clang knows whether it is still the same.
            os.utime(name, ns=(time.time_ns(), os.stat(name).st_mtime_ns))
    except OSError:
        return False
    return bool(compiled)

"""Makes C++ builds in a worker atomic, and sets the folder of Inductor's files.

Inductor's C++ builds write kernels, objects, the precompiled header, and test programs for vector units. A process uses
any such file that it finds, because torch checks only that the file exists (codecache.py: _worker_compile_cpp;
cpu_vec_isa.py: check_build). But a linker creates its output empty and fills it at the end. If the linker is killed in
between, every later worker uses the incomplete file. Until the store is cleared, an incomplete kernel cannot be loaded,
and with an incomplete header no kernel can be built. So the compiler writes to a temporary name, and the worker renames
the finished file.

Building the precompiled header occupies a core for seconds. If one of the user's own programs has built the same
header in torch's directory for temporary files, the worker copies the header, unless another user could have created
it. A copied header may be incomplete because its program was killed, so a failed build is retried without the copy.

All of torch's C++ builds go through one function, which this file replaces. The writers of the other caches below the
scratch directory already rename files into place (docs/reference/artifact-format.md).

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
from precompiled.torch_internals.patches import Patches

BUILDING = ".building"  # suffix of the file that a compiler is writing
_HEADERS = "precompiled_headers"
_HEADER_SUFFIXES = (".gch", ".pch")  # suffixes of GCC and of Clang
_TORCHS_HEADERS = Path(codecache._HEADER_DIR)  # a directory that all programs of the user share

_original: Callable[[str, str], None] = cpp_builder.run_compile_cmd
_original_header: Any = codecache._precompile_header
_patches = Patches()
_last = threading.local()  # its attribute ``error`` is the error of the thread's last build
_damaged: set[Path] = set()  # headers of torch that a compiler could not read


def use(scratch: Path) -> None:
    """Put Inductor's files into ``scratch`` from now on, and make compiler output atomic."""
    if os.environ.get("TORCHINDUCTOR_CACHE_DIR") != str(scratch):
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(scratch)
        # Torch caches the path of its file of measurements. The cached path would be in another store's folder, or in a
        # folder that was removed.
        codecache.CacheBase.get_local_cache_path.cache_clear()
    headers = scratch / _HEADERS
    if str(headers) != codecache._HEADER_DIR:
        # Torch keeps headers in the system's directory for temporary files, for all programs of the user. Another user
        # may create a header in that directory first, and a killed program leaves an incomplete one.
        codecache._HEADER_DIR, codecache._HEADER_LOCK_DIR = str(headers), str(headers / "locks")
        _original_header.cache_clear()
    if cpp_builder.run_compile_cmd is not _run:  # compilers of the job before may still be started
        _patches.undo()
        _patches.replace(cpp_builder, "run_compile_cmd", lambda _: _run)
        _patches.replace(codecache, "_precompile_header", lambda _: _header)


def last_error() -> Exception | None:
    """The error of this thread's last build. Reading it clears it."""
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
    arguments = shlex.split(cmd_line)  # torch splits it in the same way
    if arguments.count("-o") != 1:
        _original(cmd_line, cwd)
        return
    place = arguments.index("-o") + 1
    target = arguments[place]
    # Each try gets a separate name, because compilers of a killed worker may live on for a moment and still write.
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
        for compiled in headers:  # if the retry fails as well, the error is the program's own
            _damaged.add(_torchs(compiled))
            with suppress(OSError):
                os.unlink(compiled)
        _original(cmd_line, cwd)


def _copied(target: str, to: str) -> bool:
    """Copy to ``to`` a precompiled header that this user's programs have built. Returns False if there is none."""
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
    """The path of torch's precompiled header that corresponds to a worker's ``compiled``."""
    return _TORCHS_HEADERS / Path(compiled).name


def _header(header: str, command_line: str = "", *arguments: object, **options: Any) -> str:
    """Return the precompiled header, and build it if it is missing. Torch looks for the header once per process, but a
    worker may outlive the files in scratch.

    Builds that differ only in extra flags for their own source file share one header. Torch would include these flags
    in the header's name, even in 2.13 and later, where torch pops ``extra_flags``. A second header would cost seconds
    of a core and 150 MB.
    """
    own = " ".join(options.pop("extra_flags", ()))  # joined as torch joins them
    arguments = (command_line.replace(own, "", 1), *arguments)
    path: str = _original_header(header, *arguments, **options)
    if not _in_use(path):
        for name in _compiled(path):
            with suppress(OSError):
                os.unlink(name)  # a compiler may refuse a header that is older than its source
        _original_header.cache_clear()
        path = _original_header(header, *arguments, **options)
        _in_use(path)
    return path


def _compiled(path: str) -> list[str]:
    return [name for suffix in _HEADER_SUFFIXES if os.path.exists(name := path + suffix)]


def _in_use(path: str) -> bool:
    """Whether a precompiled header exists.

    Marks the header as used now, so that cleanups do not remove it (store/scratch.py).
    """
    compiled = _compiled(path)
    try:
        for name in (path, *compiled):
            # The modification time stays, because Clang uses it to check that the header is unchanged.
            os.utime(name, ns=(time.time_ns(), os.stat(name).st_mtime_ns))
    except OSError:
        return False
    return bool(compiled)

"""Tests whether this host can build the code that Inductor generates.

If a compile fails because the host has no compiler, the graph may still be valid. So no process may store the failure,
and the failure must not stop a program that already runs the graph eagerly.

No graph is refused before its compile, because graphs without kernels of their own (a matrix product) need no compiler.
The result of ``missing_compiler`` is only for a warning before the program runs eagerly.

Private names: torch._inductor.cpp_builder.{get_cpp_compiler, cpp_compiler_search}. Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sysconfig
import tempfile
from pathlib import Path

from precompiled.core import interruptions

# Triton's errors if it finds no compiler for its launchers, or no assembler (triton/runtime/build.py, knobs.py).
_TRITONS = re.compile(r"Failed to find C compiler|Cannot find (?:ptxas|cuobjdump|nvdisasm)")
# A test program with the includes and link flags that every CPU kernel has.
_PROBE = "#include <Python.h>\n#include <omp.h>\nint probe() { return omp_get_max_threads(); }\n"
_PROBE_S = 60.0  # enough for a loaded host


def problem(error: BaseException, device: str) -> str:
    """Return why this host cannot build kernels for ``device``, or "" if it can: then the graph caused ``error``.

    Call this only after a compile has failed, because for the CPU it builds a small extension module.
    """
    found = _tritons(error)
    return found or (_of_cpp() if device == "cpu" else "")


def _tritons(error: BaseException | None) -> str:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if found := _TRITONS.search(str(error)):
            return f"Triton finds no compiler ({found.group()})"
        # Exceptions of Dynamo and Inductor contain the original exception.
        error = getattr(error, "inner_exception", None) or error.__cause__ or error.__context__
    return ""


def missing_compiler() -> str:
    """Return why torch finds no C++ compiler, or "" if it finds one. Starts no process if the usual compiler exists."""
    return "" if shutil.which(os.environ.get("CXX") or "g++") else _cpp_compiler()[1]


def _cpp_compiler() -> tuple[str, str]:
    """The C++ compiler that torch finds by its own rules, and the reason if it finds none. One of the two is ""."""
    from torch._inductor import cpp_builder

    cpp_builder.cpp_compiler_search.cache_clear()  # a compiler may have been removed since the last compile
    try:
        return str(cpp_builder.get_cpp_compiler()), ""
    except Exception as error:  # noqa: BLE001 - InvalidCxxCompiler, or an error of the search for it
        interruptions.pass_on(error)
        return "", f"this host has no C++ compiler ({str(error) or type(error).__name__})"


def _of_cpp() -> str:
    compiler, missing = _cpp_compiler()
    if missing:
        return missing
    try:
        with tempfile.TemporaryDirectory(prefix="precompiled-") as folder:
            source = Path(folder, "probe.cpp")
            source.write_text(_PROBE)
            done = subprocess.run(
                [
                    compiler,
                    "-shared",
                    "-fPIC",
                    "-fopenmp",
                    f"-I{sysconfig.get_path('include')}",
                    str(source),
                    "-o",
                    str(source.with_suffix(".so")),
                ],
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_PROBE_S,
                check=False,
                stdin=subprocess.DEVNULL,
            )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"the C++ compiler {compiler} does not run ({error})"
    if done.returncode == 0:
        return ""
    said = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip()[:200])
    return f"the C++ compiler {compiler} cannot build a Python extension module ({said or f'status {done.returncode}'})"

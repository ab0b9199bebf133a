"""Prepares the first C++ build of a store, while a worker starts and waits for its first job.

Before Inductor's first kernel can be built, a worker must find the CPU's vector units (vector_units.py) and precompile
the header that all kernels include (cpp_builds.py). Both steps together occupy a core for eight seconds. A worker that
starts ahead of its first job (docs/decisions/0016) takes both steps at the same time, while it imports Inductor and the
client still traces. The header is compiled for the best vector unit that the CPU names. If that unit fails its test,
the first job builds another header.

No private names. Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable
from pathlib import Path

from precompiled.torch_internals.worker import cpp_builds, kernel_units, vector_units

_running: tuple[threading.Thread, Path] | None = None


def begin(scratch: Path, of_the_host: Callable[[BaseException | None], bool]) -> None:
    """Prepare builds in ``scratch``. ``of_the_host``: as in vector_units.settled_unless."""
    global _running  # noqa: PLW0603
    cpp_builds.use(scratch)
    vector_units.settled_unless(of_the_host)
    vector_units.begin()
    thread = threading.Thread(target=_prepare, name="first-build", daemon=True)
    _running = thread, scratch
    thread.start()


def wait_unless_in(scratch: Path) -> None:
    """If a preparation runs in a folder other than ``scratch``, wait for its end, because Inductor has one folder for
    all threads.
    """
    global _running  # noqa: PLW0603
    if _running is not None and _running[1] != scratch:
        _running[0].join()
        _running = None


def _prepare() -> None:
    try:
        with vector_units.assumed():
            kernel_units.precompile_header()
    except Exception:  # noqa: BLE001 - the first job meets the same error, and records it
        traceback.print_exc()  # to the worker's log

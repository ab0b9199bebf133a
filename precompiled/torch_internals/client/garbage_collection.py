"""Python's garbage collector while Dynamo traces, or a package is looked for: seldom, instead of hundreds of times.

Tracing makes objects by the hundred thousand that stay until it ends, so that each collection looks at all of them and
finds next to nothing (docs/decisions/0014). The thresholds are raised, not the collector switched off: a trace that
does leave cycles behind is still collected.

Dynamo calls back before and after each frame that it compiles (torch/_dynamo/callback.py, which counts frames that
overlap in several threads). What is compiled in process runs under the program's own thresholds.

Private names: torch._dynamo.callback.callback_handler.{start_callbacks, register_start_callback,
register_end_callback}. Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import gc
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# Of CPython's three generations; the program's own are 700, 10, 10 unless it has set others.
SELDOM = (100_000, 20, 100)

_WITHOUT_A_LOCK = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))

_before: tuple[int, ...] | None = None


def install() -> None:
    """From now on; idempotent. ``torch.compiler.reset()`` forgets it: called again with each graph."""
    from torch._dynamo.callback import callback_handler

    if _begin not in callback_handler.start_callbacks:
        callback_handler.register_start_callback(_begin)
        callback_handler.register_end_callback(_end)


def _begin(_frame: Any = None) -> None:
    global _before  # noqa: PLW0603
    now = gc.get_threshold()
    # 0: the program has switched it off its own way.
    if _before is None and gc.isenabled() and 0 < now[0] < SELDOM[0]:
        _before = now
        gc.set_threshold(*SELDOM)


def _end(_frame: Any = None) -> None:
    global _before
    before, _before = _before, None  # first of all: a collection runs whatever is finalized by it
    # Else they were set while Dynamo traced: theirs. Python 3.14 says 0 for the oldest generation, whatever was set.
    if before is not None and gc.get_threshold()[:2] == SELDOM[:2]:
        # What is new is looked at here. Left to the program's next allocation it would be everything: the oldest
        # generation's turn has come as well by then, a third of a second with torch and transformers imported.
        if not _WITHOUT_A_LOCK:  # where each collection is a full one
            gc.collect(1)
            _put_off()
        gc.set_threshold(*before)


def _put_off() -> None:
    """Count from zero until the oldest generation's turn: ours are in it by now, and where that is a quarter more than
    there was, this first call's next import would look at everything.
    """
    if not gc.get_freeze_count():  # else what the program has put aside would come back
        gc.freeze()  # which is the way to the counts; the lists are joined, and not gone through
        gc.unfreeze()


@contextmanager
def seldom() -> Iterator[None]:
    """Where we allocate as much as a trace does, before Dynamo has called back: a package's guards."""
    raised = _before is None
    _begin()
    try:
        yield
    finally:
        if raised:
            _end()


@contextmanager
def as_usual() -> Iterator[None]:
    """For a compile in process, in the middle of a trace: minutes of allocations that are not a trace's."""
    raised = _before is not None
    _end()
    try:
        yield
    finally:
        if raised:
            _begin()

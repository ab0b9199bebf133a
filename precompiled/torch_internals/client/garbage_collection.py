"""Runs Python's garbage collector less often while Dynamo traces, or while a package is looked up.

A trace allocates hundreds of thousands of objects that live until its end, so each collection examines all of them and
frees almost nothing (docs/decisions/0014). The thresholds are raised, but the collector stays on, so the cycles that a
trace leaves behind are still collected.

Dynamo calls back before and after each frame that it compiles (torch/_dynamo/callback.py counts frames that overlap in
several threads). Compiles in process run under the program's own thresholds.

Private names: torch._dynamo.callback.callback_handler.{start_callbacks, register_start_callback,
register_end_callback, _CompilationCallbackHandler__pending_callbacks_counter}. Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import gc
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager, suppress

# For CPython's three generations. The defaults are 700, 10, 10.
SELDOM = (100_000, 20, 100)

_WITHOUT_A_LOCK = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))

_before: tuple[int, ...] | None = None


def install() -> None:
    """Register the callbacks unless they are registered.

    Called for each graph, because ``torch.compiler.reset()`` removes the callbacks.
    """
    from torch._dynamo.callback import callback_handler

    if _begin not in callback_handler.start_callbacks:
        callback_handler.register_start_callback(_begin)
        callback_handler.register_end_callback(_end_of_frame)


def _begin(_frame: object = None) -> None:
    global _before  # noqa: PLW0603
    now = gc.get_threshold()
    # A threshold of 0 means that the program has switched the collector off.
    if _before is None and gc.isenabled() and 0 < now[0] < SELDOM[0]:
        _before = now
        gc.set_threshold(*SELDOM)


def _end() -> None:
    global _before
    before, _before = _before, None  # set the variable first, because a collection runs finalizers
    # If the thresholds differ from SELDOM, the program has set them meanwhile. Python 3.14 reports 0 for the oldest
    # generation.
    if before is not None and gc.get_threshold()[:2] == SELDOM[:2]:
        try:
            # Collect the young generations now. Otherwise the program's next allocation would start a full collection,
            # which takes a third of a second with torch and transformers imported.
            if not _WITHOUT_A_LOCK:  # without the GIL, every collection is a full one
                gc.collect(1)
                _put_off()
        finally:
            gc.set_threshold(*before)


def _end_of_frame(_frame: object) -> None:
    try:
        _end()
    except BaseException:  # a signal handler of the program has raised
        # If an end callback raises, Dynamo does not decrement its counter of running compiles, and every later
        # ``torch.compiler.reset()`` would fail.
        from torch._dynamo.callback import callback_handler

        with suppress(AttributeError):
            callback_handler._CompilationCallbackHandler__pending_callbacks_counter -= 1
        raise


def _put_off() -> None:
    """Reset the collector's counters, so that the next full collection is not due at once.

    If the trace's objects enlarged the oldest generation by more than a quarter, the next import would start a full
    collection within the program's first call.
    """
    if not gc.get_freeze_count():  # otherwise unfreeze() would undo the program's own freeze()
        # freeze() resets the counters, and joins the lists of the generations without examining the objects.
        gc.freeze()
        gc.unfreeze()


@contextmanager
def seldom() -> Iterator[None]:
    """Raise the thresholds for work before Dynamo's callback that allocates as many objects as a trace, such as
    building a package's guards.
    """
    raised = _before is None
    _begin()
    try:
        yield
    finally:
        if raised:
            _end()


@contextmanager
def as_usual() -> Iterator[None]:
    """Restore the program's thresholds during a compile in process, which may take minutes in the middle of a trace."""
    raised = _before is not None
    _end()
    try:
        yield
    finally:
        if raised:
            _begin()

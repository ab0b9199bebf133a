"""Calls back at Dynamo's first trace in a process, so that the daemon and a worker start during the trace.

A callback at ``torch.compile`` itself would be too early to start a daemon: libraries call ``torch.compile`` for
functions that may never run. Traces for all backends call the callback.

Private names: torch._dynamo.callback.callback_handler.{start_callbacks, register_start_callback,
remove_start_callback}. Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable

from precompiled.core import interruptions
from precompiled.version import switched_off

log = logging.getLogger("precompiled.route")

_begun = False
_then: Callable[[], None] = lambda: None  # noqa: E731


def install(then: Callable[[], None]) -> None:
    """Call ``then`` at the first trace. Idempotent. ``torch.compiler.reset()`` removes the callback."""
    global _then  # noqa: PLW0603
    _then = then
    from torch._dynamo.callback import callback_handler

    if not _begun and _begin not in callback_handler.start_callbacks:
        callback_handler.register_start_callback(_begin)


def remove() -> None:
    """Remove the callback. Idempotent."""
    from torch._dynamo.callback import callback_handler

    if _begin in callback_handler.start_callbacks:
        callback_handler.remove_start_callback(_begin)


def _begin(_frame: object = None) -> None:
    global _begun  # noqa: PLW0603
    if _begun or switched_off(os.environ):
        return
    _begun = True
    try:
        _then()
    except Exception as error:  # noqa: BLE001 - the graph itself reports the error and falls back
        interruptions.pass_on(error)
        log.info("nothing was started before the first graph: %s", error)

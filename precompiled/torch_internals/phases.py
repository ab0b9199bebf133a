"""In a worker: which phases a compile comes to, and how long each took, as torch itself measures them.

torch notes the begin and the end of its phases (``dynamo_timed``), in each thread, for its own traces; the compilers
that are started are among them (``compile_file``).

Private names: torch._dynamo.utils.ChromiumEventLogger.{log_event_start, log_event_end}.
Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch._dynamo.utils

from precompiled.core.spans import Span

# The phases that people are told of, by torch's names for them.
_TOLD = {
    "create_aot_dispatcher_function": "AOTAutograd",
    "compile_fx.<locals>.fw_compiler_base": "Inductor: forward",
    "compile_fx.<locals>.bw_compiler": "Inductor: backward",
}


@contextmanager
def noted(spans: list[Span], phase: Callable[[str], None]) -> Iterator[None]:
    """Add to ``spans`` what torch measures meanwhile, in all threads; ``phase`` is told what the compile comes to."""
    logger: Any = getattr(torch._dynamo.utils, "ChromiumEventLogger", None)
    start, end = getattr(logger, "log_event_start", None), getattr(logger, "log_event_end", None)
    if start is None or end is None:  # no compile fails for what is only told
        yield
        return

    def log_event_start(self: Any, event_name: str, *rest: Any, **more: Any) -> None:
        start(self, event_name, *rest, **more)
        if (told := _TOLD.get(event_name)) is not None:
            phase(told)

    def log_event_end(
        self: Any, event_name: str, time_ns: int, metadata: Any, start_time_ns: int, *rest: Any, **more: Any
    ) -> None:
        end(self, event_name, time_ns, metadata, start_time_ns, *rest, **more)
        spans.append(
            Span(event_name, start_time_ns / 1e9, (time_ns - start_time_ns) / 1e9, threading.get_native_id())
        )

    logger.log_event_start = log_event_start
    logger.log_event_end = log_event_end
    try:
        yield
    finally:
        logger.log_event_start = start
        logger.log_event_end = end

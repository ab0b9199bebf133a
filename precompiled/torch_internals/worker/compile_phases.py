"""Reports a compile's progress in a worker: its current phase, the number of built kernels, and the time of each phase.

For its own event log, torch records per thread when each of its phases starts and ends (``dynamo_timed``). A run of the
C++ compiler may outlast the lowering of its graph, so ``timed`` measures such a run instead of torch. While torch waits
for a graph's Triton kernels, it updates a progress bar (``_inductor.config.disable_progress``). This file replaces the
progress bar to count the kernels. kernel_units.py counts C++ kernels.

Private names: torch._dynamo.utils.ChromiumEventLogger.{log_event_start, log_event_end},
torch._inductor.async_compile.tqdm.
Checked on 2.11.0, 2.13.0, 2.15.0.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Protocol

import torch._dynamo.utils
import torch._inductor.async_compile

from precompiled.core.spans import Span, span_until_now
from precompiled.torch_internals.patches import Patches

# maps torch's names of phases to the names that are shown
_PHASES = {
    "create_aot_dispatcher_function": "AOTAutograd",
    "compile_fx.<locals>.fw_compiler_base": "Inductor: forward",
    "compile_fx.<locals>.bw_compiler": "Inductor: backward",
}


_thread = threading.local()


@contextmanager
def timed(spans: list[Span]) -> Iterator[None]:
    """Add a run of the C++ compiler to ``spans``.

    Torch's own measurement of the run might be added to the next job's spans.
    """
    began = time.monotonic()
    _thread.is_timed = True
    try:
        yield
    finally:
        _thread.is_timed = False
        spans.append(span_until_now("C++ compiler", time.monotonic() - began))


class ProgressReceiver(Protocol):
    """Receives the progress of a compile (store/job_phases.py: JobRecord)."""

    spans: list[Span]

    def phase(self, name: str) -> None:
        """The compile enters the phase of this name."""

    def kernels(self, built: int, of: int) -> None:
        """The compile waits for ``of`` kernels; ``built`` of them are ready."""


class IgnoredProgress:
    """Ignores the progress."""

    def __init__(self) -> None:
        self.spans: list[Span] = []

    def phase(self, name: str) -> None:
        pass

    def kernels(self, built: int, of: int) -> None:
        pass


def _counting(on_progress: Callable[[int, int], None]) -> type:
    class Counting:
        """Has the part of tqdm's interface that torch uses."""

        def __init__(self, *, total: int, **_options: object) -> None:
            self._built, self._total = 0, total
            self.update(0)

        def update(self, count: int) -> None:
            self._built += count
            if self._total:
                on_progress(self._built, self._total)

        def set_postfix_str(self, text: str) -> None:
            pass

    return Counting


@contextmanager
def noted(progress: ProgressReceiver) -> Iterator[None]:
    """Add torch's measurements in all threads to ``progress.spans``, and report phases and built kernels."""
    with Patches() as patches:
        with suppress(AttributeError):  # without torch's private names, the compile runs unmeasured
            patches.replace(torch._inductor.async_compile, "tqdm", lambda _: _counting(progress.kernels))
            logger = torch._dynamo.utils.ChromiumEventLogger
            patches.replace(logger, "log_event_start", functools.partial(_phase_noted, progress))
            patches.replace(logger, "log_event_end", functools.partial(_span_noted, progress))
        yield


def _phase_noted(progress: ProgressReceiver, start: Callable[..., None]) -> Callable[..., None]:
    def log_event_start(self: object, event_name: str, *rest: object, **more: object) -> None:
        start(self, event_name, *rest, **more)
        if (phase := _PHASES.get(event_name)) is not None:
            progress.phase(phase)

    return log_event_start


def _span_noted(progress: ProgressReceiver, end: Callable[..., None]) -> Callable[..., None]:
    def log_event_end(
        self: object, event_name: str, time_ns: int, metadata: object, start_time_ns: int, *rest: object, **more: object
    ) -> None:
        end(self, event_name, time_ns, metadata, start_time_ns, *rest, **more)
        if getattr(_thread, "is_timed", False):
            return
        progress.spans.append(
            Span(event_name, start_time_ns / 1e9, (time_ns - start_time_ns) / 1e9, threading.get_native_id())
        )

    return log_event_end

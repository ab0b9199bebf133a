"""Holds a GraphReport for each graph of this process, and the counts for the daemon."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from precompiled.client.swap import Event, State, Swap
from precompiled.core.paths import TIMELINE_VARIABLE
from precompiled.core.spans import SECOND_CALL, Span, span_until_now
from precompiled.core.words import describe_after_swap, format_count

MAX_SPANS = 32  # spans per graph: a loop whose sizes always change loads variants without end


@dataclass
class GraphReport:
    """One captured graph. Times are in seconds.

    - ``state``: "eager", "pending", "compiled", "failed" or "bypassed"
    - ``source``: "hit" (the lookup found the artifact), "swap" (the
      artifact came after the lookup), "package" (a hit without a trace),
      "inline" (compiled in this process), "error" (with ``require``, its
      call raised an error), or None until the graph has compiled code
    - ``reason``: the stable code of a bypassed or failed graph, or of a
      graph whose calls wait ("stand-in-raised"); otherwise ""
    - ``message``: the reason as a sentence
    - ``calls_eager``: all eager calls, before and after the swap. The line
      "compiled after call 200" on the terminal counts the calls before the
      swap.
    - ``eager_after_swap``: the eager calls after the swap, by reason:
      "timed" (compared with the times of compiled calls), "sizes" (no
      artifact fits their sizes), "capture" (compiled code must not run for
      the first time in a CUDA graph capture). Empty if the graph went back
      to eager code for good.
    - ``spans``: the times of what this process did for the graph: "lookup",
      "submit", "wait", "load", "check", "compile in process"
    """

    id: str
    name: str
    key: str = ""
    state: str = State.EAGER.value
    source: str | None = None
    reason: str = ""
    message: str = ""
    lookup_s: float = 0.0  # duration of capture, key and lookup, which block the program
    load_s: float = 0.0
    swapped_after_s: float = 0.0  # from the cache miss to the swap
    compile_s: float = 0.0  # duration of the compile, in a worker
    saved_s: float = 0.0  # compile_s of a hit; 0 if a worker compiled the graph after its miss
    calls_eager: int = 0
    calls_compiled: int = 0
    eager_after_swap: dict[str, int] = field(default_factory=dict)
    spans: list[Span] = field(default_factory=list)

    @property
    def why(self) -> str:
        """The reason on one line, or for a pending graph the command that shows its compile. For a served graph, the
        number of eager calls after the swap; "" if there are none.
        """
        if self.reason:
            return f"{self.reason}: {self.message.partition(chr(10))[0]}"
        if self.state == State.PENDING.value:
            return "`precompiled explain` says why, and what it waits for"
        return describe_after_swap(self.eager_after_swap)

    @property
    def calls_are_counted(self) -> bool:
        """Whether the numbers of calls are known. torch calls the code of some bypassed graphs without precompiled."""
        return self.state != State.BYPASSED.value or self.calls_eager + self.calls_compiled > 0

    def __repr__(self) -> str:
        why = self.source or self.reason
        calls = "calls not counted"
        if self.calls_are_counted:
            calls = f"{self.calls_eager} eager and {format_count(self.calls_compiled, 'compiled call')}"
        return f"<GraphReport {self.name}: {self.state}{f' ({why})' if why else ''}, {calls}>"


class Ledger:
    """The graphs and counts of this process. Thread-safe."""

    def __init__(self, on_count: Callable[[], None] = lambda: None) -> None:
        self._lock = threading.Lock()
        self._on_count = on_count
        self._graphs: list[GraphCalls] = []
        # the counts since the last Tally, by field of Tally (wire.py)
        self._counts: dict[str, Any] = {}

    def after_fork(self) -> None:
        """In a fork's child, make a new lock, because a thread of the parent may hold the old lock. Drop the counts,
        which the parent sends.
        """
        self._lock = threading.Lock()
        self._counts = {}

    def add(self, graph: GraphCalls) -> None:
        with self._lock:
            self._graphs.append(graph)

    def __len__(self) -> int:
        """The number of graphs."""
        return len(self._graphs)

    def forget(self, graph: GraphCalls) -> None:
        """Remove a graph whose frame Dynamo retraces."""
        with self._lock:
            self._graphs.remove(graph)

    def reports(self, start: int = 0) -> list[GraphReport]:
        with self._lock:
            return [graph.snapshot() for graph in self._graphs[start:]]

    def count(self, **changes: float) -> None:
        """Add each value to the count of its name. The names are fields of wire.Tally."""
        with self._lock:
            for name, amount in changes.items():
                self._counts[name] = self._counts.get(name, 0) + amount
        self._on_count()

    def count_reason(self, kind: str, code: str) -> None:
        """Count a reason; ``kind``: "fallbacks", "bypassed", "not_served" or "not_kept"."""
        with self._lock:
            table = self._counts.setdefault(kind, {})
            table[code] = table.get(code, 0) + 1
        self._on_count()

    def take_counts(self) -> dict[str, Any]:
        """Return the nonzero counts since the last call, by field of wire.Tally. Reset all counts."""
        with self._lock:
            counts, self._counts = self._counts, {}
        return {name: amount for name, amount in counts.items() if amount}


class GraphCalls:
    """A graph's report and its calls. Calls are counted without a lock."""

    def __init__(self, report: GraphReport) -> None:
        self.report = report
        self.swap = Swap()
        self.calls = 0
        self.calls_before_flip: int | None = None
        self.calls_unserved = 0  # calls that ran eager after the swap
        self.eager_after_swap: dict[str, int] = {}  # as in GraphReport

    def ran_eager(self, why: str = "") -> None:
        """Count a call that ran eager after the swap. ``why``: as in GraphReport, or "" if the graph stays eager."""
        self.calls_unserved += 1
        if why:
            self.eager_after_swap[why] = self.eager_after_swap.get(why, 0) + 1

    def spent(self, what: str, seconds: float) -> None:
        """Record that this thread spent the last ``seconds`` on ``what`` for the graph."""
        if len(self.report.spans) < MAX_SPANS:
            self.report.spans.append(span_until_now(what, seconds))

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        """Record the time of the enclosed work for the graph, even if the work raises."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.spent(what, time.perf_counter() - started)

    def loaded(self, source: str, load_s: float, compile_s: float, swap: Swap | None = None) -> None:
        """Record that an artifact serves this graph.

        - ``source``: as in GraphReport
        - ``load_s``, ``compile_s``: seconds that the load and the worker's compile took
        - ``swap``: the state of a further variant, or None for the graph's own state
        """
        report = self.report
        report.load_s = load_s
        self.spent("load", load_s)
        # A further variant changes the times of the report, but not the field ``source``.
        report.source = report.source or source
        report.compile_s += compile_s
        if source == "swap":  # the calls before the swap have been counted
            (swap or self.swap).on(Event.LOADED)
        else:
            report.saved_s += compile_s
            self.swap.on(Event.HIT)
            self.calls_before_flip = 0

    def bypassed(self, code: str, message: str) -> None:
        """Record that the graph is compiled in this process before its first call."""
        self.report.reason, self.report.message = code, message
        self.swap.on(Event.BYPASS)
        self.calls_before_flip = 0

    def left_eager(self) -> None:
        """Record that the graph stays eager, because its compile in this process failed."""
        self.swap = Swap()
        self.swap.on(Event.FAILED)
        self.calls_before_flip = None

    def went_back(self, code: str, message: str) -> None:
        """Record that the graph runs eager for good. Calls that ran compiled keep their count."""
        self.report.reason, self.report.message = code, message
        self.swap = Swap()
        self.swap.on(Event.FAILED)

    def refused(self, code: str, message: str) -> None:
        """Record that the graph does not run and that its calls raise, because ``require`` is set."""
        self.report.reason, self.report.message, self.report.source = code, message, "error"
        self.swap.on(Event.FAILED)

    def snapshot(self) -> GraphReport:
        """Return a copy of the report with the current state and calls."""
        values = {**vars(self.report), "state": self.swap.state.value, "spans": list(self.report.spans)}
        values["eager_after_swap"] = {} if self.swap.state is State.FAILED else dict(self.eager_after_swap)
        calls = self.calls
        before = self.calls_before_flip
        eager = calls if before is None else before + self.calls_unserved
        return GraphReport(**{**values, "calls_eager": eager, "calls_compiled": calls - eager})


class TimedGraphCalls(GraphCalls):
    """Records the time of a graph's second call. `precompiled timeline` takes this time as the end of the first step.

    The attribute ``calls`` is slower here, so only processes that `timeline` started use this class.
    """

    @property
    def calls(self) -> int:
        return self._calls

    @calls.setter
    def calls(self, number: int) -> None:
        self._calls = number
        if number == 2:
            self.spent(SECOND_CALL, 0.0)


def graph_calls(report: GraphReport) -> GraphCalls:
    """The calls of a new graph."""
    return (TimedGraphCalls if os.environ.get(TIMELINE_VARIABLE) else GraphCalls)(report)
